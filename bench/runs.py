"""Runs clients, keeps what they say, and reads the figures in it. What is compared, and how often, is its subclasses': bench/compare,
bench/load and bench/wan. Every raw output is a file of `out`, numbered as the clients ran, with its command in the first line.
"""
import json, re, subprocess, sys
from brokers import FULLBORE, java

RECORD = 1000


class Bench:
    """`out` is the folder of raw files, `count` how many there are."""

    def run(self, label, command):
        """Runs a client; its output is kept as a raw file."""
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.keep(label, command, done.stdout)
        if done.returncode:
            sys.exit(f"{label} failed, see {self.out}:\n{done.stdout[-2000:]}")
        return done.stdout

    def keep(self, label, command, output):
        self.count += 1
        (self.out / f"{self.count:03}-{label}.txt").write_text(f"$ {' '.join(map(str, command))}\n{output}")

    def java_perf(self, broker, label, topic, records, size, throughput=-1, warmup=0, properties=()):
        command = java(["-Xmx512M"], "org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", broker.address, "--topic",
                       topic, "--num-records", records, "--record-size", size, "--throughput", throughput)
        command += ["--warmup-records", warmup] if warmup else []
        return self.produced(self.run(label, command + (["--command-property", *properties] if properties else [])))

    def own_perf(self, broker, label, topic, records, size, throughput=-1, warmup=0):
        command = [FULLBORE, "perf", "produce", "--bootstrap-server", broker.address, "--topic", topic, "--num-records", records,
                   "--record-size", size, "--throughput", throughput]
        return self.produced(self.run(label, command + (["--warmup-records", warmup] if warmup else [])))

    @staticmethod
    def produced(output):
        """records/s and the percentiles of the tool's last summary line."""
        line = [line for line in output.splitlines() if "99.9th" in line][-1]
        number = r"([0-9.]+)"
        found = re.search(rf"sent, {number} records/sec .*?{number} ms 50th, {number} ms 95th, {number} ms 99th, {number} ms 99.9th", line)
        return dict(zip(("rate", "p50", "p95", "p99", "p999"), map(float, found.groups())))

    def honest(self, broker, label, topic, records_s, seconds):
        """A paced producer: percentiles in ms from the time each record was meant to leave, without the first second."""
        output = self.run(f"{label}-{broker.name}", [
            FULLBORE, "perf", "produce", "--bootstrap-server", broker.address, "--topic", topic, "--num-records", int(records_s * seconds),
            "--record-size", RECORD, "--throughput", records_s, "--warmup-records", int(records_s), "--reporting-interval", 1000, "--json"])
        said = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return next(line for line in said if line["kind"] == "steady_state")
