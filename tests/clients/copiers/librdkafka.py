"""Copies each record of a topic to another topic exactly once, with librdkafka, until SIGTERM: `librdkafka.py BOOTSTRAP
FROM TO GROUP`. See `copiers.py`."""

import signal
import sys

from confluent_kafka import Consumer, KafkaException, Producer

RECORDS = 20  # maximum number of records in a transaction
TIMEOUT_S = 60
TRANSACTION_S_MAX = 30  # After this time SIGALRM ends the process, and `copiers.py` restarts it.


def retried(call, *arguments):
    """Repeats a call until its result is not a retriable error."""
    while True:
        try:
            return call(*arguments)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def rewind(consumer):
    """Seeks to the committed offsets of the group."""
    assigned = consumer.assignment()
    if assigned:
        for partition in retried(consumer.committed, assigned, TIMEOUT_S):
            partition.offset = max(partition.offset, 0)
            consumer.seek(partition)


def copy(producer, consumer, to, records):
    producer.begin_transaction()
    try:
        for record in records:
            producer.produce(to, record.value(), record.key(), record.partition(), timestamp=record.timestamp()[1], headers=record.headers())
        positions = [of for of in consumer.position(consumer.assignment()) if of.offset >= 0]
        retried(producer.send_offsets_to_transaction, positions, consumer.consumer_group_metadata(), TIMEOUT_S)
        retried(producer.commit_transaction, TIMEOUT_S)
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        retried(producer.abort_transaction, TIMEOUT_S)
        rewind(consumer)


def main():
    bootstrap, source, to, group = sys.argv[1:]
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": group, "transaction.timeout.ms": 10_000, "linger.ms": 0})
    retried(producer.init_transactions, TIMEOUT_S)
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False,
        "isolation.level": "read_committed", "session.timeout.ms": 6000, "heartbeat.interval.ms": 500,
    })
    consumer.subscribe([source])
    while not stopping:
        records = [record for record in consumer.consume(RECORDS, 0.2) if not record.error()]
        if records:
            # librdkafka 2.16 waits for a group coordinator that has left the metadata, and ignores the timeout of
            # `send_offsets_to_transaction` (issues 5511 and 5456 of confluentinc/librdkafka). The alarm ends such a
            # wait.
            signal.alarm(TRANSACTION_S_MAX)
            copy(producer, consumer, to, records)
            signal.alarm(0)
    consumer.close()


main()
