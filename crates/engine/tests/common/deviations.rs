//! Every field of a descriptor, deviating on one rank: trial 1 for the whole kind.

use gaggle_core::{Algorithm, Codec, Counts, DType, Divisor, Kind, Mode, Op, Rank, Reduce, Region};
use gaggle_engine::EngineConfig;

/// What one rank calls.
#[derive(Clone, Debug)]
pub struct Call {
    pub op: Op,
    pub dtype: DType,
    pub input: Option<u64>,
    pub io: u64,
}

impl Call {
    fn of(op: Op, io: u64) -> Call {
        Call {
            op,
            dtype: DType::F32,
            input: None,
            io,
        }
    }

    fn beside(kind: Kind, input: u64, io: u64) -> Call {
        Call {
            op: Op::new(kind),
            dtype: DType::F32,
            input: Some(input),
            io,
        }
    }

    /// Fresh memory.
    pub fn memory(&self) -> gaggle_core::Owned {
        let region = |n| Region::zeroed(self.dtype, n).unwrap();
        gaggle_core::Owned {
            input: self.input.map(region),
            io: region(self.io),
        }
    }
}

/// Rank 2 of three calls something else, or has other settings.
pub struct Deviation {
    pub field: &'static str,
    pub usual: Call,
    pub other: Call,
    pub settings: fn(&mut EngineConfig),
    /// What the error must quote.
    pub quotes: [&'static str; 2],
}

/// All of them.
pub fn all() -> Vec<Deviation> {
    let same: fn(&mut EngineConfig) = |_| {};
    let sum = || Op::new(Kind::AllReduce(Reduce::Sum));
    let mean = || Op::new(Kind::AllReduce(Reduce::Mean));
    let broadcast = |root| Call::of(Op::new(Kind::Broadcast { root: Rank(root) }), 5);
    let gathered = |counts: &[u64]| Call::beside(Kind::AllGather(Counts::known(counts)), 2, 6);
    let mut all = vec![];
    let mut add = |field, usual: &Call, other: &Call, settings, quotes| {
        all.push(Deviation {
            field,
            usual: usual.clone(),
            other: other.clone(),
            settings,
            quotes,
        });
    };
    // The kind: everything that a rank could call instead.
    let usual = Call::of(sum(), 6);
    let root = Rank(2);
    let (reduce, counts) = (Reduce::Sum, Counts::Equal);
    for (other, name) in [
        (
            Call::of(Op::new(Kind::Reduce { reduce, root }), 6),
            "reduce(sum to 2)",
        ),
        (
            Call::of(
                Op::new(Kind::Reduce {
                    reduce,
                    root: Rank(0),
                }),
                6,
            ),
            "reduce(sum to 0)",
        ),
        (
            Call::of(Op::new(Kind::Broadcast { root }), 6),
            "broadcast(root 2)",
        ),
        (
            Call::of(Op::new(Kind::Broadcast { root: Rank(1) }), 6),
            "broadcast(root 1)",
        ),
        (
            Call::of(
                Op::new(Kind::Gather {
                    root,
                    counts: counts.clone(),
                }),
                6,
            ),
            "gather(root 2)",
        ),
        (
            Call::of(
                Op::new(Kind::Scatter {
                    root,
                    counts: counts.clone(),
                }),
                6,
            ),
            "scatter(root 2)",
        ),
        (
            Call::of(Op::new(Kind::AllGather(counts.clone())), 6),
            "all_gather of 2 f32",
        ),
        (
            Call::of(
                Op::new(Kind::ReduceScatter {
                    reduce,
                    counts: counts.clone(),
                }),
                6,
            ),
            "reduce_scatter(sum)",
        ),
        (
            Call::of(
                Op::new(Kind::AllToAll {
                    send: counts.clone(),
                    recv: counts,
                }),
                6,
            ),
            "all_to_all",
        ),
        (Call::of(Op::new(Kind::Barrier), 0), "barrier"),
    ] {
        add(
            "kind",
            &usual,
            &other,
            same,
            ["all_reduce(sum) of 6 f32", name],
        );
    }
    let mut other = usual.clone();
    other.dtype = DType::I32;
    add("dtype", &usual, &other, same, ["of 6 f32", "of 6 i32"]);
    let mut max = Call::of(Op::new(Kind::AllReduce(Reduce::Max)), 6);
    add("reduction", &usual, &max, same, ["(sum)", "(max)"]);
    max.op.kind = Kind::AllReduce(Reduce::Sum);
    max.io = 7;
    add("count", &usual, &max, same, ["of 6 f32", "of 7 f32"]);
    max.io = 0;
    add("count", &usual, &max, same, ["of 6 f32", "of 0 f32"]);
    add(
        "counts",
        &gathered(&[2, 2, 2]),
        &gathered(&[1, 3, 2]),
        same,
        ["by counts", "by counts"],
    );
    let equal = Call::beside(Kind::AllGather(Counts::Equal), 2, 6);
    add(
        "counts",
        &gathered(&[2, 2, 2]),
        &equal,
        same,
        ["by counts", "of 2 f32"],
    );
    let discovered = Call::beside(Kind::AllGather(Counts::Discover), 2, 0);
    add(
        "counts",
        &gathered(&[2, 2, 2]),
        &discovered,
        same,
        ["by counts", "all_gather of f32"],
    );
    add(
        "root",
        &broadcast(0),
        &broadcast(1),
        same,
        ["(root 0)", "(root 1)"],
    );
    add(
        "root",
        &broadcast(2),
        &broadcast(0),
        same,
        ["(root 2)", "(root 0)"],
    );
    let direct = Call::of(mean().by(Algorithm::Direct), 6);
    let with = |op: Op| Call::of(op.by(Algorithm::Direct), 6);
    add(
        "codec",
        &direct,
        &with(mean().coded_always(Codec::Bf16)),
        same,
        ["plain", "bf16"],
    );
    add(
        "algorithm",
        &direct,
        &Call::of(mean().by(Algorithm::Ring), 6),
        same,
        ["by direct", "by ring"],
    );
    add(
        "divisor",
        &direct,
        &with(mean().divided_by(Divisor::InitialWorld)),
        same,
        ["by direct", "divided by initial world"],
    );
    add(
        "mode",
        &direct,
        &with(mean().in_mode(Mode::Ordered)),
        same,
        ["plain", "ordered"],
    );
    let coded = || mean().coded_always(Codec::Bf16);
    add(
        "feedback",
        &with(coded()),
        &with(coded().with_feedback(4)),
        same,
        ["bf16", "with error feedback"],
    );
    add(
        "priority",
        &direct,
        &with(mean().urgent(3)),
        same,
        ["plain", "priority 3"],
    );
    add(
        "slice",
        &direct,
        &direct,
        |config| config.slice_bytes = 64,
        ["slices of", "slices of 16"],
    );
    add(
        "tables",
        &direct,
        &direct,
        |config| config.overrides = "broadcast:1m-=pipelined".parse().unwrap(),
        ["settings", "settings"],
    );
    add(
        "tables",
        &direct,
        &direct,
        |config| config.radix = 8,
        ["settings", "settings"],
    );
    add(
        "tables",
        &direct,
        &direct,
        |config| config.hosts = Some([0, 0, 1].into()),
        ["settings", "settings"],
    );
    add(
        "tables",
        &direct,
        &direct,
        |config| config.nodes = Some([0, 0, 1].into()),
        ["settings", "settings"],
    );
    all
}
