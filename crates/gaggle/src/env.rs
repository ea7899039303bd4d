//! What the environment says of this process's place in a job. Pure: the variables are an argument.

use gaggle_collectives::select::{Overrides, Tables};
use gaggle_core::{Error, Rank};
use gaggle_transport::{interfaces::Wish, processors::NodeSetting};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

/// The variables that say which rank this is.
pub(crate) const LOOKED_FOR: &str = "RANK and WORLD_SIZE";

/// Where this process stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    /// No launcher: a world of one.
    Alone,
    /// One of several.
    Member(Member),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member {
    pub rank: Rank,
    pub world: u32,
    /// The job's name.
    pub job: String,
    /// How often the job was restarted.
    pub epoch: u32,
    pub meeting: Meeting,
    pub secret: SecretSource,
}

/// Where the ranks meet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Meeting {
    /// The launcher's store.
    Store(String),
    /// Rank 0 serves a store at this port of `host`.
    Served {
        host: String,
        port: u16,
        one_host: bool,
    },
}

impl Meeting {
    /// Where a client of this host connects, should the store be at another port.
    pub(crate) fn at_port(&self, port: u16) -> String {
        match self {
            Meeting::Store(addr) => addr.clone(),
            Meeting::Served { host, .. } => SocketAddr::new(loopback(host), port).to_string(),
        }
    }

    /// Where a client connects.
    pub(crate) fn addr(&self) -> String {
        match self {
            Meeting::Store(addr) => addr.clone(),
            Meeting::Served {
                one_host: true,
                port,
                ..
            } => self.at_port(*port),
            Meeting::Served { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Meeting::Served { host, port, .. } => format!("{host}:{port}"),
        }
    }
}

/// Where ranks of one host meet: on loopback, in the family of what they were told.
pub(crate) fn loopback(host: &str) -> IpAddr {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) if ip.is_loopback() => Ipv6Addr::LOCALHOST.into(),
        _ => Ipv4Addr::LOCALHOST.into(),
    }
}

/// Where the job's secret comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SecretSource {
    /// 64 hexadecimal digits.
    Hex(String),
    /// A file that holds them.
    File(String),
    /// Ranks of one host and user: rank 0 makes one and leaves it in a private file with this name.
    Private(String),
    /// None: the user says that the network is trusted.
    Insecure,
}

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The deadline that `GAGGLE_TIMEOUT` gives, in seconds.
pub(crate) fn timeout(var: Lookup<'_>) -> Result<Option<Duration>, Error> {
    let Some(text) = var("GAGGLE_TIMEOUT") else {
        return Ok(None);
    };
    text.trim()
        .parse::<f64>()
        .ok()
        .filter(|s| *s > 0.0)
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
        .map(Some)
        .ok_or_else(|| bad("GAGGLE_TIMEOUT", &text, "a number of seconds above 0"))
}

/// Which plans are taken whatever the cost model finds.
pub(crate) fn algorithms(var: Lookup<'_>) -> Result<Option<Overrides>, Error> {
    let Some(text) = var("GAGGLE_ALGORITHMS").filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(overrides) => Ok(Some(overrides)),
        Err(e) => Err(invalid(format!("GAGGLE_ALGORITHMS is {text:?}: {e}"))),
    }
}

/// By which of its addresses others are to reach this rank.
pub(crate) fn interface(var: Lookup<'_>) -> Result<Option<Wish>, Error> {
    let Some(text) = var("GAGGLE_INTERFACE").filter(|text| !text.trim().is_empty()) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(wish) => Ok(Some(wish)),
        Err(e) => Err(invalid(format!("GAGGLE_INTERFACE: {e}"))),
    }
}

/// What the cost model goes by, from the file that is named. Whether memory is mapped is not taken from there: ranks that join find out, and the file speaks of those that measured.
pub(crate) fn tables(
    var: Lookup<'_>,
    read: &dyn Fn(&str) -> std::io::Result<String>,
) -> Result<Option<Tables>, Error> {
    let Some(path) = var("GAGGLE_TABLES").filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let text = read(&path).map_err(|e| {
        invalid(format!(
            "GAGGLE_TABLES is {path:?}, which cannot be read: {e}"
        ))
    })?;
    match text.parse::<Tables>() {
        Ok(tables) => Ok(Some(Tables {
            mapped: false,
            ..tables
        })),
        Err(e) => Err(invalid(format!("GAGGLE_TABLES is {path:?}: {e}"))),
    }
}

/// Which links `GAGGLE_TRANSPORT` asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Wanted {
    /// Shared memory where it can be had.
    #[default]
    Auto,
    /// Sockets only.
    Tcp,
    /// Shared memory with everybody.
    Shm,
}

/// Which links are asked for.
pub(crate) fn links(var: Lookup<'_>) -> Result<Wanted, Error> {
    match var("GAGGLE_TRANSPORT").as_deref().map(str::trim) {
        None | Some("" | "auto") => Ok(Wanted::Auto),
        Some("tcp") => Ok(Wanted::Tcp),
        Some("shm") => Ok(Wanted::Shm),
        Some(other) => Err(bad("GAGGLE_TRANSPORT", other, "auto, shm or tcp")),
    }
}

/// Which memory node this rank is on.
pub(crate) fn node(var: Lookup<'_>) -> Result<NodeSetting, Error> {
    let text = var("GAGGLE_NODE").unwrap_or_default();
    text.parse()
        .map_err(|e| bad("GAGGLE_NODE", &text, &format!("{e}")))
}

/// Whether operations on registered memory are fused.
pub(crate) fn fusion(var: Lookup<'_>) -> Result<Option<bool>, Error> {
    switch(var, "GAGGLE_FUSION")
}

/// Whether waiting threads may go to other processors.
pub(crate) fn parting(var: Lookup<'_>) -> Result<Option<bool>, Error> {
    switch(var, "GAGGLE_PARTING")
}

fn switch(var: Lookup<'_>, name: &str) -> Result<Option<bool>, Error> {
    match var(name).as_deref().map(str::trim) {
        None | Some("") => Ok(None),
        Some("on") => Ok(Some(true)),
        Some("off") => Ok(Some(false)),
        Some(other) => Err(bad(name, other, "on or off")),
    }
}

/// Reads the place from the variables; an empty variable counts as not set.
pub(crate) fn place(var: Lookup<'_>) -> Result<Place, Error> {
    let var = |name: &str| var(name).filter(|v| !v.is_empty());
    let (rank, world) = match (var("RANK"), var("WORLD_SIZE")) {
        (None, None) => {
            if let Some(addr) = var("GAGGLE_STORE") {
                return Err(invalid(format!(
                    "GAGGLE_STORE is {addr:?} but RANK and WORLD_SIZE are not set: which rank is this?"
                )));
            }
            return Ok(Place::Alone);
        }
        (Some(_), None) => return Err(invalid("RANK is set but WORLD_SIZE is not")),
        (None, Some(_)) => return Err(invalid("WORLD_SIZE is set but RANK is not")),
        (Some(rank), Some(world)) => (rank, world),
    };
    let world: u32 = parse("WORLD_SIZE", &world, "a number of ranks from 1 on")?;
    let rank: u32 = parse("RANK", &rank, "a number from 0 on")?;
    if world == 0 {
        return Err(bad("WORLD_SIZE", "0", "a number of ranks from 1 on"));
    }
    if rank >= world {
        return Err(invalid(format!(
            "RANK is {rank} but WORLD_SIZE is {world}: ranks are numbered from 0 to {}",
            world - 1
        )));
    }
    let epoch = match var("TORCHELASTIC_RESTART_COUNT") {
        Some(n) => parse("TORCHELASTIC_RESTART_COUNT", &n, "a number from 0 on")?,
        None => 0,
    };
    let run_id = var("TORCHELASTIC_RUN_ID").filter(|id| id != "none");
    let job = var("GAGGLE_JOB")
        .or_else(|| run_id.clone())
        .unwrap_or_else(|| "gaggle".into());
    let meeting = meeting(&var, world)?;
    let secret = secret(&var, &meeting, &job)?;
    Ok(Place::Member(Member {
        rank: Rank(rank),
        world,
        job,
        epoch,
        meeting,
        secret,
    }))
}

fn meeting(var: Lookup<'_>, world: u32) -> Result<Meeting, Error> {
    if let Some(addr) = var("GAGGLE_STORE") {
        return Ok(Meeting::Store(addr));
    }
    let missing = |name: &str| {
        invalid(format!(
            "RANK and WORLD_SIZE are set, but neither GAGGLE_STORE (by `gaggle run`) nor {name} (by torchrun and its like) says where the ranks meet"
        ))
    };
    let host = var("MASTER_ADDR").ok_or_else(|| missing("MASTER_ADDR"))?;
    let host = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_string();
    let port = match var("GAGGLE_PORT") {
        Some(port) => parse("GAGGLE_PORT", &port, "a port number")?,
        None => {
            let text = var("MASTER_PORT").ok_or_else(|| missing("MASTER_PORT"))?;
            let port: u16 = parse("MASTER_PORT", &text, "a port number")?;
            // The launcher's own agent listens on MASTER_PORT.
            port.checked_add(1).ok_or_else(|| {
                invalid("MASTER_PORT is 65535, so there is no port after it; set GAGGLE_PORT")
            })?
        }
    };
    let local_world: Option<u32> = match var("LOCAL_WORLD_SIZE") {
        Some(n) => Some(parse(
            "LOCAL_WORLD_SIZE",
            &n,
            "a number of ranks from 1 on",
        )?),
        None => None,
    };
    let one_host = local_world == Some(world) || is_loopback(&host);
    Ok(Meeting::Served {
        host,
        port,
        one_host,
    })
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn secret(var: Lookup<'_>, meeting: &Meeting, job: &str) -> Result<SecretSource, Error> {
    if let Some(hex) = var("GAGGLE_SECRET") {
        return Ok(SecretSource::Hex(hex));
    }
    if let Some(path) = var("GAGGLE_SECRET_FILE") {
        return Ok(SecretSource::File(path));
    }
    match var("GAGGLE_INSECURE").as_deref() {
        None | Some("0") => {}
        Some("1") => return Ok(SecretSource::Insecure),
        Some(other) => return Err(bad("GAGGLE_INSECURE", other, "0 or 1")),
    }
    match meeting {
        Meeting::Served {
            one_host: true,
            port,
            ..
        } => {
            let name: String = job
                .chars()
                .map(|c| {
                    if c.is_ascii_alphanumeric() || c == '-' {
                        c
                    } else {
                        '_'
                    }
                })
                .take(100)
                .collect();
            Ok(SecretSource::Private(format!(
                "gaggle-{name}-{port}.secret"
            )))
        }
        Meeting::Served { host, .. } => Err(invalid(format!(
            "the ranks meet at {host} from several hosts, and GAGGLE_SECRET is not set: give every rank the same 64 hexadecimal digits in GAGGLE_SECRET or in a file that GAGGLE_SECRET_FILE names, or say GAGGLE_INSECURE=1 on a network that you trust"
        ))),
        Meeting::Store(addr) => Err(invalid(format!(
            "GAGGLE_STORE is {addr:?} but GAGGLE_SECRET is not set"
        ))),
    }
}

fn parse<N: std::str::FromStr>(name: &str, text: &str, wanted: &str) -> Result<N, Error> {
    text.trim().parse().map_err(|_| bad(name, text, wanted))
}

fn bad(name: &str, text: &str, wanted: &str) -> Error {
    invalid(format!("{name} is {text:?}, wanted {wanted}"))
}

fn invalid(what: impl Into<String>) -> Error {
    Error::invalid("join", what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Result<Place, Error> {
        place(&|name| {
            vars.iter()
                .find(|(k, _)| *k == name)
                .map(|(_, v)| (*v).to_string())
        })
    }

    fn member(vars: &[(&str, &str)]) -> Member {
        match read(vars) {
            Ok(Place::Member(m)) => m,
            other => panic!("{other:?}"),
        }
    }

    /// Every refusal names the variable.
    fn refused(vars: &[(&str, &str)], text: &str) {
        let e = read(vars).unwrap_err();
        assert!(e.to_string().contains(text), "{e}");
    }

    const TORCH: [(&str, &str); 6] = [
        ("RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("MASTER_ADDR", "some-host"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "a/b c"),
    ];

    #[test]
    fn nothing_set_is_a_world_of_one() {
        assert_eq!(read(&[]).unwrap(), Place::Alone);
        assert_eq!(
            read(&[("RANK", ""), ("WORLD_SIZE", ""), ("MASTER_PORT", "1")]).unwrap(),
            Place::Alone
        );
    }

    #[test]
    fn our_launcher_gives_store_and_secret() {
        let m = member(&[
            ("RANK", "2"),
            ("WORLD_SIZE", "3"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29500"),
            ("GAGGLE_STORE", "127.0.0.1:4000"),
            ("GAGGLE_SECRET", "ab"),
            ("GAGGLE_JOB", "j"),
        ]);
        assert_eq!((m.rank, m.world, &*m.job, m.epoch), (Rank(2), 3, "j", 0));
        assert_eq!(m.meeting.addr(), "127.0.0.1:4000");
        assert_eq!(m.secret, SecretSource::Hex("ab".into()));
    }

    #[test]
    fn torchrun_on_one_host_meets_on_loopback_with_a_private_secret() {
        let m = member(&TORCH);
        assert_eq!(m.meeting.addr(), "127.0.0.1:29501");
        assert_eq!(m.job, "a/b c");
        assert_eq!(
            m.secret,
            SecretSource::Private("gaggle-a_b_c-29501.secret".into())
        );
    }

    #[test]
    fn ranks_of_one_host_meet_in_the_family_of_their_master() {
        for (host, addr) in [
            ("localhost", "127.0.0.1:29501"),
            ("127.0.0.9", "127.0.0.1:29501"),
            ("::1", "[::1]:29501"),
            ("[::1]", "[::1]:29501"),
            ("fd00::7", "127.0.0.1:29501"),
        ] {
            let mut vars = TORCH.to_vec();
            vars[3].1 = host;
            assert_eq!(member(&vars).meeting.addr(), addr, "{host}");
        }
        let mut vars = TORCH.to_vec();
        vars.remove(2);
        vars[2].1 = "::1";
        let m = member(&vars);
        assert!(matches!(m.secret, SecretSource::Private(_)), "{m:?}");
    }

    #[test]
    fn the_wish_for_an_interface_is_read_or_refused() {
        let read = |text: &str| interface(&|_| Some(text.to_string()));
        let wish = read("eth*,^docker*").unwrap().map(|w| w.to_string());
        assert_eq!(wish.as_deref(), Some("eth*,^docker*"));
        assert_eq!(read(" ").unwrap(), None);
        assert_eq!(interface(&|_| None).unwrap(), None);
        let e = read("10.0.0.0/40").unwrap_err().to_string();
        assert!(e.contains("GAGGLE_INTERFACE: '10.0.0.0/40'"), "{e}");
    }

    #[test]
    fn several_hosts_need_a_secret_or_a_plain_word() {
        let mut vars = TORCH.to_vec();
        vars[2].1 = "2";
        refused(&vars, "GAGGLE_SECRET is not set");
        vars.push(("GAGGLE_INSECURE", "yes"));
        refused(&vars, "GAGGLE_INSECURE is \"yes\"");
        vars.pop();
        vars.push(("GAGGLE_INSECURE", "1"));
        let m = member(&vars);
        assert_eq!(m.secret, SecretSource::Insecure);
        assert_eq!(m.meeting.addr(), "some-host:29501");
        vars.push(("GAGGLE_SECRET_FILE", "f"));
        vars.push(("GAGGLE_PORT", "7"));
        vars[3].1 = "fd00::1";
        let m = member(&vars);
        assert_eq!(m.secret, SecretSource::File("f".into()));
        assert_eq!(m.meeting.addr(), "[fd00::1]:7");
    }

    #[test]
    fn mistakes_name_the_variable() {
        refused(&[("RANK", "0")], "WORLD_SIZE is not");
        refused(&[("WORLD_SIZE", "2")], "RANK is not");
        refused(&[("RANK", "x"), ("WORLD_SIZE", "2")], "RANK is \"x\"");
        refused(&[("RANK", "-1"), ("WORLD_SIZE", "2")], "RANK is \"-1\"");
        refused(&[("RANK", "0"), ("WORLD_SIZE", "0")], "WORLD_SIZE is \"0\"");
        refused(
            &[("RANK", "2"), ("WORLD_SIZE", "2")],
            "RANK is 2 but WORLD_SIZE is 2: ranks are numbered from 0 to 1",
        );
        refused(&[("RANK", "0"), ("WORLD_SIZE", "2")], "MASTER_ADDR");
        refused(
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h")],
            "MASTER_PORT",
        );
        refused(
            &[
                ("RANK", "0"),
                ("WORLD_SIZE", "2"),
                ("MASTER_ADDR", "h"),
                ("MASTER_PORT", "65535"),
            ],
            "GAGGLE_PORT",
        );
        refused(
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("GAGGLE_STORE", "a:1")],
            "GAGGLE_SECRET is not set",
        );
        refused(
            &[("GAGGLE_STORE", "a:1")],
            "RANK and WORLD_SIZE are not set",
        );
    }

    #[test]
    fn overrides_of_algorithms_are_read_or_refused() {
        let read = |text: &str| algorithms(&|_| Some(text.to_string()));
        let read_back = read("all_reduce:0-32k=recursive_doubling,32k-=direct").unwrap();
        assert!(read_back.is_some());
        assert_eq!(read("").unwrap(), None);
        let e = read("all_reduce:=best").unwrap_err().to_string();
        assert!(e.contains("GAGGLE_ALGORITHMS") && e.contains("best"), "{e}");
    }

    #[test]
    fn tables_are_read_from_a_file_or_refused() {
        let read = |text: &str| {
            let text = text.to_owned();
            tables(&|_| Some("t".to_string()), &move |_| Ok(text.clone()))
        };
        let found = read("inside.latency_ns = 7").unwrap().unwrap();
        assert_eq!(found.inside.latency_ns, 7);
        // Ranks find out by themselves what they have mapped.
        assert!(!read("mapped = true").unwrap().unwrap().mapped);
        let e = read("inside.latency_ns = x").unwrap_err().to_string();
        assert!(e.contains("GAGGLE_TABLES is \"t\": line 1"), "{e}");
        let gone = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let e = tables(&|_| Some("t".to_string()), &gone).unwrap_err();
        assert!(e.to_string().contains("cannot be read"), "{e}");
        assert_eq!(tables(&|_| None, &gone).unwrap(), None);
    }

    #[test]
    fn links_are_asked_for_by_name() {
        let read = |text: &str| links(&|_| Some(text.to_string()));
        assert_eq!(links(&|_| None).unwrap(), Wanted::Auto);
        for (text, wanted) in [
            ("", Wanted::Auto),
            ("auto", Wanted::Auto),
            (" tcp ", Wanted::Tcp),
            ("shm", Wanted::Shm),
        ] {
            assert_eq!(read(text).unwrap(), wanted);
        }
        let e = read("sm").unwrap_err().to_string();
        assert!(e.contains("GAGGLE_TRANSPORT is \"sm\""), "{e}");
    }

    #[test]
    fn a_node_is_found_or_given() {
        let read = |text: &str| node(&|_| Some(text.to_string()));
        assert_eq!(node(&|_| None).unwrap(), NodeSetting::Auto);
        for (text, wanted) in [
            ("", NodeSetting::Auto),
            ("auto", NodeSetting::Auto),
            ("off", NodeSetting::Off),
            (" 3 ", NodeSetting::Number(3)),
        ] {
            assert_eq!(read(text).unwrap(), wanted);
        }
        let e = read("node1").unwrap_err().to_string();
        let wanted = "GAGGLE_NODE is \"node1\", wanted auto, off or the number of a memory node";
        assert!(e.contains(wanted), "{e}");
    }

    #[test]
    fn fusion_is_on_or_off() {
        let read = |text: &str| fusion(&|_| Some(text.to_string()));
        assert_eq!(fusion(&|_| None).unwrap(), None);
        for (text, wanted) in [("", None), ("on", Some(true)), (" off", Some(false))] {
            assert_eq!(read(text).unwrap(), wanted);
        }
        let e = read("0").unwrap_err().to_string();
        assert!(e.contains("GAGGLE_FUSION is \"0\""), "{e}");
        let of = |name: &str| (name == "GAGGLE_PARTING").then(|| "off".to_string());
        assert_eq!(parting(&of).unwrap(), Some(false));
        assert_eq!(fusion(&of).unwrap(), None);
    }

    #[test]
    fn the_timeout_is_a_number_of_seconds() {
        let read = |text: &str| timeout(&|_| Some(text.to_string()));
        assert_eq!(read("2.5").unwrap(), Some(Duration::from_millis(2500)));
        for bad in ["0", "-1", "nan", "inf", "5s", "1e300"] {
            let e = read(bad).unwrap_err();
            assert!(e.to_string().contains("GAGGLE_TIMEOUT"), "{e}");
        }
        assert_eq!(timeout(&|_| None).unwrap(), None);
    }
}
