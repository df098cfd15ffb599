#!/usr/bin/env python3
"""Sends one record of 2 KB at a time, plain and over TLS. The client uses Nagle's algorithm in some runs and not in
others: `bench/tls-sync.py [COUNT]`.

Fullbore and Apache Kafka run side by side. Each has a plaintext and an SSL listener with the same certificate.
librdkafka sends the next record when the last one is acknowledged. Our own producer is paced so slowly that each record
travels alone. Prints p50 and p99 in ms. A step of 40 ms means that a small write waited for the delayed acknowledgement
of the one before it. Needs `cargo build --release`, `tests/clients/install` and openssl. Writes no file.
"""
import re, subprocess, sys, tempfile

sys.dont_write_bytecode = True
import brokers
from brokers import ROOT

SYNC = """
import sys, time
from confluent_kafka import Producer
bootstrap, topic, count, warm, most_s, *settings = sys.argv[1:]
producer = Producer(dict(pair.split("=", 1) for pair in settings) | {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
failed, payload = [], b"x" * 2048
def send():
    start = time.perf_counter()
    producer.produce(topic, payload, on_delivery=lambda error, _: failed.append(error) if error else None)
    producer.flush()
    return time.perf_counter() - start
def sends(count):
    end = time.perf_counter() + float(most_s)
    times = []
    while len(times) < count and time.perf_counter() < end:
        times.append(send())
    return times
sends(int(warm))
times = sorted(sends(int(count)))
if failed:
    sys.exit(f"{len(failed)} failed, first: {failed[0]}")
at = lambda q: times[min(len(times) - 1, int(q * len(times)))] * 1000
print(f"{at(0.5):.4f} {at(0.99):.4f} {len(times)}")
"""
# Maximum seconds of a run. A client that takes 40 ms for each record cannot send all records in this time.
MOST_S = 10


class Certificates:
    def __init__(self, directory):
        self.directory = directory
        subprocess.run([ROOT / "tests/clients/certificates", directory], check=True)

    def of_broker(self):
        return ["ssl.keystore.type=PEM", f"ssl.keystore.location={self.directory}/broker.pem"]

    def of_librdkafka(self):
        return ["security.protocol=SSL", f"ssl.ca.location={self.directory}/ca.pem"]

    def of_ours(self):
        return ["security.protocol=SSL", "ssl.truststore.type=PEM", f"ssl.truststore.location={self.directory}/ca.pem"]


class Fullbore(brokers.Fullbore):
    def __init__(self, temp, certificates):
        super().__init__("fullbore", temp)
        self.secure = f"127.0.0.1:{brokers.free_port()}"
        pairs = [f"listeners=PLAINTEXT://{self.address},SSL://{self.secure}", *certificates.of_broker()]
        self.settings = dict(pair.split("=", 1) for pair in pairs)


class Kafka(brokers.Kafka):
    def __init__(self, temp, certificates):
        super().__init__("kafka", temp)
        self.secure = f"127.0.0.1:{brokers.free_port()}"
        text = self.properties.read_text().replace(f"listeners=PLAINTEXT://{self.address},",
                                                   f"listeners=PLAINTEXT://{self.address},SSL://{self.secure},")
        self.properties.write_text("\n".join([text, "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
                                              *certificates.of_broker(), ""]))


def librdkafka(address, topic, count, settings):
    python = brokers.CLIENTS / "venv/bin/python"
    command = [python, "-c", SYNC, address, topic, str(count), str(count // 5), str(MOST_S), *settings]
    p50, p99, sent = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(p50), float(p99), int(sent)


def ours(address, topic, count, settings):
    rate = 400
    command = [brokers.FULLBORE, "perf", "produce", "--bootstrap-server", address, "--topic", topic, "--num-records", str(count),
               "--record-size", "2048", "--throughput", str(rate), "--warmup-records", str(count // 5), "--latency-us",
               "--command-property", "linger.ms=0", "acks=all", *settings]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    at = lambda name: float(re.search(rf"^{name}\s+(\d+)", told, re.M).group(1)) / 1000
    return at("50th"), at("99th"), count


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    with tempfile.TemporaryDirectory() as temp:
        certificates = Certificates(f"{temp}/tls")
        both = [Fullbore(temp, certificates), Kafka(temp, certificates)]
        try:
            for broker in both:
                broker.start()
                broker.topic("sync")
            print(f"{'broker':<10}{'client':<26}{'plain p50':>10}{'p99':>8}{'TLS p50':>10}{'p99':>8}{'TLS/plain p50':>15}")
            for broker in both:
                rows = [("librdkafka, Nagle off", librdkafka, ["socket.nagle.disable=true"], certificates.of_librdkafka()),
                        ("librdkafka, Nagle on", librdkafka, ["socket.nagle.disable=false"], certificates.of_librdkafka()),
                        ("our producer", ours, [], certificates.of_ours())]
                for name, run, settings, security in rows:
                    plain = run(broker.address, "sync", count, settings)
                    secure = run(broker.secure, "sync", count, settings + security)
                    print(f"{broker.name:<10}{name:<26}{plain[0]:>10.3f}{plain[1]:>8.2f}{secure[0]:>10.3f}{secure[1]:>8.2f}"
                          f"{secure[0] / plain[0]:>15.2f}", flush=True)
        finally:
            for broker in both:
                broker.stop()


main()
