//! What can end the demo: always with the cause underneath, and the culprit where there is one.

use crate::{
    charts::ChartError, data::DataError, model::ModelError, partition::PartitionError,
    settings::SettingError,
};
use gaggle::{Error, core::Unstable, ddp::DdpError, optim::ConfigError};
use std::{fmt, path::PathBuf};

/// Why the demo ended before its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// The bundled data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The split among ranks.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// A flag.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The number of ranks that was asked for is not the job's.
    #[error("--ranks {asked}, but the launcher has started {started}")]
    Ranks {
        /// By the flag.
        asked: usize,
        /// By the launcher.
        started: usize,
    },
    /// Threads in each of several processes.
    #[error("--threads starts the ranks by itself: run gaggle-demo without a launcher")]
    ThreadsUnderLauncher,
    /// Several ranks, and nobody to start them.
    #[error(
        "--ranks {0} needs somebody to start the ranks: use `gaggle demo --ranks {0}`, or add --threads to have them as threads of this process"
    )]
    NoLauncher(usize),
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A bucket, or ranks that disagree about the model.
    #[error(transparent)]
    Ddp(#[from] DdpError),
    /// A peer or the network; the text names the culprit.
    #[error(transparent)]
    Group(#[from] Error),
    /// The rule's settings.
    #[error(transparent)]
    Rule(#[from] ConfigError),
    /// Algorithms that do not go with the topology. Nothing was trained, not even by the others.
    #[error("{}", told(reasons))]
    Refused {
        /// For each of them, in order, what would happen and what works.
        reasons: Vec<Refusal>,
    },
    /// Training has left the numbers.
    #[error("{algorithm}: the loss is {loss} at step {step}; try a smaller --lr")]
    Diverged {
        /// Which run.
        algorithm: String,
        /// At which step.
        step: u64,
        /// Not a finite number.
        loss: f32,
    },
    /// The page's pictures.
    #[error(transparent)]
    Chart(#[from] ChartError),
    /// The JSON object.
    #[error("json")]
    Json(#[from] serde_json::Error),
    /// The page could not be written.
    #[error("the page cannot be written to {}", path.display())]
    Page {
        /// Where to.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

/// Why an algorithm is not trained over a topology.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Which algorithm.
    pub algorithm: String,
    /// Over which topology.
    pub topology: String,
    /// Which limit is broken, and what to use instead.
    pub why: Unstable,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {}: {}", self.algorithm, self.topology, self.why)
    }
}

/// One in a line; several below each other.
fn told(reasons: &[Refusal]) -> String {
    let each: Vec<String> = reasons.iter().map(Refusal::to_string).collect();
    match &each[..] {
        [one] => one.clone(),
        all => format!("nothing was trained:\n  {}", all.join("\n  ")),
    }
}

impl DemoError {
    /// Whether the other ranks do not know of it yet: everything but what the group itself has reported.
    pub fn is_own(&self) -> bool {
        match self {
            DemoError::Group(_) => false,
            DemoError::Ddp(e) => e.communication().is_none() && e.culprits().is_empty(),
            _ => true,
        }
    }
}
