//! Ranks as threads of one process.
