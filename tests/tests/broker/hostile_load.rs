//! Thousands of frames that are almost valid are sent over many connections, while an honest client produces and
//! fetches.
//!
//! `FULLBORE_HOSTILE_FRAMES` is the number of frames (default 2,000), `FULLBORE_HOSTILE_STRANGERS` the number of
//! threads (8), and `FULLBORE_HOSTILE_SEED` replays the frames. The test checks no time. It prints how long the honest
//! client waits with and without the frames, for `bench/hostile`. Frames that are invalid by construction are tested in
//! `hostile`.

#[path = "../../../crates/wire/tests/wire/mutate.rs"]
mod mutate;
#[allow(dead_code, reason = "the tests of the wire use more of it")]
#[path = "../../../crates/wire/tests/wire/schema.rs"]
mod schema;

use fullbore_tests::{Batch, Broker, Client, wait_until};
use fullbore_wire::api::ApiKey;
use fullbore_wire::apis::list_groups::ListGroupsRequest;
use fullbore_wire::apis::metadata::MetadataRequest;
use mutate::mutate;
use schema::{Dice, Schema, Side};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const TOPIC: &str = "honest";
/// Maximum number of frames on one connection.
const FRAMES_A_CONNECTION: usize = 5;
/// How many requests the honest client sends before the hostile ones begin.
const ALONE: usize = 300;
const MIB: u64 = 1 << 20;
/// How much more memory a broker may use under this load. Measured with a debug build.
const RSS_GROWTH_MAX: u64 = 48 * MIB;
const SOON: Duration = Duration::from_secs(60);
/// How long a hostile client waits for a response before it disconnects.
const PATIENCE: Duration = Duration::from_millis(100);

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Returns the APIs that a broker offers.
fn offered(broker: &Broker) -> Vec<ApiKey> {
    broker.client().offered()
}

/// Returns the frame of a request of a random API and version, with a few random changes: in fields, counts, lengths,
/// the header or the length of the frame.
fn frame(offered: &[ApiKey], dice: &mut Dice) -> Vec<u8> {
    let key = offered[dice.below(offered.len())];
    let versions = key.versions();
    let number = versions.start() + dice.below((versions.end() - versions.start() + 1) as usize) as i16;
    let version = key.version(number).expect("from the range");
    let mut header = [key.code().to_be_bytes(), number.to_be_bytes()].concat();
    header.extend([0, 0, 0, 7, 0, 1, b'x']);
    header.extend(version.flexible.then_some(0));
    let mut body = Schema::new(key, Side::Request, version).message(dice);
    // Some bodies are left unchanged, since their fields are strange enough.
    (0..dice.below(5).saturating_sub(1)).for_each(|_| mutate(&mut body, dice));
    if dice.below(8) == 0 {
        mutate(&mut header, dice);
    }
    let mut frame = [&((header.len() + body.len()) as i32).to_be_bytes()[..], &header, &body].concat();
    if dice.below(16) == 0 {
        frame[dice.below(4)] ^= 1 << dice.below(8);
    }
    frame
}

/// Sends `frames` frames, a few on each connection. Returns how many responses arrive.
fn be_hostile(broker: &Broker, offered: &[ApiKey], frames: u64, seed: u64) -> usize {
    let mut dice = Dice(seed);
    let mut answers = 0;
    let mut left = frames as usize;
    while left > 0 {
        let count = (1 + dice.below(FRAMES_A_CONNECTION)).min(left);
        let bytes: Vec<u8> = (0..count).flat_map(|_| frame(offered, &mut dice)).collect();
        left -= count;
        let mut client = broker.client();
        client.set_read_timeout(PATIENCE);
        // The broker may close the connection before it has read everything.
        let _ = client.try_send_bytes(&bytes);
        answers += answers_in(&client.take_what_comes());
    }
    answers
}

/// Returns how many frames begin in `bytes`.
fn answers_in(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = usize::try_from(i32::from_be_bytes(*length)).expect("the length of an answer");
        bytes = rest.get(length..).unwrap_or_default();
        count += 1;
    }
    count
}

/// A client that produces and fetches one record after another until the hostile clients have finished.
struct Honest {
    client: Client,
    producer_id: i64,
    sent: i32,
}

impl Honest {
    fn value(n: i32) -> String {
        format!("record {n}")
    }

    /// Produces and fetches one record. Returns how long this took.
    fn step(&mut self) -> Duration {
        let started = Instant::now();
        let batch = Batch::of(&[Honest::value(self.sent)]).from_producer(self.producer_id, 0, self.sent);
        let offset = self.client.produced(TOPIC, 0, &batch);
        assert_eq!(offset, i64::from(self.sent));
        let found = self.client.fetch(TOPIC, 0, offset);
        let found = Batch::parse_all(found.records.expect("records").memory().expect("read"));
        assert_eq!(found[0].records[0].text(), Honest::value(self.sent));
        self.sent += 1;
        started.elapsed()
    }

    fn check(&mut self) {
        let records = self.client.fetch_records(TOPIC, 0);
        let expected = (0..self.sent).map(Honest::value);
        assert!(records.iter().map(|record| record.text()).eq(expected), "the honest records, each once and in order");
    }
}

fn percentile_99(mut waits: Vec<Duration>) -> Duration {
    waits.sort();
    waits[waits.len() * 99 / 100]
}

/// Returns how many topics and groups there are.
fn counts(client: &mut Client) -> (usize, usize) {
    let topics = client.call(&MetadataRequest { topics: None, ..Default::default() }, 9).topics.len();
    (topics, client.call(&ListGroupsRequest::default(), 4).groups.len())
}

#[test]
fn an_honest_client_is_served_beside_thousands_of_mutated_frames() {
    let frames = variable("FULLBORE_HOSTILE_FRAMES").unwrap_or(2_000);
    let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64;
    let seed = variable("FULLBORE_HOSTILE_SEED").unwrap_or(now);
    let strangers = variable("FULLBORE_HOSTILE_STRANGERS").unwrap_or(8);
    eprintln!("FULLBORE_HOSTILE_SEED={seed}");
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let producer_id = client.init_producer_id();
    let mut honest = Honest { client, producer_id, sent: 0 };
    let alone: Vec<Duration> = (0..ALONE).map(|_| honest.step()).collect();
    let (descriptors, rss) = (broker.descriptors(), broker.rss());

    let offered = offered(&broker);
    let (done, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let beside = std::thread::scope(|scope| {
        let (broker, offered, done, answered) = (&broker, &offered, &done, &answered);
        let strangers: Vec<_> = (0..strangers)
            .map(|n| scope.spawn(move || be_hostile(broker, offered, frames / strangers, seed.wrapping_add(n << 32))))
            .collect();
        scope.spawn(move || {
            let ended: Vec<_> = strangers.into_iter().map(|stranger| stranger.join()).collect();
            done.store(true, Relaxed);
            let answers = ended.into_iter().map(|ended| ended.expect("strangers can connect"));
            answered.store(answers.sum(), Relaxed);
        });
        let mut waits = vec![honest.step()];
        while !done.load(Relaxed) {
            waits.push(honest.step());
        }
        waits
    });

    honest.check();
    let grown = broker.rss().saturating_sub(rss);
    let (topics, groups) = counts(&mut honest.client);
    eprintln!(
        "{frames} frames, {} answered; honest p99 {:?} alone, {:?} beside them ({} requests); {} MiB more; {topics} topics, {groups} groups",
        answered.load(Relaxed),
        percentile_99(alone),
        percentile_99(beside.clone()),
        beside.len(),
        grown / MIB,
    );
    // On a slow machine, many responses take longer than the hostile clients wait.
    assert!(answered.load(Relaxed) > frames as usize / 40, "the frames are refused before anything is done");
    assert!(grown < RSS_GROWTH_MAX, "{} MiB more", grown / MIB);
    // Hostile requests may create topics and groups, but only a few.
    assert!(topics + groups < frames as usize, "{topics} topics, {groups} groups");
    wait_until("the strangers' descriptors are free", SOON, || broker.descriptors() <= descriptors + topics);
    crate::assert_serves(&broker);
}
