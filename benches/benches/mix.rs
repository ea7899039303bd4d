//! Neighbour averaging with ranks as threads: one peer per round on the exponential graph.

use criterion::{Criterion, criterion_group, criterion_main};
use gaggle::{
    Error,
    core::{Round, Topology},
    topology::OnePeerExp,
};
use gaggle_benches::measure;

fn mix(criterion: &mut Criterion) {
    measure(criterion, "mix one-peer-exp, threads", |group, x, t| {
        let graph =
            OnePeerExp::new(group.size()).map_err(|e| Error::invalid("bench", e.to_string()))?;
        let mut round = Round::default();
        graph.round(group.rank(), t, &mut round);
        group.mix(x, &round, t).map(|_| ())
    });
}

criterion_group!(benches, mix);
criterion_main!(benches);
