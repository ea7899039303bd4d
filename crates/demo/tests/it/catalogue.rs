//! Every algorithm and every topology that the demo takes, for a few steps on a few of the digits; and the pairs that it refuses.

use clap::Parser;
use gaggle::{EngineConfig, optim::NAMES, topology::CATALOGUE};
use gaggle_demo::{
    data::{Digits, PIXELS, Set},
    error::DemoError,
    progress::{Progress, Silent},
    settings::{ALL_REDUCE, Args, Settings},
    summary::{Point, Run, Story},
    train::demo,
};
use std::collections::BTreeSet;

fn settings(flags: &str) -> Settings {
    let flags = std::iter::once("gaggle-demo").chain(flags.split_whitespace());
    Args::parse_from(flags).settings().unwrap()
}

/// The first of the digits that ship with gaggle.
fn few_digits() -> Digits {
    let first = |set: &Set, n: usize| Set {
        pixels: set.pixels[..n * PIXELS].to_vec(),
        labels: set.labels[..n].to_vec(),
    };
    let all = Digits::load().unwrap();
    Digits {
        train: first(&all.train, 480),
        test: first(&all.test, 50),
    }
}

/// Rank 0's story, where everything goes by messages.
fn train(ranks: usize, flags: &str) -> Result<Story, DemoError> {
    let (settings, digits) = (settings(flags), few_digits());
    let mut config = EngineConfig::default();
    config.fusion = false;
    let stories = gaggle::local_with(ranks, config, |group| {
        demo(&group, &settings, &digits, "threads", &mut Silent)
    });
    stories.unwrap().swap_remove(0)
}

/// The loss is a number in every step and falls, and what was sent is what should have been.
fn learns(run: &Run) {
    let (loss, name) = (&run.history.loss, &run.algorithm);
    assert!(loss.iter().all(|l| l.is_finite()), "{name}: {loss:?}");
    let mean = |part: &[f32]| part.iter().sum::<f32>() / part.len() as f32;
    let (first, last) = (mean(&loss[..4]), mean(&loss[loss.len() - 4..]));
    assert!(last < first, "{name} over {}: {loss:?}", run.topology);
    let missing = run.payload_formula_bytes - run.bytes_per_rank_step;
    // What is under way while the model is tested is not counted.
    let late = name == "streaming-diloco" && missing > 0.0;
    assert!(
        late || missing.abs() < 1e-6 * run.payload_formula_bytes,
        "{name}: {} bytes of {}",
        run.bytes_per_rank_step,
        run.payload_formula_bytes
    );
}

/// Handfuls of algorithms, with a topology and step sizes that they are for; one test each, so that they run side by side.
const MOMENTUM: (&str, &str) = (
    "--lr 0.02",
    "allreduce,allreduce-msgd,dmsgd,dmsgd-awc,dmsgd-cta,dmsgd-yu,dmsgd-ying,qg-dmsgd,qg-dmsgd-n,momentum-tracking",
);
const PLAIN: (&str, &str) = (
    "--lr 0.1 --topology static-exp",
    "allreduce-sgd,dsgd-atc,dsgd-awc,dsgd-cta,diging,gt-semi,gt-atc,dsgt-hb,sgp,osgp,push-diging",
);
const RING: (&str, &str) = (
    "--lr 0.05 --topology ring",
    "decentlam,d2,exact-diffusion,edm,extra,lookahead,gossip-pga,local-sgd,slowmo,bmuf,choco",
);
const ADAM: (&str, &str) = (
    "--lr 0.002 --warm-up 5",
    "allreduce-adamw,dadamw-atc,dadamw-awc,dadam,damsgrad,diloco,streaming-diloco,one-bit-adam",
);
const PAIRS: (&str, &str) = ("--lr 0.002 --topology random-matching", "noloco");
const TREE: (&str, &str) = ("--lr 0.05 --topology chain", "relaysgd");

fn all_learn((flags, algorithms): (&str, &str)) {
    let common = "--epochs 2 --batch 16 --partition iid";
    let story = train(3, &format!("{common} {flags} --algorithm {algorithms}")).unwrap();
    let names: Vec<&str> = story.runs.iter().map(|r| r.algorithm.as_str()).collect();
    assert_eq!(names.join(","), algorithms);
    story.runs.iter().for_each(learns);
}

#[test]
fn the_handfuls_are_all_there_is() {
    let all = [MOMENTUM, PLAIN, RING, ADAM, PAIRS, TREE];
    let tried: BTreeSet<&str> = all.iter().flat_map(|(_, names)| names.split(',')).collect();
    let there: BTreeSet<&str> = NAMES.into_iter().chain([ALL_REDUCE]).collect();
    assert_eq!(tried, there);
}

#[test]
fn algorithms_with_momentum_learn() {
    all_learn(MOMENTUM);
}

#[test]
fn plain_algorithms_learn() {
    all_learn(PLAIN);
}

#[test]
fn algorithms_over_a_ring_learn() {
    all_learn(RING);
}

#[test]
fn algorithms_with_adam_learn() {
    all_learn(ADAM);
}

#[test]
fn algorithms_over_pairs_and_trees_learn() {
    all_learn(PAIRS);
    all_learn(TREE);
}

/// A name of the catalogue with the parameters that it needs.
fn typed(name: &str) -> String {
    match name {
        "inner-outer-exp" | "inner-outer-ring" => format!("{name}:4"),
        "one-peer-over" => format!("{name}:ring"),
        name => name.into(),
    }
}

fn every_topology_trains(part: usize) {
    for entry in CATALOGUE.into_iter().skip(part).step_by(2) {
        let name = typed(entry.name);
        let ranks = if name.starts_with("inner-outer") {
            8
        } else {
            4
        };
        let flags = "--epochs 1 --batch 8 --partition iid --lr 0.1 --algorithm dsgd-atc";
        let story = train(ranks, &format!("{flags} --topology {name}"));
        let story = story.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(story.runs[0].topology, name);
        learns(&story.runs[0]);
    }
}

#[test]
fn every_second_topology_trains() {
    every_topology_trains(0);
}

#[test]
fn every_other_topology_trains() {
    every_topology_trains(1);
}

/// Notes whether anything has begun.
#[derive(Default)]
struct Begun(bool);

impl Progress for Begun {
    fn begin(&mut self, _algorithm: &str, _steps: u64) {
        self.0 = true;
    }
    fn step(&mut self, _loss: f32) {}
    fn evaluated(&mut self, _point: &Point) {}
    fn end(&mut self) {}
}

/// The refusal, equal on every rank, and that nothing was trained before it.
fn refusal(ranks: usize, flags: &str) -> String {
    let (settings, digits) = (settings(flags), few_digits());
    let told = gaggle::local(ranks, |group| {
        let mut begun = Begun::default();
        let story = demo(&group, &settings, &digits, "threads", &mut begun);
        assert!(!begun.0, "{flags}: something was trained");
        story.expect_err(flags).to_string()
    });
    let told: BTreeSet<String> = told.unwrap().into_iter().collect();
    assert_eq!(told.len(), 1, "{flags}: {told:?}");
    told.into_iter().next().unwrap()
}

/// They were found out in their turn, once, after the minutes that the others took.
#[test]
fn pairs_that_diverge_are_refused_before_anything_is_trained() {
    for (ranks, algorithms, topology, refused) in [
        (8, "dmsgd,d2", "static-exp", "d2"),
        (8, "allreduce,decentlam", "static-exp", "decentlam"),
        (
            16,
            "dsgd-atc,exact-diffusion",
            "static-exp",
            "exact-diffusion",
        ),
        (5, "dmsgd,relaysgd", "ring", "relaysgd"),
        (4, "dsgd-atc,choco", "one-peer-exp", "choco"),
        (5, "allreduce,dsgd-atc", "one-peer-over:chain", "dsgd-atc"),
    ] {
        let flags = format!("--epochs 1 --algorithm {algorithms} --topology {topology}");
        let text = refusal(ranks, &flags);
        let want = format!("{refused} over {topology}: unstable: ");
        assert!(text.starts_with(&want), "{flags}: {text}");
    }
    let all = refusal(
        8,
        "--algorithm dmsgd,d2,relaysgd,decentlam --topology static-exp",
    );
    for refused in ["d2", "relaysgd", "decentlam"] {
        let line = format!("\n  {refused} over static-exp: unstable: ");
        assert!(all.contains(&line), "{all}");
    }
    assert!(!all.contains("dmsgd over"), "{all}");
}

/// Without `--ranks` only the group knows for how many ranks the graph must be.
#[test]
fn a_topology_that_so_many_ranks_cannot_have_is_refused_by_its_flag() {
    for (ranks, topology) in [
        (3, "hypercube"),
        (5, "torus:2x2"),
        (2, "star:2"),
        (3, "inner-outer-exp:2"),
    ] {
        let text = refusal(ranks, &format!("--topology {topology}"));
        assert!(
            text.starts_with(&format!("--topology {topology}: ")),
            "{text}"
        );
    }
}

/// The same seed gives the same bits, another one draws otherwise: also what compressors keep, and who meets whom.
#[test]
fn one_seed_decides_all_draws() {
    let random = [
        "--algorithm choco --topology ring --compressor random-k:0.3",
        "--algorithm choco --topology ring --compressor qsgd:4",
        "--algorithm dsgd-atc --topology random-matching",
        "--algorithm dsgd-atc --topology od-equi-dyn",
        "--algorithm noloco --topology random-matching --period 2",
    ];
    for flags in random {
        let digests = |seed: u64| {
            let flags = format!("{flags} --epochs 1 --batch 16 --partition iid --seed {seed}");
            train(4, &flags).unwrap().runs.swap_remove(0).digests
        };
        assert_eq!(digests(5), digests(5), "{flags}");
        assert_ne!(digests(5), digests(6), "{flags}");
    }
}
