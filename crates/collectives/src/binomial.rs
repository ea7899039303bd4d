//! Broadcast along a binomial tree, from any root.
//!
//! Counted from the root, rank v has the parent v with its lowest bit cleared, and the children v + 2^k for every 2^k below that bit; the farthest child, which has most descendants, is served first.
//! A slice is passed on when it has come: the slices follow each other down the tree.
//!
//! Cost, with P ranks and S bytes: ⌈log₂P⌉ rounds; the root sends ⌈log₂P⌉·S bytes, the leaves none.

use crate::plan::{Action, Arrive, Buf, Plan, PlanError, Request, Span};
use crate::program::{After, Outline, Program, back, forward, n_slices, share};
use gaggle_core::{Algorithm, Codec, OpKind, Rank, Reduce};
use smallvec::smallvec;

/// The plan.
///
/// # Errors
/// More steps than there are numbers for.
pub(crate) fn plan_broadcast(req: &Request, root: Rank) -> Result<Plan, PlanError> {
    let n_slices = n_slices(req.len, req.slice)?;
    let from_root = counted_from(root, req.rank, req.world);
    let tree = Tree {
        rank: req.rank.0,
        world: req.world,
        from_root,
        n_children: n_children(from_root, req.world),
        len: req.len,
        n_slices,
    };
    let outline = Outline {
        kind: OpKind::Broadcast,
        algorithm: Algorithm::Binomial,
        reduce: Reduce::Sum,
        input_len: 0,
        user_len: req.len,
        scratch_len: 0,
        n_slots: 0,
        n_slices,
    };
    outline.with(req, tree)
}

fn counted_from(root: Rank, rank: Rank, world: u32) -> u32 {
    back(rank.0, root.0, world)
}

/// To how many ranks `rank` passes the root's value on.
pub(crate) fn n_children_of(rank: Rank, root: Rank, world: u32) -> u32 {
    n_children(counted_from(root, rank, world), world)
}

/// How many of v + 1, v + 2, v + 4, … below v's lowest bit are in the world.
fn n_children(from_root: u32, world: u32) -> u32 {
    let below = if from_root == 0 {
        u32::BITS
    } else {
        from_root.trailing_zeros()
    };
    (0..below)
        .take_while(|k| u64::from(from_root) + (1 << k) < u64::from(world))
        .count() as u32
}

/// `[recv]`, then the sends to the children.
#[derive(Debug)]
struct Tree {
    rank: u32,
    world: u32,
    from_root: u32,
    n_children: u32,
    len: u64,
    n_slices: u32,
}

impl Program for Tree {
    fn n_ops(&self) -> u64 {
        u64::from(self.n_recvs() + self.n_children)
    }

    fn op(&self, op: u32, slice: u32) -> (Action, After) {
        let (lo, hi) = share(self.len, self.n_slices, slice);
        let span = Span::user(lo, hi - lo);
        if op < self.n_recvs() {
            let to_parent = 1 << self.from_root.trailing_zeros();
            let action = Action::Recv {
                from: Rank(back(self.rank, to_parent, self.world)),
                tag: slice,
                dst: span,
                wire: Buf::User,
                codec: Codec::None,
                arrive: Arrive::Store,
                weight: None,
            };
            return (action, smallvec![]);
        }
        let child = self.n_children - 1 - (op - self.n_recvs());
        let action = Action::Send {
            to: Rank(forward(self.rank, 1 << child, self.world)),
            tag: slice,
            src: span,
            wire: Buf::User,
            codec: Codec::None,
            weight: None,
            scale: None,
        };
        (action, (0..self.n_recvs()).collect())
    }
}

impl Tree {
    fn n_recvs(&self) -> u32 {
        u32::from(self.from_root != 0)
    }
}
