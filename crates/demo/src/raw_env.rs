//! The one thing that the demo sets in its own environment, before any thread could look.
//!
//! # Safety
//! Changing the environment while another thread reads it is undefined behaviour.
//! [`one_thread_per_rank`] does it only where the system says that there is no other thread.

/// Lets candle compute on one thread unless the user has said otherwise: ranks are what runs in parallel here.
///
/// Where other threads run already, or where that cannot be told, nothing is changed, and the demo is slower than it could be.
pub(crate) fn one_thread_per_rank() {
    const NAME: &str = "RAYON_NUM_THREADS";
    if std::env::var_os(NAME).is_none() && is_alone() {
        // SAFETY: this is the process' only thread, as `is_alone` has just found, and only a running thread could start another; so nobody reads or writes the environment meanwhile.
        unsafe { std::env::set_var(NAME, "1") };
    }
}

/// Whether the calling thread is the process' only one. Linux keeps a folder of them.
fn is_alone() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}
