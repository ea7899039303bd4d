//! Ranks over TCP.
