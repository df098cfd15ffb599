//! Tests with databases that lack commits, and with hosts that do not answer.

use std::net::TcpListener;

use fullbore_tests::postgres::PostgresServer;

use super::*;

const SEEN: Version = Version { number: 1, nonce: 5 };

fn server(url: &str) -> Arc<Server> {
    Arc::new(Server::new(&settings(url), "fullbore test").expect("a URL"))
}

fn heartbeats(server: Arc<Server>, known: Version) -> Heartbeats {
    let every = Duration::from_millis(20);
    Heartbeats::start(server, 7, random_id(), every, notes(40).0, move || Some(known), |_| {}).expect("starts")
}

#[test]
fn database_lacks_a_version_each_heartbeat_opens_a_new_session() {
    let database = Database::create();
    open(&settings(&database.url())).expect("opens");
    database.run(
        "CREATE TABLE sessions (pid int);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN INSERT INTO public.sessions VALUES (pg_backend_pid()); RETURN NULL; END';
         CREATE TRIGGER noted AFTER INSERT OR UPDATE ON fullbore.beats FOR EACH ROW EXECUTE FUNCTION note()",
    );
    let heartbeats = heartbeats(server(&database.url()), SEEN);
    let is_new = || database.run("SELECT count(DISTINCT pid) > 2 FROM sessions") == "t";
    wait_until("it opens another session", HANGS, is_new);
    assert!(heartbeats.received().borrow().peers.is_empty(), "the responses are ignored");
}

/// An operator has promoted a copy that was behind, and both servers accept writes.
#[test]
fn first_host_lacks_a_version_all_connections_move_to_the_next_host() {
    let (behind, newest) = (PostgresServer::shared(), PostgresServer::start());
    for server in [behind, &newest] {
        server.run("postgres", "CREATE DATABASE on_both");
        open(&settings(&server.url("on_both"))).expect("opens");
    }
    let mut store = open(&settings(&newest.url("on_both"))).expect("opens");
    let (transaction, _) = store.begin(None).expect("begun");
    transaction.commit(&[Change::ProducerIdsTaken { next: 9 }], SEEN).expect("committed");
    let url = format!("postgres://postgres@{},{}/on_both", behind.address(), newest.address());
    let heartbeats = heartbeats(server(&url), SEEN);
    wait_until("heartbeats are answered", HANGS, || !heartbeats.received().borrow().peers.is_empty());
    let mut writer = open(&settings(&url)).expect("opens");
    wait_until("a transaction begins", HANGS, || writer.begin(Some(SEEN)).is_ok());
    let mut reader = open(&settings(&url)).expect("opens");
    wait_until("commits are read", HANGS, || reader.read_since(Some(SEEN)).is_ok());
}

#[test]
fn first_host_accepts_and_never_answers_the_next_host_is_used() {
    let database = Database::create();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent_address = silent.local_addr().expect("bound");
    let hosts = format!("{silent_address},{}", database.server().address());
    let server = server(&format!("postgres://postgres@{hosts}/{}", database.name()));
    wait_until("the second host is used", HANGS, || Postgres::open(Arc::clone(&server), random_id()).is_ok());
    assert_eq!(server.name(), format!("postgres://{hosts}/{}", database.name()));
}
