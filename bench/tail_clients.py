"""A paced producer and a consumer at the end of a topic with one partition, both of confluent-kafka. They note when
each observed record was sent, acknowledged and read, by this machine's monotonic clock. bench/diskless starts each as a
process, with the Python of tests/clients/install:

    tail_clients.py produce ADDRESS TOPIC ZONE RECORDS_S SIZE SECONDS ONE_IN
    tail_clients.py consume ADDRESS TOPIC ZONE ONE_IN

ZONE is the broker.rack of the brokers to use, or `-` for any. One record in ONE_IN is observed. `consume` prints
`ready` when it has reached the end of the topic, and ends when its standard input is closed. Both then print one line
of JSON: `produce` {offset: [sent, acknowledged]}, `consume` {offset: read}, in seconds.
"""
import json, sys, threading, time

from confluent_kafka import Consumer, Producer, TopicPartition

TICK_S = 0.001


def client(address, zone):
    return {"bootstrap.servers": address, "client.id": "tail" if zone == "-" else f"tail,diskless_az={zone}"}


def produce(address, topic, zone, records_s, size, seconds, one_in):
    noted, value = {}, b"x" * size
    producer = Producer(client(address, zone) | {"linger.ms": 5, "batch.size": 1 << 20, "queue.buffering.max.messages": 1_000_000})

    def note(sent):
        def acknowledged(error, message):
            if error:
                sys.exit(f"a record was refused: {error}")
            if message.offset() % one_in == 0:
                noted[message.offset()] = (sent, time.monotonic())
        return acknowledged

    # No other client writes, so the offsets of the observed records can be computed.
    began, count = time.monotonic(), 0
    while (now := time.monotonic()) < began + seconds:
        due = int((now - began) * records_s)
        while count < due:
            if count % one_in == 0:
                producer.produce(topic, value, partition=0, on_delivery=note(time.monotonic()))
            else:
                producer.produce(topic, value, partition=0)
            count += 1
        producer.poll(TICK_S)
    producer.flush(60)
    print(json.dumps(noted))


def consume(address, topic, zone, one_in):
    noted, stop = {}, threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    consumer = Consumer(client(address, zone) | {"group.id": "tail", "enable.auto.commit": False, "enable.auto.offset.store": False})
    end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)[1]
    consumer.assign([TopicPartition(topic, 0, end)])
    consumer.poll(0.5)
    print("ready", flush=True)
    while not stop.is_set():
        messages = consumer.consume(1000, timeout=TICK_S)
        now = time.monotonic()
        for message in messages:
            if message.error():
                sys.exit(f"the consumer failed: {message.error()}")
            if message.offset() % one_in == 0:
                noted[message.offset()] = now
    print(json.dumps(noted))


if __name__ == "__main__":
    kind, address, topic, zone, *numbers = sys.argv[1:]
    if kind == "produce":
        produce(address, topic, zone, *map(int, numbers))
    else:
        consume(address, topic, zone, *map(int, numbers))
