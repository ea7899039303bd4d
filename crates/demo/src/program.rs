//! A whole program: flags in; a progress bar, a table (or one JSON object) and a page out.
//!
//! It is one rank: a launcher, such as `gaggle demo`, starts several of it.
//! With `--threads` the ranks are threads of this one process.

use crate::{
    choices::choices,
    data::Digits,
    error::DemoError,
    page::page,
    picture::Picture,
    progress::{Progress, Silent, Stderr},
    raw_env,
    rules::Rules,
    settings::{ALL_REDUCE, Args, Settings},
    summary::Story,
    train::demo,
};
use clap::{CommandFactory, FromArgMatches};
use gaggle::{EngineConfig, Rank};
use std::{error::Error, io::IsTerminal, path::Path, process::ExitCode, time::Duration};

/// Long enough for a busy machine, short enough to watch: a rank that stands still is named after this time.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Ranks of `--threads` unless said.
const THREADS: usize = 4;

/// The demo with these rules beside the library's: reads this process' flags, trains, prints, and returns what `main` should.
///
/// Called first thing in `main`, it also lets candle compute on one thread per rank (where it can tell that there is no other thread yet, and `RAYON_NUM_THREADS` is not set).
pub fn run_with(rules: Rules) -> ExitCode {
    raw_env::one_thread_per_rank();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_target(false)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .init();
    let matches = Args::command()
        .after_long_help(choices(&rules))
        .get_matches();
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
    match run(&args, rules) {
        Ok(()) => ExitCode::SUCCESS,
        Err((rank, e)) => {
            let who = rank.map_or(String::new(), |r| format!("{r}: "));
            eprintln!("gaggle-demo: {who}{}", chain(&e));
            ExitCode::FAILURE
        }
    }
}

/// An error of one rank, or of all.
type Failure = (Option<Rank>, DemoError);

fn run(args: &Args, rules: Rules) -> Result<(), Failure> {
    let settings = args.settings_with(rules).map_err(|e| (None, e.into()))?;
    require_room(&args.output).map_err(|e| (None, e))?;
    let digits = Digits::load().map_err(|e| (None, e.into()))?;
    let launched = std::env::var_os("WORLD_SIZE").is_some() || std::env::var_os("RANK").is_some();
    match (args.threads, launched) {
        (true, true) => return Err((None, DemoError::ThreadsUnderLauncher)),
        (true, false) => return run_threads(args, &settings, &digits),
        (false, _) => {}
    }
    if let Some(n) = args.ranks.filter(|n| *n > 1 && !launched) {
        return Err((None, DemoError::NoLauncher(n)));
    }
    let config = EngineConfig::default().with_timeout(TIMEOUT);
    let job = gaggle::join_with(config).map_err(|e| (None, e.into()))?;
    let me = job.rank();
    let fail = |e: DemoError| (Some(me), e);
    if let Some(asked) = args.ranks
        && asked != job.size()
    {
        return Err(fail(DemoError::Ranks {
            asked,
            started: job.size(),
        }));
    }
    let ranks_are = match job.size() {
        1 => "one process",
        _ => "processes over TCP",
    };
    let mut progress: Box<dyn Progress> = match me {
        Rank(0) => Box::new(Stderr::default()),
        _ => Box::new(Silent),
    };
    let story = demo(&job, &settings, &digits, ranks_are, &mut *progress).map_err(fail)?;
    if me == Rank(0) {
        tell(args, &settings, &story).map_err(fail)?;
    }
    Ok(())
}

fn run_threads(args: &Args, settings: &Settings, digits: &Digits) -> Result<(), Failure> {
    let ranks = args.ranks.unwrap_or(THREADS);
    let config = EngineConfig::default().with_timeout(TIMEOUT);
    let stories = gaggle::local_with(ranks, config, |group| {
        let mut progress: Box<dyn Progress> = match group.rank() {
            Rank(0) => Box::new(Stderr::default()),
            _ => Box::new(Silent),
        };
        demo(
            &group,
            settings,
            digits,
            "threads of one process",
            &mut *progress,
        )
    })
    .map_err(|e| (None, e.into()))?;
    let mut first = None;
    for (rank, story) in (0..).map(Rank).zip(stories) {
        let story = story.map_err(|e| (Some(rank), e))?;
        first.get_or_insert(story);
    }
    first.map_or(Ok(()), |story| {
        tell(args, settings, &story).map_err(|e| (None, e))
    })
}

/// Before minutes of training: the page has a folder to go to.
fn require_room(page: &Path) -> Result<(), DemoError> {
    let wrong = |source| DemoError::Page {
        path: page.into(),
        source,
    };
    let folder = match page.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    std::fs::metadata(folder).map_err(wrong)?;
    match page.is_dir() || page.file_name().is_none() {
        true => Err(wrong(std::io::ErrorKind::IsADirectory.into())),
        false => Ok(()),
    }
}

/// Writes the page, prints the results.
fn tell(args: &Args, settings: &Settings, story: &Story) -> Result<(), DemoError> {
    let decentralised = story.runs.iter().any(|run| run.topology != "all");
    let pictures = if decentralised {
        let topology = settings.topology(story.setting.ranks)?;
        vec![Picture::new(&*topology)]
    } else {
        vec![]
    };
    let html = page(story, &pictures)?;
    std::fs::write(&args.output, html).map_err(|source| DemoError::Page {
        path: args.output.clone(),
        source,
    })?;
    let path = args
        .output
        .canonicalize()
        .unwrap_or_else(|_| args.output.clone());
    if args.json {
        println!("{}", story.json()?);
        eprintln!("page: {}", path.display());
    } else {
        println!("{}", story.table());
        if let Some(all_reduce) = story.runs.iter().find(|r| r.algorithm == ALL_REDUCE)
            && all_reduce.seconds.communicate > 0.0
        {
            println!(
                "allreduce hid {:.0} % of its communication under backward.",
                100.0 * all_reduce.hidden_fraction
            );
        }
        println!("page: {}", path.display());
    }
    Ok(())
}

/// The error and what is underneath, without saying anything twice.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(e) = source {
        let more = e.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = e.source();
    }
    text
}
