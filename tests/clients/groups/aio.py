"""A member of a group with aiokafka. Its output is that of Kafka's VerifiableConsumer: see `groups.py`."""

import argparse
import asyncio
import signal

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError

from say import consumed, say

arguments = argparse.ArgumentParser()
for name in ("bootstrap-server", "group-id", "topic", "pattern", "group-instance-id", "group-protocol", "assignment-strategy"):
    arguments.add_argument(f"--{name}")
arguments.add_argument("--session-timeout", type=int)
given = arguments.parse_args()


def tell(event, partitions):
    say(event, partitions=[{"topic": p.topic, "partition": p.partition} for p in partitions])


uncommitted = {}  # offset of the next record to read, by partition


class Told(ConsumerRebalanceListener):
    def on_partitions_assigned(self, assigned):
        tell("partitions_assigned", assigned)

    def on_partitions_revoked(self, revoked):
        uncommitted.clear()  # never committed: the next owner of the partitions reads these records again
        tell("partitions_revoked", revoked)


async def main():
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=given.bootstrap_server, group_id=given.group_id, group_instance_id=given.group_instance_id,
        enable_auto_commit=False, auto_offset_reset="earliest", session_timeout_ms=given.session_timeout,
        heartbeat_interval_ms=500, metadata_max_age_ms=1000, partition_assignment_strategy=[RangePartitionAssignor])
    if given.pattern:
        consumer.subscribe(pattern=given.pattern, listener=Told())
    else:
        consumer.subscribe([given.topic], listener=Told())
    await consumer.start()
    say("startup_complete")
    while not stopping.is_set():
        batches = await consumer.getmany(timeout_ms=100, max_records=500)
        if batches:
            consumed((record.topic, record.partition, record.offset) for batch in batches.values() for record in batch)
            uncommitted.update((p, batch[-1].offset + 1) for p, batch in batches.items())
        if not uncommitted:
            continue
        try:
            await consumer.commit()
            say("offsets_committed", success=True, offsets=[
                {"topic": p.topic, "partition": p.partition, "offset": offset} for p, offset in uncommitted.items()])
            uncommitted.clear()
        except KafkaError as error:  # The next round commits again, unless a rebalance has cleared `uncommitted`.
            say("offsets_committed", success=False, error=repr(error), offsets=[])
    await consumer.stop()
    say("shutdown_complete")


asyncio.run(main())
