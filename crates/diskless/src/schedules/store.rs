//! An object store with faults. Requests may be slow, hang or be refused. PUTs may arrive late or get no answer. GETs
//! may return wrong bytes or none.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use fullbore_tests::Random;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

use super::world::{Setup, World, ms, random};

/// The object store of a schedule.
pub struct Troubled {
    inner: InMemory,
    world: Weak<World>,
    put_ms: usize,
    state: Mutex<State>,
}

struct State {
    puts: Random,
    gets: Random,
    /// PUTs that were given up but will still arrive, each with the time of its arrival, its key and its bytes.
    late: Vec<(Duration, Path, PutPayload)>,
}

/// The fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestFault {
    None,
    Slow,
    Hangs,
    Fails,
    /// The request is carried out, but the answer is lost.
    DoneButFails,
    Denied,
    /// A GET does not find the object, although it exists.
    NotFound,
    /// A GET returns bytes with one wrong bit.
    Wrong,
}

impl fmt::Debug for Troubled {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("troubled")
    }
}

impl fmt::Display for Troubled {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("troubled")
    }
}

/// A PUT that is under way. If the request is given up, the PUT may still arrive later.
struct OnItsWay<'a> {
    store: &'a Troubled,
    world: &'a World,
    put: Option<(Path, PutPayload)>,
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        if let Some((path, payload)) = self.put.take() {
            let mut state = self.store.state.lock();
            if state.puts.below(2) == 0 {
                let due = self.world.now() + ms(state.puts.below(90_000));
                state.late.push((due, path, payload));
            }
        }
    }
}

impl Troubled {
    pub fn new(world: Weak<World>, setup: &Setup) -> Arc<Troubled> {
        let state = State { puts: random(setup.seed, 2), gets: random(setup.seed, 3), late: Vec::new() };
        Arc::new(Troubled { inner: InMemory::new(), world, put_ms: setup.put_ms, state: Mutex::new(state) })
    }

    /// Returns all objects in the store with their sizes.
    pub async fn objects(&self) -> Vec<(Path, u64)> {
        self.arrive().await;
        let mut objects: Vec<_> = self
            .inner
            .list(None)
            .map(|meta| meta.map(|meta| (meta.location, meta.size)).expect("listed"))
            .collect()
            .await;
        objects.sort();
        objects
    }

    /// Makes all late PUTs arrive now.
    pub async fn hurry(&self) {
        self.state.lock().late.iter_mut().for_each(|(due, ..)| *due = Duration::ZERO);
        self.arrive().await;
    }

    fn world(&self) -> Arc<World> {
        self.world.upgrade().expect("a schedule has its world")
    }

    /// Carries out the late PUTs that are due.
    async fn arrive(&self) {
        let now = self.world().now();
        let mut late = std::mem::take(&mut self.state.lock().late);
        late.sort_by_key(|(due, ..)| *due);
        for (due, path, payload) in late {
            if due <= now {
                self.inner.put(&path, payload).await.expect("memory takes all");
            } else {
                self.state.lock().late.push((due, path, payload));
            }
        }
    }

    fn fault(
        &self,
        world: &World,
        bad: &[RequestFault],
        of: impl Fn(&mut State) -> &mut Random,
    ) -> (RequestFault, Duration) {
        let mut state = self.state.lock();
        let by = of(&mut state);
        let takes = ms(self.put_ms + by.below(self.put_ms + 1));
        match world.strikes(by, world.setup.store_trouble) {
            true => (bad[by.below(bad.len())], takes),
            false => (RequestFault::None, takes),
        }
    }

    /// Waits as long as the request takes. A request that hangs waits forever.
    async fn wait(&self, world: &Arc<World>, fault: RequestFault, takes: Duration) -> Result<()> {
        match fault {
            RequestFault::None => tokio::time::sleep(takes).await,
            RequestFault::Slow => {
                let _trouble = world.lasting_trouble();
                let slow = ms(self.state.lock().puts.below(12_000));
                tokio::time::sleep(takes + slow).await;
            }
            RequestFault::Hangs => {
                let _trouble = world.lasting_trouble();
                std::future::pending::<()>().await;
            }
            _ => {
                tokio::time::sleep(takes).await;
                world.trouble();
            }
        }
        match world.out_until(false) {
            Some(_) => Err(failed("503 SlowDown")),
            None => Ok(()),
        }
    }
}

fn failed(what: &'static str) -> Error {
    Error::Generic { store: "troubled", source: what.into() }
}

fn denied(path: &Path) -> Error {
    Error::PermissionDenied { path: path.to_string(), source: "403 AccessDenied".into() }
}

fn not_found(path: &Path) -> Error {
    Error::NotFound { path: path.to_string(), source: "404 NoSuchKey".into() }
}

#[async_trait]
impl ObjectStore for Troubled {
    async fn put_opts(&self, location: &Path, payload: PutPayload, _: PutOptions) -> Result<PutResult> {
        use RequestFault::{Denied, DoneButFails, Fails, Hangs, Slow};
        let world = self.world();
        let (fault, takes) =
            self.fault(&world, &[Slow, Slow, Hangs, Fails, Fails, DoneButFails, Denied], |state| &mut state.puts);
        let mut put = OnItsWay { store: self, world: &world, put: Some((location.clone(), payload)) };
        world.report(|| format!("put {location} {fault:?}"));
        self.wait(&world, fault, takes).await?;
        if fault == Denied || fault == Fails {
            put.put = None;
        }
        let Some((path, payload)) = put.put.take() else {
            return Err(if fault == Denied { denied(location) } else { failed("connection reset") });
        };
        self.arrive().await;
        let done = self.inner.put(&path, payload).await?;
        if fault == DoneButFails { Err(failed("connection reset")) } else { Ok(done) }
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        use RequestFault::{Denied, Fails, Hangs, NotFound, Slow, Wrong};
        let world = self.world();
        let bad = [Slow, Hangs, Fails, Fails, NotFound, Wrong, Wrong, Denied];
        let (fault, takes) = self.fault(&world, &bad, |state| &mut state.gets);
        world.report(|| format!("get {location} {:?} {fault:?}", options.range));
        self.wait(&world, fault, takes).await?;
        self.arrive().await;
        match fault {
            RequestFault::None | Slow => self.inner.get_opts(location, options).await,
            NotFound => Err(not_found(location)),
            Denied => Err(denied(location)),
            Wrong => self.get_wrong(location, options).await,
            _ => Err(failed("connection reset")),
        }
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let world = self.world();
        let fails =
            world.strikes(&mut self.state.lock().gets, world.setup.store_trouble) || world.out_until(false).is_some();
        if fails {
            world.trouble();
            return futures_util::stream::iter([Err(failed("503 SlowDown"))]).boxed();
        }
        self.inner.delete_stream(locations)
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotImplemented { operation: "multipart".into(), implementer: "troubled".into() })
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

impl Troubled {
    /// Returns the bytes of an object with one wrong bit.
    async fn get_wrong(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let right = self.inner.get_opts(location, options.clone()).await?;
        let range: Range<u64> = right.range.clone();
        let mut bytes = right.bytes().await?.to_vec();
        if !bytes.is_empty() {
            let bit = self.state.lock().gets.below(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        // Put the wrong bytes into a second store, at the same position, and read them from there.
        let (other, mut whole) = (InMemory::new(), vec![0; range.start as usize]);
        whole.extend(bytes);
        other.put(location, PutPayload::from_bytes(Bytes::from(whole))).await?;
        let range = (range.start < range.end).then_some(GetRange::Bounded(range));
        other.get_opts(location, GetOptions { range, ..GetOptions::default() }).await
    }
}
