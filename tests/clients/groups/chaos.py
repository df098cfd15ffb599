"""Runs clients on a cluster whose brokers are killed: `chaos.py BOOTSTRAP [CLIENT...]`, with $ONE_BROKER to kill and
start a broker (`../one-broker`).

An idempotent producer of each client writes numbers to a topic. Groups of the same client read and commit them.
Meanwhile one broker after another is killed with SIGKILL and started again, then stopped and started again. Each number
must be acknowledged, be in the log once and in order, and be read. Committed offsets must not decrease, nor be lower
than in a response to a member. No client may end or report an error.

CHAOS_ROUNDS in the environment sets how often each broker is killed, and how often it is stopped.
"""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

import groups
from groups import ADMIN, BOOTSTRAP, HERE, RUN, TARGET, Member, until

sys.path.insert(0, f"{HERE}/../python")
import lost

PARTITIONS = 3
PER_SECOND = 300
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "1"))
ONE_BROKER = os.environ.get("ONE_BROKER", f"{HERE}/../one-broker")
ACKED_WITHOUT = 300  # Numbers that each producer must send while a broker is down.
WAIT_S = 60
PRODUCERS = {
    "java": ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128M", "-cp", f"{TARGET}/java-client/*", "Lost"],
    "librdkafka": [sys.executable, f"{HERE}/../python/lost.py", "produce"],
    "franz": [f"{TARGET}/go-producer"],
}
GROUPS = [("java", "classic", "cooperative-sticky"), ("java", "consumer", "range"), ("librdkafka", "classic", "range"),
          ("librdkafka", "consumer", "range"), ("franz", "classic", "cooperative-sticky"), ("franz", "consumer", "range")]


class Group:
    """A group with two members. Records the committed offsets that the broker returns."""

    def __init__(self, topic, client, protocol, strategy):
        self.name, self.topic = f"{client}, {protocol}", topic
        self.id = f"{topic}-{protocol}"
        self.member = lambda: Member(self.id, client, protocol, strategy, topic=topic)
        self.members, self.former = [self.member(), self.member()], []
        self.committed, self.wrong, self.asked = {}, [], 0
        # This consumer only fetches committed offsets and never joins the group. librdkafka's AdminClient would be the
        # usual choice, but it may crash if the coordinator has died.
        self.reader = Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": self.id, "log_level": 0})
        self.stopping = threading.Event()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def told(self):
        """Returns the highest offset of each partition for which a member's commit was acknowledged."""
        found = {}
        for member in self.former + self.members:
            with member.lock:
                for key, offset in member.committed.items():
                    found[key] = max(offset, found.get(key, offset))
        return found

    def replace_ended(self):
        """Returns true if Kafka's consumer of KIP-848 ended because of its own bug. One of its threads requests the
        position of a partition that the other thread has just revoked."""
        for at, member in enumerate(self.members):
            if member.process.poll() is not None and any("SubscriptionState.position" in line for line in list(member.raw)):
                print(f"     chaos: {self.name}: replaced a member that Kafka's client had ended", flush=True)
                self.former.append(member)
                self.members[at] = self.member()

    def watch(self):
        while not self.stopping.is_set():
            self.replace_ended()
            try:
                self.look()
            except KafkaException:
                pass  # The coordinator is moving. The case checks the offsets again at its end.
            time.sleep(0.1)

    def look(self):
        least = self.told()
        for key, offset in self.committed.items():
            least[key] = max(offset, least.get(key, offset))
        answer = self.reader.committed([TopicPartition(self.topic, partition) for partition in range(PARTITIONS)], 10)
        if any(p.error for p in answer):
            return
        found = {(p.topic, p.partition): p.offset for p in answer if p.offset >= 0}
        self.asked += 1
        self.wrong += [f"{key}: {found.get(key)} after {offset}" for key, offset in least.items() if found.get(key, -1) < offset]
        self.committed = found

    def shares(self):
        """Returns true if every partition has one owner and each member owns a partition."""
        owned = [partition for member in self.members for partition in member.owned]
        return sorted(owned) == [(self.topic, partition) for partition in range(PARTITIONS)] and all(member.owned for member in self.members)

    def has_read(self, counts):
        for partition, count in enumerate(counts):
            reached = 0
            for first, last in sorted((first, last) for member in self.former + self.members for _, of, first, last in list(member.read) if of == partition):
                if first > reached:
                    return False
                reached = max(reached, last + 1)
            if reached != count or self.committed.get((self.topic, partition), 0) != count:
                return False
        return True

    def complaint(self):
        found = [f"{self.id}: committed {self.committed}, asked {self.asked} times"]
        return "; ".join(found + [member.complaint() for member in self.members])

    def close(self):
        self.stopping.set()
        self.watcher.join(WAIT_S)
        for member in self.members:
            if member.process.poll() is None:
                member.die()


class Side:
    """A client with its topic, its producer and its groups."""

    def __init__(self, client):
        self.client, self.topic = client, f"{RUN}-chaos-{client}"
        ADMIN.create_topics([NewTopic(self.topic, PARTITIONS, groups.REPLICAS)])[self.topic].result(WAIT_S)
        self.groups = [Group(self.topic, *group) for group in GROUPS if group[0] == client]
        until(self.complaint, lambda: all(group.shares() for group in self.groups))
        words = [*PRODUCERS[client], BOOTSTRAP, self.topic, str(PARTITIONS), str(PER_SECOND)]
        with groups.STARTING:
            self.producer = lost.Client(words)
            groups.STARTED.append(self.producer.process)
        self.passes(1)

    def complaint(self):
        return "; ".join(group.complaint() for group in self.groups)

    def passes(self, count):
        began = time.time()
        self.producer.passes(self.producer.acked + count)
        return time.time() - began

    def check_produced(self):
        self.count = self.producer.finish()
        assert self.producer.acked == self.count, f"{self.producer.acked} acknowledged of {self.count}"
        for partition in range(PARTITIONS):
            lost.read_back(BOOTSTRAP, self.topic, range(partition, self.count, PARTITIONS), partition)

    def check_read(self, group):
        counts = [len(range(partition, self.count, PARTITIONS)) for partition in range(PARTITIONS)]
        until(group.complaint, lambda: group.shares() and group.has_read(counts))
        ended = [member.complaint() for member in group.members if member.process.poll() is not None]
        assert not ended, ended
        assert not group.wrong, f"{len(group.wrong)} times behind what was committed: {group.wrong[:5]}"

    def close(self):
        for group in self.groups:
            group.close()
        if hasattr(self, "producer"):
            self.producer.process.kill()


def in_sync():
    """Returns true if all replicas of the cases' topics and of the groups' topic are in sync."""
    topics = ADMIN.list_topics(timeout=10).topics
    return all(len(partition.isrs) == len(partition.replicas) for topic in topics.values() for partition in topic.partitions.values())


def disturb(sides, action, broker):
    """Ends a broker, waits until every producer has continued without it, and starts it again."""
    subprocess.run([ONE_BROKER, action, str(broker)], check=True)
    with ThreadPoolExecutor(len(sides)) as pool:
        waited = list(pool.map(lambda side: side.passes(ACKED_WITHOUT), sides))
    subprocess.run([ONE_BROKER, "start"], check=True)
    until(f"every replica is in sync after {action} {broker}", in_sync)
    return max(waited)


def case(name, function, *args):
    """Runs a case. Returns true if it passes."""
    try:
        found = function(*args)
        print(f"ok   chaos: {name}" + (f", {found}" if isinstance(found, str) else ""), flush=True)
        return True
    except Exception as error:  # A case may fail with any error; the other cases still run.
        print(f"FAIL chaos: {name}: {type(error).__name__}: {error}", flush=True)
        return False


def disturb_all(sides, action):
    brokers = sorted(ADMIN.list_topics(timeout=WAIT_S).brokers)
    waited = [disturb(sides, action, broker) for _ in range(ROUNDS) for broker in brokers]
    return f"{ACKED_WITHOUT} records without it within {max(waited):.1f} s"


def main():
    groups.signal.signal(groups.signal.SIGTERM, groups.end)
    wanted = sys.argv[2:] or list(PRODUCERS)
    sides, outcomes = [], []
    try:
        with ThreadPoolExecutor(len(wanted)) as pool:
            outcomes.append(case("every client produces and consumes", lambda: sides.extend(pool.map(Side, wanted))))
        for action, what in [("kill", "each broker is killed and comes back"), ("stop", "each broker is restarted")]:
            outcomes.append(case(what, disturb_all, sides, action))
        for side in sides:
            outcomes.append(case(f"{side.client}: each acknowledged record once and in order", side.check_produced))
            for group in side.groups:
                outcomes.append(case(f"{group.name}: every record read, and commits stay", side.check_read, group))
    finally:
        for side in sides:
            side.close()
    print(f"{sum(outcomes)} passed, {len(outcomes) - sum(outcomes)} failed")
    sys.exit(not all(outcomes))


main()
