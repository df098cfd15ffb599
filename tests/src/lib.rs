//! Black-box tests: a real broker process, a raw client of its wire, kill -9.
//!
//! Not a client library: everything here panics when the unexpected happens, since that fails the test. Nothing
//! waits for a fixed time; what takes time is waited for as a condition, with a deadline.

mod batch;
mod client;
pub mod pki;
mod process;
mod proxy;
mod requests;
mod tls;

pub use batch::{Batch, Record};
pub use client::{Client, bytes_of};
pub use process::{Broker, Refused, binary, serve_refused};
pub use proxy::Proxy;
pub use requests::{FetchFrom, alter_resource, fetch_request, produce_request, topic_data};
pub use tls::Tls;

use std::time::{Duration, Instant};

/// Waits until `condition` holds; `what` says what was waited for when it does not within `deadline`.
pub fn wait_until(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < deadline, "waited {deadline:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
