//! Keeps the credentials that a service has issued. If the service stops answering, the last credentials stay in use
//! for a while.
//!
//! The `object_store` library requests new credentials five minutes before the current ones expire. It holds a lock
//! until it has them, and all requests to the store wait for this lock.
//!
//! Invariant: credentials are used for at most [`USED_MAX`] after the service's last answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::{AwsCredential, AwsCredentialProvider};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use fullbore_host::log_rate_limit::LogRateLimit;

/// How long the library waits for the service while the last credentials can still be used.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// How long to wait after a failed request for credentials before the next one.
const PAUSE: Duration = Duration::from_secs(10);
/// How long the last credentials stay in use after the service's last answer. The library requests new credentials this
/// long before the last ones expire.
const USED_MAX: Duration = Duration::from_secs(5 * 60);

/// The credentials of a service, with a copy of those that it has issued last.
pub struct KeptCredentials {
    service: AwsCredentialProvider,
    last: Mutex<Option<LastCredentials>>,
    failures: LogRateLimit,
}

#[derive(Clone)]
struct LastCredentials {
    credentials: Arc<AwsCredential>,
    answered: Instant,
    /// When the next request to the service may be sent, if the last one failed. `None` if the last request succeeded.
    next: Option<Instant>,
}

impl fmt::Debug for KeptCredentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("KeptCredentials").finish_non_exhaustive()
    }
}

impl KeptCredentials {
    /// Creates the credentials of a service to which no request was sent yet.
    pub fn of(service: AwsCredentialProvider) -> KeptCredentials {
        KeptCredentials { service, last: Mutex::default(), failures: LogRateLimit::default() }
    }

    /// Returns the last credentials, or `None` if there are none or they are too old.
    fn last(&self) -> Option<LastCredentials> {
        self.last.lock().clone().filter(|last| last.answered.elapsed() < USED_MAX)
    }

    fn answered(&self, credentials: &Arc<AwsCredential>) {
        let last = LastCredentials { credentials: Arc::clone(credentials), answered: Instant::now(), next: None };
        *self.last.lock() = Some(last);
    }

    /// Requests new credentials. With some settings and answers (for example an HTML page), the library panics, and the
    /// panic is converted to an error.
    async fn request(&self) -> object_store::Result<Arc<AwsCredential>> {
        let service = Arc::clone(&self.service);
        // A `JoinSet` aborts its task when the caller drops this future.
        let mut request = JoinSet::new();
        request.spawn(async move { service.get_credential().await });
        match request.join_next().await {
            Some(Ok(given)) => given,
            Some(Err(_)) | None => {
                let why = "the service that issues credentials returned no valid credentials, or the setting that \
                     names the service is wrong";
                Err(object_store::Error::Generic { store: "S3", source: why.into() })
            }
        }
    }

    fn failed(&self, error: &str) {
        if let Some(last) = &mut *self.last.lock() {
            last.next = Some(Instant::now() + PAUSE);
        }
        if let Some(left_out) = self.failures.due() {
            tracing::warn!(
                error,
                left_out,
                "cannot renew the credentials of the object store: the last credentials stay in use for up to 5 min; \
                 check the service that issues them"
            );
        }
    }
}

#[async_trait]
impl CredentialProvider for KeptCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let Some(last) = self.last() else {
            return self.request().await.inspect(|given| self.answered(given));
        };
        if last.next.is_some_and(|next| Instant::now() < next) {
            return Ok(last.credentials);
        }
        match timeout(ANSWER_MAX, self.request()).await {
            Ok(Ok(given)) => {
                self.answered(&given);
                return Ok(given);
            }
            Ok(Err(error)) => self.failed(&error.to_string()),
            Err(_) => self.failed("no answer"),
        }
        Ok(last.credentials)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A service that issues credentials until it hangs, fails or panics. The key id of the credentials is the number
    /// of the request.
    #[derive(Debug, Default)]
    struct Service {
        requests: AtomicUsize,
        hangs: Mutex<bool>,
        fails: Mutex<bool>,
        panics: Mutex<bool>,
    }

    #[async_trait]
    impl CredentialProvider for Service {
        type Credential = AwsCredential;

        async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
            let key_id = self.requests.fetch_add(1, Ordering::SeqCst).to_string();
            if *self.hangs.lock() {
                std::future::pending::<()>().await;
            }
            assert!(!*self.panics.lock(), "as a test wants it");
            match *self.fails.lock() {
                true => Err(object_store::Error::Generic { store: "S3", source: "500".into() }),
                false => Ok(Arc::new(AwsCredential { key_id, secret_key: String::new(), token: None })),
            }
        }
    }

    async fn key(credentials: &KeptCredentials) -> String {
        credentials.get_credential().await.expect("there are some").key_id.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn service_hangs_the_last_credentials_are_used_and_few_requests_are_sent() {
        let service = Arc::new(Service::default());
        let credentials = KeptCredentials::of(service.clone());
        assert_eq!(key(&credentials).await, "0");
        *service.hangs.lock() = true;
        let began = Instant::now();
        for _ in 0..100 {
            assert_eq!(key(&credentials).await, "0");
        }
        assert_eq!(began.elapsed(), ANSWER_MAX, "one of them waits");
        *service.hangs.lock() = false;
        tokio::time::sleep(PAUSE).await;
        assert_eq!(key(&credentials).await, "2");
    }

    #[tokio::test(start_paused = true)]
    async fn library_panics_at_an_answer_the_last_credentials_are_used() {
        let service = Arc::new(Service::default());
        let credentials = KeptCredentials::of(service.clone());
        *service.panics.lock() = true;
        let error = credentials.get_credential().await.expect_err("there are none yet").to_string();
        assert!(error.contains("no valid credentials"), "{error}");
        *service.panics.lock() = false;
        let first = key(&credentials).await;
        *service.panics.lock() = true;
        for _ in 0..3 {
            assert_eq!(key(&credentials).await, first);
        }
        assert_eq!(service.requests.load(Ordering::SeqCst), 3, "one pause after the panic");
    }

    #[tokio::test(start_paused = true)]
    async fn service_fails_for_long_its_error_is_that_of_the_store() {
        let service = Arc::new(Service::default());
        let credentials = KeptCredentials::of(service.clone());
        *service.fails.lock() = true;
        credentials.get_credential().await.expect_err("there are none yet");
        *service.fails.lock() = false;
        let first = key(&credentials).await;
        *service.fails.lock() = true;
        tokio::time::sleep(USED_MAX / 2).await;
        assert_eq!(key(&credentials).await, first);
        tokio::time::sleep(USED_MAX).await;
        credentials.get_credential().await.expect_err("they have expired");
    }
}
