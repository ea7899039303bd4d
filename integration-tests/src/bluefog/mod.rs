//! BlueFog's own test-suite, row by row: what its tests set up, and what must come out.
//!
//! [`Part::cases`] are the inventory: one case per test of the groups `torch_basics`, `torch_ops`, `torch_hierarchical` and `torch_optimizer`, under its own name and with the expected values of its own, in every world that the test makes sense in.
//! [`run`] goes through all of them on a group; ranks may be threads or processes.
//! Beside them are inputs that its code, and other systems' optimizers, are known to get wrong, or whose results they have published.
//! Tests that BlueFog skips itself (pair gossip, the fusions of hierarchical averages) run here like the others.
//!
//! Conventions, as there: r is a rank's number, n their count, x = r a tensor that holds its rank's number everywhere; tensors have 23, 23² and 23³ elements; the graph, where none is said, is the exponential one with D = ⌈log₂ n⌉ in-neighbours r − 2^i, and S = r + Σ in-neighbours.
//! F stands for f32 and f64, H for F and f16, A8 for u8, i8, i16, i32, i64, f16, f32 and f64.
//!
//! Left out, as they come with one-sided windows: `set_topology_fail_with_win_create`, the group `torch_win_ops`, and `win.put` and `dynamic_win_put` of `torch_optimizer`.
//! `optimizer_for_hierarchical_model`, which BlueFog skips, is about modules within modules of PyTorch, and has no meaning for flat vectors.

mod basics;
mod expect;
mod hierarchical;
mod ops;
mod optimizer;
mod scene;
mod trials;
mod trials_of_rules;

use crate::work::Trouble;
use gaggle::Group;
pub use scene::Scene;

/// One test of BlueFog's.
#[derive(Clone, Copy)]
pub struct Case {
    /// The file that it is in, as in `torch_ops`.
    pub group: &'static str,
    /// Its name there, without `test_`.
    pub name: &'static str,
    /// What must come out.
    pub expected: &'static str,
    /// The worlds that it makes sense in.
    worlds: Worlds,
    run: fn(&Scene) -> Result<(), Trouble>,
}

/// In which worlds something makes sense.
#[derive(Clone, Copy)]
enum Worlds {
    All,
    /// This many ranks or more.
    From(usize),
    /// Even ones, this many ranks or more.
    EvenFrom(usize),
    Of(&'static [usize]),
}

impl Case {
    /// Whether it makes sense with `world` ranks.
    pub fn fits(&self, world: usize) -> bool {
        match self.worlds {
            Worlds::All => true,
            Worlds::From(least) => world >= least,
            Worlds::EvenFrom(least) => world >= least && world.is_multiple_of(2),
            Worlds::Of(these) => these.contains(&world),
        }
    }

    /// `torch_ops::allreduce_avg`.
    pub fn path(&self) -> String {
        format!("{}::{}", self.group, self.name)
    }
}

/// A part of the inventory, run by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Who is who, collectives, neighbour averages.
    Operations,
    /// Update rules, trained with.
    Optimizers,
}

impl Part {
    /// Both.
    pub const ALL: [Part; 2] = [Part::Operations, Part::Optimizers];

    /// Its rows.
    pub fn cases(self) -> impl Iterator<Item = &'static Case> {
        let tables: &[&[Case]] = match self {
            Part::Operations => &[
                basics::CASES,
                ops::CASES,
                hierarchical::CASES,
                trials::CASES,
            ],
            Part::Optimizers => &[optimizer::CASES, trials_of_rules::CASES],
        };
        tables.iter().copied().flatten()
    }

    /// As a program's argument.
    pub fn name(self) -> &'static str {
        match self {
            Part::Operations => "operations",
            Part::Optimizers => "optimizers",
        }
    }

    /// The part of that name.
    pub fn named(name: &str) -> Option<Part> {
        Part::ALL.into_iter().find(|part| part.name() == name)
    }
}

/// Every case of a part that fits the world, in order; returns how many there were. Collective.
///
/// # Errors
/// The first case that goes wrong on this rank, by name, with what was wanted and what came.
pub fn run(group: &Group, part: Part) -> Result<String, Trouble> {
    let scene = Scene::new(group.clone());
    let mut done = 0;
    for case in part.cases() {
        if case.fits(group.size()) {
            (case.run)(&scene)
                .map_err(|e| format!("{} (wanted: {}): {e}", case.path(), case.expected))?;
            done += 1;
        }
    }
    group.barrier()?;
    Ok(format!("{done} cases"))
}

/// A row of the inventory.
macro_rules! case {
    ($group:literal, $name:ident, $worlds:expr, $expected:literal) => {
        $crate::bluefog::case!($group, $name, $worlds, $expected, |s| $name(s))
    };
    ($group:literal, $name:ident, $worlds:expr, $expected:literal, $run:expr) => {
        $crate::bluefog::Case {
            group: $group,
            name: stringify!($name),
            expected: $expected,
            worlds: $worlds,
            run: $run,
        }
    };
}

/// A row whose body is generic over the element: run for each type of F, H, H and i32, or A8.
macro_rules! typed {
    ($group:literal, $name:ident, F, $worlds:expr, $expected:literal) => {
        $crate::bluefog::case!($group, $name, $worlds, $expected, |s| {
            $name::<f32>(s)?;
            $name::<f64>(s)
        })
    };
    ($group:literal, $name:ident, H, $worlds:expr, $expected:literal) => {
        $crate::bluefog::case!($group, $name, $worlds, $expected, |s| {
            $name::<half::f16>(s)?;
            $name::<f32>(s)?;
            $name::<f64>(s)
        })
    };
    ($group:literal, $name:ident, H32, $worlds:expr, $expected:literal) => {
        $crate::bluefog::case!($group, $name, $worlds, $expected, |s| {
            $name::<i32>(s)?;
            $name::<half::f16>(s)?;
            $name::<f32>(s)?;
            $name::<f64>(s)
        })
    };
    ($group:literal, $name:ident, A8, $worlds:expr, $expected:literal) => {
        $crate::bluefog::case!($group, $name, $worlds, $expected, |s| {
            $name::<u8>(s)?;
            $name::<i8>(s)?;
            $name::<i16>(s)?;
            $name::<i32>(s)?;
            $name::<i64>(s)?;
            $name::<half::f16>(s)?;
            $name::<f32>(s)?;
            $name::<f64>(s)
        })
    };
}
use {case, typed};
