//! The flight recorder of ranks that were made here: always on, and never in the way. What it cannot do, one log line says.

use gaggle_core::{Rank, Store};
use gaggle_engine::Engine;
use gaggle_trace::{
    About, Recorder, SLOTS,
    place::{self, Limits, Place},
};
use std::{
    hash::{BuildHasher, RandomState},
    path::PathBuf,
};

/// What the recordings of one process may take together.
const MOST_BYTES: u64 = 64 << 20;
/// Fewer operations are not worth a file.
const FEWEST: u32 = 64;

/// Where this process records; `None`: nowhere.
pub(crate) struct Recording {
    dir: PathBuf,
    slots: u32,
}

impl Recording {
    /// As the environment says, for so many ranks in this process. Old recordings are cleared away first.
    pub(crate) fn begin(ranks: usize) -> Option<Recording> {
        let place = place::place(&|name| std::env::var_os(name));
        Recording::at(&place, ranks)
    }

    fn at(place: &Place, ranks: usize) -> Option<Recording> {
        match place.prepare() {
            Ok(dir) => {
                let dir = dir?.to_owned();
                // What cannot be cleared away is somebody else's, or can wait.
                if let Err(error) = place::prune(&dir, &Limits::default()) {
                    tracing::debug!(dir = %dir.display(), %error, "old recordings stay");
                }
                let share = MOST_BYTES / 256 / ranks.max(1) as u64;
                let slots = u32::try_from(share).unwrap_or(SLOTS).clamp(FEWEST, SLOTS);
                Some(Recording { dir, slots })
            }
            Err(error) => {
                let dir = place.dir().map(|dir| dir.display().to_string());
                tracing::warn!(dir, %error, "operations are not recorded; GAGGLE_TRACE_DIR names another directory, GAGGLE_TRACE=off ends this warning");
                None
            }
        }
    }

    /// Has a rank's operations recorded.
    pub(crate) fn attach(&self, engine: &Engine, about: About) {
        match Recorder::create(&self.dir, &about.keeping(self.slots)) {
            Ok(recorder) => engine.attach_recorder(recorder),
            Err(error) => {
                let why = error.source.to_string();
                tracing::warn!(%error, why, "operations are not recorded");
            }
        }
    }
}

/// What a job is called that nobody has named: as the program.
pub(crate) fn own_name() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let name = program.file_stem().unwrap_or_default().to_string_lossy();
    if name.is_empty() {
        "gaggle".into()
    } else {
        name.into_owned()
    }
}

/// A number that no other run has. It need not be secret.
pub(crate) fn draw() -> u64 {
    // Keyed anew for each value, from the system's random numbers.
    RandomState::new().hash_one(std::process::id()).max(1)
}

/// The number of this run, which the first rank to ask draws for all; 0 where the store does not answer.
pub(crate) fn run_of(store: &dyn Store, epoch: u32) -> u64 {
    let key = format!("trace/run/{epoch}");
    let drawn = store.compare_and_set(&key, None, &draw().to_le_bytes());
    match drawn.map(|v| <[u8; 8]>::try_from(v.as_slice()).map(u64::from_le_bytes)) {
        Ok(Ok(run)) => run,
        Ok(Err(_)) => 0,
        Err(error) => {
            tracing::debug!(%error, "the run has no number");
            0
        }
    }
}

/// One rank of a job.
pub(crate) fn about(job: &str, world: u32, rank: Rank, run: u64) -> About {
    About::new(job, world, rank).in_run(run)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt, path::Path};

    fn recordings(dir: &Path) -> usize {
        place::recordings(dir).map_or(usize::MAX, |all| all.len())
    }

    #[test]
    fn a_place_that_cannot_be_used_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(Recording::at(&Place::Named(file.join("below")), 1).is_none());
        assert!(Recording::at(&Place::Off, 1).is_none());
        let engine = crate::local::alone(crate::EngineConfig::default()).unwrap();
        let gone = Recording {
            dir: dir.path().join("gone"),
            slots: 64,
        };
        gone.attach(&engine, about("job", 1, Rank(0), 1));
        assert!(engine.recording().is_none());
        engine.group().barrier().unwrap();
    }

    #[test]
    fn a_rank_records_until_it_leaves_and_keeps_what_went_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::Private(dir.path().join("own"));
        let recording = Recording::at(&place, 1000).unwrap();
        let own = place.dir().unwrap();
        assert_eq!(
            fs::metadata(own).unwrap().permissions().mode() & 0o777,
            0o700
        );
        for troubled in [false, true] {
            let mut engine = crate::local::alone(crate::EngineConfig::default()).unwrap();
            recording.attach(&engine, about("job", 1, Rank(0), 1));
            let path = engine.recording().unwrap();
            engine
                .group()
                .all_reduce(&mut [1.0_f32; 10], crate::Sum)
                .unwrap();
            let read = gaggle_trace::Recording::read(&path).unwrap();
            assert_eq!(read.operations.len(), 1);
            assert_eq!(read.operations[0].phase, gaggle_trace::Phase::Done);
            if troubled {
                engine.keep_recording("the test says so");
            }
            engine.leave();
            assert_eq!(recordings(own), usize::from(troubled));
        }
        // Many ranks share what one may take.
        let bytes = fs::metadata(&place::recordings(own).unwrap()[0])
            .unwrap()
            .len();
        assert!(bytes < 140_000, "{bytes}");
    }

    #[test]
    fn all_ranks_draw_one_number() {
        let store = gaggle_transport::store::LocalStore::new();
        let run = run_of(&store, 0);
        assert_ne!(run, 0);
        assert_eq!(run_of(&store, 0), run);
        assert_ne!(run_of(&store, 1), run);
    }
}
