"""confluent-kafka (librdkafka) against a broker: `client.py BOOTSTRAP`.

Transactions in depth are tested elsewhere, and groups of several members in `../groups`. Every case reads its records
back and compares keys, values, headers, timestamps and offsets exactly.
"""

import os
import sys
import time

from confluent_kafka import (
    OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError,
    KafkaException, Producer, TopicCollection, TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding, AclBindingFilter, AclOperation, AclPermissionType, AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource,
    ConfigSource, NewTopic, OffsetSpec, ResourcePatternType, ResourceType,
)

BOOTSTRAP = sys.argv[1]
RUN = f"py-{os.getpid()}-{int(time.time())}"
WAIT_S = 60
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
REPLICAS = int(os.environ.get("REPLICAS", "1"))
T0 = int(time.time() * 1000) - 600_000  # ten minutes ago, which every default limit of timestamps permits


def connection():
    """Returns settings with the broker's address. If TLS names a file of Kafka's client properties, adds those under
    librdkafka's names."""
    settings, path = {"bootstrap.servers": BOOTSTRAP}, os.environ.get("TLS")
    if path:
        given = dict(line.strip().split("=", 1) for line in open(path))
        settings |= {"security.protocol": "SSL", "ssl.ca.location": given["ssl.truststore.location"]}
        if identity := given.get("ssl.keystore.location"):
            settings |= {"ssl.certificate.location": identity, "ssl.key.location": identity}
    return settings


ADMIN = AdminClient(connection())
CASES = []


def case(name, *args):
    """Registers a function as a case. With arguments, the case is one row of a table."""
    def register(function):
        CASES.append((name, lambda: function(*args)))
        return function
    return register


# --- writing and reading -------------------------------------------------------------------------

def odd_records():
    """Returns (key, value, headers) of records that are easily lost or merged, followed by enough bytes to compress."""
    return [
        (b"k", b"v", []),
        (None, b"no key", []),
        (b"tombstone", None, []),
        (None, None, []),
        (b"", b"", []),
        (b"h", b"h", [("h", b"1"), ("h", b"2"), ("h", None), ("empty", b""), ("\u00fcn\u00ef", b"\x00\xff")]),
    ] + [(b"key-%d" % i, b"some text %d " % i * 20, []) for i in range(100)]


def new_topic(name, partitions=1, **config):
    topic = f"{RUN}-{name}"
    config = {key.replace("_", "."): value for key, value in config.items()}
    ADMIN.create_topics([NewTopic(topic, partitions, REPLICAS, config=config)])[topic].result(WAIT_S)
    until(lambda: known(topic))
    return topic


def known(topic):
    """Returns true if every broker knows the topic. The broker may answer CreateTopics before that."""
    return all(topic in topics for topics in lists())


def lists():
    """Yields the topics that each broker lists. A new client requests them from the broker at its bootstrap address."""
    for address in BOOTSTRAP.split(","):
        yield AdminClient(connection() | {"bootstrap.servers": address}).list_topics(timeout=WAIT_S).topics


def until(condition):
    deadline = time.time() + WAIT_S
    while not condition():
        assert time.time() < deadline, "not in time"


def send(topic, records, partition=0, stamps=None, **config):
    """Sends records in order and returns the delivered messages. Raises the first delivery error."""
    settings = connection() | {"delivery.timeout.ms": WAIT_S * 1000, "linger.ms": 20}
    producer = Producer(settings | {key.replace("_", "."): value for key, value in config.items()})
    delivered, errors = [], []

    def on_delivery(error, message):
        errors.append(error) if error else delivered.append(message)

    for i, (key, value, headers) in enumerate(records):
        stamp = stamps[i] if stamps else T0 + 10 * i
        producer.produce(topic, value, key, partition, on_delivery=on_delivery, timestamp=stamp, headers=headers)
    left = producer.flush(WAIT_S)
    if errors:
        raise KafkaException(errors[0])
    assert left == 0, f"{left} records not delivered in time"
    return delivered


def consumer(topic, partition, offset, **config):
    settings = connection() | {
        "group.id": RUN, "enable.auto.commit": False, "auto.offset.reset": "error",
    }
    reader = Consumer(settings | {key.replace("_", "."): value for key, value in config.items()})
    reader.assign([TopicPartition(topic, partition, offset)])
    return reader


def read(topic, count, partition=0, offset=OFFSET_BEGINNING, **config):
    reader, messages, deadline = consumer(topic, partition, offset, **config), [], time.time() + WAIT_S
    while len(messages) < count and time.time() < deadline:
        for message in reader.consume(count - len(messages), 0.5):
            if message.error():
                raise KafkaException(message.error())
            messages.append(message)
    reader.close()
    assert len(messages) == count, f"{len(messages)} records read of {count}"
    return messages


def same(messages, records, first_offset=0, stamps=None):
    for i, (message, (key, value, headers)) in enumerate(zip(messages, records, strict=True)):
        expected = (first_offset + i, key, value, headers, (1, stamps[i] if stamps else T0 + 10 * i))
        found = (message.offset(), message.key(), message.value(), message.headers() or [], message.timestamp())
        assert found == expected, f"record {i}: {found} is not {expected}"


def is_refused(code, action):
    codes = code if isinstance(code, tuple) else (code,)
    try:
        action()
    except KafkaException as error:
        assert error.args[0].code() in codes, f"refused with {error.args[0]}, not {[KafkaError(c) for c in codes]}"
        return True
    return False


def refused(code, action):
    assert is_refused(code, action), f"accepted, not refused with {code}"


# --- produce -------------------------------------------------------------------------------------

def produce(acks, codec, idempotent):
    topic = new_topic(f"produce-{acks}-{codec}-{idempotent}")
    sent = send(topic, odd_records(), acks=acks, compression_type=codec, enable_idempotence=idempotent)
    if acks != "0":
        assert [message.offset() for message in sent] == list(range(len(odd_records())))
    same(read(topic, len(odd_records())), odd_records())


for acks in ["0", "1", "all"]:
    for codec in CODECS:
        case(f"produce acks={acks} {codec}", acks, codec, False)(produce)
for codec in CODECS:
    case(f"produce idempotent {codec}", "all", codec, True)(produce)


@case("produce idempotent, many batches, in order")
def many_batches():
    topic = new_topic("many")
    records = [(b"%d" % i, b"x" * 100, []) for i in range(5000)]
    send(topic, records, enable_idempotence=True, batch_num_messages=50, linger_ms=0)
    same(read(topic, 5000), records)


@case("produce 900 KB, none", "none")
@case("produce 900 KB, zstd", "zstd")
def big(codec):
    topic, records = new_topic(f"big-{codec}"), [(b"k", os.urandom(900_000), [])] * 3
    send(topic, records, compression_type=codec)
    same(read(topic, 3), records)


@case("an idempotent producer continues after its topic is recreated")
def made_again():
    """The topic is recreated several times while a producer writes to it. The last topic must have the records that
    were delivered to it, once and in order. The producer must not have a fatal error."""
    topic, delivered, errors, fatal = new_topic("made-again"), [], [], []
    settings = {"enable.idempotence": True, "linger.ms": 5, "delivery.timeout.ms": 3 * WAIT_S * 1000, "batch.num.messages": 10}
    producer = Producer(connection() | settings | {"error_cb": lambda error: fatal.append(error) if error.fatal() else None})

    def on_delivery(error, message):
        errors.append(error) if error else delivered.append((int(message.value()), message.offset()))

    count, lives = 0, 5
    for life in range(lives):
        first = len(delivered)
        deadline = time.time() + 3 * WAIT_S  # takes long, because librdkafka may have only one batch in flight
        while len(delivered) < first + 500 and not fatal:
            assert time.time() < deadline, f"life {life}: {len(delivered) - first} delivered, {errors[:3]}"
            if count - len(delivered) < 300:  # few enough to be delivered before the deadline
                producer.produce(topic, b"%d" % count, partition=0, on_delivery=on_delivery)
                count += 1
            producer.poll(0.001)
        if life + 1 < lives:
            recreate(topic)
    assert producer.flush(WAIT_S) == 0 and not fatal and not errors, (fatal, errors[:3])
    assert [number for number, _ in delivered] == list(range(count)), "delivered once each and in order"
    last = max(i for i, (_, offset) in enumerate(delivered) if offset == 0)
    found = read(topic, len(delivered) - last)
    assert [(int(m.value()), m.offset()) for m in found] == delivered[last:]


def recreate(topic):
    ADMIN.delete_topics([topic], request_timeout=WAIT_S)[topic].result(WAIT_S)
    try:
        creates(topic)
    except KafkaException as error:  # A client's metadata request may have created the topic already.
        assert error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS, error


@case("a consumer reads on after its topic is recreated with fewer records")
def read_again():
    """The new topic ends before the consumer's position, and its records have a later leader epoch. librdkafka thus
    finds that the former records are gone, and reads the new ones from the beginning."""
    topic = new_topic("read-again")
    send(topic, numbered(10))
    often = {"topic_metadata_refresh_interval_ms": "500"}
    reader = consumer(topic, 0, OFFSET_BEGINNING, auto_offset_reset="earliest", **often)
    assert poll(reader, 10) == [b"%d" % i for i in range(10)]
    for life in range(2):
        recreate(topic)
        again = [b"life %d, %d" % (life, i) for i in range(5)]
        send(topic, [(None, value, []) for value in again])
        assert poll(reader, 5) == again
        send(topic, [(None, b"last", [])])
        assert poll(reader, 1) == [b"last"]
    reader.close()


@case("produce above message.max.bytes is refused")
def too_big():
    topic, record = new_topic("too-big"), (None, os.urandom(1_500_000), [])
    refused(KafkaError.MSG_SIZE_TOO_LARGE, lambda: send(topic, [record], message_max_bytes=4_000_000))
    send(topic, odd_records())
    same(read(topic, len(odd_records())), odd_records())


@case("produce above the topic's max.message.bytes is refused")
def too_big_for_topic():
    topic = new_topic("small", max_message_bytes="2000")
    refused(KafkaError.MSG_SIZE_TOO_LARGE, lambda: send(topic, [(None, os.urandom(3000), [])]))


@case("produce a day ahead is refused")
def from_the_future():
    topic, tomorrow = new_topic("future"), int(time.time() * 1000) + 86_400_000
    refused(KafkaError.INVALID_TIMESTAMP, lambda: send(topic, [(None, b"v", [])], stamps=[tomorrow]))


@case("produce to a LogAppendTime topic")
def log_append_time():
    topic, before = new_topic("append-time", message_timestamp_type="LogAppendTime"), time.time() * 1000
    sent = send(topic, odd_records(), compression_type="lz4")
    for message in [*sent, *read(topic, len(odd_records()))]:
        kind, stamp = message.timestamp()
        assert kind == 2 and before - 1000 <= stamp <= time.time() * 1000 + 1000, message.timestamp()


def recompressed(target):
    config = {"compression_type": target, "compression_gzip_level": "9", "compression_lz4_level": "12", "compression_zstd_level": "19"}
    topic, count = new_topic(f"recompressed-{target}", **config), len(odd_records())
    for i, codec in enumerate(CODECS):
        sent = send(topic, odd_records(), compression_type=codec, enable_idempotence=True)
        assert [message.offset() for message in sent] == list(range(i * count, (i + 1) * count))
    stamps = [T0 + 10 * i for i in range(count)] * len(CODECS)
    same(read(topic, count * len(CODECS)), odd_records() * len(CODECS), 0, stamps)


for codec in ["uncompressed", "gzip", "snappy", "lz4", "zstd"]:
    case(f"produce every codec to a topic of compression.type={codec}", codec)(recompressed)


@case("produce to a missing topic creates it")
def auto_create():
    topic = f"{RUN}-auto"
    send(topic, odd_records())
    same(read(topic, len(odd_records())), odd_records())


@case("produce by key over 6 partitions")
def partitions():
    topic, records = new_topic("six", 6), [(b"key-%d" % (i % 50), b"%d" % i, []) for i in range(600)]
    sent = send(topic, records, partition=-1)
    used = {message.partition() for message in sent}
    assert len(used) == 6, used
    for partition in used:
        expected = [(m.key(), m.value()) for m in sent if m.partition() == partition]
        found = read(topic, len(expected), partition)
        assert [(m.key(), m.value()) for m in found] == expected
        assert [m.offset() for m in found] == list(range(len(found)))


@case("transactions commit and abort")
def transaction():
    topic = new_topic("transaction", 2)
    producer = Producer(connection() | {"transactional.id": f"{RUN}-transaction"})
    producer.init_transactions(WAIT_S)
    ends = (b"first", producer.commit_transaction), (b"aborted", producer.abort_transaction), (b"last", producer.commit_transaction)
    for value, end in ends:
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(topic, value, partition=partition)
        producer.flush(WAIT_S)
        end(WAIT_S)
    for partition in (0, 1):
        committed = read(topic, 2, partition, isolation_level="read_committed")
        assert [(m.offset(), m.value()) for m in committed] == [(0, b"first"), (4, b"last")]
        everything = read(topic, 3, partition, isolation_level="read_uncommitted")
        assert [m.value() for m in everything] == [b"first", b"aborted", b"last"]


@case("a second producer of a transactional id fences the first and aborts its transaction")
def fenced():
    topic = new_topic("fenced")
    first, second = (Producer(connection() | {"transactional.id": f"{RUN}-fenced"}) for _ in range(2))
    first.init_transactions(WAIT_S)
    first.begin_transaction()
    first.produce(topic, b"lost", partition=0)
    first.flush(WAIT_S)
    second.init_transactions(WAIT_S)
    refused(KafkaError._FENCED, lambda: first.commit_transaction(WAIT_S))
    second.begin_transaction()
    second.produce(topic, b"kept", partition=0)
    second.commit_transaction(WAIT_S)
    assert [m.value() for m in read(topic, 1, isolation_level="read_committed")] == [b"kept"]


# --- consume -------------------------------------------------------------------------------------

@case("consume from the middle of a batch", "none")
@case("consume from the middle of a compressed batch", "zstd")
def from_offset(codec):
    topic = new_topic(f"middle-{codec}")
    send(topic, odd_records(), compression_type=codec)
    same(read(topic, len(odd_records()) - 7, offset=7), odd_records()[7:], 7, [T0 + 10 * i for i in range(7, 106)])


@case("consume read_uncommitted", "read_uncommitted")
@case("consume read_committed", "read_committed")
def isolation(level):
    topic = new_topic(level)
    send(topic, odd_records())
    same(read(topic, len(odd_records()), isolation_level=level), odd_records())


@case("consume with small fetches")
def small_fetches():
    topic, records = new_topic("small-fetches"), [(b"%d" % i, os.urandom(5000), []) for i in range(60)]
    send(topic, records, batch_num_messages=3)
    same(read(topic, 60, fetch_message_max_bytes=1000, fetch_max_bytes=1000, message_max_bytes=1000), records)


@case("consume at the end wakes up for a new record")
def tail():
    topic = new_topic("tail")
    send(topic, odd_records())
    reader = consumer(topic, 0, 106, fetch_wait_max_ms=20_000, fetch_min_bytes=1)
    assert reader.poll(1.0) is None
    send(topic, [(b"new", b"new", [])])
    message = reader.poll(15)
    reader.close()
    assert message, "the long poll slept on"
    assert message.offset() == 106 and message.key() == b"new", message


@case("consume beyond the end is refused")
def out_of_range():
    topic = new_topic("range")
    send(topic, odd_records())
    refused(KafkaError._AUTO_OFFSET_RESET, lambda: read(topic, 1, offset=1000))


@case("offsets: earliest, latest, by time, max timestamp")
def offsets():
    topic = new_topic("times")
    for stamp in [0, 100, 200, 900, 300]:
        send(topic, [(b"k", b"v", [])], stamps=[T0 + stamp])
    reader = consumer(topic, 0, 0)
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), WAIT_S) == (0, 5)
    for stamp, offset in [(0, 0), (100, 1), (101, 2), (201, 3), (900, 3), (901, OFFSET_END)]:
        found = reader.offsets_for_times([TopicPartition(topic, 0, T0 + stamp)], WAIT_S)[0].offset
        assert found == offset, f"time {stamp}: {found}"
    reader.close()
    at = TopicPartition(topic, 0)
    for spec, offset in [(OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 5), (OffsetSpec.max_timestamp(), 3)]:
        found = ADMIN.list_offsets({at: spec})[at].result(WAIT_S)
        assert found.offset == offset, f"{spec}: {found}"
    assert found.timestamp == T0 + 900, found.timestamp


# --- admin ---------------------------------------------------------------------------------------

@case("metadata and cluster")
def cluster():
    listed, described = ADMIN.list_topics(timeout=WAIT_S), ADMIN.describe_cluster().result(WAIT_S)
    assert listed.cluster_id and listed.cluster_id == described.cluster_id
    assert sorted(listed.brokers) == sorted(node.id for node in described.nodes)
    assert described.controller.id in listed.brokers


@case("topic: create, list, describe, delete, create again")
def topic_life():
    topic = new_topic("life", 3)
    assert len(ADMIN.list_topics(timeout=WAIT_S).topics[topic].partitions) == 3
    send(topic, odd_records(), 2)

    def describe():
        return ADMIN.describe_topics(TopicCollection([topic]))[topic].result(WAIT_S)

    first = describe()
    assert [p.id for p in first.partitions] == [0, 1, 2] and not first.is_internal
    assert all(p.leader and len(p.replicas) == len(p.isr) == REPLICAS for p in first.partitions)
    ADMIN.delete_topics([topic])[topic].result(WAIT_S)
    until(lambda: not any(topic in topics for topics in lists()))
    refused(KafkaError.UNKNOWN_TOPIC_OR_PART, describe)
    new_topic("life", 1)
    assert str(describe().topic_id) != str(first.topic_id)
    send(topic, odd_records()[:1])
    same(read(topic, 1), odd_records()[:1])


@case("configs of a topic and of the broker")
def configs():
    topic = new_topic("configs", retention_ms="12345000", segment_bytes="20000000")
    broker = str(next(iter(ADMIN.list_topics(timeout=WAIT_S).brokers)))
    wanted = [
        (ConfigResource.Type.TOPIC, topic, "retention.ms", "12345000", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        (ConfigResource.Type.TOPIC, topic, "segment.bytes", "20000000", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        (ConfigResource.Type.TOPIC, topic, "max.message.bytes", "1048588", ConfigSource.DEFAULT_CONFIG),
        (ConfigResource.Type.BROKER, broker, "log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
    ]
    for kind, name, key, value, source in wanted:
        resource = ConfigResource(kind, name)
        entry = ADMIN.describe_configs([resource])[resource].result(WAIT_S)[key]
        assert (entry.value, entry.source) == (value, source.value), f"{key}: {entry.value} from {entry.source}"


def alter(kind, name, *changes, **options):
    entries = [ConfigEntry(key, value, incremental_operation=operation) for operation, key, value in changes]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    return ADMIN.incremental_alter_configs([resource], **options)[resource].result(WAIT_S)


def config(kind, name, key):
    resource = ConfigResource(kind, name)
    entry = ADMIN.describe_configs([resource])[resource].result(WAIT_S)[key]
    return entry.value, ConfigSource(entry.source)


@case("alter configs of a topic")
def alter_topic():
    topic, of_topic, op = new_topic("alter", retention_ms="12345000"), ConfigResource.Type.TOPIC, AlterConfigOpType
    alter(of_topic, topic, (op.SET, "max.message.bytes", "2000"), (op.DELETE, "retention.ms", None))
    until(lambda: config(of_topic, topic, "max.message.bytes") == ("2000", ConfigSource.DYNAMIC_TOPIC_CONFIG))
    assert config(of_topic, topic, "retention.ms") == ("604800000", ConfigSource.DEFAULT_CONFIG)
    # The leader may apply the new limit a moment later, so the large record is sent until it is refused.
    until(lambda: is_refused(KafkaError.MSG_SIZE_TOO_LARGE, lambda: send(topic, [(None, os.urandom(3000), [])])))
    alter(of_topic, topic, (op.SET, "max.message.bytes", "10000"), validate_only=True)
    alter(of_topic, topic, (op.APPEND, "cleanup.policy", "delete"))
    assert config(of_topic, topic, "max.message.bytes")[0] == "2000", "changed by a validation"
    refused(KafkaError.INVALID_CONFIG, lambda: alter(of_topic, topic, (op.SET, "retention.ms", "soon")))
    refused(KafkaError.INVALID_CONFIG, lambda: alter(of_topic, topic, (op.APPEND, "retention.ms", "1")))
    refused(KafkaError.UNKNOWN_TOPIC_OR_PART, lambda: alter(of_topic, f"{RUN}-absent", (op.SET, "retention.ms", "1")))


@case("alter configs of the broker")
def alter_broker():
    nodes, of_broker = [str(node) for node in ADMIN.list_topics(timeout=WAIT_S).brokers], ConfigResource.Type.BROKER
    topic, op = new_topic("of-broker"), AlterConfigOpType
    for node in nodes:  # Every broker gets the setting, because any of them may describe the topic below.
        alter(of_broker, node, (op.SET, "log.retention.ms", "7654321000"))
        until(lambda: config(of_broker, node, "log.retention.ms") == ("7654321000", ConfigSource.DYNAMIC_BROKER_CONFIG))
    assert config(ConfigResource.Type.TOPIC, topic, "retention.ms")[0] == "7654321000"
    for node in nodes:
        alter(of_broker, node, (op.DELETE, "log.retention.ms", None))
    until(lambda: config(ConfigResource.Type.TOPIC, topic, "retention.ms")[0] == "604800000")
    for key, value in [("log.retention.ms", "soon"), ("node.id", "9")]:
        codes = (KafkaError.INVALID_CONFIG, KafkaError.INVALID_REQUEST)  # Fullbore's code, and Kafka's (KAFKA-13609)
        refused(codes, lambda: alter(of_broker, node, (op.SET, key, value)))


@case("validate only creates nothing")
def validate_only():
    topic = f"{RUN}-validate"
    ADMIN.create_topics([NewTopic(topic, 1, REPLICAS)], validate_only=True)[topic].result(WAIT_S)
    assert topic not in ADMIN.list_topics(timeout=WAIT_S).topics


def creates(name, partitions=1, replicas=REPLICAS, **config):
    ADMIN.create_topics([NewTopic(name, partitions, replicas, config=config)])[name].result(WAIT_S)


@case("refused: bad topic name", KafkaError.TOPIC_EXCEPTION, "bad name!", {})
@case("refused: no partitions", KafkaError.INVALID_PARTITIONS, f"{RUN}-zero", {"partitions": 0})
@case("refused: 9 replicas", KafkaError.INVALID_REPLICATION_FACTOR, f"{RUN}-nine", {"replicas": 9})
@case("refused: unknown config", KafkaError.INVALID_CONFIG, f"{RUN}-unknown", {"no.such.key": "1"})
@case("refused: bad config value", KafkaError.INVALID_CONFIG, f"{RUN}-value", {"retention.ms": "abc"})
def bad_create(code, name, options):
    refused(code, lambda: creates(name, **options))
    assert name not in ADMIN.list_topics(timeout=WAIT_S).topics


@case("refused: topic exists, topic unknown")
def exists_or_not():
    topic, absent = new_topic("twice"), f"{RUN}-absent"
    refused(KafkaError.TOPIC_ALREADY_EXISTS, lambda: creates(topic))
    refused(KafkaError.UNKNOWN_TOPIC_OR_PART, lambda: ADMIN.delete_topics([absent])[absent].result(WAIT_S))
    resource = ConfigResource(ConfigResource.Type.TOPIC, absent)
    refused(KafkaError.UNKNOWN_TOPIC_OR_PART, lambda: ADMIN.describe_configs([resource])[resource].result(WAIT_S))


@case("no authorizer, no credentials")
def unsecured():
    everything = AclBindingFilter(ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY)
    one = AclBinding(
        ResourceType.TOPIC, RUN, ResourcePatternType.LITERAL, "User:somebody", "*", AclOperation.READ, AclPermissionType.ALLOW)
    assert ADMIN.describe_acls(everything).result(WAIT_S) == []  # The broker returns an error, but librdkafka drops it.
    refused(KafkaError.SECURITY_DISABLED, lambda: ADMIN.create_acls([one])[one].result(WAIT_S))
    refused(KafkaError.SECURITY_DISABLED, lambda: ADMIN.delete_acls([everything])[everything].result(WAIT_S))
    assert ADMIN.describe_user_scram_credentials().result(WAIT_S) == {}
    nobody = ADMIN.describe_user_scram_credentials(["nobody"])["nobody"]
    refused(KafkaError.RESOURCE_NOT_FOUND, lambda: nobody.result(WAIT_S))


@case("authorized operations are all")
def authorized_operations():
    op, topic = AclOperation, new_topic("authorized")
    of_cluster = ADMIN.describe_cluster(include_authorized_operations=True).result(WAIT_S).authorized_operations
    assert set(of_cluster) == {
        op.CREATE, op.ALTER, op.DESCRIBE, op.CLUSTER_ACTION, op.DESCRIBE_CONFIGS, op.ALTER_CONFIGS, op.IDEMPOTENT_WRITE}, of_cluster
    described = ADMIN.describe_topics(TopicCollection([topic]), include_authorized_operations=True)[topic].result(WAIT_S)
    assert set(described.authorized_operations) == {
        op.READ, op.WRITE, op.CREATE, op.DELETE, op.ALTER, op.DESCRIBE, op.DESCRIBE_CONFIGS, op.ALTER_CONFIGS}, described


# --- one member of a group, and its administration -----------------------------------------------

def member(topic, group, **config):
    settings = connection() | {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(settings | {key.replace("_", "."): value for key, value in config.items()})
    consumer.subscribe([topic])
    return consumer


def poll(consumer, count):
    """Returns the values of `count` messages."""
    found, deadline = [], time.time() + WAIT_S
    while len(found) < count:
        assert time.time() < deadline, f"{len(found)} of {count} messages"
        found += [message for message in consumer.consume(count - len(found), 0.2) if not message.error()]
    return [message.value() for message in found]


def numbered(count):
    return [(None, b"%d" % i, []) for i in range(count)]


@case("a member commits and resumes, classic", "classic")
@case("a member commits and resumes, group.protocol=consumer", "consumer")
def resume(protocol):
    topic = new_topic(f"resume-{protocol}")
    group, part = f"{topic}-group", TopicPartition(topic, 0)
    send(topic, numbered(10))
    first = member(topic, group, group_protocol=protocol)
    assert poll(first, 10) == [b"%d" % i for i in range(10)]
    first.commit(offsets=[TopicPartition(topic, 0, 7, metadata="so far")], asynchronous=False)
    _, high = first.get_watermark_offsets(part)
    committed = first.committed([part], WAIT_S)[0]
    assert (committed.offset, committed.metadata, high - committed.offset) == (7, "so far", 3)
    first.close()
    second = member(topic, group, group_protocol=protocol)
    assert poll(second, 3) == [b"7", b"8", b"9"]
    second.close()


@case("seek, pause and resume in a group")
def seek_and_pause():
    topic = new_topic("seek-in-group")
    part = TopicPartition(topic, 0)
    send(topic, numbered(10))
    consumer = member(topic, f"{topic}-group")
    poll(consumer, 10)
    consumer.seek(TopicPartition(topic, 0, 8))
    assert poll(consumer, 2) == [b"8", b"9"]
    consumer.pause([part])
    send(topic, [(None, b"10", [])])
    assert not [message for message in consumer.consume(1, 1) if not message.error()], "it reads while it is paused"
    consumer.resume([part])
    assert poll(consumer, 1) == [b"10"]
    consumer.close()


@case("groups: list, describe, reset, delete")
def administer():
    topic = new_topic("administer", 2)
    group = f"{topic}-group"
    send(topic, numbered(4))
    consumer = member(topic, group, client_id="the-client")
    poll(consumer, 4)
    consumer.commit(asynchronous=False)
    described = ADMIN.describe_consumer_groups([group])[group].result(WAIT_S)
    assert described.state == ConsumerGroupState.STABLE and described.partition_assignor == "range", described.state
    one, = described.members
    assert one.client_id == "the-client" and {p.partition for p in one.assignment.topic_partitions} == {0, 1}
    offsets = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 1)])
    refused(KafkaError.UNKNOWN_MEMBER_ID, lambda: alter_offsets(offsets))
    refused(KafkaError.NON_EMPTY_GROUP, lambda: ADMIN.delete_consumer_groups([group])[group].result(WAIT_S))
    consumer.close()
    until(lambda: group in [found.group_id for found in ADMIN.list_consumer_groups(
        states={ConsumerGroupState.EMPTY}).result(WAIT_S).valid])
    alter_offsets(offsets)
    again = member(topic, group)
    assert poll(again, 3) == [b"1", b"2", b"3"]
    again.close()
    until(lambda: ADMIN.describe_consumer_groups([group])[group].result(WAIT_S).state == ConsumerGroupState.EMPTY)
    ADMIN.delete_consumer_groups([group])[group].result(WAIT_S)
    assert group not in [found.group_id for found in ADMIN.list_consumer_groups().result(WAIT_S).valid]
    refused(KafkaError.GROUP_ID_NOT_FOUND, lambda: ADMIN.delete_consumer_groups([group])[group].result(WAIT_S))


def alter_offsets(offsets):
    altered = ADMIN.alter_consumer_group_offsets([offsets])[offsets.group_id].result(WAIT_S)
    for partition in altered.topic_partitions:
        if partition.error:
            raise KafkaException(partition.error)


@case("an offset out of range is reset, and without a commit none is found")
def out_of_range():
    topic = new_topic("out-of-range")
    send(topic, numbered(3))
    consumer = member(topic, f"{topic}-group")
    assert consumer.committed([TopicPartition(topic, 0)], WAIT_S)[0].offset == OFFSET_INVALID
    poll(consumer, 3)
    consumer.commit(offsets=[TopicPartition(topic, 0, 1000)], asynchronous=False)
    consumer.close()
    again = member(topic, f"{topic}-group")
    assert poll(again, 3) == [b"0", b"1", b"2"]
    again.close()


def remove_topics():
    mine = [topic for topic in ADMIN.list_topics(timeout=WAIT_S).topics if topic.startswith(RUN)]
    for future in ADMIN.delete_topics(mine).values() if mine else []:
        future.result(WAIT_S)


def main():
    CASES.append(("all topics removed", remove_topics))
    failed = 0
    for name, run in CASES:
        try:
            run()
            print(f"ok   python: {name}", flush=True)
        except Exception as error:  # A case may fail with any error; the other cases still run.
            failed += 1
            print(f"FAIL python: {name}: {type(error).__name__}: {error}", flush=True)
    print(f"{len(CASES) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
