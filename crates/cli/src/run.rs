//! `gaggle run`: a store for the ranks to meet in, the ranks, and the last word.

use crate::{args::RunArgs, failure::Failure, trace};
use gaggle_launch::{Job, Joined};
use gaggle_transport::{
    auth::{Credentials, Secret},
    interfaces::{Wish, interfaces},
    processors::{Cpus, Nodes},
    store::{StoreConfig, StoreServer},
};
use std::{
    ffi::OsString,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener},
    sync::Arc,
};

pub(crate) fn run(args: &RunArgs) -> Result<i32, Failure> {
    let (program, rest) = match args.command.split_first() {
        Some((program, rest)) => (program.clone(), rest.to_vec()),
        None => (OsString::new(), Vec::new()),
    };
    let mut job = Job::new(args.ranks, program).args(rest).grace(args.grace);
    if let Some(wish) = &args.interface {
        check(wish)?;
        job = job.env("GAGGLE_INTERFACE", wish.to_string());
    }
    if args.bind_to_node {
        let spread = Nodes::of_machine().spread(args.ranks, &Cpus::own());
        job = job.bind(spread.iter().map(|cpus| cpus.iter().collect()).collect());
    }
    launch(job, args.ranks)
}

/// Whether this machine has an address that the ranks will be able to choose: better said once, before they start, than by each of them.
fn check(wish: &Wish) -> Result<(), Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::Interface(e.to_string());
    let there = interfaces().map_err(|e| failed(&e))?;
    wish.choose(&there, (Ipv4Addr::LOCALHOST, 0).into())
        .map_err(|e| failed(&e))?;
    Ok(())
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
        let at =
            |ip: IpAddr| StoreServer::bind((ip, 0).into(), &credentials, StoreConfig::new(ranks));
        // There are machines without IPv4; what they say of it is of no use where they have no IPv6 either.
        let server = at(Ipv4Addr::LOCALHOST.into())
            .or_else(|e| at(Ipv6Addr::LOCALHOST.into()).map_err(|_| e));
        let server = server.map_err(|e| failed("open the store in which the ranks meet")(&e))?;
        let master_port =
            free_port(server.addr().ip()).map_err(|e| failed("find a free port")(&e))?;
        Ok(Meeting {
            server: Arc::new(server),
            secret,
            job,
            master_port,
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
            .master(self.server.addr().ip().to_string(), self.master_port)
            .joined(joined)
    }
}

/// A port that is free now. Programs that meet by other means listen on it themselves, so it cannot be kept for them; ranks of gaggle do not use it.
fn free_port(ip: IpAddr) -> std::io::Result<u16> {
    let listener = TcpListener::bind((ip, 0))?;
    Ok(listener.local_addr()?.port())
}
