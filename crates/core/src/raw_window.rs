//! Views of memory that others may write meanwhile, and fast copies in and out of it.
//!
//! # Safety
//! Bytes that another process has mapped too may change at any moment, so nothing here makes a reference to them: they are moved by machine instructions that the compiler knows nothing of but that they may read or change memory (as for a system call), or byte by byte and word by word with relaxed atomics.
//! A racing write gives torn bytes at worst, never undefined values.
//! A [`Window`] or [`WindowMut`] stays within the bytes that it was made for, which outlive it.

use std::{marker::PhantomData, ops::Range, ptr::NonNull};

/// Bytes to read, that others may write meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    start: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a [u8]>,
}

/// Bytes to read and write, that others may read and write meanwhile.
///
/// It can be copied, so that one place is what is read and what is written: whoever writes through one copy while another is read gets old and new bytes mixed, nothing worse.
#[derive(Clone, Copy, Debug)]
pub struct WindowMut<'a> {
    start: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Window<'a> {
    /// # Safety
    /// For as long as `'a`, these bytes are mapped and can be read.
    /// Nobody of this program has a `&mut` to them, or writes them in a way that is neither atomic nor assembly, while they are read.
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Window<'a> {
        Window {
            start,
            len,
            memory: PhantomData,
        }
    }

    /// Length in bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Where it begins. Its bytes are read by copies, assembly and atomics alone.
    pub fn start(self) -> NonNull<u8> {
        self.start
    }

    /// Some of its bytes; `None` where they are not in it.
    pub fn part(self, bytes: Range<usize>) -> Option<Window<'a>> {
        let start = within(self.start, self.len, &bytes)?;
        Some(Window {
            start,
            len: bytes.end - bytes.start,
            memory: PhantomData,
        })
    }

    /// Copies its bytes from number `at` on.
    ///
    /// # Panics
    /// If it does not have them.
    #[track_caller]
    pub fn read(self, at: usize, out: &mut [u8]) {
        let Some(from) = at.checked_add(out.len()).and_then(|hi| self.part(at..hi)) else {
            panic!("{} bytes at {at} of {} mapped ones", out.len(), self.len);
        };
        copy_window(WindowMut::from(out), from, Stores::Cached);
    }
}

impl<'a> WindowMut<'a> {
    /// # Safety
    /// For as long as `'a`, these bytes are mapped and can be read and written.
    /// Nobody of this program has a reference to them while they are written, or a `&mut` while they are read.
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> WindowMut<'a> {
        WindowMut {
            start,
            len,
            memory: PhantomData,
        }
    }

    /// Length in bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Where it begins. Its bytes are read and written by copies, assembly and atomics alone.
    pub fn start(self) -> NonNull<u8> {
        self.start
    }

    /// Some of its bytes; `None` where they are not in it.
    pub fn part(self, bytes: Range<usize>) -> Option<WindowMut<'a>> {
        let start = within(self.start, self.len, &bytes)?;
        Some(WindowMut {
            start,
            len: bytes.end - bytes.start,
            memory: PhantomData,
        })
    }

    /// Replaces its bytes from number `at` on.
    ///
    /// # Panics
    /// If it does not have them.
    #[track_caller]
    pub fn write(self, at: usize, bytes: &[u8], stores: Stores) {
        let to = at.checked_add(bytes.len()).and_then(|hi| self.part(at..hi));
        let Some(to) = to else {
            panic!("{} bytes at {at} of {} mapped ones", bytes.len(), self.len);
        };
        copy_window(to, Window::from(bytes), stores);
    }
}

fn within(start: NonNull<u8>, len: usize, bytes: &Range<usize>) -> Option<NonNull<u8>> {
    let inside = bytes.start <= bytes.end && bytes.end <= len;
    // SAFETY: not beyond the end of the window's bytes, as just checked.
    inside.then(|| unsafe { start.add(bytes.start) })
}

impl<'a> From<&'a [u8]> for Window<'a> {
    fn from(bytes: &'a [u8]) -> Window<'a> {
        Window {
            start: NonNull::from(bytes).cast(),
            len: bytes.len(),
            memory: PhantomData,
        }
    }
}

impl<'a> From<&'a mut [u8]> for WindowMut<'a> {
    fn from(bytes: &'a mut [u8]) -> WindowMut<'a> {
        WindowMut {
            len: bytes.len(),
            start: NonNull::from(bytes).cast(),
            memory: PhantomData,
        }
    }
}

impl<'a> From<WindowMut<'a>> for Window<'a> {
    fn from(w: WindowMut<'a>) -> Window<'a> {
        Window {
            start: w.start,
            len: w.len,
            memory: PhantomData,
        }
    }
}

/// How results are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stores {
    /// As all stores are: the lines are fetched, and stay in the cache.
    #[default]
    Cached,
    /// Past the caches where that can be: for results that do not fit into them. Ends with a fence, so that a flag stored afterwards is seen after the bytes.
    Streamed,
}

impl Stores {
    /// From this many bytes on, of all that an operation reads and writes here, nothing of its beginning is in the caches at its end.
    const STREAM: u64 = 16 << 20;

    /// What suits an operation that reads and writes so many bytes together.
    pub fn of(bytes: u64) -> Stores {
        match bytes >= Stores::STREAM {
            true => Stores::Streamed,
            false => Stores::Cached,
        }
    }
}

/// `to` = `from`, which do not overlap (else bytes are mixed up, nothing worse).
///
/// # Panics
/// If they differ in length.
#[track_caller]
pub fn copy_window(to: WindowMut<'_>, from: Window<'_>, stores: Stores) {
    assert!(
        to.len == from.len,
        "a copy of {} bytes to a place of {}",
        from.len,
        to.len
    );
    // SAFETY: both windows have as many bytes, which are mapped.
    unsafe { copy(to.start.as_ptr(), from.start.as_ptr(), to.len, stores) };
}

/// The widest vectors, in bytes, that this machine copies by: 64, 32 or 16.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn width() -> usize {
    if is_x86_feature_detected!("avx512f") {
        64
    } else if is_x86_feature_detected!("avx") {
        32
    } else {
        16
    }
}

/// # Safety
/// Both ranges are mapped.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy(dst: *mut u8, src: *const u8, n: usize, stores: Stores) {
    // SAFETY: every range handed on is within the caller's.
    unsafe {
        if n <= 64 {
            return x86::short(dst, src, n);
        }
        // Whole lines of the destination in the loop, what is before and after them around it.
        let mut done = 0;
        if n >= 512 || stores == Stores::Streamed {
            done = dst.addr().next_multiple_of(64) - dst.addr();
            x86::short(dst, src, done);
        }
        let (at, from) = (dst.add(done), src.add(done));
        let body = (n - done) & !63;
        x86::lines(at, from, body, width(), stores);
        done += body;
        x86::short(dst.add(done), src.add(done), n - done);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use super::Stores;
    use std::arch::asm;

    /// At most 64 bytes, by pieces that overlap in the middle.
    ///
    /// # Safety
    /// As many bytes are mapped on both sides, and `n` ≤ 64.
    pub(super) unsafe fn short(dst: *mut u8, src: *const u8, n: usize) {
        // SAFETY: every piece begins and ends within the `n` bytes, as the arms' bounds say. To the compiler this is code that may read and write any memory it has been shown, so that a racing write of another process cannot be reasoned away.
        unsafe {
            match n {
                0 => {}
                1..4 => asm!(
                    "2:",
                    "mov {b}, byte ptr [{s} + {n} - 1]",
                    "mov byte ptr [{d} + {n} - 1], {b}",
                    "dec {n}",
                    "jnz 2b",
                    b = out(reg_byte) _,
                    n = inout(reg) n => _,
                    s = in(reg) src,
                    d = in(reg) dst,
                    options(nostack)
                ),
                4..8 => asm!(
                    "mov {a:e}, dword ptr [{s}]",
                    "mov {b:e}, dword ptr [{s} + {n} - 4]",
                    "mov dword ptr [{d}], {a:e}",
                    "mov dword ptr [{d} + {n} - 4], {b:e}",
                    a = out(reg) _, b = out(reg) _,
                    n = in(reg) n, s = in(reg) src, d = in(reg) dst,
                    options(nostack, preserves_flags)
                ),
                8..16 => asm!(
                    "mov {a}, qword ptr [{s}]",
                    "mov {b}, qword ptr [{s} + {n} - 8]",
                    "mov qword ptr [{d}], {a}",
                    "mov qword ptr [{d} + {n} - 8], {b}",
                    a = out(reg) _, b = out(reg) _,
                    n = in(reg) n, s = in(reg) src, d = in(reg) dst,
                    options(nostack, preserves_flags)
                ),
                16..32 => asm!(
                    "movups {a}, xmmword ptr [{s}]",
                    "movups {b}, xmmword ptr [{s} + {n} - 16]",
                    "movups xmmword ptr [{d}], {a}",
                    "movups xmmword ptr [{d} + {n} - 16], {b}",
                    a = out(xmm_reg) _, b = out(xmm_reg) _,
                    n = in(reg) n, s = in(reg) src, d = in(reg) dst,
                    options(nostack, preserves_flags)
                ),
                _ => asm!(
                    "movups {a}, xmmword ptr [{s}]",
                    "movups {b}, xmmword ptr [{s} + 16]",
                    "movups {c}, xmmword ptr [{s} + {n} - 32]",
                    "movups {e}, xmmword ptr [{s} + {n} - 16]",
                    "movups xmmword ptr [{d}], {a}",
                    "movups xmmword ptr [{d} + 16], {b}",
                    "movups xmmword ptr [{d} + {n} - 32], {c}",
                    "movups xmmword ptr [{d} + {n} - 16], {e}",
                    a = out(xmm_reg) _, b = out(xmm_reg) _,
                    c = out(xmm_reg) _, e = out(xmm_reg) _,
                    n = in(reg) n, s = in(reg) src, d = in(reg) dst,
                    options(nostack, preserves_flags)
                ),
            }
        }
    }

    /// A loop over lines of 64 bytes, upwards, of `$load` and `$store` instructions.
    macro_rules! lines {
        ($dst:ident, $src:ident, $n:ident, $end:literal, $($line:literal),+) => {
            asm!(
                "2:",
                $($line,)+
                "add {i}, 64",
                "cmp {i}, {n}",
                "jb 2b",
                $end,
                i = inout(reg) 0usize => _,
                n = in(reg) $n,
                s = in(reg) $src,
                d = in(reg) $dst,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nostack)
            )
        };
    }

    /// Copies `n` bytes, a multiple of 64, by vectors of `width` bytes; past the caches where so told.
    ///
    /// # Safety
    /// As many bytes are mapped on both sides, the processor has such vectors, and for streaming the destination is at the beginning of a line.
    #[inline(never)]
    pub(super) unsafe fn lines(
        dst: *mut u8,
        src: *const u8,
        n: usize,
        width: usize,
        stores: Stores,
    ) {
        if n == 0 {
            return;
        }
        // SAFETY: the loop touches the bytes below `n` of both sides; the caller has asked the processor for the vectors; the upper halves that `vzeroupper` clears belong to registers that are declared as changed.
        unsafe {
            match (width, stores) {
                (64, Stores::Cached) => lines!(
                    dst,
                    src,
                    n,
                    "vzeroupper",
                    "vmovups zmm0, zmmword ptr [{s} + {i}]",
                    "vmovups zmmword ptr [{d} + {i}], zmm0"
                ),
                (64, Stores::Streamed) => lines!(
                    dst,
                    src,
                    n,
                    "vzeroupper\nsfence",
                    "vmovups zmm0, zmmword ptr [{s} + {i}]",
                    "vmovntps zmmword ptr [{d} + {i}], zmm0"
                ),
                (32, Stores::Cached) => lines!(
                    dst,
                    src,
                    n,
                    "vzeroupper",
                    "vmovups ymm0, ymmword ptr [{s} + {i}]",
                    "vmovups ymm1, ymmword ptr [{s} + {i} + 32]",
                    "vmovups ymmword ptr [{d} + {i}], ymm0",
                    "vmovups ymmword ptr [{d} + {i} + 32], ymm1"
                ),
                (32, Stores::Streamed) => lines!(
                    dst,
                    src,
                    n,
                    "vzeroupper\nsfence",
                    "vmovups ymm0, ymmword ptr [{s} + {i}]",
                    "vmovups ymm1, ymmword ptr [{s} + {i} + 32]",
                    "vmovntps ymmword ptr [{d} + {i}], ymm0",
                    "vmovntps ymmword ptr [{d} + {i} + 32], ymm1"
                ),
                (_, Stores::Cached) => lines!(
                    dst,
                    src,
                    n,
                    "",
                    "movups xmm0, xmmword ptr [{s} + {i}]",
                    "movups xmm1, xmmword ptr [{s} + {i} + 16]",
                    "movups xmm2, xmmword ptr [{s} + {i} + 32]",
                    "movups xmm3, xmmword ptr [{s} + {i} + 48]",
                    "movups xmmword ptr [{d} + {i}], xmm0",
                    "movups xmmword ptr [{d} + {i} + 16], xmm1",
                    "movups xmmword ptr [{d} + {i} + 32], xmm2",
                    "movups xmmword ptr [{d} + {i} + 48], xmm3"
                ),
                (_, Stores::Streamed) => lines!(
                    dst,
                    src,
                    n,
                    "sfence",
                    "movups xmm0, xmmword ptr [{s} + {i}]",
                    "movups xmm1, xmmword ptr [{s} + {i} + 16]",
                    "movups xmm2, xmmword ptr [{s} + {i} + 32]",
                    "movups xmm3, xmmword ptr [{s} + {i} + 48]",
                    "movntps xmmword ptr [{d} + {i}], xmm0",
                    "movntps xmmword ptr [{d} + {i} + 16], xmm1",
                    "movntps xmmword ptr [{d} + {i} + 32], xmm2",
                    "movntps xmmword ptr [{d} + {i} + 48], xmm3"
                ),
            }
        }
    }
}

/// As above, one by one.
///
/// # Safety
/// As above.
#[cfg(miri)]
unsafe fn copy(dst: *mut u8, src: *const u8, n: usize, _: Stores) {
    for i in 0..n {
        // SAFETY: the caller's promise. Not atomic, since no `&AtomicU8` can be made of a `&[u8]`.
        unsafe { dst.add(i).write_volatile(src.add(i).read_volatile()) };
    }
}

/// As above, word by word where both sides are aligned alike.
///
/// # Safety
/// As above.
#[cfg(not(any(target_arch = "x86_64", miri)))]
unsafe fn copy(dst: *mut u8, src: *const u8, n: usize, _: Stores) {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
    let together = (dst.addr() ^ src.addr()).is_multiple_of(8);
    let head = (src.addr().next_multiple_of(8) - src.addr()).min(n);
    let words = if together { (n - head) / 8 } else { 0 };
    // SAFETY: the caller's promise; words are aligned on both sides, as just checked; every access is atomic.
    unsafe {
        let byte = |i: usize| {
            let b = AtomicU8::from_ptr(src.cast_mut().add(i)).load(Relaxed);
            AtomicU8::from_ptr(dst.add(i)).store(b, Relaxed);
        };
        (0..if together { head } else { n }).for_each(byte);
        if together {
            for i in 0..words {
                let at = head + 8 * i;
                let w = AtomicU64::from_ptr(src.cast_mut().add(at).cast()).load(Relaxed);
                AtomicU64::from_ptr(dst.add(at).cast()).store(w, Relaxed);
            }
            (head + 8 * words..n).for_each(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 37 + i / 251) as u8).collect()
    }

    #[test]
    fn copies_move_these_bytes_and_no_others_whatever_the_length_and_the_alignment() {
        let lens = (0..=130).chain([255, 256, 257, 511, 512, 513, 1021, 4099]);
        for n in lens {
            for (shift, from) in [(0, 0), (1, 0), (0, 3), (63, 17), (8, 8)] {
                for stores in [Stores::Cached, Stores::Streamed] {
                    let src = bytes(n + from);
                    let mut dst = vec![0xee; shift + n + 70];
                    let all = WindowMut::from(&mut dst[..]);
                    let to = all.part(shift..shift + n).unwrap();
                    copy_window(
                        to,
                        Window::from(&src[..]).part(from..from + n).unwrap(),
                        stores,
                    );
                    assert_eq!(dst[shift..shift + n], src[from..], "{n} {shift} {from}");
                    assert!(dst[..shift].iter().all(|b| *b == 0xee), "{n} {shift}");
                    assert!(dst[shift + n..].iter().all(|b| *b == 0xee), "{n} {shift}");
                }
            }
        }
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn vectors_of_every_width_copy_the_same() {
        for width in [16, 32, 64].into_iter().filter(|w| *w <= width()) {
            for stores in [Stores::Cached, Stores::Streamed] {
                let src = bytes(64 * 7);
                let mut room = vec![0; 64 * 9];
                let at = room.as_ptr().addr().next_multiple_of(64) - room.as_ptr().addr();
                // SAFETY: `at` is below 64, and the room has 64 bytes more than twice that.
                unsafe {
                    x86::lines(
                        room.as_mut_ptr().add(at),
                        src.as_ptr(),
                        64 * 7,
                        width,
                        stores,
                    );
                }
                assert_eq!(room[at..at + 64 * 7], src, "{width} {stores:?}");
            }
        }
    }

    #[test]
    fn a_part_that_is_not_there_is_none() {
        let mut b = bytes(10);
        let w = WindowMut::from(&mut b[..]);
        assert!(w.part(3..11).is_none());
        assert!(w.part(11..11).is_none());
        assert_eq!(w.part(10..10).map(WindowMut::len), Some(0));
        let w = Window::from(w);
        assert_eq!(w.part(2..9).map(Window::len), Some(7));
        assert!(w.part(0..usize::MAX).is_none());
    }
}
