use std::fs;
use std::path::{Path as FilePath, PathBuf};

use fullbore_tests::s3::{S3, S3Fault};
use fullbore_tls::Secret;

use super::super::index::temp_index::TempIndex;
use super::double::s3_storage as storage;
use super::*;
use fullbore_config::S3Storage;

mod answers;
mod marker;
mod reads;

async fn directory(directory: &FilePath, cluster_id: &str, index: &TempIndex) -> Result<Objects, String> {
    let opened = Objects::open(&DisklessStorage::Directory(directory.into()), cluster_id, index.owner()).await;
    opened.map_err(|error| error.to_string())
}

async fn open(storage: S3Storage, cluster_id: &str, index: &TempIndex) -> Result<Objects, String> {
    let opened = Objects::open(&DisklessStorage::S3(storage), cluster_id, index.owner()).await;
    opened.map_err(|error| error.to_string())
}

fn parts() -> Vec<Bytes> {
    vec![Bytes::from_static(b"some"), Bytes::from_static(b"thing")]
}

async fn is_there_until_it_is_deleted(opened: impl AsyncFn() -> Objects) {
    let objects = opened().await;
    let twice = tokio::join!(
        objects.put(7, parts(), BodyProgress::default()),
        objects.put(7, parts(), BodyProgress::default())
    );
    assert_eq!(twice, (Ok(()), Ok(())));
    let objects = opened().await;
    assert_eq!(objects.get(7, 2..6, BodyProgress::default()).await, Ok(Bytes::from_static(b"meth")));
    assert_eq!(
        objects.get(7, 4..100, BodyProgress::default()).await,
        Ok(Bytes::from_static(b"thing")),
        "up to its end"
    );
    assert_eq!(objects.get(8, 0..1, BodyProgress::default()).await, Err(ObjectError::NotFound(8)));
    assert_eq!((objects.delete(7).await, objects.delete(7).await), (Ok(()), Ok(())));
    assert_eq!(objects.get(7, 0..1, BodyProgress::default()).await, Err(ObjectError::NotFound(7)));
}

#[tokio::test]
async fn an_object_is_in_its_directory_until_it_is_deleted() {
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let (path, index) = (temporary.path().join("made/here"), TempIndex::empty());
    is_there_until_it_is_deleted(async || directory(&path, "one", &index).await.expect("opened")).await;
}

#[tokio::test]
async fn put_is_killed_its_files_are_deleted_with_the_object() {
    let (temporary, index) = (tempfile::tempdir().expect("a temporary directory"), TempIndex::empty());
    let objects = directory(temporary.path(), "one", &index).await.expect("opened");
    objects.put(8, parts(), BodyProgress::default()).await.expect("put");
    let files = || fs::read_dir(temporary.path().join("one/07")).expect("there").count();
    let beside = |name: &str| temporary.path().join("one/07").join(name);
    objects.put(7, parts(), BodyProgress::default()).await.expect("put");
    for name in ["0000000000000007#1", "0000000000000007#2", "0000000000000107#1"] {
        fs::write(beside(name), "so").expect("written");
    }
    objects.delete(7).await.expect("deleted");
    assert_eq!((files(), beside("0000000000000107#1").exists()), (1, true), "another's");
    // Object 0x107 itself is missing, as if its PUT had never finished. The DELETE still removes its unfinished file.
    objects.delete(0x107).await.expect("deleted");
    assert_eq!(files(), 0);
    assert_eq!(objects.get(8, 0..4, BodyProgress::default()).await, Ok(Bytes::from_static(b"some")));
}

#[tokio::test]
async fn an_object_is_in_its_bucket_until_it_is_deleted() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    is_there_until_it_is_deleted(async || open(storage(&s3), "one", &index).await.expect("opened")).await;
}

#[tokio::test]
async fn another_clusters_store_is_refused() {
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let [one, two] = [TempIndex::empty(), TempIndex::empty()];
    directory(temporary.path(), "one", &one).await.expect("opened");
    let refused = directory(temporary.path(), "other", &two).await.err().expect("refused");
    assert!(
        refused.ends_with(": the store has objects of the cluster one, and this broker belongs to other"),
        "{refused}"
    );

    let s3 = S3::start();
    open(storage(&s3), "one", &one).await.expect("opened");
    let refused = open(storage(&s3), "other", &two).await.err().expect("refused");
    let expected = "diskless.storage=s3://objects/some/where: the store has objects of the cluster one, and this \
         broker belongs to other";
    assert_eq!(refused, expected);
    let elsewhere = S3Storage { prefix: String::new(), ..storage(&s3) };
    open(elsewhere, "other", &two).await.expect("another prefix");
}

/// Puts an object that the index has already registered and committed.
async fn write(at: &FilePath, index: &TempIndex) {
    let objects = directory(at, "one", index).await.expect("opened");
    objects.put(index.commit_object(), parts(), BodyProgress::default()).await.expect("put");
}

#[tokio::test]
async fn another_store_than_the_one_with_the_objects_is_refused() {
    let [here, elsewhere] = [(); 2].map(|()| tempfile::tempdir().expect("a temporary directory"));
    let index = TempIndex::empty();
    write(here.path(), &index).await;
    let refused = directory(elsewhere.path(), "one", &index).await.err().expect("refused");
    assert!(refused.contains(": this store does not have this cluster's records; set diskless.storage"), "{refused}");
    assert!(elsewhere.path().read_dir().expect("a directory").next().is_none(), "nothing is left there");
    let other = TempIndex::empty();
    directory(elsewhere.path(), "one", &other).await.expect("opened");
    let refused = directory(elsewhere.path(), "one", &index).await.err().expect("refused");
    assert!(
        refused.contains("this store does not have this cluster's records"),
        "of the same cluster, with another number: {refused}"
    );
    directory(here.path(), "one", &index).await.expect("opened");
    // If a store is moved with its contents, it remains the same store.
    let moved = elsewhere.path().join("moved");
    fs::rename(here.path(), &moved).expect("moved");
    directory(&moved, "one", &index).await.expect("opened");
}

#[tokio::test]
async fn a_store_without_objects_may_be_left_for_another() {
    let stores = [(); 3].map(|()| tempfile::tempdir().expect("a temporary directory"));
    let (index, other) = (TempIndex::empty(), TempIndex::empty());
    directory(stores[0].path(), "one", &index).await.expect("opened");
    directory(stores[1].path(), "one", &index).await.expect("nothing is in the first");
    write(stores[2].path(), &other).await;
    let refused = directory(stores[2].path(), "one", &index).await.err().expect("refused");
    assert!(refused.contains("the store has objects of this cluster that the index does not know"), "{refused}");
}

#[tokio::test]
async fn objects_without_their_index_are_left_alone() {
    let at = tempfile::tempdir().expect("a temporary directory");
    write(at.path(), &TempIndex::empty()).await;
    for _ in 0..2 {
        let refused = directory(at.path(), "one", &TempIndex::empty()).await.err().expect("refused");
        assert!(refused.contains("the store has objects of this cluster that the index does not know"), "{refused}");
    }
    let s3 = S3::start();
    let index = TempIndex::empty();
    open(storage(&s3), "one", &index)
        .await
        .expect("opened")
        .put(1, parts(), BodyProgress::default())
        .await
        .expect("put");
    open(storage(&s3), "one", &TempIndex::empty()).await.err().expect("refused");
    open(storage(&s3), "one", &index).await.expect("the index has its number");
}

#[tokio::test]
async fn store_is_not_verified_nothing_is_put_read_or_deleted() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    open(storage(&s3), "one", &index)
        .await
        .expect("opened")
        .put(1, parts(), BodyProgress::default())
        .await
        .expect("put");
    s3.every("GET", S3Fault::Status(503, "SlowDown"));
    let lost = TempIndex::empty();
    let late = open(storage(&s3), "one", &lost).await.expect("it starts");
    s3.heal();
    let before = s3.requests("PUT");
    for _ in 0..2 {
        assert_eq!(
            late.put(1, vec![Bytes::from_static(b"other")], BodyProgress::default()).await,
            Err(ObjectError::UnknownObjects)
        );
        assert_eq!(late.delete(1).await, Err(ObjectError::UnknownObjects));
        assert_eq!(late.get(1, 0..9, BodyProgress::default()).await, Err(ObjectError::UnknownObjects));
    }
    assert!(!late.ownership().is_verified());
    assert_eq!(s3.requests("PUT") - before, 6, "probes");
    let objects = open(storage(&s3), "one", &index).await.expect("opened");
    assert_eq!(objects.get(1, 0..9, BodyProgress::default()).await, Ok(Bytes::from_static(b"something")));
}

#[tokio::test]
async fn directory_is_replaced_by_an_empty_one_nothing_is_put_until_it_is_back() {
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let (at, aside, index) = (temporary.path().join("at"), temporary.path().join("aside"), TempIndex::empty());
    let objects = directory(&at, "one", &index).await.expect("opened");
    objects.put(1, parts(), BodyProgress::default()).await.expect("put");
    fs::rename(&at, &aside).expect("moved");
    for is_verified in [false, true] {
        if is_verified {
            fs::create_dir(&at).expect("made");
        }
        let refused = objects.put(2, parts(), BodyProgress::default()).await.expect_err("it is not there");
        assert!(
            refused.is_retriable() && refused.to_string().contains("the store's ownership marker is gone"),
            "{refused}"
        );
        assert_eq!(objects.delete(1).await, Err(refused));
    }
    fs::remove_dir(&at).expect("nothing is in it");
    fs::rename(&aside, &at).expect("moved");
    assert_eq!(objects.put(2, parts(), BodyProgress::default()).await, Ok(()));
    assert_eq!(objects.get(1, 0..9, BodyProgress::default()).await, Ok(Bytes::from_static(b"something")));
}

#[tokio::test]
async fn bucket_is_emptied_nothing_is_put_or_deleted_until_it_is_back() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    let objects = open(storage(&s3), "one", &index).await.expect("opened").checking_always();
    objects.put(1, parts(), BodyProgress::default()).await.expect("put");
    let (place, aside) = (s3.directory().join("some"), s3.directory().join("aside"));
    fs::rename(&place, &aside).expect("moved");
    let refused = objects.put(2, parts(), BodyProgress::default()).await.expect_err("it was emptied");
    assert!(
        refused.is_retriable() && refused.to_string().contains("the store's ownership marker is gone"),
        "{refused}"
    );
    assert_eq!(objects.delete(1).await, Err(refused));
    assert!(!place.exists(), "nothing was put");
    fs::rename(&aside, &place).expect("moved back");
    assert_eq!(objects.put(2, parts(), BodyProgress::default()).await, Ok(()));
    let seldom = open(storage(&s3), "one", &index).await.expect("opened");
    let before = s3.requests("GET");
    for id in 3..6 {
        assert_eq!(seldom.put(id, parts(), BodyProgress::default()).await, Ok(()));
    }
    assert_eq!(s3.requests("GET") - before, 1, "one look serves all puts of some seconds");
}

/// Uses the real clock. A paused one would jump past the time limits while a thread of an index works.
#[tokio::test]
async fn two_clusters_use_a_store_at_once_one_is_refused() {
    for ignores_conditions in [false, true] {
        let store = double::StoreDouble::taking(Duration::from_millis(10));
        if ignores_conditions {
            store.ignore_conditions();
        }
        let indexes = [(); 3].map(|()| TempIndex::empty());
        let below = |cluster_id, index: usize| {
            let ownership = Ownership::new(cluster_id, indexes[index].owner());
            Objects::below(store.clone(), Path::from("some/where"), ownership, cluster_id)
        };
        let (one, other, again) = (below("one", 0), below("other", 1), below("one", 2));
        let (one, other, again) = tokio::join!(one.verified(), other.verified(), again.verified());
        // Either cluster may get the store, depending on how the threads of the indexes run.
        let is_refused = |verified| matches!(verified, Err(ObjectError::OtherCluster { .. }));
        // Without conditions, a start may see the marker of the other cluster before this cluster replaces it.
        assert!(one == again || ignores_conditions && is_refused(again.clone()), "{one:?}, {again:?}");
        assert_eq!(is_refused(other.clone()), one == Ok(()), "{one:?}, {other:?}");
        assert_eq!(is_refused(one.clone()), other == Ok(()), "{one:?}, {other:?}");
        for cluster_id in ["one", "other"] {
            let index = TempIndex::empty();
            let ownership = Ownership::new(cluster_id, index.owner());
            let later = Objects::below(store.clone(), Path::from("some/where"), ownership, cluster_id).verified().await;
            assert_eq!(is_refused(later), (cluster_id == "one") != (one == Ok(())), "{cluster_id} opens it later");
        }
    }
}

#[tokio::test]
async fn directory_cannot_be_made_the_start_is_refused() {
    let temporary = tempfile::tempdir().expect("a temporary directory");
    fs::write(temporary.path().join("file"), b"").expect("written");
    let path: PathBuf = temporary.path().join("file/in");
    let refused = directory(&path, "one", &TempIndex::empty()).await.err().expect("refused");
    assert!(refused.contains("diskless.storage=") && refused.contains("file/in"), "{refused}");
    let refused = directory(&temporary.path().join("file"), "one", &TempIndex::empty()).await.err().expect("refused");
    assert!(refused.ends_with("/file: it is not a directory"), "{refused}");
}

#[tokio::test]
async fn store_refuses_the_error_has_its_own_words() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    let right = storage(&s3);
    let key = |id: &str, secret: &str| Some((id.to_owned(), Secret::from(secret.to_owned())));
    for (wrong, expected) in [
        (S3Storage { credentials: key("stranger", S3::SECRET), ..right.clone() }, "NotSignedUp"),
        (S3Storage { credentials: key(S3::KEY_ID, "TOPSECRET"), ..right.clone() }, "SignatureDoesNotMatch"),
    ] {
        let refused = open(wrong, "one", &index).await.err().expect(expected);
        assert!(refused.contains(expected) && !refused.contains("TOPSECRET"), "{refused}");
        assert!(!refused.contains('<'), "{refused}");
    }
    for (method, may) in [("GET", "read"), ("PUT", "write"), ("DELETE", "delete")] {
        s3.every(method, S3Fault::Status(403, "AccessDenied"));
        let refused = open(right.clone(), "one", &index).await.err().expect(may);
        assert!(refused.contains("AccessDenied"), "{may}: {refused}");
        s3.heal();
    }
    for (status, code) in [(404, "NoSuchBucket"), (400, "AuthorizationHeaderMalformed")] {
        s3.every("GET", S3Fault::Status(status, code));
        let refused = open(right.clone(), "one", &index).await.err().expect(code);
        assert!(refused.ends_with(&format!("{code}: It is a test.")), "{refused}");
    }
}

#[tokio::test]
async fn a_store_without_conditions_is_verified_and_used() {
    for has_conditional_put in [true, false] {
        let (s3, [one, two]) = (S3::start(), [(); 2].map(|()| TempIndex::empty()));
        s3.every("PUT", S3Fault::NoConditions);
        let storage = || S3Storage { has_conditional_put, ..storage(&s3) };
        let objects = open(storage(), "one", &one).await.expect("opened");
        assert_eq!(objects.put(1, parts(), BodyProgress::default()).await, Ok(()));
        let refused = open(storage(), "other", &two).await.err().expect("another's");
        assert!(refused.contains("objects of the cluster one"), "{refused}");
    }
}

#[tokio::test]
async fn a_store_that_ignores_ranges_is_refused_at_the_start() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    s3.every("GET", S3Fault::NoRanges);
    let refused = open(storage(&s3), "one", &index).await.err().expect("refused");
    assert!(refused.contains("part of an object (HTTP header Range)"), "{refused}");
    s3.heal();
    open(storage(&s3), "one", &index).await.expect("opened");
}

#[tokio::test]
async fn a_private_authority_is_trusted_where_it_is_set() {
    let authority = fullbore_tests::pki::Authority::new("private");
    let (s3, index) = (S3::start_tls(&authority.broker(&["localhost"])), TempIndex::empty());
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let set = |text: &str| {
        let file = temporary.path().join("ca.pem");
        fs::write(&file, text).expect("written");
        S3Storage { truststore: Some(file), ..storage(&s3) }
    };
    let untrusted = open(storage(&s3), "one", &index).await.expect("waited for");
    let refused = untrusted.put(1, parts(), BodyProgress::default()).await.expect_err("not trusted").to_string();
    assert!(refused.contains("certificate"), "{refused}");
    let objects = open(set(&authority.pem()), "one", &index).await.expect("opened");
    assert_eq!(objects.put(1, parts(), BodyProgress::default()).await, Ok(()));
    let refused = open(set("no certificate"), "one", &index).await.err().expect("refused");
    assert!(refused.contains("diskless.storage.s3.ssl.truststore.location=") && refused.contains("PEM"), "{refused}");
}

#[tokio::test]
async fn credentials_of_a_file_that_changes_are_those_of_the_next_request() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let file = temporary.path().join("credentials");
    let write = |text: String| {
        let beside = temporary.path().join("beside");
        fs::write(&beside, text).expect("written");
        fs::rename(&beside, &file).expect("in its place");
    };
    let keys = |secret: &str| format!("[default]\naws_access_key_id={}\naws_secret_access_key={secret}\n", S3::KEY_ID);
    write(keys(S3::SECRET));
    let credentials = profile::ProfileCredentials::open(file.clone(), "default").expect("read").expect("both keys");
    let bucket = object_store::aws::AmazonS3Builder::new()
        .with_bucket_name(S3::BUCKET)
        .with_endpoint(s3.endpoint())
        .with_allow_http(true)
        .with_credentials(Arc::new(credentials));
    let ownership = Ownership::new("one", index.owner());
    let objects = Objects::below(Arc::new(bucket.build().expect("a bucket")), Path::default(), ownership, "one");
    let puts = async |wanted: &str| {
        let outcome = async || {
            objects
                .put(1, parts(), BodyProgress::default())
                .await
                .err()
                .map_or("put".to_owned(), |error| error.to_string())
        };
        let has_come = async {
            while !outcome().await.contains(wanted) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(60), has_come).await.expect(wanted);
    };
    puts("put").await;
    write(keys("revoked"));
    puts("SignatureDoesNotMatch").await;
    write(keys(S3::SECRET));
    puts("put").await;
    // The file becomes incomplete, then large, then a pipe, then a directory, and is finally missing. Each time, the
    // last credentials stay in use.
    let half = || write("[default]\naws_access_key_id=half\n".to_owned());
    let large =
        || fs::File::options().write(true).open(&file).and_then(|file| file.set_len(1 << 30)).expect("extended");
    let pipe = || {
        fs::remove_file(&file).expect("removed");
        let made = std::process::Command::new("mkfifo").arg(&file).status();
        assert!(made.expect("run").success());
    };
    let directory = || {
        fs::remove_file(&file).expect("removed");
        fs::create_dir(&file).expect("made");
    };
    let none = || fs::remove_dir(&file).expect("removed");
    for change in [&half as &dyn Fn(), &large, &pipe, &directory, &none] {
        change();
        tokio::time::sleep(Duration::from_millis(1100)).await;
        puts("put").await;
    }
}

/// The store listens but never answers, like a metadata service behind a firewall.
#[tokio::test(start_paused = true)]
async fn store_is_silent_without_credentials_the_error_names_that() {
    let store = double::StoreDouble::taking(2 * VERIFIED_WITHIN);
    let index = TempIndex::empty();
    let below = |requests_metadata| {
        let ownership = Ownership::new("one", index.owner());
        Objects { requests_metadata, ..Objects::below(store.clone(), Path::default(), ownership, "one") }
    };
    let late =
        async |requests_metadata| below(requests_metadata).verified_in_time().await.expect_err("late").to_string();
    assert!(late(true).await.contains("no credentials are set"));
    assert!(!late(false).await.contains("credentials"));
}

/// Regression test: a starting broker waits for a slow store, as long as the store answers each request in time.
#[tokio::test(start_paused = true)]
async fn store_answers_each_request_late_it_is_silent_only_once_one_has_no_answer() {
    let is_silent = async |store: Arc<double::StoreDouble>| {
        let objects = Objects::over(store, "one");
        let probes = async {
            for _ in 0..3 {
                objects.cluster_store().probe().await.expect("probed");
            }
        };
        let began = tokio::time::Instant::now();
        tokio::select! {
            () = probes => false,
            () = objects.ownership().store_is_silent(SILENT_MAX) => {
                assert!(began.elapsed() < 2 * SILENT_MAX, "{:?}", began.elapsed());
                true
            }
        }
    };
    assert!(!is_silent(double::StoreDouble::taking(SILENT_MAX * 3 / 4)).await, "all together take longer than one may");
    let hanging = double::StoreDouble::taking(Duration::ZERO);
    hanging.hang_next(1);
    assert!(is_silent(hanging).await);
}

/// On Amazon's machines, a service at this address issues credentials. On other machines, a proxy may answer at this
/// address. Even if the proxy refuses the request, the error must show that no credentials are set.
#[test]
fn no_credentials_are_set_the_error_names_that_before_the_metadata_service() {
    let source = "Error performing PUT http://169.254.169.254/latest/api/token in 1ms - status code: 403".into();
    let refused = ObjectError::of_put(object_store::Error::Generic { store: "S3", source });
    assert!(refused.to_string().starts_with("the object store refuses: no credentials are set"), "{refused}");
}

#[tokio::test]
async fn store_is_away_at_the_start_requests_verify_it_later() {
    let (s3, [one, two, three]) = (S3::start(), [(); 3].map(|()| TempIndex::empty()));
    s3.every("GET", S3Fault::Status(503, "SlowDown"));
    let objects = open(storage(&s3), "one", &one).await.expect("it starts");
    let refused = objects.put(1, parts(), BodyProgress::default()).await.expect_err("not yet");
    assert!(refused.is_retriable() && refused.to_string().contains("SlowDown"), "{refused}");
    s3.heal();
    assert_eq!(objects.put(1, parts(), BodyProgress::default()).await, Ok(()));
    // Other brokers start while their stores do not answer. Later, one store turns out to belong to another cluster,
    // and at the address of the other one nothing listens.
    s3.every("GET", S3Fault::Reset);
    let late = open(storage(&s3), "other", &two).await.expect("it starts");
    s3.heal();
    let refused = late.put(1, parts(), BodyProgress::default()).await.expect_err("another's");
    assert!(matches!(refused, ObjectError::OtherCluster { .. }), "{refused}");
    let endpoint = Some("http://127.0.0.1:9".to_owned());
    let nowhere = open(S3Storage { endpoint, ..storage(&s3) }, "one", &three).await.expect("it starts");
    let refused = nowhere.put(1, parts(), BodyProgress::default()).await.expect_err("nobody there");
    assert!(refused.is_retriable() && refused.to_string().contains("refused"), "{refused}");
}

#[tokio::test]
async fn outage_of_a_store_is_over_requests_leave_at_once() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    let objects = open(storage(&s3), "one", &index).await.expect("opened");
    // Wait for the next interval of the pace, so that the requests that have just succeeded do not count there.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    s3.every("PUT", S3Fault::Status(503, "ServiceUnavailable"));
    let put = || objects.put(1, parts(), BodyProgress::default());
    let failing = async {
        for _ in 0..20 {
            let failed = put().await.expect_err("an outage");
            assert!(failed.is_retriable() && failed.to_string().contains("ServiceUnavailable"), "{failed}");
        }
    };
    timeout(Duration::from_secs(10), failing).await.expect("at one request a second they take 20 s");
    s3.heal();
    let all = async {
        for _ in 0..20 {
            put().await.expect("put");
            objects.get(1, 0..9, BodyProgress::default()).await.expect("read");
        }
    };
    timeout(Duration::from_secs(20), all).await.expect("at one request a second they take 40 s");
}

#[tokio::test]
async fn one_request_fails_its_error_is_retriable() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    let objects = open(storage(&s3), "one", &index).await.expect("opened");
    let large = || vec![Bytes::from(vec![7; 1 << 20])];
    for fault in
        [S3Fault::Status(500, "InternalError"), S3Fault::Status(503, "SlowDown"), S3Fault::Reset, S3Fault::AnswerLost]
    {
        s3.next("PUT", fault);
        let failed = objects.put(1, large(), BodyProgress::default()).await.expect_err("a fault");
        assert!(failed.is_retriable(), "{fault:?}: {failed}");
        assert_eq!(objects.put(1, large(), BodyProgress::default()).await, Ok(()), "{fault:?}");
        s3.next("GET", fault);
        let get = timeout(Duration::from_secs(30), objects.get(1, 0..1 << 20, BodyProgress::default())).await;
        match get.expect("an answer") {
            Ok(got) => assert!(matches!(fault, S3Fault::Reset) && got.len() == 1 << 20, "the rest is requested"),
            Err(failed) => assert!(failed.is_retriable(), "{fault:?}: {failed}"),
        }
        assert_eq!(
            objects.get(1, 0..1 << 20, BodyProgress::default()).await.map(|got| got.len()),
            Ok(1 << 20),
            "{fault:?}"
        );
    }
    s3.next("PUT", S3Fault::Hang);
    let before = s3.requests("PUT");
    let hangs = tokio::spawn({
        let (objects, parts) = (objects.clone(), large());
        async move { objects.put(1, parts, BodyProgress::default()).await }
    });
    let has_come = async {
        while s3.requests("PUT") == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(30), has_come).await.expect("it comes");
    // A request that does not hang ends within this time, except on an overloaded machine.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!hangs.is_finished());
    hangs.abort();
    assert_eq!(objects.put(1, large(), BodyProgress::default()).await, Ok(()));
}

#[tokio::test]
async fn answers_without_end_are_not_read_whole() {
    const READ_MAX: usize = 32 << 20;
    let (s3, index) = (S3::start(), TempIndex::empty());
    let objects = open(storage(&s3), "one", &index).await.expect("opened");
    assert_eq!(objects.put(1, parts(), BodyProgress::default()).await, Ok(()));
    let mut flooded = 0;
    for (method, status) in
        [("GET", 206), ("GET", 403), ("GET", 503), ("PUT", 200), ("PUT", 403), ("PUT", 503), ("DELETE", 503)]
    {
        s3.next(method, S3Fault::Flood(status));
        let done = match method {
            "GET" => objects.get(1, 0..9, BodyProgress::default()).await.map(drop),
            "PUT" => objects.put(2, parts(), BodyProgress::default()).await,
            _ => objects.delete(2).await,
        };
        assert_eq!(done.is_ok(), status == 200, "{method} {status}: {done:?}");
        // The server counts all bytes that it has sent, even those that are still in the buffers of the sockets.
        let now = s3.flooded();
        assert!(now > flooded && now - flooded < READ_MAX, "{method} {status}: {} bytes", now - flooded);
        flooded = now;
    }
    assert_eq!(objects.get(1, 0..9, BodyProgress::default()).await, Ok(Bytes::from_static(b"something")));
}

#[tokio::test]
async fn put_is_answered_before_it_was_sent_it_has_failed() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    let objects = open(storage(&s3), "one", &index).await.expect("opened");
    // The body is larger than the buffers of the sockets. The answer therefore arrives before the whole body is sent.
    let large = || vec![Bytes::from(vec![7; 1 << 20]); 32];
    s3.next("PUT", S3Fault::Early);
    let refused = objects.put(1, large(), BodyProgress::default()).await.expect_err("not all of it was sent");
    assert!(refused.is_retriable(), "{refused}");
    assert_eq!(objects.put(1, large(), BodyProgress::default()).await, Ok(()));
}
