//! A small key-value store that the ranks of one job share.
