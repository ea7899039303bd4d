//! Writing: what goes next, filled in by the sink behind its header.

use super::{
    Calling, Counts, lent::Lent, link::FRAME, queue::Job, raw_loan::borrow, run::Run, state::State,
};
use crate::{
    frame::{COST, HEADER, Header, Kind, LENT},
    pieces::{Room, slot_of},
};
use gaggle_core::{HEAD_MAX, Loan};
use parking_lot::MutexGuard;

/// Shorter payloads are copied behind their header: a write from two places costs more than that.
const GATHER: usize = 8 << 10;
/// Less than this of credit is not worth a frame, unless it ends a message.
const WORTH: u64 = 4096;

impl Run<'_> {
    /// Writes what goes. Whether anything did.
    pub(super) fn write_link(&mut self, i: usize) -> bool {
        let mut moved = false;
        loop {
            let whole = self.io.links[i].broken.is_none();
            let n = self.write_once(i);
            moved |= n > 0 || (whole && self.io.links[i].broken.is_some());
            if n == 0 || self.tally.left == 0 {
                return moved;
            }
        }
    }

    /// Frames a little and writes it. How many bytes went.
    pub(super) fn write_once(&mut self, i: usize) -> usize {
        while self.io.links[i].gone < FRAME && self.io.links[i].wants_frame() && self.frame(i) {}
        let link = &mut self.io.links[i];
        if link.output.len() > 0 && link.writable {
            link.write();
        }
        let n = std::mem::take(&mut link.gone);
        self.tally.left = self.tally.left.saturating_sub(n);
        n
    }

    /// Appends one frame to the output. False when there is none.
    fn frame(&mut self, i: usize) -> bool {
        let mut st = self.t.state.lock();
        if let Some(h) = st.links[i].control.pop_front() {
            drop(st);
            self.io.links[i].output.push(&h.to_bytes());
            Counts::add(&self.t.counts.control_sent, HEADER);
            return true;
        }
        let most = self.io.links[i].frame_max() as u64;
        while let Some(job) = st.links[i].ready.pop() {
            let Some(part) = next_part(&mut st, i, job, most) else {
                continue;
            };
            if self.data_frame(i, job, &part, st) {
                return true;
            }
            st = self.t.state.lock();
        }
        false
    }

    /// Lets the sink fill in a frame and appends it. False when the sink had nothing.
    fn data_frame(
        &mut self,
        i: usize,
        job: Job,
        part: &Part,
        mut st: MutexGuard<'_, State>,
    ) -> bool {
        let calling = Calling::begin(self.t, &mut st, job.id);
        drop(st);
        let link = &mut self.io.links[i];
        let output = &mut link.output;
        let head = match (part.first, part.lent) {
            (false, _) => 0,
            (true, None) => part.head_len,
            (true, Some(_)) => part.head_len + LENT,
        };
        let loan = part.loan.as_ref().and_then(|loan| {
            let at = part.at as usize;
            borrow(&calling, job.id, loan).get(at..at + part.room)
        });
        let mut filled = loan.map_or(0, <[u8]>::len);
        if part.room > 0 && loan.is_none() {
            let mut room = Room::new(output.room(HEADER + head, part.room), part.unit);
            self.sink.outgoing(job.id, part.at, &mut room);
            filled = room.filled();
        }
        let mut st = self.t.state.lock();
        let Some(slot) = st.slot(job.id).filter(|s| !s.cancelled) else {
            calling.end(&mut st);
            return true;
        };
        if filled == 0 && part.total > 0 && part.lent.is_none() {
            calling.end(&mut st);
            st.links[i].stalled.push(job);
            return false;
        }
        let h = Header {
            kind: Kind::Data,
            first: part.first,
            granted: slot.granted,
            lent: part.lent.is_some(),
            head_len: head as u8,
            key: slot.key,
            len: filled as u32,
            offset: part.at,
            total: part.total,
        };
        output.push(&h.to_bytes());
        match part.lent {
            Some(lent) => {
                output.push(&part.head[..part.head_len]);
                output.push(&lent.to_bytes());
            }
            None => output.push(&part.head[..head]),
        }
        match loan {
            None => output.filled(filled),
            Some(bytes) => {
                drop(st);
                // From where they are; what does not go at once is kept here.
                let went = match bytes.len() {
                    ..GATHER => 0,
                    _ => link.write_with(bytes),
                };
                link.output.push(&bytes[went..]);
                st = self.t.state.lock();
            }
        }
        // Of whoever cancels it meanwhile it is still there: a frame that has been made counts.
        let Some(slot) = st.slot(job.id) else {
            calling.end(&mut st);
            return true;
        };
        let counts = &self.t.counts;
        Counts::add(&counts.header_sent, HEADER + head);
        match part.lent {
            Some(_) => Counts::add(&counts.lent_sent, part.total as usize),
            None => Counts::add(&counts.payload_sent, filled),
        }
        Counts::add(&counts.frames_sent, 1);
        slot.begun = true;
        slot.at += filled as u64;
        let mut cost = 0;
        if !slot.granted {
            cost = filled as u64 + if part.first { COST } else { 0 };
            slot.charged += cost;
        }
        let over = slot.at == slot.bytes;
        let (key, charged, granted) = (slot.key, slot.charged, slot.granted);
        let tables = &mut st.links[i];
        tables.ready.made();
        tables.credit -= cost;
        if part.room > 0 {
            self.tally.call(filled);
        }
        if part.lent.is_some() {
            // It is over when the peer says so.
            calling.end(&mut st);
            return true;
        }
        if !over {
            tables.ready.push(job);
            calling.end(&mut st);
            return true;
        }
        tables.sends.remove(&key);
        if !granted {
            tables.unsettled.insert(key, charged);
        }
        st.slots.remove(slot_of(job.id));
        drop(st);
        self.sink.done(job.id, Ok(()));
        self.tally.call(0);
        drop(calling);
        true
    }
}

/// What the next frame of a send may hold.
struct Part {
    at: u64,
    total: u64,
    room: usize,
    unit: u32,
    first: bool,
    head: [u8; HEAD_MAX],
    head_len: usize,
    lent: Option<Lent>,
    loan: Option<Loan>,
}

/// At most `most` bytes; `None` where the job is void or has to wait.
fn next_part(st: &mut State, i: usize, job: Job, most: u64) -> Option<Part> {
    let slot = st
        .slots
        .get(slot_of(job.id))
        .filter(|s| s.id == job.id && s.job == job.order.0 && !s.cancelled && !s.is_out())?;
    let left = match slot.lent {
        Some(_) => 0,
        None => slot.bytes - slot.at,
    };
    let mut room = left.min(most);
    if !slot.granted {
        let cost = if slot.begun { 0 } else { COST };
        let spare = st.links[i].credit.checked_sub(cost);
        let enough = spare.is_some_and(|s| s >= left.min(WORTH));
        if !enough {
            st.links[i].blocked.push(job);
            return None;
        }
        room = room.min(spare.unwrap_or(0));
    }
    let room = room - room % u64::from(slot.unit);
    Some(Part {
        at: slot.at,
        total: slot.bytes,
        room: room as usize,
        unit: slot.unit,
        first: !slot.begun,
        head: slot.head,
        head_len: slot.head_len,
        lent: slot.lent,
        loan: slot.loan,
    })
}
