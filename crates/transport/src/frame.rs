//! The frames on a data link.
