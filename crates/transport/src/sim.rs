//! A network in virtual time, for tests.
