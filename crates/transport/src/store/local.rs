//! The store for ranks that are threads of one process.

use super::{
    check_key, check_value,
    table::Table,
    wire::{Reply, Request},
};
use gaggle_core::{Cause, Error, Store};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// A [`Store`] in memory, for ranks that are threads. Share it in an `Arc`.
#[derive(Default)]
pub struct LocalStore {
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Default)]
struct State {
    table: Table,
    next: u64,
    answers: HashMap<u64, Reply>,
}

impl LocalStore {
    /// An empty one.
    pub fn new() -> LocalStore {
        LocalStore::default()
    }

    fn call(&self, request: Request) -> Result<Reply, Error> {
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        let mut out = Vec::new();
        state
            .table
            .request((0, id), request, Instant::now(), &mut out);
        loop {
            let news = !out.is_empty();
            for ((_, id), reply) in out.drain(..) {
                state.answers.insert(id, reply);
            }
            if news {
                self.answered.notify_all();
            }
            if let Some(reply) = state.answers.remove(&id) {
                return match reply {
                    Reply::Failed(what) => Err(failed(what)),
                    reply => Ok(reply),
                };
            }
            match state.table.next_deadline() {
                Some(at) => drop(self.answered.wait_until(&mut state, at)),
                None => self.answered.wait(&mut state),
            }
            state.table.expire(Instant::now(), &mut out);
        }
    }
}

fn failed(what: String) -> Error {
    Cause::Store {
        addr: "this process".into(),
        what,
    }
    .into()
}

impl Store for LocalStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        check_key("set", key)?;
        check_value("set", value)?;
        self.call(Request::Set {
            key: key.into(),
            value: value.into(),
        })
        .map(drop)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, Error> {
        check_key("get", key)?;
        let reply = self.call(Request::Get {
            key: key.into(),
            wait: timeout,
        })?;
        value(reply).ok_or_else(|| Error::internal("a get was answered with a number"))
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, Error> {
        check_key("add", key)?;
        match self.call(Request::Add {
            key: key.into(),
            delta,
        })? {
            Reply::Number(n) => Ok(n),
            _ => Err(Error::internal("an add was answered without a number")),
        }
    }

    fn compare_and_set(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> Result<Vec<u8>, Error> {
        check_key("compare_and_set", key)?;
        check_value("compare_and_set", expected.unwrap_or_default())?;
        check_value("compare_and_set", new)?;
        let reply = self.call(Request::CompareAndSet {
            key: key.into(),
            expected: expected.map(<[u8]>::to_vec),
            new: new.into(),
        })?;
        value(reply).ok_or_else(|| Error::internal("a compare_and_set was answered with a number"))
    }

    fn barrier(&self, name: &str, n: u32, timeout: Duration) -> Result<(), Error> {
        check_key("barrier", name)?;
        self.call(Request::Barrier {
            name: name.into(),
            n,
            wait: timeout,
        })
        .map(drop)
    }
}

fn value(reply: Reply) -> Option<Vec<u8>> {
    match reply {
        Reply::Value(v) => Some(v),
        _ => None,
    }
}
