//! Object stores for tests: a bucket of a real server, and a store in memory that a test can make slow, fail or hang.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use fullbore_tests::s3::S3;
use fullbore_tls::Secret;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use fullbore_config::S3Storage;
use fullbore_rules::commit::ObjectId;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// Size of the pieces in which the link carries the bytes of GETs.
const PIECE: usize = 64 << 10;

/// Returns the settings for a bucket of this server.
pub fn s3_storage(s3: &S3) -> S3Storage {
    S3Storage {
        bucket: S3::BUCKET.into(),
        prefix: "some/where".into(),
        endpoint: Some(s3.endpoint()),
        region: None,
        is_path_style: true,
        credentials: Some((S3::KEY_ID.into(), Secret::from(S3::SECRET.to_owned()))),
        truststore: None,
        has_conditional_put: true,
    }
}

/// A store in memory.
#[derive(Debug)]
pub struct StoreDouble {
    inner: InMemory,
    takes: Duration,
    failing: AtomicUsize,
    hanging: AtomicUsize,
    ignores_conditions: AtomicBool,
    puts: AtomicUsize,
    gets: AtomicUsize,
    link: Mutex<Option<Arc<Link>>>,
    hanging_objects: Mutex<BTreeSet<ObjectId>>,
}

/// A narrow link that the bytes of all GETs share.
#[derive(Debug)]
struct Link {
    bytes_per_second: f64,
    free_at: Mutex<Instant>,
}

impl Link {
    async fn carry(&self, bytes: usize) {
        let arrives = {
            let mut free_at = self.free_at.lock();
            *free_at = (*free_at).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second);
            *free_at
        };
        sleep_until(arrives).await;
    }
}

impl StoreDouble {
    /// Creates a store in which each request takes the time `takes`.
    pub fn taking(takes: Duration) -> Arc<StoreDouble> {
        Arc::new(StoreDouble {
            inner: InMemory::new(),
            takes,
            failing: AtomicUsize::new(0),
            hanging: AtomicUsize::new(0),
            ignores_conditions: AtomicBool::new(false),
            puts: AtomicUsize::new(0),
            gets: AtomicUsize::new(0),
            link: Mutex::default(),
            hanging_objects: Mutex::default(),
        })
    }

    /// Makes the next `requests` requests fail, each after its usual duration.
    pub fn fail_next(&self, requests: usize) {
        self.failing.store(requests, Ordering::SeqCst);
    }

    /// Makes the next `requests` requests hang forever.
    pub fn hang_next(&self, requests: usize) {
        self.hanging.store(requests, Ordering::SeqCst);
    }

    /// Makes all GETs of these objects hang forever.
    pub fn hang_gets_of(&self, objects: impl IntoIterator<Item = ObjectId>) {
        self.hanging_objects.lock().extend(objects);
    }

    /// Sends the bytes of all later GETs over a link with this rate.
    pub fn narrow(&self, bytes_per_second: f64) {
        let free_at = Mutex::new(Instant::now());
        *self.link.lock() = Some(Arc::new(Link { bytes_per_second, free_at }));
    }

    /// Makes PUTs replace objects even if their condition forbids it, as some S3 servers do.
    pub fn ignore_conditions(&self) {
        self.ignores_conditions.store(true, Ordering::SeqCst);
    }

    /// Returns the number of PUTs so far.
    pub fn puts(&self) -> usize {
        self.puts.load(Ordering::SeqCst)
    }

    /// Returns the number of GETs so far.
    pub fn gets(&self) -> usize {
        self.gets.load(Ordering::SeqCst)
    }

    async fn answer(&self) -> Result<()> {
        let take = |count: &AtomicUsize| {
            count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
        };
        if take(&self.hanging) {
            std::future::pending::<()>().await;
        }
        let fails = take(&self.failing);
        tokio::time::sleep(self.takes).await;
        match fails {
            true => Err(object_store::Error::Generic { store: "double", source: "503 SlowDown".into() }),
            false => Ok(()),
        }
    }
}

impl fmt::Display for StoreDouble {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("double")
    }
}

#[async_trait]
impl ObjectStore for StoreDouble {
    async fn put_opts(&self, location: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        self.puts.fetch_add(1, Ordering::SeqCst);
        self.answer().await?;
        if self.ignores_conditions.load(Ordering::SeqCst) {
            options.mode = PutMode::Overwrite;
        }
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.gets.fetch_add(1, Ordering::SeqCst);
        let id = location.filename().and_then(|name| ObjectId::from_str_radix(name, 16).ok());
        if id.is_some_and(|id| self.hanging_objects.lock().contains(&id)) {
            std::future::pending::<()>().await;
        }
        self.answer().await?;
        let mut found = self.inner.get_opts(location, options.clone()).await?;
        let Some(link) = self.link.lock().clone() else { return Ok(found) };
        let bytes = found.bytes().await?;
        let pieces: Vec<_> =
            (0..bytes.len()).step_by(PIECE).map(|at| bytes.slice(at..bytes.len().min(at + PIECE))).collect();
        let carried = futures_util::stream::iter(pieces).then(move |piece| {
            let link = Arc::clone(&link);
            async move {
                link.carry(piece.len()).await;
                Ok(piece)
            }
        });
        found = self.inner.get_opts(location, options).await?;
        found.payload = GetResultPayload::Stream(carried.boxed());
        Ok(found)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let takes = self.takes;
        let after = locations.then(move |location| async move {
            tokio::time::sleep(takes).await;
            location
        });
        self.inner.delete_stream(after.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
