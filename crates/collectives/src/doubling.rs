//! Whole vectors exchanged at doubling distance among any ranks of a group, for two-level plans; as in [`recursive_doubling`](crate::recursive_doubling), which generates the plan among all.

use crate::build::{Build, Team, Value};
use crate::plan::{Buf, Span};

/// All of the team's contributions combined, in everybody's `dst`, the lower number's operand first. `first`: the type in which contributions travel.
pub(crate) fn all_reduce(
    b: &mut Build<'_>,
    team: &Team,
    own: &Value,
    dst: Span,
    first: Buf,
) -> Value {
    let (me, n) = (team.me, team.len());
    let n_rounds = n.ilog2();
    let lower = 1 << n_rounds;
    let beyond = |idx: u32| idx + lower < n;
    if me >= lower {
        let partner = team.rank(me - lower);
        b.send(partner, own, first);
        return b.recv(partner, dst, Buf::User);
    }
    if n == 1 {
        return b.place(dst, own);
    }
    // What comes takes turns in two areas, and is folded where it came.
    let areas = [b.room(own.span.len), b.room(own.span.len)];
    let mut turn = 0;
    let mut value = own.clone();
    if beyond(me) {
        let came = b.recv(team.rank(me + lower), areas[0], first);
        value = b.fold(areas[0], &[value, came]);
        turn = 1;
    }
    for round in 0..n_rounds {
        let partner = me ^ (1 << round);
        let wire = |idx| match round > 0 || beyond(idx) {
            true => Buf::Scratch,
            false => first,
        };
        b.send(team.rank(partner), &value, wire(me));
        let area = areas[turn];
        turn = 1 - turn;
        let came = b.recv(team.rank(partner), area, wire(partner));
        let pair = if me < partner {
            [value, came]
        } else {
            [came, value]
        };
        let place = if round + 1 == n_rounds { dst } else { area };
        value = b.fold(place, &pair);
    }
    if beyond(me) {
        b.send(team.rank(me + lower), &value, Buf::User);
    }
    value
}
