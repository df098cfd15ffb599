"""aiokafka against a broker: `aio.py BOOTSTRAP`. Groups of several members are tested in `../groups`."""

import asyncio
import os
import sys
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

BOOTSTRAP = sys.argv[1]
RUN = f"aio-{os.getpid()}-{int(time.time())}"
REPLICAS = int(os.environ.get("REPLICAS", "1"))
WAIT_S = 60
CASES = []


def case(name, *args):
    """Registers a coroutine function as a case. With arguments, the case is one row of a table."""
    def register(function):
        CASES.append((name, lambda admin: function(admin, *args)))
        return function
    return register


async def new_topic(admin, name, partitions=1):
    topic = f"{RUN}-{name}"
    created = await admin.create_topics([NewTopic(topic, partitions, REPLICAS)])
    assert not any(code for _, code, *_ in created.topic_errors), created
    return topic


async def send(topic, records, partition=0, **how):
    """Sends (key, value) pairs in order. Returns their offsets."""
    async with AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, **how) as producer:
        futures = [await producer.send(topic, key=key, value=value, partition=partition, headers=[("h", b"1"), ("h", b"")])
                   for key, value in records]
        return [getattr(await future, "offset", None) for future in futures]


async def read(consumer, count):
    """Returns `count` messages, or fewer if some do not arrive in time."""
    found, deadline = [], time.time() + WAIT_S
    while len(found) < count and time.time() < deadline:
        for batch in (await consumer.getmany(timeout_ms=100)).values():
            found += batch
    assert len(found) == count, f"{len(found)} of {count} messages"
    return found


def consumer(*topics, **how):
    return AIOKafkaConsumer(*topics, bootstrap_servers=BOOTSTRAP, auto_offset_reset="earliest", **how)


@case("round trip", None)
@case("round trip, gzip", "gzip")
@case("round trip, idempotent", None, True)
async def round_trip(admin, codec, idempotent=False):
    topic = await new_topic(admin, f"round-trip-{codec}-{idempotent}")
    records = [(b"k", b"v"), (None, b"no key"), (b"tombstone", None), (b"", b"")]
    records += [(b"%d" % i, b"some text %d" % i) for i in range(500)]
    assert await send(topic, records, compression_type=codec, enable_idempotence=idempotent) == list(range(504))
    async with consumer(topic) as reader:
        found = await read(reader, 504)
    assert [(record.key, record.value) for record in found] == records
    assert all(record.headers == (("h", b"1"), ("h", b"")) for record in found)


@case("acks=0", 0)
@case("acks=1", 1)
async def acks(admin, number):
    topic = await new_topic(admin, f"acks-{number}")
    await send(topic, [(None, b"v")], acks=number)
    async with consumer(topic) as reader:
        assert [record.value for record in await read(reader, 1)] == [b"v"]


@case("transactions commit and abort")
async def transaction(admin):
    topic = await new_topic(admin, "transaction")
    producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id=f"{RUN}-transaction")
    await asyncio.wait_for(producer.start(), WAIT_S)
    ends = (b"first", producer.commit_transaction), (b"aborted", producer.abort_transaction), (b"last", producer.commit_transaction)
    for value, end in ends:
        await producer.begin_transaction()
        await producer.send_and_wait(topic, value)
        await asyncio.wait_for(end(), WAIT_S)
    await producer.stop()
    async with consumer(topic, isolation_level="read_committed") as reader:
        assert [(record.offset, record.value) for record in await read(reader, 2)] == [(0, b"first"), (4, b"last")]


@case("commit and resume, metadata, lag")
async def resume(admin):
    topic = await new_topic(admin, "resume")
    part, group = TopicPartition(topic, 0), f"{topic}-group"
    await send(topic, [(None, b"a"), (None, b"b"), (None, b"c")])
    async with consumer(topic, group_id=group, enable_auto_commit=False) as reader:
        await read(reader, 3)
        await reader.commit({part: (2, "so far")})
        assert await reader.committed(part) == 2
    async with consumer(topic, group_id=group, enable_auto_commit=False) as reader:
        assert [record.value for record in await read(reader, 1)] == [b"c"]
        assert (await reader.end_offsets([part]))[part] - await reader.committed(part) == 1, "the lag"
    offsets = await admin.list_consumer_group_offsets(group)
    assert offsets[part].offset == 2 and offsets[part].metadata == "so far"


@case("seek, pause")
async def seek_and_pause(admin):
    topic = await new_topic(admin, "seek")
    part = TopicPartition(topic, 0)
    await send(topic, [(None, b"%d" % i) for i in range(10)])
    async with consumer() as reader:
        reader.assign([part])
        reader.seek(part, 7)
        assert [record.value for record in await read(reader, 3)] == [b"7", b"8", b"9"]
        reader.pause(part)
        await send(topic, [(None, b"10")])
        assert not await reader.getmany(timeout_ms=1000), "it reads while it is paused"
        reader.resume(part)
        assert [record.value for record in await read(reader, 1)] == [b"10"]
        await reader.seek_to_beginning(part)
        assert len(await read(reader, 11)) == 11


@case("groups: list, describe")
async def groups(admin):
    topic = await new_topic(admin, "groups")
    group = f"{topic}-group"
    async with consumer(topic, group_id=group) as reader:
        deadline = time.time() + WAIT_S
        while not reader.assignment():
            assert time.time() < deadline, "no assignment"
            await asyncio.sleep(0.05)
        assert (group, "consumer") in await admin.list_consumer_groups()
        described = (await admin.describe_consumer_groups([group]))[0].to_object()["groups"][0]
        assert described["state"] == "Stable" and len(described["members"]) == 1, described


@case("topics: partitions, records, configs")
async def topics(admin):
    topic = await new_topic(admin, "topics")
    await admin.create_partitions({topic: NewPartitions(3)})
    deadline = time.time() + WAIT_S
    while len((await admin.describe_topics([topic]))[0]["partitions"]) != 3:
        assert time.time() < deadline, "not 3 partitions"
    # With acks=all, the records are replicated before DeleteRecords.
    await send(topic, [(None, b"a"), (None, b"b"), (None, b"c")], partition=0, acks="all")
    part = TopicPartition(topic, 0)
    await admin.delete_records({part: RecordsToDelete(2)})
    async with consumer() as reader:
        assert (await reader.beginning_offsets([part]))[part] == 2
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "12345000"})
    await admin.alter_configs([resource])
    described = (await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))[0]
    assert ("retention.ms", "12345000") in [entry[:2] for entry in described.resources[0][4]]


async def main():
    admin = AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP)
    await admin.start()
    failed = 0
    for name, run in CASES:
        try:
            await run(admin)
            print(f"ok   aiokafka: {name}", flush=True)
        except Exception as error:  # A case may fail with any error; the other cases still run.
            failed += 1
            print(f"FAIL aiokafka: {name}: {type(error).__name__}: {error}", flush=True)
    await admin.close()
    print(f"{len(CASES) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


asyncio.run(main())
