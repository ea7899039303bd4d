//! `gaggle run`: a store for the ranks to meet in, the ranks, and the last word.

use crate::{args::RunArgs, failure::Failure, trace};
use gaggle_launch::{Job, Joined};
use gaggle_transport::{
    auth::{Credentials, Secret},
    store::{StoreConfig, StoreServer},
};
use std::{
    ffi::OsString,
    net::{Ipv4Addr, TcpListener},
    sync::Arc,
};

pub(crate) fn run(args: &RunArgs) -> Result<i32, Failure> {
    let (program, rest) = match args.command.split_first() {
        Some((program, rest)) => (program.clone(), rest.to_vec()),
        None => (OsString::new(), Vec::new()),
    };
    launch(
        Job::new(args.ranks, program).args(rest).grace(args.grace),
        args.ranks,
    )
}

/// Runs a job with a store of its own, says how it ended, and returns the exit code.
pub(crate) fn launch(job: Job, ranks: u32) -> Result<i32, Failure> {
    let meeting = Meeting::open(ranks)?;
    let outcome = meeting.invite(job).run()?;
    // Before the first cause, which is said last.
    if let Some(place) = trace::after_job(&meeting.job, outcome.code() != 0) {
        crate::complain(&place);
    }
    crate::complain(&outcome.to_string());
    Ok(outcome.code())
}

/// Where the ranks meet: a store in this process that only they can enter.
struct Meeting {
    server: Arc<StoreServer>,
    secret: Secret,
    job: String,
    master_port: u16,
}

impl Meeting {
    fn open(ranks: u32) -> Result<Meeting, Failure> {
        let failed = |what| {
            move |e: &dyn std::fmt::Display| Failure::Store {
                what,
                why: e.to_string(),
            }
        };
        let secret = Secret::random().map_err(|e| failed("make a secret")(&e))?;
        // The name need not be secret, only its own: two jobs must not meet.
        let name = Secret::random().map_err(|e| failed("make a name for the job")(&e))?;
        let job = format!("run-{}", &name.to_hex()[..16]);
        let credentials = Credentials {
            job: job.clone(),
            epoch: 0,
            secret: secret.clone(),
        };
        let server = StoreServer::bind(
            (Ipv4Addr::LOCALHOST, 0).into(),
            &credentials,
            StoreConfig::new(ranks),
        );
        let server = server.map_err(|e| failed("open the store in which the ranks meet")(&e))?;
        Ok(Meeting {
            server: Arc::new(server),
            secret,
            job,
            master_port: free_port().map_err(|e| failed("find a free port")(&e))?,
        })
    }

    fn invite(&self, job: Job) -> Job {
        let server = self.server.clone();
        let joined: Joined = Arc::new(move |rank| server.joined().contains(&rank));
        job.env("GAGGLE_STORE", self.server.addr().to_string())
            .env("GAGGLE_SECRET", self.secret.to_hex())
            .env("GAGGLE_JOB", &self.job)
            // A launcher above this one may have said otherwise.
            .env("TORCHELASTIC_RESTART_COUNT", "0")
            .master("127.0.0.1", self.master_port)
            .joined(joined)
    }
}

/// A port that is free now. Programs that meet by other means listen on it themselves, so it cannot be kept for them; ranks of gaggle do not use it.
fn free_port() -> std::io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}
