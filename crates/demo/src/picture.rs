//! A topology as a picture: its rounds side by side, ranks on a circle, an arrow per message.

use gaggle::core::{Rank, Round, Topology};
use std::{f64::consts::TAU, fmt::Write};

/// Rounds that are drawn at most; a longer period is cut, and the picture says so.
const MOST_ROUNDS: u64 = 6;

/// One round: who sends to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Links {
    /// Sender and receiver.
    pub links: Vec<(usize, usize)>,
}

/// What is needed to draw a topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Its name.
    pub name: String,
    /// Number of ranks.
    pub world: usize,
    /// After how many rounds it repeats; `None`: never.
    pub period: Option<u64>,
    /// The first rounds.
    pub rounds: Vec<Links>,
}

impl Picture {
    /// Of a topology's first period, or of its beginning where that is long.
    pub fn new(topology: &dyn Topology) -> Picture {
        let period = topology.period();
        let shown = period.unwrap_or(MOST_ROUNDS).clamp(1, MOST_ROUNDS);
        let world = topology.world();
        let mut round = Round::default();
        let rounds = (0..shown)
            .map(|t| {
                let mut links = vec![];
                for rank in 0..world {
                    topology.round(Rank(rank as u32), t, &mut round);
                    links.extend(round.to.iter().map(|(to, _)| (rank, to.idx())));
                }
                Links { links }
            })
            .collect();
        Picture {
            name: topology.name().to_string(),
            world,
            period,
            rounds,
        }
    }

    /// What the rounds do, in one sentence.
    pub fn caption(&self) -> String {
        match self.period {
            _ if self.world == 1 => "One rank alone has no neighbours.".into(),
            Some(1) => "Every step uses the same links.".into(),
            Some(p) if p > MOST_ROUNDS => {
                format!("Step t uses round t mod {p}; the first {MOST_ROUNDS} are drawn.")
            }
            Some(p) => {
                format!("Step t uses round t mod {p}: after {p} steps everything repeats.")
            }
            None => format!("The rounds never repeat; the first {MOST_ROUNDS} are drawn."),
        }
    }

    /// One drawing per round.
    pub fn svgs(&self) -> Vec<String> {
        self.rounds
            .iter()
            .enumerate()
            .map(|(t, round)| self.svg(t, round))
            .collect()
    }

    fn svg(&self, t: usize, round: &Links) -> String {
        const SIZE: f64 = 220.0;
        let dot = (60.0 / self.world as f64).clamp(3.0, 14.0);
        let place = |rank: usize| {
            let angle = TAU * rank as f64 / self.world as f64 - TAU / 4.0;
            let radius = if self.world == 1 { 0.0 } else { 80.0 };
            (
                SIZE / 2.0 + radius * angle.cos(),
                SIZE / 2.0 + radius * angle.sin(),
            )
        };
        let mut svg = format!(
            r##"<svg viewBox="0 0 {SIZE} {SIZE}" width="{SIZE}" height="{SIZE}" role="img" aria-label="round {t} of {name}"><defs><marker id="tip-{t}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="#4a6a8a"/></marker></defs>"##,
            name = self.name
        );
        for &(from, to) in &round.links {
            let both = round.links.contains(&(to, from));
            if both && from > to {
                continue; // drawn once, with a tip at either end
            }
            let ((x0, y0), (x1, y1)) = (place(from), place(to));
            let length = (x1 - x0).hypot(y1 - y0).max(1e-9);
            let (ux, uy) = ((x1 - x0) / length, (y1 - y0) / length);
            let start = if both { dot + 2.0 } else { dot };
            let tail = if both {
                format!(r#" marker-start="url(#tip-{t})""#)
            } else {
                String::new()
            };
            // Writing to a string cannot fail.
            let _ = write!(
                svg,
                r##"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="#4a6a8a" stroke-width="1.6" marker-end="url(#tip-{t})"{tail}/>"##,
                x0 + ux * start,
                y0 + uy * start,
                x1 - ux * (dot + 2.0),
                y1 - uy * (dot + 2.0),
            );
        }
        for rank in 0..self.world {
            let (x, y) = place(rank);
            let _ = write!(
                svg,
                r##"<circle cx="{x:.1}" cy="{y:.1}" r="{dot:.1}" fill="#e8f0f8" stroke="#24425f" stroke-width="1.4"/>"##
            );
            if dot > 6.0 {
                let _ = write!(
                    svg,
                    r##"<text x="{x:.1}" y="{:.1}" text-anchor="middle" font-size="12" fill="#24425f">{rank}</text>"##,
                    y + 4.0
                );
            }
        }
        svg.push_str("</svg>");
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaggle::core::Form;

    /// Everyone sends one further, then two further.
    struct Hops(usize);

    impl Topology for Hops {
        fn name(&self) -> &str {
            "hops"
        }
        fn world(&self) -> usize {
            self.0
        }
        fn period(&self) -> Option<u64> {
            Some(2)
        }
        fn round(&self, rank: Rank, t: u64, out: &mut Round) {
            let n = self.0 as u32;
            let hop = (1 + t as u32 % 2) % n;
            *out = Round {
                from: vec![(Rank((rank.0 + n - hop) % n), 0.5)],
                to: vec![(Rank((rank.0 + hop) % n), 1.0)],
                keep: 0.5,
                form: Form::Delta,
            };
        }
    }

    #[test]
    fn every_message_is_an_arrow_and_every_rank_a_dot() {
        let picture = Picture::new(&Hops(5));
        assert_eq!(picture.rounds.len(), 2);
        assert!(picture.rounds[0].links.contains(&(4, 0)));
        assert!(picture.rounds[1].links.contains(&(4, 1)));
        for svg in picture.svgs() {
            assert_eq!(svg.matches("<line").count(), 5);
            assert_eq!(svg.matches("<circle").count(), 5);
        }
        assert!(picture.caption().contains("t mod 2"));
    }

    #[test]
    fn messages_in_both_directions_share_a_line() {
        let svg = &Picture::new(&Hops(4)).svgs()[1];
        assert_eq!(svg.matches("<line").count(), 2);
        assert_eq!(svg.matches("marker-start").count(), 2);
    }
}
