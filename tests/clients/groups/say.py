"""The output of members in Python, which is lines of JSON as Kafka's VerifiableConsumer writes them."""

import json


def say(name, **more):
    print(json.dumps({"name": name} | more), flush=True)


def consumed(records):
    """Prints records, given as (topic, partition, offset). Those of a partition are in order."""
    ranges = {}
    for topic, partition, offset in records:
        first, _, count = ranges.get((topic, partition), (offset, offset, 0))
        ranges[topic, partition] = (first, offset, count + 1)
    say("records_consumed", count=sum(count for *_, count in ranges.values()), partitions=[
        {"topic": topic, "partition": partition, "count": count, "minOffset": first, "maxOffset": last}
        for (topic, partition), (first, last, count) in ranges.items()
    ])
