//! Tests of `perf sweep` as a process. They check its output, and that its four files have the same figures, but not
//! the measured values.

use fullbore_tests::{Broker, NO_LISTENER, complaints};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

/// A directory for the reports, and one for temporary data, which must be empty at the end.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(directory.path().join("temp")).expect("made");
        Place { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
        command.args(arguments).current_dir(self.path()).env("TMPDIR", self.path().join("temp"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs `perf sweep --output report` with these arguments. Returns the exit status, standard output and standard
    /// error.
    fn sweep(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let all = [&["perf", "sweep", "--output", "report"], arguments].concat();
        let output = self.command(&all).output().expect("it starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    fn file(&self, name: &str) -> String {
        let path = self.path().join("report").join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Returns each line of a CSV file as a map from column to cell. The cells of these tests contain no commas.
    fn csv(&self, name: &str) -> Vec<HashMap<String, String>> {
        let text = self.file(name);
        let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
        let header = lines.next().expect("a header");
        lines.map(|line| header.iter().cloned().zip(line).collect()).collect()
    }

    fn assert_nothing_temporary_is_left(&self) {
        assert_eq!(std::fs::read_dir(self.path().join("temp")).expect("readable").count(), 0);
    }
}

/// Returns the cells of each row in the page's table of points. Commas in numbers are removed.
fn rows(page: &str) -> Vec<Vec<String>> {
    let body = page.split("<table id=\"points\">").nth(1).and_then(|rest| rest.split("<tbody>").nth(1));
    let body = body.and_then(|body| body.split("</tbody>").next()).expect("a table of points");
    let text = |cell: &str| {
        let text = cell.split_once('>').and_then(|(_, rest)| rest.split("</td>").next()).unwrap_or_default();
        text.replace(',', "")
    };
    body.split("<tr>").skip(1).map(|row| row.split("<td").skip(1).map(text).collect()).collect()
}

/// Flags for short measurements with few records.
const SHORT: [&str; 4] = ["--num-records", "200", "--warmup", "0"];

#[test]
fn the_files_of_a_sweep_agree() {
    let place = Place::new();
    let axes = ["--over", "max.in.flight=1,5", "--over", "record-size=64,1024", "--repeats", "3"];
    let (status, stdout, stderr) = place.sweep(&[&axes[..], &SHORT].concat());
    assert_eq!((status, complaints(&stderr).as_str()), (Some(0), ""), "{stdout}");
    let (runs, points) = (place.csv("runs.csv"), place.csv("points.csv"));
    assert_eq!((runs.len(), points.len()), (12, 4));
    assert!(runs.iter().all(|run| run["records"] == "200" && run["error"].is_empty()), "{runs:?}");
    let order: Vec<&str> = runs.iter().map(|run| run["max.in.flight"].as_str()).collect();
    assert_eq!(order[..8], ["1", "5", "1", "5", "5", "1", "5", "1"], "the second round runs backwards");
    let (page, json) = (place.file("report.html"), place.file("sweep.json"));
    for (point, row) in points.iter().zip(rows(&page)) {
        let same = |run: &&HashMap<String, String>| {
            ["max.in.flight", "record-size", "target"].iter().all(|name| run[*name] == point[*name])
        };
        // For each point, the report has the median of the three measurements, rounded to the printed digits.
        let rates = runs.iter().filter(same).map(|run| run["records_per_sec"].parse::<f64>().expect("a number"));
        let mut rates: Vec<f64> = rates.collect();
        rates.sort_by(f64::total_cmp);
        let median: f64 = point["records_per_sec"].parse().expect("a number");
        assert!((median - rates[1]).abs() <= 0.005 * rates[1] && rates.len() == 3, "{median} of {rates:?}");
        let shown = ["max.in.flight", "record-size", "target", "runs", "records_per_sec", "records_per_sec_min"];
        let shown = shown.iter().chain(&["records_per_sec_max", "mb_per_sec", "avg_ms", "p50_ms", "p95_ms"]);
        let shown = shown.chain(&["p99_ms", "p999_ms", "max_ms", "batch_bytes", "requests_in_flight"]);
        let shown = shown.chain(&["window_batches", "client_cores", "broker_cores", "ratio_to_best"]);
        let expected: Vec<String> = shown.map(|name| point[*name].clone()).collect();
        assert_eq!(row, expected);
        let in_json = format!(
            "\"records_per_sec\":{{\"median\":{},\"min\":{},\"max\":{}}}",
            point["records_per_sec"], point["records_per_sec_min"], point["records_per_sec_max"]
        );
        assert!(json.contains(&in_json), "{in_json} in {json}");
    }
    // The broker's default window is large enough for points with five requests in flight.
    let of = |run: &HashMap<String, String>, name: &str| run[name].parse::<f64>().unwrap_or_else(|_| panic!("{name}"));
    for run in &runs {
        assert!(of(run, "batch_bytes") > of(run, "record-size") && of(run, "requests_in_flight") > 0.0, "{run:?}");
        assert!(of(run, "window_batches") == 5.0 && of(run, "client_cores") > 0.0, "{run:?}");
        assert!(of(run, "broker_cores") >= 0.0, "{run:?}");
    }
    assert!(page.contains("--over max.in.flight=1,5 --over record-size=64,1024"), "the command is in the page");
    assert!(page.contains("Each point was measured 3 times") && page.contains("There was no warm-up"), "{page}");
    assert!(stdout.contains("4 points on fullbore, each 3 times: 12 measurements"), "{stdout}");
    place.assert_nothing_temporary_is_left();
}

#[test]
fn two_clusters_are_measured_side_by_side() {
    let place = Place::new();
    let (first, second) = (Broker::start(&[]), Broker::start(&[]));
    let named = [format!("first={}", first.address()), format!("<b>={}", second.address())];
    let against = ["--against", &named[0], "--against", &named[1], "--against", "mine=own"];
    let axes = ["--over", "acks=1,all", "--repeats", "1"];
    let (status, stdout, stderr) = place.sweep(&[&axes[..], &against, &SHORT].concat());
    assert_eq!((status, complaints(&stderr).as_str()), (Some(0), ""), "{stdout}");
    let targets: Vec<String> = place.csv("runs.csv").iter().map(|run| run["target"].clone()).collect();
    assert_eq!(targets, ["first", "<b>", "mine", "first", "<b>", "mine"], "clusters alternate");
    let points = place.csv("points.csv");
    assert!(points.iter().all(|point| (point["target"] == "first") == point["ratio_to_first_target"].is_empty()));
    let page = place.file("report.html");
    assert!(page.contains("&lt;b&gt;") && !page.contains("<b>"), "names are escaped");
    let servers = ["--bootstrap-server", second.address()];
    let topics = place.command(&[&["topics", "list"][..], &servers].concat()).output().expect("it starts");
    assert_eq!(String::from_utf8_lossy(&topics.stdout), "", "every topic was deleted");
}

#[test]
fn a_distance_raises_every_latency() {
    let place = Place::new();
    let broker = Broker::start(&[]);
    // Latencies as long as the longest of these round trips cannot be caused by a slow machine alone.
    let axes = ["--over", "rtt=0,20,300", "--set", "max.in.flight=1", "--repeats", "1"];
    let given = ["--bootstrap-server", broker.address(), "--num-records", "20", "--warmup", "0"];
    let (status, stdout, stderr) = place.sweep(&[&axes[..], &given].concat());
    assert_eq!((status, complaints(&stderr).as_str()), (Some(0), ""), "{stdout}");
    let points = place.csv("points.csv");
    for rtt in ["20", "300"] {
        let point = points.iter().find(|point| point["rtt"] == rtt).expect("measured");
        let (p50, least): (f64, f64) = (point["p50_ms"].parse().expect("a number"), rtt.parse().expect("a number"));
        assert!(p50 >= least, "the half that took longest came no sooner than a round trip: {p50}");
    }
    assert!(place.file("report.html").contains("is a relay between the producer and each broker"));
}

#[test]
fn an_interrupted_sweep_writes_its_measurements() {
    let place = Place::new();
    let endless = ["--over", "acks=1,all", "--duration", "100ms", "--warmup", "0", "--repeats", "100"];
    let all = [&["perf", "sweep", "--output", "report"], &endless[..]].concat();
    let mut child = place.command(&all).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    let (mut stdout, mut stderr) = (String::new(), String::new());
    // The first two lines are the plan and the first measurement.
    for _ in 0..2 {
        lines.read_line(&mut stdout).expect("a line");
    }
    let killed = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    lines.read_to_string(&mut stdout).expect("read");
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("read");
    assert_eq!(child.wait().expect("it ends").code(), Some(130), "{stderr}");
    let runs = place.csv("runs.csv").len();
    assert!((1..200).contains(&runs), "{runs}");
    assert_eq!(
        stderr,
        format!("fullbore: interrupted after {runs} of 200 measurements; what was measured is in report\n")
    );
    assert!(place.file("report.html").contains(&format!("Interrupted after {runs} of 200 measurements")));
    assert!(place.file("sweep.json").contains("\"interrupted\":true"));
    place.assert_nothing_temporary_is_left();
}

#[test]
fn standard_output_of_json_is_the_document_only() {
    let place = Place::new();
    let (status, stdout, stderr) =
        place.sweep(&[&["--json", "--over", "acks=1,all", "--repeats", "1"][..], &SHORT].concat());
    assert_eq!((status, complaints(&stderr).as_str()), (Some(0), ""), "{stdout}");
    assert!(stdout.starts_with("{\"format\":\"fullbore-sweep/1\","), "{stdout}");
    assert_eq!(stdout.trim_end(), place.file("sweep.json").trim_end());
    let page = place.file("report.html");
    assert!(page.contains("max.idempotence.batches.to.retain=128"), "the producer's own default is auto");
}

#[test]
fn a_point_that_fails_does_not_stop_the_others() {
    let place = Place::new();
    let axes = ["--over", "acks=1,all", "--over", "enable.idempotence=true,false", "--over", "replication-factor=1,2"];
    let (status, _, stderr) = place.sweep(&[&axes[..], &["--repeats", "1"], &SHORT].concat());
    assert_eq!(status, Some(1), "{stderr}");
    let points = place.csv("points.csv");
    let failed = |point: &&HashMap<String, String>| point["runs"] == "0";
    assert_eq!((points.len(), points.iter().filter(failed).count()), (8, 5));
    let refused =
        points.iter().find(|point| point["acks"] == "1" && point["replication-factor"] == "1").expect("there");
    assert!(refused["error"].contains("enable.idempotence=true contradicts acks=1"), "{refused:?}");
    let page = place.file("report.html");
    assert!(page.contains("enable.idempotence=true contradicts acks=1") && page.contains("replication factor of 2"));
    assert!(stderr.starts_with("fullbore: 5 of 8 measurements failed; the first: "), "{stderr}");
    assert!(stderr.ends_with("; the report has the reasons\n"), "{stderr}");
}

#[test]
fn the_tables_are_printed_in_their_documents_layout() {
    let place = Place::new();
    let few = ["--num-records", "20", "--warmup", "0", "--repeats", "1"];
    let wan = ["--table", "seed-001-wan", "--over", "max.in.flight=1,6", "--set", "rtt=5"];
    let (status, stdout, stderr) = place.sweep(&[&wan[..], &few].concat());
    assert_eq!((status, complaints(&stderr).as_str()), (Some(0), ""), "{stdout}");
    let header = "| max.in.flight |           throughput | avg latency | max latency | 50th latency | 95th latency |";
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let line = |start: &str| stdout.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{stdout}"));
    assert!(words(line("| max.in.flight |")).starts_with(&words(header)), "{stdout}");
    assert_eq!(words(line("| 6 "))[4..6], ["records/sec", "|"], "{stdout}");
    let page = place.file("report.html");
    assert!(page.contains("max.idempotence.batches.to.retain=6"), "the own broker lets six be in flight");
    // Each request has one record, and one request is in flight. Twenty records therefore take twenty round trips.
    let alone = &place.csv("points.csv")[0];
    assert!(alone["max_ms"].parse::<f64>().expect("a number") >= 20.0 * 5.0, "{alone:?}");

    let place = Place::new();
    let grids = ["--table", "seed-000", "--over", "max.in.flight=1,2", "--set", "partitions=2"];
    let (status, stdout, _) = place.sweep(&[&grids[..], &["--over", "record-size=64,128"], &few].concat());
    assert_eq!(status, Some(0), "{stdout}");
    assert_eq!(place.csv("points.csv").len(), 2 * 2 * 2);
    for grid in ["p95 latency, ms\n", "Throughput, records/s\n", "acks=1 record-size=64 | acks=1 record-size=128 |"] {
        assert!(stdout.contains(grid), "{stdout}");
    }
}

#[test]
fn an_impossible_sweep_is_one_line_and_leaves_no_file() {
    let place = Place::new();
    for (arguments, status, reported) in [
        (&["--over", "akcs=1"][..], 2, "did you mean acks?"),
        (&["--over", "rtt=-1"], 2, "rtt=-1: must be"),
        (&["--over", "acks=1", "--against", "kafka"], 2, "must be NAME=HOST:PORT"),
        (&[], 1, "fullbore: nothing varies; give --over"),
        (&["--table", "seed-999"], 1, "must be list, seed-000, seed-001-wan, seed-001-localhost"),
        (
            &["--over", "acks=1,0", "--set", "enable.idempotence=true"],
            1,
            "no point can be measured: enable.idempotence",
        ),
        (&["--over", "acks=1", "--bootstrap-server", NO_LISTENER], 1, "cannot connect to 127.0.0.1:1"),
        (&["--over", "max.in.flight=1,20000"], 1, "max.idempotence.batches.to.retain=20000: must be"),
        (&["--over", "acks=1", "--repeats", "101"], 1, "--repeats 101: must be from 1 to 100"),
    ] {
        let (found, stdout, stderr) = place.sweep(arguments);
        assert_eq!((found, stdout.as_str()), (Some(status), ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(reported) && stderr.trim_end().lines().count() <= 3, "{arguments:?}: {stderr}");
        assert!(!place.path().join("report").exists(), "{arguments:?}");
    }
    place.assert_nothing_temporary_is_left();
    std::fs::create_dir(place.path().join("report")).expect("made");
    std::fs::write(place.path().join("report/points.csv"), "mine").expect("written");
    let (status, _, stderr) = place.sweep(&["--over", "acks=1"]);
    assert_eq!(
        (status, stderr.as_str()),
        (Some(1), "fullbore: report has a points.csv already; name another directory with --output\n")
    );
    assert_eq!(place.file("points.csv"), "mine");
}
