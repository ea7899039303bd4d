//! Socket options and counters.
