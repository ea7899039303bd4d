//! TUN devices with segmentation offload, in the namespaces of other processes.
//!
//! # Safety
//! Three `ioctl`s on a descriptor of `/dev/net/tun` that this module has opened itself; each is given what the kernel's interface says it reads, and writes nothing but the device's name, into memory of that size.

#![cfg(target_os = "linux")]

use anyhow::{Context, Result, bail};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{Mode, OFlags, open},
    ioctl::{IntegerSetter, Opcode, Setter, ioctl},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::ffi::c_int;

const TUNSETIFF: Opcode = 0x4004_54ca;
const TUNSETOFFLOAD: Opcode = 0x4004_54d0;
const TUNSETVNETHDRSZ: Opcode = 0x4004_54d8;

/// IFF_TUN, IFF_NO_PI and IFF_VNET_HDR of `linux/if_tun.h`.
const FLAGS: u16 = 0x0001 | 0x1000 | 0x4000;
/// TUN_F_CSUM and TUN_F_TSO4.
const OFFLOAD: usize = 0x01 | 0x02;

/// Bytes of the header before each packet: `struct virtio_net_hdr`.
pub(super) const HEADER: usize = 10;

/// `struct ifreq`: a name, and a union of which the first two bytes are the flags.
#[repr(C, align(8))]
#[derive(Debug)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}
const _: () = assert!(size_of::<Request>() == 40);

/// Makes the device `name` in the network namespace of process `pid`, into which the calling thread moves for good.
///
/// # Errors
/// What the system says.
pub(super) fn open_in(pid: u32, name: &str) -> Result<OwnedFd> {
    let path = format!("/proc/{pid}/ns/net");
    let namespace = open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("cannot open {path}"))?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("cannot enter the network of process {pid}"))?;
    let device = "/dev/net/tun";
    let tun = open(
        device,
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .with_context(|| format!("cannot open {device}"))?;
    if name.len() >= 16 {
        bail!("{name} is too long for an interface's name");
    }
    let mut request = Request {
        name: [0; 16],
        flags: FLAGS,
        rest: [0; 22],
    };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, which `Request` is laid out as (its size is asserted above); the kernel's definition of the number says `int`, but its code copies the whole structure.
    let made = unsafe { ioctl(&tun, Setter::<TUNSETIFF, Request>::new(request)) };
    made.with_context(|| format!("cannot make the device {name}"))?;
    // SAFETY: TUNSETVNETHDRSZ reads one int, and HEADER is the size of `struct virtio_net_hdr`.
    let sized = unsafe { ioctl(&tun, Setter::<TUNSETVNETHDRSZ, c_int>::new(HEADER as c_int)) };
    sized.context("cannot set the size of a packet's header")?;
    // SAFETY: TUNSETOFFLOAD takes its flags by value and touches no memory of this process.
    let offload = unsafe { ioctl(&tun, IntegerSetter::<TUNSETOFFLOAD>::new_usize(OFFLOAD)) };
    offload.context("the kernel offers no segmentation offload on TUN devices")?;
    Ok(tun)
}
