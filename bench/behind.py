"""Reads one partition with confluent-kafka, from the first record to the last. Run as:

    behind.py ADDRESS TOPIC RECORDS SETTING=VALUE...

Prints how many seconds this took.
"""
import sys, time

from confluent_kafka import Consumer, TopicPartition


def main(address, topic, records, *settings):
    consumer = Consumer({"bootstrap.servers": address, "group.id": "behind", "enable.auto.commit": False, "enable.partition.eof": False}
                        | dict(setting.split("=") for setting in settings))
    # The leaders are looked up before the measurement begins.
    consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
    consumer.assign([TopicPartition(topic, 0, 0)])
    began, left = time.monotonic(), int(records)
    while left > 0:
        left -= len(consumer.consume(10_000, timeout=0.1))
    print(time.monotonic() - began)


main(*sys.argv[1:])
