"""A member of a group with confluent-kafka (librdkafka). Its output is that of Kafka's VerifiableConsumer: see
`groups.py`."""

import argparse
import signal

from confluent_kafka import Consumer, KafkaError, KafkaException

from say import consumed, say

arguments = argparse.ArgumentParser()
for name in ("bootstrap-server", "group-id", "topic", "pattern", "group-instance-id", "group-protocol", "assignment-strategy"):
    arguments.add_argument(f"--{name}")
arguments.add_argument("--session-timeout", type=int)
given = arguments.parse_args()

settings = {
    "bootstrap.servers": given.bootstrap_server,
    "group.id": given.group_id,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "topic.metadata.refresh.interval.ms": 1000,
    "fetch.wait.max.ms": 100,
}
if given.group_instance_id:
    settings["group.instance.id"] = given.group_instance_id
if given.group_protocol == "consumer":
    settings["group.protocol"] = "consumer"
else:
    settings |= {"session.timeout.ms": given.session_timeout, "heartbeat.interval.ms": 500}
    settings["partition.assignment.strategy"] = given.assignment_strategy or "range"

running = True


def stop(*_):
    global running
    running = False


signal.signal(signal.SIGTERM, stop)


def named(event):
    def tell(_, partitions):
        say(event, partitions=[{"topic": p.topic, "partition": p.partition} for p in partitions])
    return tell


consumer = Consumer(settings)
consumer.subscribe([given.pattern or given.topic], on_assign=named("partitions_assigned"),
                   on_revoke=named("partitions_revoked"), on_lost=named("partitions_revoked"))
say("startup_complete")
uncommitted = False
while running:
    messages = [message for message in consumer.consume(500, 0.1) if not message.error()]
    if messages:
        consumed((message.topic(), message.partition(), message.offset()) for message in messages)
        uncommitted = True
    if not uncommitted:
        continue
    try:
        offsets = consumer.commit(asynchronous=False)
        uncommitted = any(p.error for p in offsets)
        say("offsets_committed", success=True,
            offsets=[{"topic": p.topic, "partition": p.partition, "offset": p.offset} for p in offsets if not p.error and p.offset >= 0])
    except KafkaException as error:
        # After _NO_OFFSET there is nothing to commit: a rebalance has revoked the partitions, and their new owners read
        # the records again. After any other error, the next round commits the offsets.
        uncommitted = error.args[0].code() != KafkaError._NO_OFFSET
        say("offsets_committed", success=False, error=str(error), offsets=[])
consumer.close()
say("shutdown_complete")
