"""Runs clients, stores their output, and extracts the figures from it. Subclasses and programs (bench/compare,
bench/cluster, bench/load, bench/wan) decide what is compared and how often. Each raw output becomes a file in `out`.
The files are numbered in the order of the runs, and their first line is the command."""
import json, os, re, statistics, subprocess, sys
from brokers import FULLBORE, java

RECORD = 1000


class Bench:
    """Runs clients. `out` is the directory of the raw files, and `count` their number so far."""

    def run(self, label, command):
        """Runs a client and stores its output as a raw file."""
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.keep(label, command, done.stdout)
        if done.returncode:
            sys.exit(f"{label} failed, see {self.out}:\n{done.stdout[-2000:]}")
        return done.stdout

    def keep(self, label, command, output):
        self.count += 1
        (self.out / f"{self.count:03}-{label}.txt").write_text(f"$ {' '.join(map(str, command))}\n{output}")

    def java_perf(self, broker, label, topic, records, size, throughput=-1, warmup=0, properties=(), words=()):
        command = java(["-Xmx512M"], "org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", broker.address, "--topic",
                       topic, "--num-records", records, "--record-size", size, "--throughput", throughput)
        command += ["--warmup-records", warmup] if warmup else []
        command += words
        return self.produced(self.run(label, command + (["--command-property", *properties] if properties else [])))

    def own_perf(self, broker, label, topic, records, size, throughput=-1, warmup=0, properties=(), words=()):
        command = [FULLBORE, "perf", "produce", "--bootstrap-server", broker.address, "--topic", topic, "--num-records", records,
                   "--record-size", size, "--throughput", throughput]
        command += ["--warmup-records", warmup] if warmup else []
        command += words
        return self.produced(self.run(label, command + (["--command-property", *properties] if properties else [])))

    def own_consume(self, broker, label, topic, records):
        """Returns the speed in MB/s at which `perf consume` reads the first records of a topic."""
        output = self.run(label, [FULLBORE, "perf", "consume", "--bootstrap-server", broker.address, "--topic", topic, "--num-records", records])
        return float(output.strip().splitlines()[-1].split(",")[3])

    @staticmethod
    def produced(output):
        """Extracts records/s, the longest latency and the percentiles from the tool's last summary line."""
        line = [line for line in output.splitlines() if "99.9th" in line][-1]
        number = r"([0-9.]+)"
        found = re.search(rf"sent, {number} records/sec .*?{number} ms max latency, {number} ms 50th, {number} ms 95th, "
                          rf"{number} ms 99th, {number} ms 99.9th", line)
        return dict(zip(("rate", "max", "p50", "p95", "p99", "p999"), map(float, found.groups())))

    def honest(self, broker, label, topic, records_s, seconds):
        """Runs a paced producer. Returns the percentiles in ms, counted from the time at which each record was due.
        Leaves out the first second."""
        output = self.run(f"{label}-{broker.name}", [
            FULLBORE, "perf", "produce", "--bootstrap-server", broker.address, "--topic", topic, "--num-records", int(records_s * seconds),
            "--record-size", RECORD, "--throughput", records_s, "--warmup-records", int(records_s), "--reporting-interval", 1000, "--json"])
        said = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return next(line for line in said if line.get("kind") == "steady_state")


class SideBySide(Bench):
    """Measures Kafka and Fullbore in turns, and prints a table of their ratios."""

    def __init__(self, out, rounds, temp, kafka, fullbore):
        self.out, self.rounds, self.temp, self.kafka, self.fullbore = out, rounds, temp, kafka, fullbore
        self.count, self.rows = 0, []

    def row(self, case, measure, ours, theirs, goal, beside="kafka"):
        ours_m, theirs_m = statistics.median(ours), statistics.median(theirs)
        ratio = ours_m / theirs_m if theirs_m else float("inf")
        self.rows.append({"case": case, "measure": measure, "fullbore": ours, beside: theirs, "ratio": ratio, "goal": goal})
        shown = measure if beside == "kafka" else f"{measure}, beside {beside}"
        print(f"{case:14} {shown:44} {ours_m:12.3f} {theirs_m:12.3f} {ratio:8.3f}x   goal {goal}", flush=True)

    def alone(self, case, measure, ours, goal):
        """Adds a row of Fullbore's values, which are not compared with Kafka's."""
        self.rows.append({"case": case, "measure": measure, "fullbore": ours, "goal": goal})
        print(f"{case:14} {measure:44} {statistics.median(ours):12.3f} {'':>12} {'':>9}   goal {goal}", flush=True)

    def both(self, measure, brokers=None):
        """Measures Kafka and Fullbore in turns for all rounds. Returns Fullbore's results first."""
        kafka, fullbore = brokers or (self.kafka, self.fullbore)
        results = {fullbore: [], kafka: []}
        for round_number in range(self.rounds):
            for one in (kafka, fullbore) if round_number % 2 == 0 else (fullbore, kafka):
                results[one].append(measure(one, round_number))
        return results[fullbore], results[kafka]

    def with_topic(self, name, work, partitions=1, factor=1, configs=None):
        def measure(broker, round_number):
            topic = broker.topic(f"{name}-{round_number}", partitions, configs, factor)
            try:
                return work(broker, topic)
            finally:
                broker.drop(topic)
        return measure

    def summarize(self):
        """Writes summary.json, which describes the machine and has every row."""
        machine = dict(cpu=open("/proc/cpuinfo").read().split("model name")[1].split("\n")[0].strip("\t: "),
                       cores=os.cpu_count(), kernel=os.uname().release, command=" ".join(sys.argv))
        (self.out / "summary.json").write_text(json.dumps(dict(machine=machine, rows=self.rows), indent=1) + "\n")
