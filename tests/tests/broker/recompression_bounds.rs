//! How much recompression costs other clients, with large batches and with small ones that decompress to many bytes.

use crate::assert_serves;
use crate::recompression::batch;
use bytes::{Bytes, BytesMut};
use fullbore_tests::{Broker, NO_RETENTION, produce_request, topic_data, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::produce::ProduceRequest;
use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const PRODUCE: i16 = 9;
/// A deadline that only a hang exceeds. A slow machine needs several seconds.
const DEADLINE: Duration = Duration::from_secs(300);

/// Returns a batch of one record. Its words repeat irregularly, so that compressing them takes time.
fn words(len: usize) -> Bytes {
    let mut state = 1_u64;
    let mut value = Vec::with_capacity(len + 16);
    while value.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        value.extend_from_slice(format!("{:x} ", (state >> 48) as u16).as_bytes());
    }
    let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
    builder.append(0, None, Some(&value), &[]);
    builder.seal(Stamp::NONE).expect("sealed").0.freeze()
}

/// Returns a batch of a few KB that decompresses to `mib` MiB of zeros.
fn bomb(codec: Compression, mib: usize) -> Bytes {
    let mut builder = BatchBuilder::new(BytesMut::new(), codec, None);
    let zeros = vec![0; 1 << 20];
    (0..mib).for_each(|_| builder.append(0, Some(b"k"), Some(&zeros), &[]));
    builder.seal(Stamp::NONE).expect("sealed").0.freeze()
}

#[test]
fn other_clients_are_served_during_recompression_of_large_batches() {
    let broker = Broker::start(&[]);
    let configs = [("compression.type", "zstd"), ("compression.zstd.level", "22"), ("max.message.bytes", "10000000")];
    let mut client = broker.client();
    client.create_topic("slow", 1, &configs);
    assert_serves(&broker);
    let large = words(2_000_000);
    // The number of senders is a multiple of the number of threads that serve connections.
    let senders = 4 * thread::available_parallelism().map_or(4, usize::from).min(12);
    let answered = AtomicUsize::new(0);
    thread::scope(|scope| {
        let before = broker.processor_ticks();
        for _ in 0..senders {
            scope.spawn(|| {
                let mut sender = broker.client();
                sender.set_read_timeout(DEADLINE);
                let response = sender.call(&produce_request("slow", 0, large.clone()), PRODUCE);
                answered.fetch_add(1, Ordering::SeqCst);
                assert_eq!(response.responses[0].partition_responses[0].error_code, ErrorCode::NONE);
            });
        }
        wait_until("the broker is at work", DEADLINE, || broker.processor_ticks() > before + 50);
        for _ in 0..3 {
            assert_serves(&broker);
        }
        // Other clients got responses before half of the senders did. So they did not wait until a thread was idle.
        assert!(answered.load(Ordering::SeqCst) < senders / 2, "others were served in between");
    });
    assert_eq!(client.latest("slow", 0), i64::try_from(senders).expect("few"));
}

#[test]
fn queued_large_batches_leave_permits_for_long_work_of_others() {
    let broker = Broker::start(&[NO_RETENTION]);
    let mut client = broker.client();
    let configs = [("compression.type", "gzip"), ("compression.gzip.level", "9")];
    client.create_topic("large", 1, &configs);
    client.create_topic("other", 1, &[]);
    client.produced("other", 0, &fullbore_tests::Batch::at(1000, &["v"]));
    // The number of senders, which is twice the number of permits.
    const SENDERS: usize = 32;
    let large = bomb(Compression::Zstd, 20);
    let answered = AtomicUsize::new(0);
    thread::scope(|scope| {
        let before = broker.processor_ticks();
        for _ in 0..SENDERS {
            scope.spawn(|| {
                let mut sender = broker.client();
                sender.set_read_timeout(DEADLINE);
                let response = sender.call(&produce_request("large", 0, large.clone()), PRODUCE);
                answered.fetch_add(1, Ordering::SeqCst);
                assert_eq!(response.responses[0].partition_responses[0].error_code, ErrorCode::NONE);
            });
        }
        wait_until("the broker is at work", DEADLINE, || broker.processor_ticks() > before + 20);
        let before = answered.load(Ordering::SeqCst);
        client.set_read_timeout(DEADLINE);
        assert_eq!(client.list_offset("other", 0, 1000).offset, 0);
        let meanwhile = answered.load(Ordering::SeqCst) - before;
        assert!(meanwhile < SENDERS / 4, "{meanwhile} large batches went before a look-up of another topic");
    });
    assert_eq!(client.latest("large", 0), 20 * i64::try_from(SENDERS).expect("few"));
}

#[test]
fn decompression_bombs_are_refused_within_bounded_memory() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[("compression.type", "gzip")]);
    assert_serves(&broker);
    let (large, small) = (bomb(Compression::Zstd, 70), bomb(Compression::Zstd, 3));
    let before = broker.rss();
    thread::scope(|scope| {
        for at in 0..24 {
            let (broker, large, small) = (&broker, &large, &small);
            scope.spawn(move || {
                let mut sender = broker.client();
                sender.set_read_timeout(DEADLINE);
                let (bytes, expected) = match at % 4 {
                    0 => (small, ErrorCode::NONE),
                    _ => (large, ErrorCode::MESSAGE_TOO_LARGE),
                };
                let response = sender.call(&produce_request("t", 0, bytes.clone()), PRODUCE);
                assert_eq!(response.responses[0].partition_responses[0].error_code, expected);
            });
        }
    });
    let grown = broker.rss_peak().saturating_sub(before);
    assert!(grown < 512 << 20, "{} MiB more", grown >> 20);
    assert_eq!(client.latest("t", 0), 6 * 3);
    assert_serves(&broker);
}

#[test]
fn batches_of_one_request_are_recompressed_independently() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("t", 4, &[("compression.type", "gzip")]);
    let good = batch(Compression::Lz4, Stamp::NONE);
    let broken = {
        let mut bytes = good.to_vec();
        *bytes.last_mut().expect("bytes") ^= 1;
        Bytes::from(bytes)
    };
    let data = topic_data("t", &[(0, good.clone()), (1, broken), (2, bomb(Compression::Zstd, 70)), (3, good)]);
    let request = ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data: vec![data], ..Default::default() };
    client.set_read_timeout(DEADLINE);
    let response = client.call(&request, PRODUCE);
    let codes: Vec<_> = response.responses[0].partition_responses.iter().map(|answer| answer.error_code).collect();
    let expected = [ErrorCode::NONE, ErrorCode::CORRUPT_MESSAGE, ErrorCode::MESSAGE_TOO_LARGE, ErrorCode::NONE];
    assert_eq!(codes, expected);
    assert_eq!([0, 1, 2, 3].map(|partition| client.latest("t", partition)), [40, 0, 0, 40]);
}
