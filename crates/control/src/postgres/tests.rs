//! Tests with a PostgreSQL server: passwords and TLS, unusable databases, the schema, and heartbeats.

mod hosts;

use std::sync::atomic::{AtomicU64, Ordering};

use fullbore_tests::postgres::Database;
use fullbore_tests::{pgbouncer::PgBouncer, pki::Authority, wait_until};

use super::super::notes::notes;
use super::*;
use fullbore_db::postgres::rows;
use fullbore_db::postgres::schema::FIRST_VERSION;
use fullbore_host::random_id;

const HANGS: Duration = Duration::from_secs(120);
const PASSWORD: &str = "s3cr3t-w0rd";

fn settings(url: &str) -> PlaneSettings {
    PlaneSettings::new(url, None, 2_000)
}

fn open(settings: &PlaneSettings) -> Result<Postgres, String> {
    let server = Server::new(settings, "fullbore test").map_err(|bad| bad.to_string())?;
    Postgres::open(Arc::new(server), random_id()).map(|(store, _)| store).map_err(|error| error.to_string())
}

/// Creates a database, and roles that need a password.
fn with_roles() -> Database {
    let database = Database::create();
    for role in ["secretive", "encrypted"] {
        let make = format!("CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'");
        database.run(&format!(
            "DO $$ BEGIN {make}; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
             GRANT ALL ON DATABASE {} TO {role}",
            database.name()
        ));
    }
    database
}

#[test]
fn a_password_comes_from_the_url_or_a_file_and_is_in_no_error() {
    let database = with_roles();
    let (address, name) = (database.server().address(), database.name());
    let url = |user: &str| format!("postgres://{user}@{address}/{name}");
    open(&settings(&url(&format!("secretive:{PASSWORD}")))).expect("opens");
    let file = tempfile::NamedTempFile::new().expect("tempfile");
    std::fs::write(file.path(), format!("{PASSWORD}\n")).expect("written");
    let with_file = |path: &std::path::Path| PlaneSettings::new(&url("secretive"), Some(path.to_owned()), 2_000);
    open(&with_file(file.path())).expect("opens");
    let wrong = format!("{PASSWORD}-no");
    let mistakes = [
        url(&format!("secretive:{wrong}")),
        url(&format!("nobody-known:{wrong}")),
        format!("postgres://secretive:{wrong}@{address}/no_such_database"),
        format!("postgres://secretive:{wrong}@127.0.0.1:1/{name}"),
        format!("postgres://secretive:{wrong}@no-such-host.invalid/{name}"),
        format!("postgres://secretive:{wrong}@{address}x/{name}"),
        format!("postgres://secretive:{wrong}@{address}/{name}?sslmode=maybe"),
        format!("postgres://secretive:{wrong}@{address}/{name}?{wrong}=x"),
        format!("postgres://secretive@{address}/{name}?password={wrong}&connect_timeout=x"),
        format!("postgres://encrypted:{wrong}@{address}/{name}?sslmode=verify-full&sslrootcert=/no/such/file"),
    ];
    for mistake in mistakes {
        let reported = open(&settings(&mistake)).err().expect(&mistake);
        let findings = check(&settings(&mistake));
        let reported = format!("{reported} {findings:?}");
        assert!(!reported.contains(PASSWORD) && !reported.contains('\n') && findings[0].is_wrong(), "{reported}");
    }
    let reported = open(&with_file(std::path::Path::new("/no/such/file"))).err().expect("refused");
    assert!(reported.contains("control.plane.password.file=/no/such/file: "), "{reported}");
    let server = Server::new(&settings(&url(&format!("secretive:{PASSWORD}"))), "x").expect("a URL");
    assert_eq!(server.name(), format!("postgres://{address}/{name}"));
}

/// A start retries transient errors only.
#[test]
fn only_an_outage_of_the_database_is_transient() {
    let database = with_roles();
    let (address, name) = (database.server().address(), database.name());
    let is_transient = |url: &str| {
        let server = Server::new(&settings(url), "fullbore test").expect("a URL");
        Postgres::open(Arc::new(server), random_id()).err().expect("refused").is_transient()
    };
    // Kubernetes and compose may create the name of a host later than the broker.
    let no_name = "postgres://postgres@no-such-host.invalid/x";
    for outage in ["postgres://postgres@127.0.0.1:1/x", "postgres://postgres@%2Fno%2Fsuch/x", no_name] {
        assert!(is_transient(outage), "{outage}");
    }
    let other = tempfile::NamedTempFile::new().expect("tempfile");
    std::fs::write(other.path(), Authority::new("another").pem()).expect("written");
    let of_other = format!("sslmode=verify-full&sslrootcert={}", other.path().display());
    for mistake in [
        format!("postgres://secretive:wrong@{address}/{name}"),
        format!("postgres://secretive@{address}/{name}"),
        format!("postgres://postgres@{address}/no_such_database"),
        format!("postgres://encrypted:{PASSWORD}@{address}/{name}?{of_other}"),
    ] {
        assert!(!is_transient(&mistake), "{mistake}");
    }
}

#[test]
fn connection_is_encrypted_by_the_parameters_of_its_url() {
    let database = with_roles();
    let (address, name) = (database.server().address(), database.name());
    let directory = tempfile::tempdir().expect("tempdir");
    let (authority, other) = (directory.path().join("authority.pem"), directory.path().join("other.pem"));
    std::fs::write(&authority, database.server().authority()).expect("written");
    std::fs::write(&other, Authority::new("another").pem()).expect("written");
    let url = |parameters: &str| settings(&format!("postgres://encrypted:{PASSWORD}@{address}/{name}?{parameters}"));
    let root = |mode: &str, file: &std::path::Path| url(&format!("sslmode={mode}&sslrootcert={}", file.display()));
    for good in [
        url("sslmode=prefer"),
        url("sslmode=require"),
        url(""),
        root("verify-full", &authority),
        root("verify-ca", &authority),
    ] {
        open(&good).unwrap_or_else(|error| panic!("{good:?}: {error}"));
    }
    let plain = open(&url("sslmode=disable")).err().expect("pg_hba.conf");
    assert!(plain.contains("pg_hba.conf"), "{plain}");
    for bad in [root("verify-full", &other), root("require", &other), root("verify-ca", &other)] {
        let reported = open(&bad).err().expect("not trusted");
        assert!(reported.contains("certificate"), "{reported}");
        assert!(matches!(check(&bad)[..], [Finding::Encryption(_)]), "{:?}", check(&bad));
    }
    let socket = database.server().socket_directory().display().to_string().replace('/', "%2F");
    open(&settings(&format!("postgres://postgres@{socket}:{}/{name}", address.port()))).expect("a Unix socket");
}

#[test]
fn authorities_are_read_again_for_each_connection() {
    let database = with_roles();
    let (address, name) = (database.server().address(), database.name());
    let roots = tempfile::NamedTempFile::new().expect("tempfile");
    let trust = |pem: &str| std::fs::write(roots.path(), pem).expect("written");
    trust(database.server().authority());
    let query = format!("sslmode=verify-full&sslrootcert={}", roots.path().display());
    let url = format!("postgres://encrypted:{PASSWORD}@{address}/{name}?{query}");
    let server = Server::new(&settings(&url), "x").expect("a URL");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let open = || runtime.block_on(PostgresSession::open(&server, "", watch::channel(0).0)).map(|_| ());
    open().expect("trusted");
    trust(&Authority::new("another").pem());
    let reported = open().expect_err("not trusted").words;
    assert!(reported.contains("certificate"), "{reported}");
    trust(database.server().authority());
    open().expect("trusted again");
}

#[test]
fn a_schema_of_another_version_is_refused_until_it_is_migrated() {
    let database = Database::create();
    let of = settings(&database.url());
    assert!(
        matches!(check(&of)[..], [Finding::NotDurable(_), Finding::Empty { may_create: true }]),
        "{:?}",
        check(&of)
    );
    let mut running = open(&of).expect("opens");
    let next = SCHEMA_VERSION + 1;
    database.run(&format!("UPDATE fullbore.schema_version SET version = {next}"));
    let newer = format!(
        "the database was written by a newer Fullbore (schema {next}, this one knows {SCHEMA_VERSION}); run that \
         version"
    );
    assert_eq!(open(&of).err().expect("newer"), newer);
    assert!(migrate(&of).is_err() && check(&of).contains(&Finding::NewerSchema(next)));
    assert!(matches!(running.begin(None), Err(StoreError::Away(_))), "one that runs goes on as without a database");
    let unreleased = FIRST_VERSION - 1;
    database.run(&format!("UPDATE fullbore.schema_version SET version = {unreleased}"));
    let refused = format!(
        "the database has schema {unreleased} of a build before the first release, which this Fullbore neither reads \
         nor upgrades; use another database"
    );
    assert_eq!(open(&of).err().expect("unreleased"), refused);
    assert_eq!(migrate(&of).expect_err("unreleased").to_string(), refused);
    assert!(check(&of).contains(&Finding::UnreleasedSchema(unreleased)));
    assert_eq!(database.run("SELECT version FROM fullbore.schema_version"), unreleased.to_string());
    database.run(&format!("UPDATE fullbore.schema_version SET version = {FIRST_VERSION}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let found = runtime.block_on(async {
        let server = Server::new(&of, "x").expect("a URL");
        let session = PostgresSession::open(&server, "", watch::channel(0).0).await.expect("connects");
        schema::upgrade(&session, HANGS, &["ALTER TABLE fullbore.topics ADD COLUMN more text"]).await
    });
    assert_eq!(found.expect("upgraded"), FIRST_VERSION);
    assert_eq!(
        database.run("SELECT count(more), (SELECT version FROM fullbore.schema_version) FROM fullbore.topics"),
        format!("0|{}", FIRST_VERSION + 1)
    );
    database.run(&format!("UPDATE fullbore.schema_version SET version = {SCHEMA_VERSION}"));
    assert_eq!(migrate(&of).expect("nothing to do"), Migrated { before: SCHEMA_VERSION, now: SCHEMA_VERSION });
    open(&of).expect("opens");
}

#[test]
fn unusable_database_is_refused_with_its_reason() {
    let database = with_roles();
    let secretive =
        settings(&format!("postgres://secretive:{PASSWORD}@{}/{}", database.server().address(), database.name()));
    let nowhere = settings("postgres://postgres@127.0.0.1:1/x");
    assert!(matches!(check(&nowhere)[..], [Finding::Unreachable(_)]), "{:?}", check(&nowhere));
    let no_database = settings(&database.server().url("no_such_database"));
    assert!(matches!(check(&no_database)[..], [Finding::NoDatabase(_)]), "{:?}", check(&no_database));
    database.run(&format!("REVOKE ALL ON DATABASE {} FROM secretive", database.name()));
    assert!(check(&secretive).contains(&Finding::Empty { may_create: false }), "{:?}", check(&secretive));
    assert!(open(&secretive).err().expect("refused").contains("permission denied"));
    open(&settings(&database.url())).expect("opens");
    assert!(
        check(&secretive).iter().any(|finding| matches!(finding, Finding::Missing { .. })),
        "{:?}",
        check(&secretive)
    );
    database.run(
        "GRANT USAGE ON SCHEMA fullbore TO secretive; GRANT SELECT ON ALL TABLES IN SCHEMA fullbore TO secretive;
         GRANT INSERT, UPDATE, DELETE ON fullbore.cluster TO secretive",
    );
    let missing = check(&secretive);
    let lacks = |privilege: &str, on: &str| {
        missing.contains(&Finding::Missing { privilege: privilege.to_owned(), on: on.to_owned() })
    };
    assert!(
        lacks("INSERT", "fullbore.topics")
            && !lacks("SELECT", "fullbore.topics")
            && !lacks("INSERT", "fullbore.cluster")
    );
    database.run("GRANT ALL ON ALL TABLES IN SCHEMA fullbore TO secretive");
    database.run(&format!(
        "INSERT INTO fullbore.brokers VALUES (3, 7, '{0}', '{0}', false, false, null); INSERT INTO fullbore.beats
           VALUES (3, '{0}', 1, 7, clock_timestamp() - interval '2 seconds')",
        Uuid([1; 16])
    ));
    let found = check(&secretive);
    let broker = found.iter().find_map(|finding| match finding {
        Finding::Broker(broker) => Some(broker.clone()),
        _ => None,
    });
    let broker = broker.expect("there");
    let age = broker.last_heartbeat.expect("it has beaten");
    assert!((Duration::from_secs(2)..HANGS).contains(&age));
    assert_eq!(
        broker,
        BrokerFound {
            id: 3,
            epoch: 7,
            is_fenced: false,
            is_shutting_down: false,
            is_full: false,
            last_heartbeat: Some(age)
        }
    );
    assert!(
        found.iter().filter(|finding| finding.is_wrong()).eq(&[Finding::NotDurable("fsync".to_owned())]),
        "{found:?}"
    );
    let foreign = Database::create();
    foreign.run("CREATE SCHEMA fullbore; CREATE TABLE fullbore.theirs (x int)");
    assert!(check(&settings(&foreign.url())).contains(&Finding::ForeignSchema));
    assert!(open(&settings(&foreign.url())).err().expect("refused").contains("that another program created"));
    foreign.run("DROP TABLE fullbore.theirs");
    open(&settings(&foreign.url())).expect("an administrator made the schema beforehand");
}

#[test]
fn heartbeats_return_those_of_other_brokers_and_the_newest_version() {
    let database = Database::create();
    let of = settings(&database.url());
    let mut store = open(&of).expect("opens");
    let server = Arc::new(Server::new(&of, "fullbore test").expect("a URL"));
    let reported: [Arc<AtomicU64>; 2] = Default::default();
    let heartbeats: Vec<(Heartbeats, Uuid)> = (0..2)
        .map(|at: usize| {
            let (process, reported) = (random_id(), Arc::clone(&reported[at]));
            let every = Duration::from_millis(20);
            // The first broker has no version yet. The second broker has a version that was never committed.
            let known = move || (at == 1).then_some(Version { number: 0, nonce: 1 });
            let behind = move |version| {
                reported.fetch_max(version, Ordering::SeqCst);
            };
            let (broker_id, notes) = (7 + at as i32, notes(40 + at as u64).0);
            (
                Heartbeats::start(Arc::clone(&server), broker_id, process, every, notes, known, behind)
                    .expect("starts"),
                process,
            )
        })
        .collect();
    let rows = |condition: &str| database.run(&format!("SELECT count(*) FROM fullbore.beats WHERE {condition}"));
    let heartbeats_beyond =
        |broker: i32, number: u64| rows(&format!("broker_id = {broker} AND number > {number}")) == "1";
    wait_until("both beat", HANGS, || heartbeats_beyond(7, 3) && heartbeats_beyond(8, 3));
    for (at, noted) in [(0, 40), (1, 41)] {
        let reported = store.noted_by(7 + at, heartbeats[at as usize].1).expect("answered");
        assert_eq!(reported, noted, "the number that the directory has, since nobody writes another");
    }
    assert_eq!(store.noted_by(7, random_id()).expect("answered"), 0, "this process has not beaten");
    let receives =
        |at: usize, of: Uuid| heartbeats[at].0.received().borrow().peers.iter().any(|peer| peer.process == of);
    wait_until("who knows a version of this database hears the other", HANGS, || receives(0, heartbeats[1].1));
    assert!(!receives(1, heartbeats[0].1), "and who knows another one has no database");
    let (transaction, _) = store.begin(None).expect("begun");
    transaction.commit(&[Change::ProducerIdsTaken { next: 9 }], Version { number: 1, nonce: 5 }).expect("committed");
    wait_until("it hears of it", HANGS, || reported.iter().any(|reported| reported.load(Ordering::SeqCst) == 1));
    // Another connection takes the lock, and the heartbeats continue. Then the test ends the heartbeats' connection,
    // and they continue over a new one.
    let (held, _) = store.begin(None).expect("begun");
    let number: u64 = database.run("SELECT number FROM fullbore.beats WHERE broker_id = 7").parse().expect("a number");
    wait_until("it beats", HANGS, || heartbeats_beyond(7, number + 3));
    drop(held);
    database.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%fullbore.beats%' AND pid <> pg_backend_pid()");
    wait_until("it beats again", HANGS, || heartbeats_beyond(7, number + 30));
    let in_place = "SELECT n_tup_upd > 20 AND n_tup_hot_upd * 10 >= n_tup_upd * 9 FROM pg_stat_user_tables WHERE relname = 'beats'";
    wait_until("beats are written in place", HANGS, || database.run(in_place) == "t");
    drop(heartbeats);
    let connected =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fullbore test' AND query LIKE '%beats%'";
    wait_until("they end", HANGS, || database.run(&format!("{connected} AND datname = current_database()")) == "0");
}

#[test]
fn settings_hold_in_each_transaction_behind_a_pooler() {
    for ignores_settings in [true, false] {
        let database = Database::create();
        let pooler = PgBouncer::start(database.server().address(), ignores_settings);
        let pooled = settings(&format!("postgres://anybody@{}/{}", pooler.address(), database.name()));
        let mut store = open(&pooled).expect("opens");
        let server = Server::new(&pooled, "x").expect("a URL");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let session = PostgresSession::open(&server, "", watch::channel(0).0).await.expect("opens");
            assert!(session.is_pooled());
            for statements in
                ["BEGIN; SELECT current_setting('lock_timeout'); COMMIT", "SELECT current_setting('lock_timeout')"]
            {
                let answers = session.query(statements, HANGS).await.expect("answered");
                assert_eq!(rows::text(&answers[0][0], 0).expect("a text"), "2s", "{statements}");
            }
            let snapshot = format!("{READ_ONLY}; SELECT current_setting('transaction_isolation'); COMMIT");
            let answers = session.query(&snapshot, HANGS).await.expect("answered");
            assert_eq!(rows::text(&answers[0][0], 0).expect("a text"), "repeatable read");
            session.query("BEGIN; SELECT 1 / 0", HANGS).await.expect_err("refused");
            session.query("ROLLBACK", HANGS).await.expect("rolled back");
        });
        assert!(check(&pooled).contains(&Finding::Pooler { is_shared: true }), "{:?}", check(&pooled));
        assert!(!check(&settings(&database.url())).iter().any(|found| matches!(found, Finding::Pooler { .. })));
        let mut holder = database.server().session(database.name());
        holder.query("BEGIN");
        holder.query("SELECT * FROM fullbore.cluster FOR UPDATE");
        let refused = store.begin(None).map(|_| ()).expect_err("the lock is held");
        assert!(refused.to_string().contains("timeout"), "{refused}");
    }
}

#[test]
fn parameters_of_managed_databases_work_or_are_refused_by_their_names() {
    let database = with_roles();
    let (address, name) = (database.server().address(), database.name());
    let directory = tempfile::tempdir().expect("tempdir");
    let authority = directory.path().join("authority.pem");
    std::fs::write(&authority, database.server().authority()).expect("written");
    let own = Authority::new("clients").client("fullbore");
    let (certificate, key) = (directory.path().join("own.pem"), directory.path().join("own.key"));
    std::fs::write(&certificate, &own.chain).expect("written");
    std::fs::write(&key, &own.key).expect("written");
    let (certificate, key) = (certificate.display(), key.display());
    let root = format!("sslrootcert={}", authority.display());
    let url = |query: &str| settings(&format!("postgres://encrypted:{PASSWORD}@{address}/{name}?{query}"));
    for good in [
        "sslmode=require&channel_binding=require".to_owned(),
        format!("sslmode=verify-full&{root}&channel_binding=require"),
        format!("sslmode=require&sslcert={certificate}&sslkey={key}"),
        "sslmode=require&gssencmode=disable&sslsni=1&target_session_attrs=read-write".to_owned(),
        "application_name=ours&options=-c%20work_mem%3D8MB&connect_timeout=3".to_owned(),
    ] {
        open(&url(&good)).unwrap_or_else(|error| panic!("{good}: {error}"));
    }
    for (bad, expected) in [
        ("sslrootcert=system&sslmode=require", "sslrootcert=system: needs sslmode=verify-full"),
        ("sslrootcert=system", "certificate"),
        ("sslcert=/x.pem", "sslcert: needs sslkey"),
        ("sslmode=require&sslcert=/no.pem&sslkey=/no.key", "sslcert=/no.pem: No such file"),
        ("gssencmode=require", "gssencmode: must be disable or prefer"),
        ("target_session_attrs=standby", "target_session_attrs: must be"),
        ("sslcrl=/x.pem", "sslcrl: is not supported"),
        ("pgbouncer=true", "pgbouncer: is not a parameter"),
    ] {
        let reported = open(&url(bad)).err().expect(bad);
        assert!(reported.contains(expected), "{bad}: {reported}");
    }
    let several = format!("postgres://encrypted:{PASSWORD}@127.0.0.1:1,{address}/{name}?sslmode=require");
    open(&settings(&several)).expect("the second one answers");
}
