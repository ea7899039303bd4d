//! The one thing that this program sets in its own environment, before any thread could look.
//!
//! # Safety
//! Changing the environment while another thread reads it is undefined behaviour.
//! [`one_thread_per_rank`] is called first thing in `main`, when there is no other thread.

/// Lets candle compute on one thread unless the user has said otherwise: ranks are what runs in parallel here.
pub(crate) fn one_thread_per_rank() {
    const NAME: &str = "RAYON_NUM_THREADS";
    if std::env::var_os(NAME).is_none() {
        // SAFETY: `main` calls this before anything else, so no other thread exists that could read the environment.
        unsafe { std::env::set_var(NAME, "1") };
    }
}
