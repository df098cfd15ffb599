"""Tests idempotent clients that lose responses and whose broker restarts: `lost.py BINARY JAVA_CLASS_PATH`.

Java's producer and librdkafka write numbers through a proxy. It drops responses to Produce, so that batches are in the
log without an acknowledgement. Then the connections are closed, or the broker is stopped or killed and started again,
and the clients resend those batches. Every number must be acknowledged, and be in the log once and in order. No client
may report an error. If a broker remembers only one batch of a producer after a restart, as Apache Kafka 4.3 does, Java
writes duplicates here and librdkafka fails for good.

ROUNDS in the environment sets how often each client loses responses in each case. No wait has a fixed length.
"""

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

ROUNDS = int(os.environ.get("ROUNDS", "5"))
WAIT_S = 60
HERE = os.path.dirname(os.path.abspath(__file__))
ACKED_BETWEEN = 50  # Numbers that a client must send before its next responses are lost.
PRODUCE = 0


def until(what, condition):
    deadline = time.time() + WAIT_S
    while not condition():
        assert time.time() < deadline, f"waited {WAIT_S} s in vain: {what}"
        time.sleep(0.005)


# --- the proxy -----------------------------------------------------------------------------------

def read_exactly(sock, count):
    data = bytearray()
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return bytes(data)


def read_frame(sock):
    size = read_exactly(sock, 4)
    return size + read_exactly(sock, struct.unpack(">i", size)[0])


class Proxy:
    """Passes frames between clients and the broker. While `losing` is set, it drops responses to Produce."""

    def __init__(self, upstream):
        self.upstream, self.losing, self.lost = upstream, threading.Event(), 0
        self.port = upstream + 1
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.open = set()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client = self.listener.accept()[0]
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        try:
            broker = socket.create_connection(("127.0.0.1", self.upstream))
        except OSError:  # The broker is down, so the client must retry.
            client.close()
            return
        for sock in (client, broker):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        both, produces = (client, broker), set()
        self.open.add(both)
        threading.Thread(target=self.requests, args=(both, produces), daemon=True).start()
        self.responses(both, produces)

    def requests(self, both, produces):
        client, broker = both
        try:
            while True:
                frame = read_frame(client)
                api_key, _, correlation_id = struct.unpack(">hhi", frame[4:12])
                if api_key == PRODUCE:
                    produces.add(correlation_id)
                broker.sendall(frame)
        except OSError:
            self.close(both)

    def responses(self, both, produces):
        client, broker = both
        # True once a response is dropped. All later ones are dropped as well, because the client expects them in order.
        swallowing = False
        try:
            while True:
                frame = read_frame(broker)
                if self.losing.is_set() and struct.unpack(">i", frame[4:8])[0] in produces:
                    swallowing = True
                    self.lost += 1
                if not swallowing:
                    client.sendall(frame)
        except OSError:
            self.close(both)

    def close(self, both):
        self.open.discard(both)
        for sock in both:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # The other thread has closed the socket already.
            sock.close()

    def close_all(self):
        for both in list(self.open):
            self.close(both)


# --- the broker ----------------------------------------------------------------------------------

class Broker:
    def __init__(self, binary, directory):
        self.binary, self.directory = binary, directory
        self.port = int(subprocess.check_output([f"{HERE}/../free-ports", "2"]))  # the next port is the proxy's
        self.proxy = Proxy(self.port)
        self.start()

    def start(self):
        listeners = [f"listeners=PLAINTEXT://127.0.0.1:{self.port}", "fullbore.admin.listener="]
        listeners.append(f"advertised.listeners=PLAINTEXT://127.0.0.1:{self.proxy.port}")
        sets = [word for pair in listeners for word in ("--set", pair)]
        command = [self.binary, "serve", "--data-dir", self.directory, *sets]
        with open(f"{self.directory}.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        until("the broker accepts connections", self.accepts)

    def accepts(self):
        assert self.process.poll() is None, open(f"{self.directory}.log").read()
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except OSError:
            return False
        return True

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait(WAIT_S)

    def restart(self, how):
        self.end(how)
        self.start()


# --- the clients ---------------------------------------------------------------------------------

def librdkafka(bootstrap, topic, partitions="1", per_second="1000000"):
    """The same as Lost.java, with librdkafka. Sends numbers until its input ends, and prints a line for each number that
    is acknowledged or has failed."""
    stop, sent, acked, began = threading.Event(), 0, 0, time.time()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()

    def on_delivery(error, message):
        nonlocal acked
        acked += 1
        print(f"failed {message.value().decode()} {error}" if error else f"acked {message.value().decode()}", flush=True)

    producer = Producer({
        "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 1,
        "reconnect.backoff.max.ms": 200, "log_level": 0,
        "error_cb": lambda error: error.fatal() and print(f"failed fatally {error}", flush=True),
    })
    try:
        while not stop.is_set():
            if sent - acked < 200 and sent < (time.time() - began) * int(per_second):
                producer.produce(topic, str(sent), partition=sent % int(partitions), on_delivery=on_delivery)
                sent += 1
            producer.poll(0.001)
    except KafkaException as error:
        print(f"failed {error}", flush=True)
    left = producer.flush(WAIT_S)
    print(f"sent {sent} left {left}", flush=True)


class Client:
    """A client process and what it has printed so far."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.acked, self.failed, self.summary = 0, [], None
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            if line.startswith("acked "):
                self.acked += 1
            elif line.startswith("sent "):
                self.summary = line.split()
            else:
                self.failed.append(line.strip())
        if not self.summary:
            self.failed.append("the client ended without a summary")

    def passes(self, count):
        until(f"{count} numbers are acknowledged", lambda: self.failed or self.acked >= count)
        assert not self.failed, self.failed[:3]

    def finish(self):
        self.process.stdin.close()
        self.process.wait(WAIT_S)
        self.reader.join(WAIT_S)
        assert not self.failed, f"{len(self.failed)} failed: {self.failed[:3]}"
        assert self.summary and self.summary[2:] == ["left", "0"], self.summary
        return int(self.summary[1])


def read_back(bootstrap, topic, numbers, partition=0):
    """Checks that the partition has these numbers once and in order."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    end = reader.get_watermark_offsets(TopicPartition(topic, partition), WAIT_S)[1]
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found = []
    until_s = time.time() + WAIT_S
    while len(found) < end and time.time() < until_s:
        for message in reader.consume(10_000, 0.2):
            if message.error():
                raise KafkaException(message.error())
            found.append(int(message.value()))
    reader.close()
    assert len(found) == len(set(found)), f"{len(found) - len(set(found))} duplicates"
    assert found == list(numbers), f"{len(found)} records for {len(numbers)} numbers, or out of order"


# --- the cases -----------------------------------------------------------------------------------

def case(broker, command, topic, lost_at_once, meanwhile):
    bootstrap = f"127.0.0.1:{broker.proxy.port}"
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WAIT_S)
    client = Client([*command, bootstrap, topic])
    try:
        for _ in range(ROUNDS):
            client.passes(client.acked + ACKED_BETWEEN)
            lost = broker.proxy.lost
            broker.proxy.losing.set()
            until("responses are lost", lambda: client.failed or broker.proxy.lost >= lost + lost_at_once)
            meanwhile(broker)
            broker.proxy.losing.clear()
            broker.proxy.close_all()
        client.passes(client.acked + ACKED_BETWEEN)
        count = client.finish()
    finally:
        broker.proxy.losing.clear()
        client.process.kill()
    assert client.acked == count, f"{client.acked} acknowledged of {count}"
    read_back(bootstrap, topic, range(count))


def main(binary, class_path):
    java = ["java", "-XX:TieredStopAtLevel=1", "-cp", class_path, "Lost"]
    clients = [("java", java, 5), ("librdkafka", [sys.executable, os.path.abspath(__file__), "produce"], 3)]
    between = [
        ("connections are closed", lambda broker: None),
        ("the broker is stopped and started", lambda broker: broker.restart(signal.SIGTERM)),
        ("the broker is killed and started", lambda broker: broker.restart(signal.SIGKILL)),
    ]
    passed = failed = 0
    with tempfile.TemporaryDirectory() as directory:
        broker = Broker(binary, os.path.join(directory, "data"))
        try:
            for name, command, lost_at_once in clients:
                for number, (what, meanwhile) in enumerate(between):
                    title = f"lost: {name}, responses are lost and {what}, {ROUNDS} times"
                    try:
                        case(broker, command, f"lost-{name}-{number}", lost_at_once, meanwhile)
                        passed += 1
                        print(f"ok   {title}", flush=True)
                    except Exception as error:  # A case may fail with any error; the other cases still run.
                        failed += 1
                        print(f"FAIL {title}: {type(error).__name__}: {error}", flush=True)
        finally:
            broker.end(signal.SIGTERM)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    if sys.argv[1] == "produce":
        librdkafka(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
