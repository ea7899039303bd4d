//! One rank's place in the control plane of a simulated net.

use super::{
    Shared,
    rank::{Heard, Life},
    state::{Event, Net, Word},
};
use gaggle_core::{Armed, Control, ControlSink, Rank, Wake, control::CONTROL_MAX};
use std::sync::Arc;

/// One rank's place.
#[derive(Debug)]
pub(super) struct SimControl {
    shared: Arc<Shared>,
    me: u32,
    world: u32,
}

impl SimControl {
    pub(super) fn new(shared: Arc<Shared>, me: u32, world: u32) -> Self {
        SimControl { shared, me, world }
    }
}

impl Control for SimControl {
    fn me(&self) -> Rank {
        Rank(self.me)
    }

    fn world(&self) -> u32 {
        self.world
    }

    fn broadcast(&self, payload: &[u8]) {
        assert!(
            payload.len() <= CONTROL_MAX,
            "a control message of {} bytes; at most {CONTROL_MAX}",
            payload.len()
        );
        self.shared.with(|net| {
            if net.rank(self.me).plane == Life::Here {
                net.tell(self.me, Word::Message(payload.to_vec()));
            }
        });
    }

    fn declare_lost(&self, rank: Rank, why: &str) {
        self.shared.with(|net| {
            if net.rank(self.me).plane == Life::Here && rank.0 < self.world {
                let word = Word::Lost(rank.0, why.into());
                net.tell(self.me, word.clone());
                // It is a fact for the one who says it at once.
                net.word_arrives(self.me, self.me, word);
            }
        });
    }

    fn poll(&self, sink: &mut dyn ControlSink) -> u64 {
        let mut calls = 0;
        loop {
            let mut net = self.shared.net.lock();
            let Some(heard) = net.rank(self.me).words.pop_front() else {
                return calls;
            };
            drop(net);
            match heard {
                Heard::Message(from, payload) => sink.message(Rank(from), &payload),
                Heard::Lost(rank, why) => sink.lost(Rank(rank), &why),
                Heard::Left(rank) => sink.left(Rank(rank)),
            }
            calls += 1;
        }
    }

    fn arm(&self) -> Armed<'_> {
        match self.shared.net.lock().rank(self.me).words.is_empty() {
            true => Armed::Wakes,
            false => Armed::MoreToDo,
        }
    }

    fn attach(&self, wake: Arc<dyn Wake>) {
        self.shared
            .with(|net| net.rank(self.me).plane_wake = Some(wake));
    }

    fn leave(&self) {
        self.shared
            .with(|net| net.end_plane(self.me, Life::Left, ""));
    }
}

impl Drop for SimControl {
    fn drop(&mut self) {
        let why = format!("rank {} was dropped", self.me);
        self.shared
            .with(|net| net.end_plane(self.me, Life::Dead, &why));
    }
}

impl Net {
    /// The rank's place in the control plane ends.
    pub(super) fn end_plane(&mut self, me: u32, life: Life, why: &str) {
        let rank = self.rank(me);
        if rank.plane != Life::Here {
            return;
        }
        rank.plane = life;
        rank.words.clear();
        let word = match life {
            Life::Left => Word::Left,
            Life::Here | Life::Dead => Word::Lost(me, why.into()),
        };
        self.tell(me, word);
    }

    /// Sends a word to every other rank.
    pub(super) fn tell(&mut self, me: u32, word: Word) {
        for dst in (0..self.world()).filter(|p| *p != me) {
            self.launch(Event::Word {
                src: me,
                dst,
                word: word.clone(),
            });
        }
    }

    pub(super) fn word_arrives(&mut self, src: u32, dst: u32, word: Word) {
        let rank = self.rank(dst);
        if rank.plane != Life::Here || rank.gone.contains(&src) {
            return;
        }
        match word {
            Word::Message(payload) => rank.words.push_back(Heard::Message(src, payload)),
            Word::Left => {
                rank.gone.insert(src);
                rank.words.push_back(Heard::Left(src));
            }
            Word::Lost(who, why) => {
                if rank.gone.insert(who) {
                    rank.words.push_back(Heard::Lost(who, why));
                }
                // Whoever is declared dead hears that, and is deaf and dumb afterwards.
                if who == dst {
                    rank.plane = Life::Dead;
                }
            }
        }
        self.wakes
            .extend(self.ranks[dst as usize].plane_wake.clone());
    }
}
