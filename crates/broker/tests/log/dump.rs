//! Reads our log files with Apache Kafka's own tool. The tests need Java, and Kafka's jars in `KAFKA_LIB` or
//! `~/.cache/kafka-peer/lib`. If these are missing, the tests print a note and pass.

use std::path::PathBuf;
use std::process::Command;

use fullbore_config::{CleanupPolicy, Ratio};
use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};

use crate::directory::*;

fn jars() -> Option<PathBuf> {
    let default = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/kafka-peer/lib"));
    let lib = std::env::var_os("KAFKA_LIB").map(PathBuf::from).or_else(default)?;
    lib.is_dir().then_some(lib)
}

fn dump(lib: &std::path::Path, files: &[String], flags: &[&str]) -> String {
    let output = Command::new("java")
        .arg("-cp")
        .arg(lib.join("*"))
        .args(["org.apache.kafka.tools.DumpLogSegments", "--files", &files.join(",")])
        .args(flags)
        .output()
        .expect("java runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn paths(directory: &Directory, suffix: &str) -> Vec<String> {
    let names = directory.files(suffix);
    assert!(!names.is_empty(), "no {suffix}");
    names.iter().map(|name| directory.file(name).display().to_string()).collect()
}

#[test]
fn kafka_reads_segments_indexes_and_snapshots() {
    let Some(lib) = jars() else {
        eprintln!("skipped: no Kafka jars");
        return;
    };
    let mut directory = Directory::new().with(|config| {
        config.segment_bytes = 30_000;
        config.index_interval_bytes = 500;
    });
    let partition = directory.partition();
    for n in 0..200 {
        let stamp = Stamp { producer_id: 1, producer_epoch: 0, base_sequence: n * 2 };
        let times = [NOW + i64::from(n * 7 % 100), NOW + i64::from(n)];
        let codec = [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
        let value: Vec<u8> = (0..500).map(|at: u32| (at.wrapping_mul(at) >> 3) as u8).collect();
        offset(&partition, &timed(stamp, codec[n as usize % 5], &times, &value));
    }
    drop(partition);
    directory.crash().offsets().expect("recovered");
    directory.logs.close();
    assert!(directory.files(".log").len() > 2);

    let records = dump(&lib, &paths(&directory, ".log"), &["--deep-iteration", "--print-data-log"]);
    assert_eq!(records.matches("| offset: ").count(), 400, "{records}");
    assert_eq!(records.matches("isvalid: true").count(), 200);
    assert!(!records.contains("isvalid: false"));
    for suffix in [".index", ".timeindex"] {
        let entries = dump(&lib, &paths(&directory, suffix), &[]);
        for complaint in ["Mismatch", "mismatch", "not found", "Found", "out of order"] {
            assert!(!entries.contains(complaint), "{entries}");
        }
        let sane = dump(&lib, &paths(&directory, suffix), &["--index-sanity-check"]);
        assert_eq!(sane.matches("passed sanity check").count(), directory.files(suffix).len(), "{sane}");
    }
    let snapshot = dump(&lib, &paths(&directory, ".snapshot"), &[]);
    assert!(snapshot.contains("producerId: 1 producerEpoch: 0"), "{snapshot}");
}

#[test]
fn kafka_reads_compacted_segments_tombstones_and_batches_without_records() {
    let Some(lib) = jars() else {
        eprintln!("skipped: no Kafka jars");
        return;
    };
    let mut directory = Directory::new().with(|config| {
        config.segment_bytes = 6000;
        config.index_interval_bytes = 200;
        config.cleanup = CleanupPolicy { delete: false, compact: true };
        config.min_cleanable_dirty_ratio = Ratio(0.0);
        config.delete_retention_ms = 5000;
    });
    directory.settings.storage.cleaner.threads = 0;
    directory.crash();
    let partition = directory.partition();
    let codecs = [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
    for n in 0..200_u8 {
        let mut builder = BatchBuilder::new(Default::default(), codecs[usize::from(n % 5)], None);
        for at in 0..3 {
            let value = [n ^ at; 60];
            let value = (n % 9 != 0).then_some(&value[..]);
            builder.append(NOW + i64::from(n), Some(&[b'k', (n + at) % 40]), value, &[]);
        }
        let stamp = if n == 20 { Stamp { producer_id: 7, producer_epoch: 0, base_sequence: 0 } } else { Stamp::NONE };
        offset(&partition, &builder.seal(stamp).expect("sealed").0);
    }
    while directory.logs.clean_dirtiest(NOW + 1000) {}
    directory.logs.close();

    let records = dump(&lib, &paths(&directory, ".log"), &["--deep-iteration", "--print-data-log"]);
    assert!(!records.contains("isvalid: false"), "{records}");
    assert!(records.matches("| offset: ").count() < 300, "{records}");
    let lines = |what: &str| records.lines().filter(|line| line.contains(what)).count();
    assert!(lines("producerId: 7 ") == 1 && lines(" count: 0 ") >= 1, "{records}");
    assert!(lines(&format!("deleteHorizonMs: OptionalLong[{}]", NOW + 6000)) > 0, "{records}");
    for suffix in [".index", ".timeindex"] {
        let entries = dump(&lib, &paths(&directory, suffix), &[]);
        for complaint in ["Mismatch", "mismatch", "not found", "Found", "out of order"] {
            assert!(!entries.contains(complaint), "{entries}");
        }
    }
}
