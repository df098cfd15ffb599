//! Apache Kafka's own tool reads what we write. Needs Java and Kafka's jars in `KAFKA_LIB`, by default
//! `~/.cache/kafka-peer/lib`; says so and passes without them.

use std::path::PathBuf;
use std::process::Command;

use fullbore_wire::batch::{Compression, Stamp};

use crate::folder::*;

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

fn paths(folder: &Folder, suffix: &str) -> Vec<String> {
    let names = folder.files(suffix);
    assert!(!names.is_empty(), "no {suffix}");
    names.iter().map(|name| folder.file(name).display().to_string()).collect()
}

#[test]
fn kafka_reads_segments_indexes_and_snapshots() {
    let Some(lib) = jars() else {
        eprintln!("skipped: no Kafka jars");
        return;
    };
    let mut folder = Folder::new().with(|config| {
        config.segment_bytes = 30_000;
        config.index_interval_bytes = 500;
    });
    let partition = folder.partition();
    for n in 0..200 {
        let stamp = Stamp { producer_id: 1, producer_epoch: 0, base_sequence: n * 2 };
        let times = [NOW + i64::from(n * 7 % 100), NOW + i64::from(n)];
        let codec = [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
        let value: Vec<u8> = (0..500).map(|at: u32| (at.wrapping_mul(at) >> 3) as u8).collect();
        offset(&partition, &timed(stamp, codec[n as usize % 5], &times, &value));
    }
    drop(partition);
    folder.crash().offsets().expect("recovered");
    folder.logs.close();
    assert!(folder.files(".log").len() > 2);

    let records = dump(&lib, &paths(&folder, ".log"), &["--deep-iteration", "--print-data-log"]);
    assert_eq!(records.matches("| offset: ").count(), 400, "{records}");
    assert_eq!(records.matches("isvalid: true").count(), 200);
    assert!(!records.contains("isvalid: false"));
    for suffix in [".index", ".timeindex"] {
        let entries = dump(&lib, &paths(&folder, suffix), &[]);
        for complaint in ["Mismatch", "mismatch", "not found", "Found", "out of order"] {
            assert!(!entries.contains(complaint), "{entries}");
        }
        let sane = dump(&lib, &paths(&folder, suffix), &["--index-sanity-check"]);
        assert_eq!(sane.matches("passed sanity check").count(), folder.files(suffix).len(), "{sane}");
    }
    let snapshot = dump(&lib, &paths(&folder, ".snapshot"), &[]);
    assert!(snapshot.contains("producerId: 1 producerEpoch: 0"), "{snapshot}");
}
