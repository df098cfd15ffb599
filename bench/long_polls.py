"""Long polls of a topic's first partition from offset 0, each over its own connection. Run as:

    long_polls.py HOST:PORT TOPIC COUNT MIN_BYTES RECORDS

The program first writes RECORDS records of 1,000 bytes, four in a batch, with confluent-kafka. It prints `ready` when
all polls are sent, and ends when its standard input is closed. Each poll is a Fetch request of version 4 and waits for
at most five minutes.
"""
import socket, struct, sys

from confluent_kafka import Consumer, Producer, TopicPartition

WAIT_MS, ALL = 300_000, 50 << 20


def write(address, topic, records):
    producer = Producer({"bootstrap.servers": address, "acks": 0, "batch.num.messages": 4, "linger.ms": 5})
    for number in range(records):
        producer.produce(topic, b"x" * 1000, partition=0)
        if number % 1000 == 0:
            producer.flush()
    producer.flush()
    reader = Consumer({"bootstrap.servers": address, "group.id": "long-polls"})
    while reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)[1] < records:
        pass


def fetch(topic, min_bytes):
    name = topic.encode()
    header = struct.pack(">hhih", 1, 4, 1, -1)
    body = struct.pack(">iiiib", -1, WAIT_MS, min_bytes, ALL, 0)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iiqi", 1, 0, 0, ALL)
    return struct.pack(">i", len(header + body)) + header + body


def main(address, topic, count, min_bytes, records):
    write(address, topic, int(records))
    host, port = address.rsplit(":", 1)
    polls = [socket.create_connection((host, int(port))) for _ in range(int(count))]
    for poll in polls:
        poll.sendall(fetch(topic, int(min_bytes)))
    print("ready", flush=True)
    sys.stdin.read()


main(*sys.argv[1:])
