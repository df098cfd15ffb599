//! Check whether the program was started without standard output (`>&-`).
//!
//! Before `main`, Rust's runtime opens /dev/null in place of a closed standard descriptor, so that output would seem to
//! be written. Invariant: the check of the descriptor comes before that, and changes nothing.

use crate::failure::Failure;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Function that the C library calls before `main`, and so before Rust's runtime, since it is in this section.
#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
static BEFORE_MAIN: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: the number is used for one system call, which tests whether the descriptor is open; it allocates nothing.
    let stdout = unsafe { BorrowedFd::borrow_raw(1) };
    WAS_CLOSED.store(rustix::io::fcntl_getfd(stdout).is_err(), Ordering::Relaxed);
}

/// Returns true if the program was started without standard output.
pub fn is_stdout_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}

/// Checks that standard output is open before a command consumes records that only its output keeps.
///
/// # Errors
/// The sentence for the user, if it is closed.
pub fn check_stdout() -> Result<(), Failure> {
    match is_stdout_closed() {
        true => Err(Failure::new("standard output is closed, and records would be lost; open it, as with >/dev/null")),
        false => Ok(()),
    }
}
