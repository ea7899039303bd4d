//! What every transport must do, as one suite.
