#!/usr/bin/env python3
"""Measures the time until a group of the consumer protocol (KIP-848) settles, with real clients and the brokers' default
heartbeat intervals. The figures are seconds from a change until every member has its share and no assignment changes any more.

    target/clients/venv/bin/python bench/settle.py [--rounds N] [--members N] [--out FILE] [HOST:PORT ...]

Without HOST:PORT it starts Fullbore and Apache Kafka itself, in sequence. Each round has a new group of N (default 50)
confluent-kafka consumers in this process, on a topic with two partitions for each:

    start    all of them, in sequence without a pause
    join     one more
    leave    one of them closes

Before each join and leave, the script waits for a random time of 10 to 15 seconds. The change thus occurs at a random
moment between two heartbeats. The measured time ends at the last change of an assignment that a client saw. The script
knows that it was the last one after --quiet seconds without another (default 6, longer than Kafka's interval). Needs
`cargo build --release` and `tests/clients/install`.
"""
import argparse, json, pathlib, random, statistics, sys, tempfile, threading, time, uuid
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

sys.dont_write_bytecode = True
from brokers import Fullbore, Kafka

CHANGES = ("start", "join", "leave")
TOO_LONG_S = 120


class Group:
    """Consumers of one group, which this thread polls one after another."""

    def __init__(self, address, topic, partitions, quiet):
        self.address, self.topic, self.partitions, self.quiet = address, topic, partitions, quiet
        self.id, self.consumers, self.seen, self.changed = f"settle-{uuid.uuid4()}", [], None, 0.0

    def add(self):
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": self.id, "group.protocol": "consumer",
                             "auto.offset.reset": "latest", "enable.auto.commit": False})
        consumer.subscribe([self.topic])
        self.consumers.append(consumer)

    def poll(self):
        for consumer in self.consumers:
            message = consumer.poll(0)
            if message is not None and message.error() and message.error().fatal():
                sys.exit(f"a consumer failed: {message.error()}")
        seen = [sorted(at.partition for at in consumer.assignment()) for consumer in self.consumers]
        if seen != self.seen:
            self.seen, self.changed = seen, time.monotonic()
        time.sleep(0.005)

    def is_shared(self):
        """Returns true if each partition is assigned to exactly one member, as evenly as possible."""
        loads = [len(one) for one in self.seen]
        return sorted(sum(self.seen, [])) == list(range(self.partitions)) and max(loads) - min(loads) <= 1

    def settled(self, begun):
        """Returns the seconds from the change at `begun` until the last change of an assignment."""
        while True:
            self.poll()
            now = time.monotonic()
            if self.is_shared() and now - self.changed > self.quiet:
                return self.changed - begun
            if now - begun > TOO_LONG_S:
                sys.exit(f"not settled after {TOO_LONG_S} s: {self.seen}")

    def leave_alone(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.poll()

    def close(self):
        threads = [threading.Thread(target=consumer.close) for consumer in self.consumers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def one_round(address, topic, members, quiet):
    group, took = Group(address, topic, 2 * members, quiet), {}
    begun = time.monotonic()
    for _ in range(members):
        group.add()
    took["start"] = group.settled(begun)
    group.leave_alone(random.uniform(10, 15))
    begun = time.monotonic()
    group.add()
    took["join"] = group.settled(begun)
    group.leave_alone(random.uniform(10, 15))
    begun = time.monotonic()
    leaving = threading.Thread(target=group.consumers.pop(members // 2).close)
    leaving.start()
    took["leave"] = group.settled(begun)
    leaving.join()
    group.close()
    return took


def measure(name, address, options):
    admin, topic = AdminClient({"bootstrap.servers": address}), f"settle-{uuid.uuid4()}"
    for created in admin.create_topics([NewTopic(topic, 2 * options.members, 1)]).values():
        created.result()
    rounds = []
    for _ in range(options.rounds):
        rounds.append(one_round(address, topic, options.members, options.quiet))
        print(f"{name:22} " + "  ".join(f"{change} {rounds[-1][change]:6.2f} s" for change in CHANGES), flush=True)
    admin.delete_topics([topic])[topic].result()
    return {change: [took[change] for took in rounds] for change in CHANGES}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--quiet", type=float, default=6)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("brokers", nargs="*", metavar="HOST:PORT")
    options = parser.parse_args()
    results = {address: measure(address, address, options) for address in options.brokers}
    if not options.brokers:
        with tempfile.TemporaryDirectory(prefix="fullbore-settle-") as temp:
            for kind in (Fullbore, Kafka):
                broker = kind(kind.__name__.lower(), temp)
                broker.start()
                try:
                    results[broker.name] = measure(broker.name, broker.address, options)
                finally:
                    broker.stop()
    medians = {name: {change: statistics.median(took[change]) for change in CHANGES} for name, took in results.items()}
    for name, median in medians.items():
        print(f"median {name:15} " + "  ".join(f"{change} {median[change]:6.2f} s" for change in CHANGES))
    if len(medians) == 2:
        first, second = medians.values()
        print(f"ratio {'':16} " + "  ".join(f"{change} {first[change] / second[change]:6.2f}x " for change in CHANGES))
    if options.out:
        options.out.write_text(json.dumps(dict(command=" ".join(sys.argv), seconds=results), indent=1) + "\n")


if __name__ == "__main__":
    main()
