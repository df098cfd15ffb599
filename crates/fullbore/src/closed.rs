//! Detects at the start of the program whether standard output is closed (`>&-`).
//!
//! Before `main`, Rust's runtime opens /dev/null in place of a closed standard descriptor. Each write then succeeds,
//! but its output is lost. Invariant: this check runs before the runtime opens /dev/null, and changes nothing.

use crate::failure::Failure;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// A pointer to [`look`] in the section `.init_array`. The C library calls the functions of this section before Rust's
/// runtime starts.
#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
static BEFORE_MAIN: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: the descriptor is used for one system call, which only tests whether it is open and allocates nothing.
    let stdout = unsafe { BorrowedFd::borrow_raw(1) };
    WAS_CLOSED.store(rustix::io::fcntl_getfd(stdout).is_err(), Ordering::Relaxed);
}

/// Returns true if the program was started without standard output.
pub fn is_stdout_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}

/// Checks that standard output is open. `consume` calls this first, because otherwise it would commit offsets of
/// records whose output was lost.
///
/// # Errors
/// Returns a sentence for the user if standard output is closed.
pub fn check_stdout() -> Result<(), Failure> {
    match is_stdout_closed() {
        true => Err(Failure::new(
            "standard output is closed, so records would be lost; open standard output, as with \
             >/dev/null",
        )),
        false => Ok(()),
    }
}
