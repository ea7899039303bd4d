//! What every transport must do: one suite that each implementation runs.
//!
//! [`run`] builds worlds with the given function, drives all their ranks from one thread (but for the cases about threads) and panics at the first broken promise.
//! It waits on what [`arm`](Transport::arm) says and never sleeps; a world in which nothing can happen any more is a failure at once.

mod cases;
mod net;
pub(crate) mod raw;
#[cfg(all(test, target_os = "linux"))]
pub(crate) mod raw_space;

use gaggle_core::Transport;
use net::Net;

/// How a world is built: one transport per rank, in order.
pub type Make<'a> = &'a mut dyn FnMut(u32) -> Vec<Box<dyn Transport>>;

/// Called when every rank is idle; lets virtual time go on where there is such a thing, and says whether it did.
pub type Idle<'a> = &'a mut dyn FnMut() -> bool;

/// What is asked of an implementation beyond the common promises.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Tier {
    /// Largest payload that crosses a link before its receive is posted.
    pub eager: u64,
    /// Of how many bytes of tagged messages to one peer, sent before their receives are posted, the senders are rid; 0 where that is not promised.
    pub tagged: u64,
    /// Sends that lend their memory are shown to the receiver in place.
    pub in_place: bool,
    /// A dropped transport is lost to its peers, one that has left is not.
    pub deaths: bool,
    /// Of two messages that could go, the one of higher priority is complete first.
    pub priorities: bool,
    /// Several threads may drive it at once in real time.
    pub threads: bool,
    /// A rank may sleep on what `arm` says while others run on their own.
    pub sleepers: bool,
    /// Everybody has a link to everybody from the beginning, and hears of its end without having used it.
    pub meshed: bool,
    /// Size of the large messages.
    pub large: usize,
}

impl Tier {
    /// Ranks as threads.
    pub const IN_PROCESS: Tier = Tier {
        eager: 0,
        in_place: true,
        ..Tier::TCP
    };
    /// Sockets.
    pub const TCP: Tier = Tier {
        eager: 256 << 10,
        tagged: 256 << 10,
        in_place: false,
        deaths: true,
        priorities: true,
        threads: true,
        sleepers: true,
        meshed: true,
        large: (3 << 20) + 5,
    };
    /// Sockets that are connected when they are first needed.
    pub const UNMESHED: Tier = Tier {
        meshed: false,
        ..Tier::TCP
    };
    /// Rings in shared memory.
    pub const SHM: Tier = Tier::TCP;
    /// A simulated network under one thread.
    pub const SIMULATED: Tier = Tier {
        threads: false,
        sleepers: false,
        priorities: false,
        large: (1 << 20) + 5,
        ..Tier::TCP
    };
}

/// Runs the whole suite.
///
/// # Panics
/// At the first promise that is not kept.
pub fn run(make: Make<'_>, tier: Tier) {
    run_with(make, tier, &mut || false);
}

/// Runs the whole suite on transports whose time is virtual.
///
/// # Panics
/// At the first promise that is not kept.
pub fn run_with(make: Make<'_>, tier: Tier, idle: Idle<'_>) {
    for (name, needs, case) in cases::ALL {
        if !needs(&tier) {
            continue;
        }
        tracing::debug!(case = name, "contract");
        case(&mut Bench {
            make: &mut *make,
            idle: &mut *idle,
            tier,
        });
    }
}

/// Hands worlds to the cases.
struct Bench<'a> {
    make: Make<'a>,
    idle: Idle<'a>,
    tier: Tier,
}

impl Bench<'_> {
    fn net(&mut self, n: u32) -> Net<'_> {
        Net::new((self.make)(n), self.tier.in_place, &mut *self.idle)
    }
}
