//! Lending test data.
//!
//! # Safety
//! Only memory that lives and stays unchanged for ever is lent.

use gaggle_core::Loan;
use std::ptr::NonNull;

/// Lends bytes that are never freed or written.
pub(crate) fn lend(bytes: &'static [u8]) -> Loan {
    // SAFETY: a shared slice of static lifetime stays valid and unwritten for ever, so for as long as any loan of it is out.
    unsafe { Loan::new(NonNull::from(bytes).cast(), bytes.len()) }
}
