//! Tests the link between network namespaces with real TCP connections. This needs root, /dev/net/tun and `ip`. If one
//! of these is missing, the tests print the reason and pass.

use fullbore_bench::link::Shape;
use fullbore_bench::link::namespaces::{ADDRESSES, LinkError, NamespaceSettings, Pair};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const RTT: Duration = Duration::from_millis(30);
const PATIENCE: Duration = Duration::from_secs(60);
/// How many bytes are sent. The number exceeds the size of a frame, and is no multiple of a segment's size.
const BYTES: usize = 3_000_007;

/// Returns the reason why these tests cannot run here, or `None` if they can.
fn hindrance() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        Some("not root")
    } else if !Path::new("/dev/net/tun").exists() {
        Some("there is no /dev/net/tun")
    } else if Command::new("ip").arg("-V").output().is_err() {
        Some("there is no `ip`")
    } else {
        None
    }
}

fn skipped() -> bool {
    if let Some(hindrance) = hindrance() {
        println!("skipped: {hindrance}");
    }
    hindrance().is_some()
}

/// Returns settings with names that no other test has.
fn settings(shape: Shape, loss: f64) -> NamespaceSettings {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let base = format!("fblt{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    NamespaceSettings { names: [format!("{base}a"), format!("{base}b")], shape, loss, mtu: 1_500 }
}

/// Runs `work` in a namespace, on a thread of its own.
fn within<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let there = || {
            let namespace = File::open(Path::new("/run/netns").join(name)).expect("it exists");
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root");
            work()
        };
        scope.spawn(there).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..BYTES).map(|i| ((i + seed) * 31 + (i >> 8) * 7 + (i >> 16)) as u8).collect()
}

/// Sends `bytes` and receives the other end's bytes at the same time.
fn exchange(stream: &TcpStream, bytes: &[u8]) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    std::thread::scope(|scope| {
        let mut half = stream;
        scope.spawn(move || half.write_all(bytes).and_then(|()| half.shutdown(Shutdown::Write)).expect("taken"));
        let mut received = Vec::new();
        (&mut { stream }).read_to_end(&mut received).expect("everything comes");
        received
    })
}

/// Exchanges bytes over a link and checks them. Returns how long connecting took, and the counts.
fn over(settings: NamespaceSettings) -> (Duration, [u64; 4]) {
    let names = settings.names.clone();
    let pair = Pair::new(settings).expect("a link");
    let stop = AtomicBool::new(false);
    let took = std::thread::scope(|scope| {
        let carrying = scope.spawn(|| pair.run(|| stop.load(Ordering::Relaxed)));
        let listener = within(&names[1], || TcpListener::bind((ADDRESSES[1], 0)).expect("the address is there"));
        let at = listener.local_addr().expect("bound");
        let server = scope.spawn(move || exchange(&listener.accept().expect("a connection").0, &pattern(2)));
        let started = Instant::now();
        let client = within(&names[0], || TcpStream::connect(at).expect("the link carries"));
        let took = started.elapsed();
        assert!(exchange(&client, &pattern(1)) == pattern(2), "what came back");
        assert!(server.join().expect("no panic") == pattern(1), "what arrived");
        stop.store(true, Ordering::Relaxed);
        carrying.join().expect("no panic").expect("no error");
        took
    });
    let [there, _] = pair.counts();
    let counts = [&there.packets, &there.bytes, &there.lost, &there.dropped].map(|count| count.load(Ordering::Relaxed));
    drop(pair);
    for name in names {
        assert!(!Path::new("/run/netns").join(&name).exists(), "{name} stayed behind");
        assert!(!Path::new("/run/fullbore-links").join(&name).exists(), "the lock of {name} stayed behind");
    }
    (took, counts)
}

#[test]
fn tcp_crosses_and_sees_the_distance() {
    if skipped() {
        return;
    }
    let (took, [packets, bytes, lost, dropped]) = over(settings(Shape { rtt: RTT, ..Shape::default() }, 0.0));
    assert!(took >= RTT, "a connect takes a round trip: {took:?}");
    assert!(bytes as usize > BYTES && packets as usize > BYTES / 1_500, "{packets} packets, {bytes} bytes");
    assert_eq!((lost, dropped), (0, 0));
}

#[test]
fn lost_and_dropped_packets_are_sent_again() {
    if skipped() {
        return;
    }
    let shape = Shape { rtt: RTT / 10, bandwidth: Some(10_000_000), buffer: Some(20_000), jitter: RTT / 100 };
    let (_, [packets, bytes, lost, dropped]) = over(settings(shape, 0.01));
    assert!(lost > 0 && dropped > 0, "{lost} lost, {dropped} dropped of {packets}");
    assert!(bytes as usize > BYTES);
}

#[test]
fn a_name_in_use_is_refused_and_nothing_is_touched() {
    if skipped() {
        return;
    }
    let first = settings(Shape::default(), 0.0);
    let pair = Pair::new(first.clone()).expect("a link");
    let other = NamespaceSettings { names: [format!("{}x", first.names[0]), first.names[1].clone()], ..first.clone() };
    let refused = Pair::new(other.clone()).err().expect("in use");
    assert!(matches!(&refused, LinkError::InUse(name) if *name == first.names[1]), "{refused}");
    assert!(!Path::new("/run/netns").join(&other.names[0]).exists(), "half a pair stayed behind");
    drop(pair);
    drop(Pair::new(first.clone()).expect("free again"));
    let same = NamespaceSettings { names: [first.names[0].clone(), first.names[0].clone()], ..first };
    assert!(matches!(Pair::new(same).err(), Some(LinkError::SameName(_))));
}
