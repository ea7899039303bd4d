//! `gaggle trace`: the recordings of a job, found, put together, and told.

mod json;
mod report;
mod timeline;

use crate::{args::TraceArgs, failure::Failure};
use gaggle_trace::{
    Candidate, Job, MergeError, Recording, State, choose_latest,
    place::{self, Place},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

pub(crate) fn trace(args: &TraceArgs) -> Result<i32, Failure> {
    let found = find(args)?;
    let mut candidates = found.candidates;
    if let Some(last) = args.last {
        for candidate in &mut candidates {
            keep_last(&mut candidate.recording, last);
        }
    }
    let job = Job::merge(candidates).map_err(|error| match error {
        MergeError::DifferentJobs { .. } => Failure::Trace(format!(
            "{error}\nName the files of one of them, or their directory for the latest."
        )),
        error => Failure::Trace(error.to_string()),
    })?;
    if args.json {
        crate::print(&format!("{:#}\n", json::report(&job)));
    } else {
        crate::print(&report::report(&job).to_string());
    }
    for note in found.notes {
        crate::complain(&format!("gaggle: {note}"));
    }
    match &args.output {
        Some(path) => {
            let text = timeline::timeline(&job).to_string();
            fs::write(path, text)
                .map_err(|e| Failure::Trace(format!("cannot write {}: {e}", path.display())))?;
            crate::complain(&format!(
                "gaggle: wrote {}; ui.perfetto.dev and chrome://tracing open it",
                path.display()
            ));
        }
        None if !args.json => {
            crate::print("\n`gaggle trace -o FILE.json` writes a time line for Perfetto.\n");
        }
        None => {}
    }
    Ok(0)
}

/// What was found, and what is to be said of the rest.
struct Found {
    candidates: Vec<Candidate>,
    notes: Vec<String>,
}

fn find(args: &TraceArgs) -> Result<Found, Failure> {
    let mut notes = vec![];
    let here = place::place(&|name| std::env::var_os(name));
    let paths: Vec<PathBuf> = match args.files.as_slice() {
        [] => match usual(&here) {
            Some(dir) => vec![dir],
            None => {
                return Err(Failure::Trace(
                    "GAGGLE_TRACE=off names no directory; say which one".into(),
                ));
            }
        },
        given => given.to_vec(),
    };
    let mut files = vec![];
    let mut from_directory = false;
    for path in &paths {
        if path.is_dir() || args.files.is_empty() {
            from_directory = true;
            files.extend(list(path)?);
        } else {
            files.push(path.clone());
        }
    }
    let mut candidates = vec![];
    for path in files {
        match Recording::read(&path) {
            Ok(recording) => candidates.push(Candidate {
                alive: place::is_alive(&path),
                recording,
                path,
            }),
            // Of a directory, the rest is still of use; who names a file wants that one.
            Err(error) if from_directory => {
                notes.push(format!("left out {}: {}", path.display(), told(&error)));
            }
            Err(error) => {
                let what = format!("{}: {}", path.display(), told(&error));
                return Err(Failure::Trace(what));
            }
        }
    }
    if candidates.is_empty() {
        let places: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
        let mut what = format!(
            "no recordings in {}: a rank that leaves in order takes its recording away, and GAGGLE_TRACE_DIR may name another place",
            places.join(", ")
        );
        for note in notes {
            what += &format!("\n{note}");
        }
        return Err(Failure::Trace(what));
    }
    if from_directory {
        let (chosen, others) = choose_latest(candidates);
        candidates = chosen;
        if !others.is_empty() {
            notes.push(format!(
                "this is the latest job; there are also {}",
                others.join("; ")
            ));
        }
    }
    Ok(Found { candidates, notes })
}

/// With what the system said.
fn told(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn usual(place: &Place) -> Option<PathBuf> {
    place.dir().map(Path::to_owned)
}

fn list(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    place::recordings(dir)
        .map_err(|e| Failure::Trace(format!("cannot read {}: {e}", dir.display())))
}

/// Leaves the last operations, and those in flight.
fn keep_last(recording: &mut Recording, last: usize) {
    let n = recording.operations.len();
    let first = n.saturating_sub(last);
    let mut at = 0;
    recording.operations.retain(|op| {
        at += 1;
        at > first || op.phase.in_flight()
    });
}

/// After a job of the launcher's: where its recordings lie, when it failed; otherwise they go, where ranks have ended without leaving.
pub(crate) fn after_job(job: &str, failed: bool) -> Option<String> {
    let place = place::place(&|name| std::env::var_os(name));
    let dir = place.dir()?;
    // No directory, no recordings; nothing of this is the job's matter.
    let files = place::recordings(dir).ok()?;
    let prefix = format!("{job}-rank");
    let mine = files.into_iter().filter(|path| {
        let name = path.file_name().map(|n| n.to_string_lossy());
        name.is_some_and(|name| name.starts_with(&prefix))
    });
    let mine: Vec<PathBuf> = mine.collect();
    if !failed {
        for path in &mine {
            let calm = |r: Recording| r.header.state == State::Running;
            if Recording::read(path).is_ok_and(calm) {
                place::remove(path);
            }
        }
        return None;
    }
    let n = mine.len();
    (n > 0).then(|| {
        format!(
            "gaggle: what {} did last is recorded in {}; `gaggle trace {}` tells who waited for whom",
            if n == 1 {
                "one rank".to_owned()
            } else {
                format!("{n} ranks")
            },
            dir.display(),
            dir.join(format!("{prefix}*")).display()
        )
    })
}
