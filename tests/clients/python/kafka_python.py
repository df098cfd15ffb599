"""kafka-python against a broker: `kafka_python.py BOOTSTRAP`. Groups of several members are tested in `../groups`."""

import os
import sys
import time

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError, UnknownTopicOrPartitionError

BOOTSTRAP = sys.argv[1].split(",")
REPLICAS = int(os.environ.get("REPLICAS", "1"))
RUN = f"kafka-python-{os.getpid()}-{int(time.time())}"
WAIT_S = 20
ADMIN = KafkaAdminClient(bootstrap_servers=BOOTSTRAP)
CASES = []


def case(name, *args):
    """Registers a function as a case. With arguments, the case is one row of a table."""
    def register(function):
        CASES.append((name, lambda: function(*args)))
        return function
    return register


def new_topic(name, partitions=1, **configs):
    topic = f"{RUN}-{name}"
    ADMIN.create_topics({topic: {"num_partitions": partitions, "replication_factor": REPLICAS, "configs": configs}})
    until(lambda: known(topic))
    return topic


def known(topic):
    """Returns true if every broker knows the topic, of which each broker has a replica. The broker may answer
    CreateTopics before that."""
    return str(ADMIN.describe_log_dirs([topic])).count("'partition_index': 0") == REPLICAS


def send(topic, records, partition=0, **how):
    """Sends (key, value) pairs in order. Returns their offsets."""
    producer = KafkaProducer(bootstrap_servers=BOOTSTRAP, **how)
    futures = [producer.send(topic, value, key, headers=[("h", b"1"), ("h", b"")], partition=partition) for key, value in records]
    offsets = [future.get(WAIT_S).offset for future in futures]
    producer.close()
    return offsets


def consumer(*topics, **how):
    return KafkaConsumer(*topics, bootstrap_servers=BOOTSTRAP, auto_offset_reset="earliest", **how)


def poll(reader, count):
    """Returns `count` messages."""
    found, deadline = [], time.time() + WAIT_S
    while len(found) < count and time.time() < deadline:
        for batch in reader.poll(100).values():
            found += batch
    assert len(found) == count, f"{len(found)} of {count} messages"
    return found


def member(topic, group, count):
    """Returns the group's only member, and the first `count` messages that it has read.

    On a busy machine, kafka-python 3.0.12 sometimes sends nothing more after the response to SyncGroup, not even
    heartbeats. The function then joins with another member, after the session of the first one has ended.
    """
    for attempts_left in (2, 1, 0):
        reader = consumer(topic, group_id=group, enable_auto_commit=False, session_timeout_ms=6000, heartbeat_interval_ms=1000)
        try:
            return reader, poll(reader, count)
        except AssertionError as error:
            if not attempts_left or not str(error).startswith("0 of"):
                raise


def until(condition):
    deadline = time.time() + WAIT_S
    while not condition():
        assert time.time() < deadline, "not in time"


def refused(kind, action):
    try:
        action()
    except kind:
        return
    raise AssertionError(f"not refused with {kind}")


@case("round trip, idempotent", None, True)
@case("round trip", None, False)
@case("round trip, gzip", "gzip", True)
def round_trip(codec, idempotent):
    topic = new_topic(f"round-trip-{codec}-{idempotent}")
    records = [(b"k", b"v"), (None, b"no key"), (b"tombstone", None), (b"", b"")] + [(b"%d" % i, b"some text %d" % i) for i in range(500)]
    assert send(topic, records, compression_type=codec, enable_idempotence=idempotent) == list(range(504))
    reader = consumer(topic)
    found = poll(reader, 504)
    reader.close()
    assert [(record.key, record.value) for record in found] == records
    assert all(list(record.headers) == [("h", b"1"), ("h", b"")] for record in found), found[0].headers


@case("acks=0", 0)
@case("acks=1", 1)
def acks(number):
    topic = new_topic(f"acks-{number}")
    send(topic, [(None, b"v")], acks=number, enable_idempotence=False)
    reader = consumer(topic)
    assert [record.value for record in poll(reader, 1)] == [b"v"]
    reader.close()


@case("by key over 6 partitions")
def by_key():
    topic = new_topic("six", 6)
    send(topic, [(b"%d" % (i % 50), b"%d" % i) for i in range(300)], partition=None)
    reader, homes = consumer(topic), {}
    for record in poll(reader, 300):
        assert homes.setdefault(record.key, record.partition) == record.partition
    reader.close()
    assert len(set(homes.values())) > 1


@case("produce above the topic's max.message.bytes is refused")
def too_big():
    topic = new_topic("small", **{"max.message.bytes": "2000"})
    refused(MessageSizeTooLargeError, lambda: send(topic, [(None, os.urandom(3000))]))


@case("commit and resume, metadata, lag")
def resume():
    topic = new_topic("resume")
    part, group = TopicPartition(topic, 0), f"{topic}-group"
    send(topic, [(None, b"a"), (None, b"b"), (None, b"c")])
    first, _ = member(topic, group, 3)
    first.commit({part: OffsetAndMetadata(2, "so far", -1)})
    assert first.committed(part) == 2
    first.close()
    second, found = member(topic, group, 1)
    assert [record.value for record in found] == [b"c"]
    assert second.end_offsets([part])[part] - second.committed(part) == 1, "the lag"
    second.close()
    offsets = ADMIN.list_group_offsets({group: None})[group]
    assert offsets[part].offset == 2 and offsets[part].metadata == "so far", offsets


@case("seek, pause, offsets by time")
def seek_and_pause():
    topic = new_topic("seek")
    part = TopicPartition(topic, 0)
    send(topic, [(None, b"%d" % i) for i in range(10)])
    reader = consumer()
    reader.assign([part])
    reader.seek(part, 7)
    assert [record.value for record in poll(reader, 3)] == [b"7", b"8", b"9"]
    reader.pause(part)
    send(topic, [(None, b"10")])
    assert not reader.poll(1000), "it reads while it is paused"
    reader.resume(part)
    assert [record.value for record in poll(reader, 1)] == [b"10"]
    assert reader.beginning_offsets([part])[part] == 0 and reader.offsets_for_times({part: 0})[part].offset == 0
    reader.close()


@case("groups: list, describe, delete")
def groups():
    topic = new_topic("groups")
    group = f"{topic}-group"
    send(topic, [(None, b"a")])
    reader, _ = member(topic, group, 1)
    assert group in [found["group_id"] for found in ADMIN.list_groups()]
    described = ADMIN.describe_groups([group])[group]
    assert described["group_state"] == "Stable" and len(described["members"]) == 1, described
    reader.close()
    until(lambda: ADMIN.describe_groups([group])[group]["group_state"] == "Empty")
    ADMIN.delete_groups([group])
    assert group not in [found["group_id"] for found in ADMIN.list_groups()]


@case("topics: create, describe, partitions, records, configs, log dirs, delete")
def topics():
    topic = new_topic("topics")
    refused(TopicAlreadyExistsError, lambda: new_topic("topics"))
    partition = ADMIN.describe_topics([topic])[0]["partitions"][0]
    assert len(partition["replica_nodes"]) == len(partition["isr_nodes"]) == REPLICAS, partition
    ADMIN.create_partitions({topic: 3})
    send(topic, [(None, b"a"), (None, b"b"), (None, b"c")])
    part = TopicPartition(topic, 0)
    ADMIN.delete_records({part: 2})
    reader = consumer()
    assert reader.beginning_offsets([part])[part] == 2
    reader.close()
    ADMIN.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "12345000"})])
    until(lambda: "12345000" in str(ADMIN.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])))
    ADMIN.delete_topics([topic])
    refused(UnknownTopicOrPartitionError, lambda: ADMIN.delete_topics([topic]))


def main():
    failed = 0
    for name, run in CASES:
        try:
            run()
            print(f"ok   kafka-python: {name}", flush=True)
        except Exception as error:  # A case may fail with any error; the other cases still run.
            failed += 1
            print(f"FAIL kafka-python: {name}: {type(error).__name__}: {error}", flush=True)
    ADMIN.close()
    print(f"{len(CASES) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
