"""Sends one record of 2 KB at a time with librdkafka and acks=all: BOOTSTRAP TOPIC COUNT. Prints p50, p99 and p99.9 in
ms, and records/s."""
import sys, time
from confluent_kafka import Producer

bootstrap, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "socket.nagle.disable": True})
failed = []
payload = b"x" * 2048


def send():
    start = time.perf_counter()
    producer.produce(topic, payload, on_delivery=lambda error, _: failed.append(error) if error else None)
    producer.flush()
    return time.perf_counter() - start


for _ in range(2000):  # warm-up
    send()
start = time.perf_counter()
times = sorted(send() for _ in range(count))
wall = time.perf_counter() - start
if failed:
    sys.exit(f"{len(failed)} failed, first: {failed[0]}")
at = lambda q: times[min(count - 1, int(q * count))] * 1000
print(f"{at(0.5):.4f} {at(0.99):.4f} {at(0.999):.4f} {count / wall:.0f}")
