//! What is compared: methods on skewed data, one-peer against static exponential graphs, and graphs for 25 ranks.
//!
//! Step sizes are fixed: momentum methods at 0.1, plain and averaging ones, whose effective step would be a tenth, at 1.

use crate::{
    split::Split,
    trial::{Method, Trial},
};

const SKEWED: Split = Split::Dirichlet(0.1);
const MILD: Split = Split::Dirichlet(10.0);

const fn method(label: &'static str, rule: &'static str, lr: f64) -> Method {
    Method {
        label,
        rule,
        nesterov: false,
        lr,
    }
}

const fn nesterov(label: &'static str, rule: &'static str, lr: f64) -> Method {
    Method {
        nesterov: true,
        ..method(label, rule, lr)
    }
}

pub(crate) static PSGDM: Method = nesterov("PSGDm (all-reduce)", "allreduce-msgd", 0.1);
pub(crate) static DSGD: Method = method("DSGD", "dsgd-atc", 1.0);
pub(crate) static DSGDM_N: Method = nesterov("DSGDm-N", "dmsgd", 0.1);
pub(crate) static DMSGD: Method = method("DmSGD", "dmsgd", 0.1);
pub(crate) static QG_N: Method = nesterov("QG-DmSGD-N", "qg-dmsgd", 0.1);
pub(crate) static QG: Method = method("QG-DmSGD", "qg-dmsgd", 0.1);
pub(crate) static YU: Method = method("DmSGD-Yu", "dmsgd-yu", 0.1);
pub(crate) static DECENTLAM: Method = method("DecentLaM", "decentlam", 0.1);
pub(crate) static EXACT_DIFFUSION: Method = method("exact diffusion", "exact-diffusion", 1.0);
pub(crate) static EDM: Method = method("EDM", "edm", 1.0);
pub(crate) static GT: Method = method("gradient tracking", "gt-semi", 1.0);
pub(crate) static MT: Method = method("momentum tracking", "momentum-tracking", 0.1);

/// A table of trials that are compared with each other.
#[derive(Debug)]
pub(crate) struct Experiment {
    /// In names of files and figures.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) trials: Vec<Trial>,
}

/// All of them, in the order in which they run.
pub(crate) fn all() -> Vec<Experiment> {
    vec![skewed(), mild(), one_peer(), graphs()]
}

const METHODS: [&Method; 10] = [
    &PSGDM,
    &DSGD,
    &DSGDM_N,
    &YU,
    &QG_N,
    &DECENTLAM,
    &EXACT_DIFFUSION,
    &EDM,
    &GT,
    &MT,
];

fn on_a_ring(split: Split) -> Vec<Trial> {
    let trial = |method| Trial {
        method,
        topology: "ring",
        ranks: 16,
        split,
    };
    METHODS.map(trial).to_vec()
}

fn skewed() -> Experiment {
    Experiment {
        name: "methods",
        title: "16 ranks on a ring, few classes each",
        trials: on_a_ring(SKEWED),
    }
}

fn mild() -> Experiment {
    Experiment {
        name: "mild",
        title: "16 ranks on a ring, nearly even",
        trials: on_a_ring(MILD),
    }
}

/// The methods for which one-peer graphs are to do as well as static ones.
pub(crate) const ONE_PEER_METHODS: [&Method; 5] = [&DSGD, &DMSGD, &YU, &QG, &MT];

/// Those, and some that need smaller steps or symmetric graphs.
const ON_EXPONENTIAL_GRAPHS: [&Method; 9] = [
    &DSGD,
    &DMSGD,
    &YU,
    &QG,
    &MT,
    &GT,
    &DECENTLAM,
    &EXACT_DIFFUSION,
    &EDM,
];

fn one_peer() -> Experiment {
    let mut trials = Vec::new();
    for split in [Split::Even, SKEWED] {
        for method in ON_EXPONENTIAL_GRAPHS {
            trials.extend(["static-exp", "one-peer-exp"].map(|topology| Trial {
                method,
                topology,
                ranks: 16,
                split,
            }));
        }
    }
    Experiment {
        name: "one-peer",
        title: "16 ranks, static and one-peer exponential graphs",
        trials,
    }
}

fn graphs() -> Experiment {
    let graphs = [
        "ring",
        "one-peer-exp",
        "base:1",
        "base:2",
        "static-exp",
        "base:4",
    ];
    let trial = |topology| Trial {
        method: &DSGDM_N,
        topology,
        ranks: 25,
        split: SKEWED,
    };
    Experiment {
        name: "graphs",
        title: "DSGDm-N, 25 ranks, few classes each",
        trials: graphs.map(trial).to_vec(),
    }
}
