//! Becoming a rank of a job that somebody else has started.

use crate::{
    EngineConfig,
    env::{self, LOOKED_FOR, Meeting, Member, Place, SecretSource, Wanted},
    links, local,
    recording::{self, Recording},
    secret::{self, PrivateFile},
};
use gaggle_core::{Cause, Error, Group, Rank, SystemClock, Transport};
use gaggle_engine::Engine;
use gaggle_transport::{
    auth::{Credentials, Secret, deadline_in},
    control::TcpControl,
    interfaces::{Wish, interfaces},
    processors::{NodeSetting, Seat, Seats},
    rendezvous::Rendezvous,
    store::{StoreClient, StoreConfig, StoreServer},
    tcp::{TcpConfig, TcpTransport},
};
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    ops::Deref,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Becomes a rank of the job that the environment describes.
///
/// - Under `gaggle run`: `RANK`, `WORLD_SIZE`, `GAGGLE_STORE`, `GAGGLE_SECRET`, `GAGGLE_JOB`. The ranks meet in the launcher's store; when the launcher dies, this process ends.
/// - Under torchrun and whatever sets its variables: `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`. Rank 0 serves the store on `GAGGLE_PORT`, by default `MASTER_PORT` + 1, since torchrun's agent listens on `MASTER_PORT` itself. On one host (`LOCAL_WORLD_SIZE` equals `WORLD_SIZE`, or `MASTER_ADDR` is loopback) the secret goes through a file that only this user can read, and so does another port should the usual one be in use; several hosts need the same `GAGGLE_SECRET` or `GAGGLE_SECRET_FILE` on all, or `GAGGLE_INSECURE=1`.
/// - With none of `RANK` and `WORLD_SIZE`: a world of one, and a line on standard error that says so.
///
/// `GAGGLE_TIMEOUT`, in seconds, is the deadline of the meeting and of every operation that names none; 300 by default.
///
/// What the rank does is recorded: its last few thousand operations, in a file of 1 MiB that survives a crash, in `GAGGLE_TRACE_DIR` or else in `gaggle-trace-<uid>` under `XDG_RUNTIME_DIR` or the directory for temporary files.
/// The file goes when the rank leaves and nothing has gone wrong; otherwise `gaggle trace` shows who waited for whom. `GAGGLE_TRACE=off` switches it off. Where it cannot be written a warning says so, and nothing else happens.
///
/// `GAGGLE_ALGORITHMS` says which plans are taken whatever the cost model finds, as in `all_reduce:0-32k=recursive_doubling,32k-=direct`; the same on every rank.
///
/// `GAGGLE_INTERFACE` says by which of this host's addresses others are to reach this rank: interfaces, patterns, addresses and networks with commas between them, what follows `^` or `!` excluded, as in `eth*,10.0.0.0/8,^docker*`; see [`Wish`](gaggle_transport::interfaces::Wish).
/// Without it that is the address by which the rank reaches the store. It may differ between ranks.
///
/// Ranks of one host and user talk through shared memory, others over TCP. `GAGGLE_TRANSPORT` says so differently: `tcp` for all, `shm` for shared memory or an error, `auto` for what happens anyway. Where a host gives no shared memory, a warning says why and TCP is used.
///
/// Ranks of one host that share memory also map each other's heaps, where [`Group::buffer`](gaggle_core::Group::buffer) makes buffers: collectives on these take one pass. `GAGGLE_FUSION=off`, on all ranks, has them go by messages, with the same results.
///
/// Groups of ranks of one host that are bound to different memory nodes (NUMA) reduce large vectors inside each node first, so that less crosses from node to node. `GAGGLE_NODE` says on which node this rank is: `auto`, by the processors that it may use; `off`, on none that is known; or a number, the same for ranks of one host and node, for a machine that is not what it says. Where one rank does not know its node, none counts.
///
/// A calling thread that waits for a rank on its own processor goes to another one that it may use, where one is idle or has fewer ranks; it is not bound there. `GAGGLE_PARTING=off` leaves that to the system; it may differ between ranks.
///
/// Threads: `gaggle-progress-N`; `gaggle-lifeline` under `gaggle run`; `gaggle-store` on rank 0 under torchrun; and those of the TCP transport and control plane.
///
/// # Errors
/// A variable makes no sense, or no interface is what it asks for: [`Cause::Invalid`] names it. The store does not answer: [`Cause::Store`]. Ranks are missing: [`Cause::Rendezvous`] names them.
pub fn join() -> Result<Job, Error> {
    join_with(EngineConfig::default())
}

/// As [`join`], with settings of the engine; `GAGGLE_TIMEOUT`, `GAGGLE_ALGORITHMS` and `GAGGLE_TABLES` still win.
///
/// # Errors
/// As [`join`].
pub fn join_with(config: EngineConfig) -> Result<Job, Error> {
    gaggle_launch::lifeline::watch();
    let var = |name: &str| std::env::var(name).ok();
    let mut config = match env::timeout(&var)? {
        Some(timeout) => config.with_timeout(timeout),
        None => config,
    };
    if let Some(overrides) = env::algorithms(&var)? {
        config.overrides = overrides;
    }
    if let Some(tables) = env::tables(&var, &|path| std::fs::read_to_string(path))? {
        config.slice_bytes = tables.slice_bytes;
        config.tables = Some(tables);
    }
    if let Some(fusion) = env::fusion(&var)? {
        config.fusion = fusion;
    }
    if let Some(parts) = env::parting(&var)? {
        config.parts = parts;
    }
    let links = env::links(&var)?;
    let node = env::node(&var)?;
    match env::place(&var)? {
        Place::Alone => {
            eprintln!(
                "gaggle: {LOOKED_FOR} are not set, so this is a world of one; start several ranks with `gaggle run -n 4 -- PROGRAM`"
            );
            let engine = local::alone(config)?;
            if let Some(recording) = Recording::begin(1) {
                let about = recording::about(&recording::own_name(), 1, Rank(0), recording::draw());
                recording.attach(&engine, about);
            }
            Ok(Job {
                group: engine.group(),
                engine: Some(engine),
                store: None,
                host: None,
                linger: Duration::ZERO,
            })
        }
        Place::Member(member) => {
            let wishes = Wishes {
                interface: env::interface(&var)?,
                links,
                node,
            };
            meet(&member, config, wishes)
        }
    }
}

/// This process's membership of a job: derefs to the [`Group`] of all ranks.
///
/// Dropping it leaves politely: peers see that this rank has left, and a rank that serves the store stays until all others have left too, at most for the deadline of the job.
/// When it is dropped by a panic it says no goodbye, so that peers report this rank as lost once its process ends.
#[must_use = "the rank leaves the job when this is dropped"]
pub struct Job {
    group: Group,
    engine: Option<Engine>,
    store: Option<StoreClient>,
    host: Option<StoreServer>,
    linger: Duration,
}

impl Job {
    /// The group of all ranks.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Leaves now. The same as dropping it, at a place that one can see.
    pub fn leave(self) {}
}

impl Deref for Job {
    type Target = Group;
    fn deref(&self) -> &Group {
        &self.group
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("group", &self.group)
            .field("serves_store", &self.host.is_some())
            .finish_non_exhaustive()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if thread::panicking() {
            // Sockets close with the process; saying goodbye would call a crash a departure.
            std::mem::forget(self.engine.take());
            std::mem::forget(self.store.take());
            std::mem::forget(self.host.take());
            return;
        }
        drop(self.engine.take());
        if let Some(store) = self.store.take()
            && let Err(e) = store.goodbye()
        {
            tracing::debug!("the store did not hear the goodbye: {e}");
        }
        if let Some(host) = self.host.take() {
            let world = u32::try_from(self.group.size()).unwrap_or(u32::MAX);
            let present = host.linger(world, self.linger);
            if !present.is_empty() {
                tracing::warn!(
                    "the store closes while {} have not left",
                    gaggle_core::name_ranks(&present)
                );
            }
        }
    }
}

/// How long rank 0 serves its store after the meeting has failed, while others have not left.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How this rank wants to be reached: at which address, and through what; and where it says that it is.
struct Wishes {
    interface: Option<Wish>,
    links: Wanted,
    node: NodeSetting,
}

fn meet(member: &Member, config: EngineConfig, wishes: Wishes) -> Result<Job, Error> {
    let deadline = deadline_in(config.timeout);
    let linger = config.timeout;
    let hosts = member.rank == Rank(0);
    // The file stays until all have met: its guard lives to the end of this function.
    let mut private = None;
    let given = match &member.secret {
        SecretSource::Hex(text) => Some(secret::from_hex("GAGGLE_SECRET", text)?),
        SecretSource::File(path) => Some(secret::from_file(Path::new(path))?),
        SecretSource::Insecure => {
            tracing::warn!("GAGGLE_INSECURE=1: whoever reaches the ports can join the job");
            Some(secret::known_to_all())
        }
        SecretSource::Private(_) if hosts => Some(secret::random()?),
        SecretSource::Private(_) => None,
    };
    let host = match (&member.meeting, &given) {
        (
            Meeting::Served {
                host,
                port,
                one_host,
            },
            Some(secret),
        ) if hosts => Some(serve(member, host, *port, *one_host, secret)?),
        _ => None,
    };
    let (store, creds) = match (given, &member.secret) {
        (None, SecretSource::Private(name)) => {
            find_store(member, &secret::private_path(name), deadline)?
        }
        (secret, _) => {
            let secret = secret.ok_or_else(|| Error::internal("a job without a secret"))?;
            // Where the others look for it, rank 0 says in its private file: there another port than the usual one will do.
            let mut addr = member.meeting.addr();
            if let (SecretSource::Private(name), Some(host)) = (&member.secret, &host) {
                let port = host.addr().port();
                let path = secret::private_path(name);
                private = Some(PrivateFile::create(path, &secret, port)?);
                addr = host.addr().to_string();
            }
            let creds = credentials(member, secret);
            let store = StoreClient::connect(addr, &creds, member.rank, left(deadline))?;
            (store, creds)
        }
    };
    let engine = match connect(member, &store, &creds, (config, wishes), deadline) {
        Ok(engine) => engine,
        Err(e) => {
            if let Some(host) = host {
                drop(store);
                // Why it failed the others may still have to read here.
                host.linger(member.world, LAST_WORDS.min(left(deadline)));
            }
            return Err(e);
        }
    };
    if let Some(recording) = Recording::begin(1) {
        let run = recording::run_of(&store, member.epoch);
        let about = recording::about(&member.job, member.world, member.rank, run);
        recording.attach(&engine, about.in_epoch(member.epoch));
    }
    drop(private);
    Ok(Job {
        group: engine.group(),
        engine: Some(engine),
        store: Some(store),
        host,
        linger,
    })
}

fn credentials(member: &Member, secret: Secret) -> Credentials {
    Credentials {
        job: member.job.clone(),
        epoch: member.epoch,
        secret,
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Rank 0 under a foreign launcher.
fn serve(
    member: &Member,
    host: &str,
    port: u16,
    one_host: bool,
    secret: &Secret,
) -> Result<StoreServer, Error> {
    let listener = if one_host {
        let ip = env::loopback(host);
        let usual = TcpListener::bind((ip, port));
        // MASTER_PORT + 1 is a guess, and a connection of the launcher's own may have it. The private file tells the others where to look instead.
        let free = matches!(member.secret, SecretSource::Private(_))
            && std::env::var_os("GAGGLE_PORT").is_none();
        usual.or_else(|e| match e.kind() {
            std::io::ErrorKind::AddrInUse if free => TcpListener::bind((ip, 0)),
            _ => Err(e),
        })
    } else {
        // Peers may reach this host by any of its addresses, whatever MASTER_ADDR is called here.
        TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
    };
    listener
        .and_then(|listener| {
            StoreServer::from_listener(
                listener,
                &credentials(member, secret.clone()),
                StoreConfig::new(member.world),
            )
        })
        .map_err(|e| {
            Cause::Store {
                addr: format!("{host}:{port}"),
                what: format!(
                    "rank 0 cannot serve it: {e}; set GAGGLE_PORT to a free port on all ranks"
                ),
            }
            .into()
        })
}

/// Reads rank 0's secret and connects; both again until the deadline, since what lies there at first may be an earlier job's.
fn find_store(
    member: &Member,
    path: &Path,
    deadline: Instant,
) -> Result<(StoreClient, Credentials), Error> {
    const PAUSE: Duration = Duration::from_millis(20);
    const ATTEMPT: Duration = Duration::from_millis(500);
    loop {
        let why = match secret::read_private(path) {
            Ok((secret, port)) => {
                let creds = credentials(member, secret);
                let limit = left(deadline).min(ATTEMPT);
                let addr = member.meeting.at_port(port);
                match StoreClient::connect(addr, &creds, member.rank, limit) {
                    Ok(store) => return Ok((store, creds)),
                    Err(e) => e,
                }
            }
            Err(what) => Error::invalid(
                "join",
                format!(
                    "rank 0's secret is not in {}: {what}; set GAGGLE_SECRET if the ranks do not share that directory",
                    path.display()
                ),
            ),
        };
        if left(deadline).is_zero() {
            return Err(why);
        }
        thread::sleep(PAUSE.min(left(deadline)));
    }
}

fn connect(
    member: &Member,
    store: &StoreClient,
    creds: &Credentials,
    (config, wishes): (EngineConfig, Wishes),
    deadline: Instant,
) -> Result<Engine, Error> {
    if member.world == 1 {
        return local::alone(config);
    }
    let mut meeting = Rendezvous::over(store, member.rank, member.world, creds, left(deadline));
    if let Some(wish) = &wishes.interface {
        meeting.at = address(wish, store.local_addr()).inspect_err(|e| {
            if let Err(lost) = meeting.give_up(&e.to_string()) {
                tracing::debug!("the other ranks do not learn why this one gives up: {lost}");
            }
        })?;
    }
    tell_address(wishes.interface.as_ref(), meeting.at, store.local_addr());
    let hosts = meeting.hosts()?;
    let memory = links::through_memory(&meeting, &hosts, wishes.links)?;
    let seats = meeting.seats(&Seat::here(wishes.node.node()))?;
    let seats = Seats::of(member.rank.idx(), &hosts, &seats);
    tracing::debug!(nodes = ?seats.nodes, crowded = seats.crowded, "memory nodes and processors");
    meeting.beside = &memory.ranks;
    meeting.timeout = left(deadline);
    let met = meeting.introduce()?;
    let mut config = config;
    config.mapped |= memory.mapped;
    config.crowded |= seats.crowded;
    config.yields = config.yields.or(Some(seats.here_crowded));
    if config.hosts.is_none() {
        // What two-level plans and the cost model go by; agreed on, since all read the same list.
        config.hosts = Some(hosts.into());
        config.nodes = config.nodes.or(seats.nodes.map(Into::into));
    }
    let failed = |what: &str, e: std::io::Error| -> Error {
        Cause::Rendezvous {
            rank: member.rank,
            world: member.world,
            what: format!("{what}: {e}"),
        }
        .into()
    };
    let control = TcpControl::new(member.rank, member.world, met.control)
        .map_err(|e| failed("the control plane", e))?;
    let mut links: Vec<Box<dyn Transport>> = Vec::new();
    links.extend(memory.link);
    if let Some(reach) = met.reach {
        let tcp = TcpConfig {
            // A peer that cannot be reached is named when the first operation that needs it has run out of time.
            patience: config.timeout,
            ..TcpConfig::default()
        };
        let link = TcpTransport::reaching(member.rank, reach, tcp)
            .map_err(|e| failed("the data links", e))?;
        links.push(Box::new(link));
    }
    Engine::new(
        links,
        Box::new(control),
        Arc::new(SystemClock::new()),
        config,
    )
}

/// Which of this host's addresses `wish` chooses, where others would come to `usual` without it.
fn address(wish: &Wish, usual: SocketAddr) -> Result<Option<SocketAddr>, Error> {
    let failed = |what: String| Error::invalid("join", format!("GAGGLE_INTERFACE: {what}"));
    let there = interfaces().map_err(|e| failed(format!("cannot list the interfaces: {e}")))?;
    wish.choose(&there, usual)
        .map_err(|e| failed(e.to_string()))
}

/// Says in the log at which address others reach this rank, on which interface, and why there: `wish` chose it, or it is `usual`.
fn tell_address(wish: Option<&Wish>, chosen: Option<SocketAddr>, usual: SocketAddr) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let ip = chosen.unwrap_or(usual).ip().to_canonical();
    let why = match (wish, chosen) {
        (Some(wish), Some(_)) => format!("GAGGLE_INTERFACE={wish} chooses it"),
        (Some(wish), None) => {
            format!("the store was reached from it, and GAGGLE_INTERFACE={wish} does not exclude it")
        }
        (None, _) if ip.is_loopback() => {
            "the store was reached from it; ranks of other hosts come to the store's address instead".into()
        }
        (None, _) => "the store was reached from it".into(),
    };
    let there = interfaces().unwrap_or_default();
    let interface = there.iter().find(|i| i.ip.to_canonical() == ip);
    let interface = interface.map_or("an unknown interface", |i| &i.name);
    tracing::debug!("others reach this rank at {ip} on {interface}: {why}");
}
