//! The vocabulary of gaggle and its seam traits.
//!
//! Everything the other crates say to each other is said in these types: ranks, element types, reductions, memory that an operation borrows or owns, errors that name a culprit, and the object-safe traits behind which the parts can be exchanged.
//! The crate is small and knows no thread, no socket and no clock of its own.
//!
//! ```
//! use gaggle_core::{DType, Rank, Reduce};
//!
//! assert_eq!(Rank(3).to_string(), "rank 3");
//! assert_eq!(DType::Bf16.accumulator(), DType::F32);
//! assert!(Reduce::Mean.is_defined_on(DType::F32));
//! assert!(!Reduce::Mean.is_defined_on(DType::I32));
//! ```

pub mod clock;
pub mod comm;
pub mod control;
pub mod descriptor;
pub mod dtype;
pub mod error;
pub mod event;
pub mod group;
pub mod optim;
pub mod raw;
mod raw_buffer;
mod raw_scope;
mod raw_window;
mod raw_words;
pub mod reduce;
pub mod sparse;
pub mod store;
pub mod topology;
pub mod transport;
mod words;

pub use clock::{Clock, SystemClock};
pub use comm::{
    Algorithm, Cancel, Communicator, Counts, Divisor, Done, Finished, GroupInfo, Kind, Lane, Mode,
    OnMissing, Op, Pending, Persistent, Weight,
};
pub use control::{Control, ControlSink};
pub use descriptor::{Class, Descriptor, ModeBits, MsgKey, OpId, OpKind};
pub use dtype::{Bits, Bool, Codec, DType, Element, Float, Int};
pub use error::{Cause, Error, Failed};
pub use event::Event;
pub use group::{FailedInto, Group, Recurring, RecurringInto, Work, WorkInto};
pub use optim::{
    At, Cx, Exchange, Local, MixedMean, Mixer, Place, Rule, Stability, Unstable, With,
};
pub use raw::{Borrowed, Loan, Owned, Region, Space, StableBuf, View, ViewMut};
pub use raw_buffer::{Block, Buffer};
pub use raw_scope::{Scope, ScopedWork};
pub use raw_window::{Stores, Window, WindowMut, copy_window};
pub use raw_words::SharedWords;
pub use reduce::{
    Band, Bor, Bxor, Combine, Max, Mean, Min, Prod, Properties, Reduce, Reduction, Sum,
    UserReduction,
};
pub use sparse::SparseMatrix;
pub use store::Store;
pub use topology::{Draw, Form, MixingFacts, Modes, Round, Topology};
pub use transport::{
    Announced, Armed, Dir, Down, HEAD_MAX, Inlet, LinkStats, Outlet, Piece, Room, SharedMemory,
    Sink, Transfer, Transport, TransportError, Verdict, Visit, Wake, XferId,
};
pub use words::{OBSERVE, PUBLISH, Words};

use std::fmt;

/// A member's number, in a group or in the job; the context says which.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord, Default)]
pub struct Rank(pub u32);

impl Rank {
    /// As an index into a table of members.
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// Prints `rank 2`, `ranks 0 and 3`, `ranks 0, 1 and 3`: how every message names its culprits.
pub fn name_ranks(ranks: &[Rank]) -> String {
    match ranks {
        [] => "no rank".into(),
        [one] => one.to_string(),
        [head @ .., last] => {
            let head: Vec<String> = head.iter().map(|r| r.0.to_string()).collect();
            format!("ranks {} and {}", head.join(", "), last.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_as_a_person_would() {
        assert_eq!(name_ranks(&[]), "no rank");
        assert_eq!(name_ranks(&[Rank(2)]), "rank 2");
        assert_eq!(name_ranks(&[Rank(0), Rank(3)]), "ranks 0 and 3");
        assert_eq!(name_ranks(&[Rank(0), Rank(1), Rank(3)]), "ranks 0, 1 and 3");
    }

    /// Compiles only while every seam trait is object-safe.
    #[test]
    fn seam_traits_are_object_safe() {
        fn _network(_: &dyn Transport, _: &mut dyn Sink, _: &mut dyn Inlet, _: &mut dyn Outlet) {}
        fn _control(_: &dyn Control, _: &mut dyn ControlSink, _: &dyn Store, _: &dyn Wake) {}
        fn _users(_: &dyn Communicator, _: &dyn Pending, _: &dyn Topology, _: &dyn Clock) {}
        fn _more(_: &dyn Persistent, _: &dyn Cancel, _: &dyn Combine, _: &dyn Event) {}
        fn _optim(_: &dyn Rule<f32>, _: &dyn Mixer<f64>) {}
        fn send_sync<T: Send + Sync + ?Sized>() {}
        send_sync::<dyn Transport>();
        send_sync::<dyn Control>();
        send_sync::<dyn Communicator>();
        send_sync::<Group>();
        send_sync::<Error>();
    }
}
