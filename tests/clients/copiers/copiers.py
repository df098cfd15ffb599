"""Runs copiers of several clients on a cluster whose brokers are killed:
`copiers.py BOOTSTRAP JAVA_CLASS_PATH GO_COPIER`, with $ONE_BROKER to kill and start a broker, and $FULLBORE_BIN.

Kafka's own TransactionalMessageCopier, librdkafka, franz-go and `fullbore copy` copy one topic. Each has its own group
and target. Meanwhile each broker is killed with SIGKILL and started again, and so is a copier that ends. Afterwards a
consumer at read_committed must find each record of the source in each target, once and in order, and each group must
have committed the end. No wait has a fixed length.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

bootstrap, java, go_copier = sys.argv[1:]
RUN = f"copiers-{int(time.time())}"
HERE = os.path.dirname(os.path.abspath(__file__))
PARTITIONS, RECORDS, WAIT_S = 6, 1500, 150  # RECORDS are written at the beginning, and after each restart.
FROM = f"{RUN}-from"

# Each copier puts at most 20 records into a transaction.
COMMANDS = {
    "java": lambda to, group: [
        "java", "-XX:TieredStopAtLevel=1", "-Xmx200m", "-cp", java, "org.apache.kafka.tools.TransactionalMessageCopier",
        "--broker-list", bootstrap, "--input-topic", FROM, "--output-topic", to, "--consumer-group", group, "--transactional-id", group,
        "--transaction-size", "20", "--transaction-timeout", "10000", "--group-mode", "--use-group-metadata", "--input-partition", "-1"],
    "librdkafka": lambda to, group: [sys.executable, f"{HERE}/librdkafka.py", bootstrap, FROM, to, group],
    "franz-go": lambda to, group: [go_copier, bootstrap, FROM, to, group],
    "fullbore": lambda to, group: [
        os.environ["FULLBORE_BIN"], "copy", "--bootstrap-server", bootstrap, "--from", FROM, "--to", to, "--group", group,
        "--transaction-records", "20", "-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=500"],
}


class Copier:
    def __init__(self, name):
        self.name, self.to, self.group, self.starts = name, f"{RUN}-{name}", f"{RUN}-{name}", 0
        self.said, self.process, self.counted = tempfile.TemporaryFile("w+"), None, 0
        self.start()

    def start(self):
        self.starts += 1
        self.process = subprocess.Popen(COMMANDS[self.name](self.to, self.group), stdin=subprocess.DEVNULL, stdout=self.said, stderr=self.said)

    def look(self):
        if self.process.poll() is not None:
            self.start()

    def last_words(self):
        self.said.seek(0)
        return self.said.read()[-2000:]


def until(what, condition, copiers):
    deadline = time.time() + WAIT_S
    while not condition():
        for copier in copiers:
            copier.look()
        if time.time() > deadline:
            raise TimeoutError(f"waited {WAIT_S} s in vain: {what}")
        time.sleep(0.1)


def broker(what, number):
    subprocess.run([os.environ["ONE_BROKER"], what, str(number)], check=True)


def fill(count, begin):
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, "log_level": 2})
    failed = []
    for number in range(begin, begin + count):
        producer.produce(FROM, f"{number}", f"k{number % 31}", number % PARTITIONS, on_delivery=lambda error, _: failed.append(error) if error else None)
        producer.poll(0)
    assert producer.flush(60) == 0 and not failed, failed


class Reader:
    """Reads growing topics with read_committed and collects their values by topic and partition."""

    def __init__(self, topics):
        self.values = defaultdict(list)
        self.consumer = Consumer({
            "bootstrap.servers": bootstrap, "log_level": 2, "group.id": f"{RUN}-reader", "isolation.level": "read_committed", "enable.auto.commit": False,
            "auto.offset.reset": "earliest"})
        self.consumer.assign([TopicPartition(topic, partition, 0) for topic in topics for partition in range(PARTITIONS)])

    def count(self, topic):
        for record in self.consumer.consume(5000, 0.05):
            if not record.error():
                self.values[record.topic(), record.partition()].append(record.value().decode())
        return sum(len(self.values[topic, partition]) for partition in range(PARTITIONS))


def lag(group):
    """Returns the group's lag. Waits until no open transaction may change the group's offsets."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "log_level": 2, "group.id": group, "isolation.level": "read_committed"})
    try:
        left = 0
        for of in consumer.committed([TopicPartition(FROM, partition) for partition in range(PARTITIONS)], 10):
            left += consumer.get_watermark_offsets(TopicPartition(FROM, of.partition), 10)[1] - max(of.offset, 0)
        return left
    except KafkaException:
        return None
    finally:
        consumer.close()


def main():
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [FROM] + [f"{RUN}-{name}" for name in COMMANDS]
    for created in admin.create_topics([NewTopic(topic, PARTITIONS, 3) for topic in topics]).values():
        created.result()
    fill(RECORDS, 0)
    copiers = [Copier(name) for name in COMMANDS]
    reader, filled = Reader(topics), RECORDS
    try:
        # A broker is killed only while every copier has records left to copy.
        for number in range(1, 4):
            half = filled - RECORDS // 2
            until(f"every copier has copied half before broker {number} is killed", lambda: all(reader.count(of.to) >= half for of in copiers), copiers)
            broker("kill", number)
            fill(RECORDS, filled)
            filled += RECORDS
            broker("start", number)
        until("everything is copied", lambda: all(reader.count(of.to) >= filled for of in copiers), copiers)
        until("the offsets of all are committed", lambda: all(lag(of.group) == 0 for of in copiers), [])
    except TimeoutError as error:
        print(f"FAIL copiers: {error}: {({of.name: reader.count(of.to) for of in copiers})} of {filled}")
    try:
        failed = sum(not check(copier, reader, filled) for copier in copiers)
    finally:
        for copier in copiers:
            copier.process.kill()
    print(f"{len(copiers) - failed} passed, {failed} failed")
    return 1 if failed else 0


def check(copier, reader, filled):
    copier.process.terminate()
    copier.process.wait(30)
    reader.count(copier.to)
    wrong = []
    for partition in range(PARTITIONS):
        expected = [f"{number}" for number in range(partition, filled, PARTITIONS)]
        found = reader.values[copier.to, partition]
        if found != expected:
            at = next((at for at, pair in enumerate(zip(found, expected)) if pair[0] != pair[1]), min(len(found), len(expected)))
            wrong.append(f"partition {partition}: {len(found)} of {len(expected)}, at {at} {found[at:at + 3]} instead of {expected[at:at + 3]}")
    print(f"{'FAIL' if wrong else 'ok  '} copiers: {copier.name} under kills of each broker: {filled} records, started {copier.starts} times {wrong[:3]}")
    if wrong:
        print(copier.last_words())
    return not wrong


sys.exit(main())
