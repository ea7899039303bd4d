//! What the store knows and who waits for it: no I/O, time is an argument.

use super::wire::{Reply, Request};
use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

/// Which client asked, and which of its requests.
pub(crate) type Ticket = (u64, u64);

/// Keys and values together; beyond it requests fail.
const BYTES_MAX: usize = 256 << 20;
/// What a key costs beside its bytes.
const KEY_COST: usize = 64;
/// Waits at one time; beyond it further ones fail.
const WAITERS_MAX: usize = 1 << 16;
/// A wait that no clock can add is cut to this.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

enum Value {
    Bytes(Vec<u8>),
    Number(i64),
}

impl Value {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Value::Bytes(b) => b.clone(),
            Value::Number(n) => n.to_string().into_bytes(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Value::Bytes(b) => b.len(),
            Value::Number(_) => 8,
        }
    }
}

fn crowded() -> String {
    format!("{WAITERS_MAX} others wait already")
}

struct Waiter {
    ticket: Ticket,
    deadline: Instant,
    wait: Duration,
    what: Waiting,
}

enum Waiting {
    Key(String),
    Barrier(String),
}

struct Barrier {
    n: u32,
    arrived: Vec<u64>,
}

/// Keys, values and waiters.
#[derive(Default)]
pub(crate) struct Table {
    values: HashMap<String, Value>,
    bytes: usize,
    waiters: HashMap<u64, Waiter>,
    by_deadline: BTreeMap<(Instant, u64), ()>,
    by_key: HashMap<String, Vec<u64>>,
    barriers: HashMap<String, Barrier>,
    next: u64,
}

impl Table {
    /// Answers `request` now or later; answers go to `out`, others' that it makes possible too.
    pub(crate) fn request(
        &mut self,
        ticket: Ticket,
        request: Request,
        now: Instant,
        out: &mut Vec<(Ticket, Reply)>,
    ) {
        let reply = match request {
            Request::Set { key, value } => self
                .put(key, Value::Bytes(value), out)
                .map(|()| Reply::Value(Vec::new())),
            Request::Get { key, wait } => match self.values.get(&key) {
                Some(v) => Ok(Reply::Value(v.to_bytes())),
                None if self.waiters.len() >= WAITERS_MAX => Err(crowded()),
                None => {
                    let id = self.wait(ticket, Waiting::Key(key.clone()), wait, now);
                    self.by_key.entry(key).or_default().push(id);
                    self.expire(now, out);
                    return;
                }
            },
            Request::Add { key, delta } => self.add(key, delta, out).map(Reply::Number),
            Request::CompareAndSet { key, expected, new } => self
                .compare_and_set(key, expected.as_deref(), new, out)
                .map(Reply::Value),
            Request::Barrier { name, n, wait } => {
                match self.barrier(ticket, name, n, wait, now, out) {
                    Ok(()) => return,
                    Err(what) => Err(what),
                }
            }
            Request::Bye => Ok(Reply::Value(Vec::new())),
        };
        out.push((ticket, reply.unwrap_or_else(Reply::Failed)));
    }

    fn put(
        &mut self,
        key: String,
        value: Value,
        out: &mut Vec<(Ticket, Reply)>,
    ) -> Result<(), String> {
        let old = self
            .values
            .get(&key)
            .map_or(0, |v| key.len() + KEY_COST + v.len());
        let bytes = self.bytes - old + key.len() + KEY_COST + value.len();
        if bytes > BYTES_MAX {
            return Err(format!("the store is full ({BYTES_MAX} bytes)"));
        }
        self.bytes = bytes;
        for id in self.by_key.remove(&key).unwrap_or_default() {
            if let Some(w) = self.remove(id) {
                out.push((w.ticket, Reply::Value(value.to_bytes())));
            }
        }
        self.values.insert(key, value);
        Ok(())
    }

    fn add(
        &mut self,
        key: String,
        delta: i64,
        out: &mut Vec<(Ticket, Reply)>,
    ) -> Result<i64, String> {
        let sum = match self.values.get(&key) {
            None => delta,
            Some(Value::Number(n)) => n.wrapping_add(delta),
            Some(Value::Bytes(_)) => {
                return Err(format!(
                    "cannot add to {key:?}: it does not hold an integer"
                ));
            }
        };
        self.put(key, Value::Number(sum), out)?;
        Ok(sum)
    }

    fn compare_and_set(
        &mut self,
        key: String,
        expected: Option<&[u8]>,
        new: Vec<u8>,
        out: &mut Vec<(Ticket, Reply)>,
    ) -> Result<Vec<u8>, String> {
        let held = self.values.get(&key).map(Value::to_bytes);
        match held {
            Some(held) if Some(held.as_slice()) != expected => Ok(held),
            None if expected.is_some() => Err(format!(
                "{key:?} holds nothing, so it was not compared with what was expected"
            )),
            _ => {
                self.put(key, Value::Bytes(new.clone()), out)?;
                Ok(new)
            }
        }
    }

    fn barrier(
        &mut self,
        ticket: Ticket,
        name: String,
        n: u32,
        wait: Duration,
        now: Instant,
        out: &mut Vec<(Ticket, Reply)>,
    ) -> Result<(), String> {
        let known = self.barriers.get(&name).map_or(n, |b| b.n);
        if known != n {
            return Err(format!(
                "barrier {name:?} was called for {n}, by others for {known}"
            ));
        }
        if self.waiters.len() >= WAITERS_MAX {
            return Err(crowded());
        }
        let id = self.wait(ticket, Waiting::Barrier(name.clone()), wait, now);
        let barrier = self.barriers.entry(name.clone()).or_insert(Barrier {
            n,
            arrived: Vec::new(),
        });
        barrier.arrived.push(id);
        if barrier.arrived.len() >= n as usize {
            let arrived = self.barriers.remove(&name).map(|b| b.arrived);
            for id in arrived.unwrap_or_default() {
                if let Some(w) = self.remove(id) {
                    out.push((w.ticket, Reply::Value(Vec::new())));
                }
            }
        }
        self.expire(now, out);
        Ok(())
    }

    fn wait(&mut self, ticket: Ticket, what: Waiting, wait: Duration, now: Instant) -> u64 {
        let id = self.next;
        self.next += 1;
        let deadline = now + wait.min(FAR);
        self.by_deadline.insert((deadline, id), ());
        self.waiters.insert(
            id,
            Waiter {
                ticket,
                deadline,
                wait,
                what,
            },
        );
        id
    }

    /// Forgets a waiter except for its place under its key or barrier.
    fn remove(&mut self, id: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        self.by_deadline.remove(&(waiter.deadline, id));
        Some(waiter)
    }

    /// Forgets a waiter everywhere. Returns how many had come to its barrier, and of how many.
    fn withdraw(&mut self, id: u64) -> Option<(Waiter, usize, u32)> {
        let waiter = self.remove(id)?;
        let mut seen = (0, 0);
        match &waiter.what {
            Waiting::Key(key) => {
                if let Some(ids) = self.by_key.get_mut(key) {
                    ids.retain(|i| *i != id);
                    if ids.is_empty() {
                        self.by_key.remove(key);
                    }
                }
            }
            Waiting::Barrier(name) => {
                if let Some(b) = self.barriers.get_mut(name) {
                    seen = (b.arrived.len(), b.n);
                    b.arrived.retain(|i| *i != id);
                    if b.arrived.is_empty() {
                        self.barriers.remove(name);
                    }
                }
            }
        }
        Some((waiter, seen.0, seen.1))
    }

    /// Answers those whose time is over.
    pub(crate) fn expire(&mut self, now: Instant, out: &mut Vec<(Ticket, Reply)>) {
        while let Some((&(deadline, id), ())) = self.by_deadline.first_key_value() {
            if deadline > now {
                return;
            }
            let Some((waiter, arrived, n)) = self.withdraw(id) else {
                self.by_deadline.remove(&(deadline, id));
                continue;
            };
            let wait = waiter.wait;
            let what = match waiter.what {
                Waiting::Key(key) => format!("nobody set {key:?} within {wait:.1?}"),
                Waiting::Barrier(name) => {
                    format!("{arrived} of {n} came to barrier {name:?} within {wait:.1?}")
                }
            };
            out.push((waiter.ticket, Reply::Failed(what)));
        }
    }

    /// When `expire` has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.by_deadline.keys().next().map(|(at, _)| *at)
    }

    /// Forgets what `client` waits for.
    pub(crate) fn forget_client(&mut self, client: u64) {
        let ids: Vec<u64> = self
            .waiters
            .iter()
            .filter(|(_, w)| w.ticket.0 == client)
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.withdraw(id);
        }
    }
}
