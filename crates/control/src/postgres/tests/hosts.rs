//! Tests with databases that lack commits.

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
