//! What the engine promises, on every link: the suites run over threads of one process and over TCP.

#![allow(clippy::unwrap_used, reason = "a test may stop where it stands")]

mod common;

/// Ranks are threads that read each other's memory.
mod threads {
    const LINK: crate::common::Link = crate::common::Link::Threads;
    mod collectives {
        use super::LINK;
        include!("suites/collectives.rs");
    }
    mod faults {
        use super::LINK;
        include!("suites/faults.rs");
    }
}

/// Ranks talk over sockets.
mod tcp {
    const LINK: crate::common::Link = crate::common::Link::Tcp;
    mod collectives {
        use super::LINK;
        include!("suites/collectives.rs");
    }
    mod faults {
        use super::LINK;
        include!("suites/faults.rs");
    }
}
