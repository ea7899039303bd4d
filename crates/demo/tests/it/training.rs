//! What the harness promises: learning, agreement, repeatability, bytes.

use clap::Parser;
use gaggle::EngineConfig;
use gaggle_demo::{
    data::Digits,
    error::DemoError,
    progress::{Progress, Silent},
    settings::{Args, Settings},
    summary::{Point, Run, Story},
    train::demo,
};
use std::collections::BTreeSet;

fn settings(flags: &str) -> Settings {
    Args::try_parse_from(std::iter::once("gaggle-demo").chain(flags.split_whitespace()))
        .unwrap()
        .settings()
        .unwrap()
}

/// Every rank's story, where everything goes by messages: what passes through memory that all have mapped is not counted at a link.
fn train(ranks: usize, flags: &str) -> Vec<Result<Story, DemoError>> {
    train_with(ranks, flags, false)
}

fn train_with(ranks: usize, flags: &str, fusion: bool) -> Vec<Result<Story, DemoError>> {
    let (settings, digits) = (settings(flags), Digits::load().unwrap());
    let mut config = EngineConfig::default();
    config.fusion = fusion;
    gaggle::local_with(ranks, config, |group| {
        demo(&group, &settings, &digits, "threads", &mut Silent)
    })
    .unwrap()
}

fn story(ranks: usize, flags: &str) -> Story {
    let mut stories: Vec<Story> = train(ranks, flags)
        .into_iter()
        .map(|s| s.unwrap())
        .collect();
    stories.swap_remove(0)
}

fn distinct(run: &Run) -> usize {
    run.digests.iter().collect::<BTreeSet<_>>().len()
}

/// The short demo of the continuous integration.
#[test]
fn two_ranks_and_two_epochs_reach_nine_in_ten_with_every_algorithm() {
    let story = story(2, "--epochs 2 --partition iid");
    assert_eq!(story.runs.len(), 3);
    for run in &story.runs {
        assert!(run.accuracy_mean_model >= 0.9, "{run:?}");
        assert_eq!(
            run.bytes_per_rank_step, run.payload_formula_bytes,
            "{}",
            run.algorithm
        );
        assert_eq!(run.history.loss.len() as u64, run.steps);
        // Before the first step, and twice per epoch.
        assert_eq!(run.history.points.len(), 5);
        assert_eq!(run.digests.len(), 2);
    }
    let all_reduce = &story.runs[0];
    assert_eq!(distinct(all_reduce), 1);
    assert_eq!(all_reduce.consensus_distance, 0.0);
    // Two ranks that send each other one vector per step, whatever the algorithm.
    let vector = story.setting.parameters as f64 * 4.0;
    assert!(story.runs.iter().all(|r| r.bytes_per_rank_step == vector));
}

#[test]
fn every_world_trains_counts_its_bytes_and_agrees_where_it_should() {
    for ranks in [1, 3, 5, 8] {
        let story = story(ranks, "--epochs 1 --batch 128");
        assert_eq!(story.label_histograms.len(), ranks);
        for run in &story.runs {
            let off = (run.bytes_per_rank_step - run.payload_formula_bytes).abs();
            assert!(
                off < 1e-6 * run.payload_formula_bytes + 1e-9,
                "{ranks} {run:?}"
            );
            assert_eq!(run.digests.len(), ranks);
        }
        assert_eq!(distinct(&story.runs[0]), 1, "{ranks}");
        assert_eq!(story.runs[0].consensus_distance, 0.0, "{ranks}");
        if ranks == 1 {
            assert!(story.runs.iter().all(|r| r.bytes_per_rank_step == 0.0));
        } else {
            assert!(story.runs[1].consensus_distance > 0.0);
        }
    }
}

#[test]
fn all_ranks_tell_the_same_story_and_a_second_run_repeats_it_bit_for_bit() {
    let flags = "--epochs 1 --batch 256 --algorithm all,dsgd-awc --topology ring --seed 7";
    let digests = |story: &Story| -> Vec<Vec<String>> {
        story.runs.iter().map(|r| r.digests.clone()).collect()
    };
    let stories: Vec<Story> = train(3, flags).into_iter().map(|s| s.unwrap()).collect();
    let first = serde_json::to_value(&stories[0]).unwrap();
    for story in &stories {
        assert_eq!(serde_json::to_value(story).unwrap(), first);
    }
    assert_eq!(digests(&story(3, flags)), digests(&stories[0]));
    // Through mapped memory, too.
    let mapped = train_with(3, flags, true).swap_remove(0).unwrap();
    assert_eq!(digests(&mapped), digests(&stories[0]));
    let other = flags.replace("--seed 7", "--seed 8");
    assert_ne!(digests(&story(3, &other)), digests(&stories[0]));
}

#[test]
fn bf16_halves_the_bytes_and_still_learns() {
    let plain = story(2, "--epochs 1 --partition iid --batch 64");
    let half = story(2, "--epochs 1 --partition iid --batch 64 --wire bf16");
    for (plain, half) in plain.runs.iter().zip(&half.runs) {
        assert_eq!(half.bytes_per_rank_step * 2.0, plain.bytes_per_rank_step);
        assert_eq!(half.bytes_per_rank_step, half.payload_formula_bytes);
        assert!(half.accuracy_mean_model > plain.accuracy_mean_model - 0.1);
    }
    assert_eq!(distinct(&half.runs[0]), 1);
}

/// A rank that stops in the middle of training, as by a panic.
struct StopsAt(u32);

impl Progress for StopsAt {
    fn begin(&mut self, _algorithm: &str, _steps: u64) {}
    fn step(&mut self, _loss: f32) {
        self.0 -= 1;
        assert!(self.0 > 0, "stopped on purpose");
    }
    fn evaluated(&mut self, _point: &Point) {}
    fn end(&mut self) {}
}

#[test]
fn when_a_rank_is_lost_every_other_names_it() {
    let digits = Digits::load().unwrap();
    for algorithm in ["allreduce", "dmsgd"] {
        let settings = settings(&format!("--epochs 1 --algorithm {algorithm}"));
        let seen = std::sync::Mutex::new(vec![]);
        let panicked = std::panic::catch_unwind(|| {
            gaggle::local(3, |group| {
                let mut stops = StopsAt(4);
                let mut silent = Silent;
                let progress: &mut dyn Progress = match group.rank().0 {
                    1 => &mut stops,
                    _ => &mut silent,
                };
                let outcome = demo(&group, &settings, &digits, "threads", progress);
                seen.lock().unwrap().push(outcome.unwrap_err().to_string());
            })
        });
        assert!(panicked.is_err());
        let seen = seen.into_inner().unwrap();
        assert_eq!(seen.len(), 2);
        for text in seen {
            assert!(text.contains("lost rank 1"), "{algorithm}: {text}");
        }
    }
}

#[test]
fn ranks_that_were_started_differently_are_named() {
    let digits = Digits::load().unwrap();
    let outcomes = gaggle::local(3, |group| {
        let flags = match group.rank().0 {
            2 => "--epochs 2",
            _ => "--epochs 1",
        };
        demo(&group, &settings(flags), &digits, "threads", &mut Silent)
    })
    .unwrap();
    for outcome in outcomes {
        let text = outcome.unwrap_err().to_string();
        assert!(text.starts_with("rank 2 differs: settings"), "{text}");
    }
}

#[test]
fn a_step_size_that_diverges_is_an_error_on_every_rank() {
    for outcome in train(2, "--epochs 1 --lr 1e30 --algorithm allreduce") {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains("try a smaller --lr"), "{text}");
    }
}

/// By default nobody only trains for itself: rare meetings, warm-ups and late fragments are made for runs as short as these.
#[test]
fn rules_that_meet_rarely_meet_in_a_short_run() {
    let algorithms = "diloco,streaming-diloco,noloco,slowmo,local-sgd,one-bit-adam,choco";
    // Messages of one-bit-adam and choco go to everybody and along a static graph.
    let story = story(
        2,
        &format!(
            "--epochs 1 --batch 128 --partition iid --topology ring --lr 0.005 --algorithm {algorithms}"
        ),
    );
    for run in &story.runs {
        assert!(run.bytes_per_rank_step > 0.0, "{}", run.algorithm);
        let missing = run.payload_formula_bytes - run.bytes_per_rank_step;
        // What is under way while the model is tested is not counted.
        let late = run.algorithm == "streaming-diloco" && missing > 0.0;
        let off = missing.abs() / run.payload_formula_bytes;
        assert!(late || off < 1e-6, "{run:?}");
    }
    let bytes = |name: &str| {
        let run = story.runs.iter().find(|r| r.algorithm == name);
        run.expect("it ran").bytes_per_rank_step
    };
    assert!(bytes("diloco") < bytes("local-sgd") && bytes("local-sgd") < bytes("choco"));
}

/// The flag is what decides: with half the period twice as much is sent.
#[test]
fn a_period_given_by_flag_is_kept() {
    let bytes = |period: u64| {
        let flags = format!("--epochs 1 --partition iid --algorithm local-sgd --period {period}");
        story(2, &flags).runs[0].bytes_per_rank_step
    };
    assert_eq!(bytes(2), 2.0 * bytes(4));
}
