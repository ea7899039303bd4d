//! The handshake: every refusal, every bad message, both sides.

use super::*;
use rand::{Rng, RngCore, SeedableRng, rngs::StdRng};
use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    thread,
};

fn creds(job: &str, epoch: u32, secret: u8) -> Credentials {
    Credentials {
        job: job.into(),
        epoch,
        secret: Secret::from_bytes([secret; 32]),
    }
}

const CLAIM: Claim = Claim {
    purpose: Purpose::Data,
    rank: Rank(3),
};

/// Both sides of a handshake over loopback.
fn shake(
    caller: &Credentials,
    host: &Credentials,
    admit: Result<(), Refusal>,
) -> (Result<Rank, AuthError>, Result<Claim, AuthError>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    thread::scope(|s| {
        let host = s.spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            accept(&stream, host, Rank(7), &mut |_| admit, deadline)
        });
        let stream = TcpStream::connect(addr).unwrap();
        let result = initiate(&stream, caller, CLAIM, deadline);
        drop(stream);
        (result, host.join().unwrap())
    })
}

#[test]
fn both_sides_learn_who_the_other_is() {
    let c = creds("job", 1, 5);
    let (caller, host) = shake(&c, &c, Ok(()));
    assert_eq!(caller.unwrap(), Rank(7));
    assert_eq!(host.unwrap(), CLAIM);
}

#[test]
fn each_difference_has_its_own_error_on_both_sides() {
    let ours = creds("job", 1, 5);
    let (caller, host) = shake(&creds("job", 1, 6), &ours, Ok(()));
    assert!(
        matches!(caller, Err(AuthError::Secret { .. })),
        "{caller:?}"
    );
    assert!(matches!(host, Err(AuthError::Secret { .. })), "{host:?}");
    let (caller, host) = shake(&creds("other", 1, 5), &ours, Ok(()));
    assert!(matches!(caller, Err(AuthError::Job { .. })), "{caller:?}");
    assert!(matches!(host, Err(AuthError::Job { .. })), "{host:?}");
    let (caller, host) = shake(&creds("job", 2, 5), &ours, Ok(()));
    assert!(matches!(caller, Err(AuthError::Epoch { .. })), "{caller:?}");
    assert!(matches!(host, Err(AuthError::Epoch { .. })), "{host:?}");
    let (caller, host) = shake(&ours, &ours, Err(Refusal::Busy));
    assert!(matches!(caller, Err(AuthError::Busy { .. })), "{caller:?}");
    assert!(!caller.unwrap_err().is_final());
    assert!(matches!(host, Err(AuthError::Busy { .. })), "{host:?}");
    let (caller, _) = shake(&ours, &ours, Err(Refusal::Unwanted));
    let caller = caller.unwrap_err();
    assert!(caller.is_final());
    assert!(
        caller
            .to_string()
            .ends_with("refused a data connection of rank 3"),
        "{caller}"
    );
}

#[test]
fn a_host_without_the_secret_does_not_fool_a_caller() {
    // The host says yes to everything, with a mac of its own.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    let error = thread::scope(|s| {
        s.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut hello = [0; HELLO];
            stream.read_exact(&mut hello).unwrap();
            let challenge = challenge(None, Rank(0)).unwrap();
            stream.write_all(&challenge).unwrap();
            let mut proof = [0; PROOF];
            stream.read_exact(&mut proof).unwrap();
            // Its own proof sent back: reflected, it must not count.
            let mut verdict = [0; VERDICT];
            verdict[4..].copy_from_slice(&proof);
            stream.write_all(&verdict).unwrap();
        });
        let stream = TcpStream::connect(addr).unwrap();
        initiate(&stream, &creds("job", 1, 5), CLAIM, deadline).unwrap_err()
    });
    assert!(matches!(error, AuthError::Secret { .. }), "{error}");
    assert!(error.to_string().contains(&addr.to_string()), "{error}");
}

#[test]
fn another_protocol_is_known_at_its_first_byte_and_another_version_is_told() {
    let c = creds("job", 1, 5);
    let mut admit = |_| Ok(());
    let mut a = Acceptor::new(&c, Rank(0), "somebody");
    a.room()[0] = b'G';
    assert!(matches!(
        a.filled(1, &mut admit),
        Err(AuthError::Magic { .. })
    ));
    let mut a = Acceptor::new(&c, Rank(0), "somebody");
    let mut hello = hello(&c, CLAIM).unwrap();
    hello[8] = 9;
    a.room().copy_from_slice(&hello);
    match a.filled(HELLO, &mut admit).unwrap() {
        Progress::Refused { error, reply } => {
            assert!(matches!(error, AuthError::Version { theirs: 9, .. }));
            assert_eq!(reply[10], Refusal::Version as u8);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_silent_peer_ends_with_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let deadline = Instant::now() + Duration::from_millis(20);
    let error = initiate(&stream, &creds("job", 1, 5), CLAIM, deadline).unwrap_err();
    assert!(matches!(error, AuthError::Timeout { .. }), "{error}");
}

#[test]
fn no_bytes_make_the_acceptor_panic_or_admit() {
    let mut rng = StdRng::seed_from_u64(3);
    let c = creds("job", 1, 5);
    for round in 0..3000 {
        let mut a = Acceptor::new(&c, Rank(0), "somebody");
        let mut hello = hello(&c, CLAIM).unwrap();
        if round % 3 == 0 {
            rng.fill_bytes(&mut hello);
        } else if round % 3 == 1 {
            hello[rng.random_range(0..HELLO)] ^= 1 << rng.random_range(0..8);
        }
        let mut sent = 0;
        let mut admitted = |_| panic!("admitted without a proof");
        loop {
            let room = a.room();
            let n = rng.random_range(1..=room.len());
            for byte in &mut room[..n] {
                *byte = hello.get(sent).copied().unwrap_or_else(|| rng.random());
                sent += 1;
            }
            match a.filled(n, &mut admitted) {
                Ok(Progress::More | Progress::Reply(_)) => {}
                Ok(Progress::Refused { .. }) | Err(_) => break,
                Ok(Progress::Done { .. }) => panic!("admitted without a proof"),
            }
        }
    }
}

#[test]
fn no_bytes_make_the_caller_panic_or_believe() {
    let mut rng = StdRng::seed_from_u64(4);
    let c = creds("job", 1, 5);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    for round in 0..200 {
        let mut bytes = vec![0; rng.random_range(0..CHALLENGE + VERDICT)];
        rng.fill_bytes(&mut bytes);
        if round % 2 == 0 {
            let start = challenge(None, Rank(0)).unwrap();
            bytes.splice(..bytes.len().min(CHALLENGE), start);
        }
        let stream = TcpStream::connect(addr).unwrap();
        let (mut host, _) = listener.accept().unwrap();
        host.write_all(&bytes).unwrap();
        host.shutdown(Shutdown::Write).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        initiate(&stream, &c, CLAIM, deadline).unwrap_err();
    }
}

#[test]
fn secrets_round_trip_and_stay_hidden() {
    let secret = Secret::random().unwrap();
    let hex = secret.to_hex();
    assert_eq!(hex.len(), 64);
    assert_eq!(Secret::from_hex(&format!(" {hex}\n")).unwrap().0, secret.0);
    assert_ne!(Secret::random().unwrap().0, secret.0);
    let c = Credentials {
        job: "j".into(),
        epoch: 0,
        secret,
    };
    assert!(!format!("{c:?}").contains(&hex[..8]));
    for bad in ["", "12", &"g".repeat(64), &"é".repeat(32)] {
        let error = Secret::from_hex(bad).unwrap_err();
        assert!(matches!(error, SecretError::Malformed(_)));
    }
}
