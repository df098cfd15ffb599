//! The certificates of a listener: loads changed files, warns before certificates expire, and performs handshakes. The
//! TLS session itself is in `fullbore_tls`.
//!
//! A handshake uses the last certificates that could be read. If new files cannot be read, this is logged, and the
//! certificates in use stay.

use fullbore_config::{Listener, ListenerTls};
use fullbore_tls::{Acceptor, FileStamp, MaterialError, Stream};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a listener waits before it warns about the same cause again. Failures in between are logged at debug, and
/// the next warning has their number.
const WARN_INTERVAL: Duration = Duration::from_secs(10);
/// How long before the expiry of a certificate the broker first warns.
const EXPIRY_AHEAD: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// How long the broker waits before it warns about the same certificate again.
const EXPIRY_WARN_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// How often certificates are checked for expiry.
const EXPIRY_LOOK_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Maximum number of causes that a listener warns about within an interval, so that hostile clients cannot fill the
/// memory or the log.
const CAUSES_MAX: usize = 16;

/// The certificates of one listener.
pub struct Certificates {
    name: String,
    tls: ListenerTls,
    current: RwLock<Acceptor>,
    /// The change time, size and inode of each file, as they were when the certificates in use were read.
    stamps: Mutex<Vec<FileStamp>>,
    /// The reason in the last log line about newer files that could not be used.
    refused: Mutex<Option<String>>,
    /// For each cause, the time of the last warning and the number of failures since then.
    warned: Mutex<HashMap<String, (Instant, u64)>>,
    /// When the broker last warned about the expiry of the certificates in use.
    expiry_warned: Mutex<Option<SystemTime>>,
}

impl Certificates {
    /// Reads the certificates of a listener. Returns `None` if the listener does not use TLS.
    ///
    /// # Errors
    /// Returns a [`MaterialError`] that names the setting whose files cannot be used.
    pub fn load(listener: &Listener) -> Result<Option<Arc<Self>>, MaterialError> {
        let Some(tls) = listener.tls.clone() else { return Ok(None) };
        let stamps = tls.settings.stamps();
        let current = Acceptor::load(&tls.settings, tls.client_auth)?;
        Ok(Some(Arc::new(Certificates {
            name: listener.name.clone(),
            tls,
            current: RwLock::new(current),
            stamps: Mutex::new(stamps),
            refused: Mutex::default(),
            warned: Mutex::default(),
            expiry_warned: Mutex::default(),
        })))
    }

    /// Loads changed files until the broker stops.
    pub async fn watch(self: Arc<Self>, interval: Duration, mut stop: watch::Receiver<bool>) {
        if self.tls.settings.files().next().is_none() {
            return;
        }
        loop {
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                _ = stop.wait_for(|stopping| *stopping) => return,
            }
            let this = Arc::clone(&self);
            if let Err(error) = tokio::task::spawn_blocking(move || this.refresh()).await {
                tracing::error!(%error, "cannot watch the certificate files for changes any more: the present \
                     certificates stay in use until the next start");
                return;
            }
        }
    }

    /// Warns once a day if certificates expire soon or have expired. Begins at once and ends when the broker stops.
    pub async fn watch_expiry(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        loop {
            self.warn_of_expiry(SystemTime::now());
            tokio::select! {
                () = tokio::time::sleep(EXPIRY_LOOK_INTERVAL) => {}
                _ = stop.wait_for(|stopping| *stopping) => return,
            }
        }
    }

    fn warn_of_expiry(&self, now: SystemTime) {
        let words = self.current.read().expiry().and_then(|expiry| expiry.warning(now, EXPIRY_AHEAD));
        let mut last = self.expiry_warned.lock();
        if let Some(words) = words.filter(|_| is_due_again(*last, now)) {
            *last = Some(now);
            tracing::warn!(listener = self.name, "{words}");
        }
    }

    fn refresh(&self) {
        let found = self.tls.settings.stamps();
        if *self.stamps.lock() == found {
            return;
        }
        match Acceptor::load(&self.tls.settings, self.tls.client_auth) {
            Ok(acceptor) => {
                *self.stamps.lock() = found;
                *self.refused.lock() = None;
                *self.current.write() = acceptor;
                tracing::info!(listener = self.name, "new certificates are in use");
                *self.expiry_warned.lock() = None;
                self.warn_of_expiry(SystemTime::now());
            }
            // The stored stamps stay those of the old files, so the next check tries again even if the files do not
            // change. The cause may be something other than the files.
            Err(error) => {
                let (why, mut refused) = (error.to_string(), self.refused.lock());
                if refused.as_ref() != Some(&why) {
                    tracing::error!(listener = self.name, %error, "cannot use the new certificates: the old ones stay \
                         in use");
                    *refused = Some(why);
                }
            }
        }
    }

    /// Performs the handshake of a client, which may take up to `limit`.
    ///
    /// # Errors
    /// Returns the reason why the handshake failed.
    pub async fn accept(&self, socket: TcpStream, limit: Duration) -> io::Result<Stream> {
        let acceptor = self.current.read().clone();
        match timeout(limit, Stream::accept(socket, &acceptor)).await {
            Ok(accepted) => accepted,
            Err(_) => {
                let message = format!("no TLS handshake in {limit:?} (fullbore.ssl.handshake.timeout.ms)");
                Err(io::Error::new(io::ErrorKind::TimedOut, message))
            }
        }
    }

    /// Logs a failed handshake. Each cause is rate-limited on its own, so that many failures with one cause neither
    /// flood the log nor hide another cause.
    pub fn report(&self, peer: SocketAddr, error: &io::Error) {
        let listener = &self.name;
        match self.due(error.to_string()) {
            Some(unlogged_before) => tracing::warn!(listener, %peer, %error, unlogged_before, "TLS handshake failed"),
            None => tracing::debug!(listener, %peer, %error, "TLS handshake failed"),
        }
    }

    /// Counts a failure with this cause. If a warning is due, returns how many earlier failures were not logged as
    /// warnings. Otherwise returns `None`.
    fn due(&self, cause: String) -> Option<u64> {
        let mut warned = self.warned.lock();
        if let Some((last, unlogged)) = warned.get_mut(&cause) {
            *unlogged += 1;
            if last.elapsed() < WARN_INTERVAL {
                return None;
            }
            *last = Instant::now();
            return Some(std::mem::take(unlogged) - 1);
        }
        if warned.len() >= CAUSES_MAX {
            warned.retain(|_, (last, _)| last.elapsed() < WARN_INTERVAL);
        }
        if warned.len() >= CAUSES_MAX {
            return None;
        }
        warned.insert(cause, (Instant::now(), 0));
        Some(0)
    }
}

/// Returns true if the last warning is a day old, or if the clock was set back since.
fn is_due_again(last: Option<SystemTime>, now: SystemTime) -> bool {
    last.is_none_or(|last| now.duration_since(last).map_or(true, |past| past >= EXPIRY_WARN_INTERVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_is_warned_of_once_a_day() {
        let (now, hour) = (SystemTime::now(), Duration::from_secs(60 * 60));
        assert!(is_due_again(None, now));
        assert!(!is_due_again(Some(now), now) && !is_due_again(Some(now), now + 23 * hour));
        assert!(is_due_again(Some(now), now + 24 * hour));
        assert!(is_due_again(Some(now), now - hour), "the clock was set back");
    }
}
