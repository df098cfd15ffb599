"""Runs groups of real clients against a broker: `groups.py BOOTSTRAP [CLIENT...]`.

A member is a process that prints its events in lines of JSON, as Kafka's VerifiableConsumer does. At SIGTERM it leaves
its group and ends. One scenario therefore serves every client, and also groups with several kinds of clients. Every
scenario ends with the same check. Each record was read in order and by one member, except for records that a killed
member had not committed. All scenarios run at once, because they mostly wait.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

BOOTSTRAP = sys.argv[1]
HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = os.path.abspath(f"{HERE}/../../../target/clients")
RUN = f"groups-{os.getpid()}-{int(time.time())}"
WAIT_S = 60
SESSION_MS = 6000
PARTITIONS = 6
REPLICAS = int(os.environ.get("REPLICAS", "1"))
ADMIN = AdminClient({"bootstrap.servers": BOOTSTRAP})
STARTING, STARTED = threading.Lock(), []  # processes of all members

JAVA = ["java", "-Xshare:auto", f"-XX:SharedArchiveFile={TARGET}/java-tools.jsa", "-Xlog:disable", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128M",
        "-Dlog4j2.level=INFO", "-cp", f"{TARGET}/java-tools/*",
        "org.apache.kafka.tools.VerifiableConsumer", "--reset-policy", "earliest"]
PYTHON = sys.executable
ASSIGNOR = {"range": "org.apache.kafka.clients.consumer.RangeAssignor",
            "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"}


def until(what, condition, limit_s=WAIT_S):
    deadline = time.time() + limit_s
    while not (found := condition()):
        assert time.time() < deadline, f"not in time: {what() if callable(what) else what}"
        time.sleep(0.05)
    return found


def end(*_):
    """Kills all members on SIGTERM. By then the broker may have ended, so a member that is not killed would wait for
    it."""
    STARTING.acquire()  # The lock is never released, so that no further member starts.
    for process in STARTED:
        process.kill()
    os._exit(1)


def command(client, protocol, strategy, session_ms):
    """Returns the command of a member, without its topic."""
    if client == "java":
        options = ["--group-protocol", protocol]
        if protocol == "classic":
            options += ["--session-timeout", str(session_ms), "--assignment-strategy", ASSIGNOR[strategy]]
        return JAVA + options
    program = {
        "librdkafka": [PYTHON, f"{HERE}/librdkafka.py"],
        "aiokafka": [PYTHON, f"{HERE}/aio.py"],
        "franz": [f"{TARGET}/go-member"],
        "kafkajs": ["node", f"{HERE}/kafkajs.js"],
    }[client]
    return program + ["--group-protocol", protocol, "--session-timeout", str(session_ms), "--assignment-strategy", strategy]


class Member:
    """A member: its partitions, the records that it has read, and the offsets that it has committed."""

    def __init__(self, group, client, protocol="classic", strategy="range", topic=None, pattern=None, instance=None):
        self.name = f"{client}-{protocol}" + (f"-{instance}" if instance else "")
        self.owned, self.read, self.committed = set(), [], {}
        self.events, self.raw, self.lock = [], [], threading.Lock()
        # The session of a static member must not expire before its next process has joined. No test waits for an
        # expiry.
        words = command(client, protocol, strategy, 60_000 if instance else SESSION_MS) + ["--bootstrap-server", BOOTSTRAP, "--group-id", group]
        words += ["--pattern", pattern] if pattern else ["--topic", topic]
        words += ["--group-instance-id", instance] if instance else []
        env = os.environ | {"NODE_PATH": f"{TARGET}/js/node_modules"}
        with STARTING:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
            STARTED.append(self.process)
        threading.Thread(target=self.follow, daemon=True).start()
        threading.Thread(target=lambda: self.raw.extend(self.process.stderr), daemon=True).start()

    def follow(self):
        for line in self.process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                self.raw.append(line)
                continue
            with self.lock:
                self.hear(said)

    def hear(self, said):
        name = said.get("name")
        self.events.append(name)
        if name in ("partitions_assigned", "partitions_revoked"):
            partitions = {(p["topic"], p["partition"]) for p in said["partitions"]}
            self.owned = self.owned | partitions if name == "partitions_assigned" else self.owned - partitions
        elif name == "records_consumed":
            for p in said["partitions"]:
                assert p["maxOffset"] - p["minOffset"] + 1 == p["count"], f"{self.name}: a gap in {p}"
                self.read.append((p["topic"], p["partition"], p["minOffset"], p["maxOffset"]))
        elif name == "offsets_committed" and said.get("success"):
            for p in said["offsets"]:
                self.committed[p["topic"], p["partition"]] = p["offset"]

    def count(self, event):
        with self.lock:
            return self.events.count(event)

    def leave(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(WAIT_S)

    def die(self):
        self.process.kill()
        self.process.wait(WAIT_S)

    def complaint(self):
        with self.lock:
            read = {partition: max(last for *of, _, last in self.read if tuple(of) == partition) for partition in {(t, p) for t, p, *_ in self.read}}
            return (f"{self.name} owns {sorted(self.owned)}, ended {self.process.poll()}, said {self.events[-8:]}, read to {sorted(read.items())}, "
                    f"committed {sorted(self.committed.items())}, {''.join(self.raw)[-3000:]}")


class Scene:
    """A topic, a group and its members, which end with the scenario."""

    def __init__(self, name, partitions=PARTITIONS):
        self.group = self.topic = f"{RUN}-{name}"
        self.partitions, self.members, self.written = partitions, [], {}
        self.killed = False
        self.create(self.topic, partitions)

    def create(self, topic, partitions):
        ADMIN.create_topics([NewTopic(topic, partitions, REPLICAS)])[topic].result(WAIT_S)
        until(f"topic {topic}", lambda: len(ADMIN.list_topics(topic, timeout=WAIT_S).topics[topic].partitions) == partitions)
        self.written |= {(topic, partition): 0 for partition in range(partitions)}

    def set_session(self, ms):
        """Sets the group's session timeout, which applies to members under the consumer protocol."""
        setting = ConfigEntry("consumer.session.timeout.ms", str(ms), incremental_operation=AlterConfigOpType.SET)
        group = ConfigResource(ResourceType.GROUP, self.group, incremental_configs=[setting])
        ADMIN.incremental_alter_configs([group])[group].result(WAIT_S)

    def join(self, client, **how):
        member = Member(self.group, client, **({"topic": self.topic} | how))
        self.members.append(member)
        return member

    def write(self, count=600):
        producer = Producer({"bootstrap.servers": BOOTSTRAP, "linger.ms": 5})
        targets = sorted(self.written)
        for i in range(count):
            topic, partition = targets[i % len(targets)]
            producer.produce(topic, b"%d" % i, partition=partition)
            self.written[topic, partition] += 1
        assert producer.flush(WAIT_S) == 0

    def complaint(self):
        return f"{self.group}: written {self.written}; " + "; ".join(member.complaint() for member in self.members)

    def alive(self):
        return [member for member in self.members if member.process.poll() is None]

    def all_owned(self):
        """Returns true if every partition has one owner and every living member owns a partition."""
        owned = [partition for member in self.alive() for partition in member.owned]
        wanted = min(len(self.alive()), len(self.written))
        return sorted(owned) == sorted(self.written) and sum(bool(member.owned) for member in self.alive()) == wanted

    def settled(self):
        until(self.complaint, self.all_owned)

    def is_of(self, protocol):
        """Checks which protocol the group uses, because some clients can fall back to the other one."""
        listed = {group.group_id: group.type for group in ADMIN.list_consumer_groups().result(WAIT_S).valid}
        assert listed[self.group].name.lower() == protocol, listed[self.group]

    def all_read(self):
        until(self.complaint, lambda: all(self.covers(key, end) for key, end in self.written.items()))
        until(self.complaint, self.all_committed)

    def ranges(self, key):
        return sorted((first, last) for member in self.members for *of, first, last in list(member.read) if tuple(of) == key)

    def covers(self, key, end):
        reached = 0
        for first, last in self.ranges(key):
            if first > reached:
                return False
            reached = max(reached, last + 1)
        return reached >= end

    def all_committed(self):
        wanted = {key: end for key, end in self.written.items() if end}
        return all(self.committed().get(key) == end for key, end in wanted.items())

    def committed(self):
        found = ADMIN.list_consumer_group_offsets([ConsumerGroupTopicPartitions(self.group)])[self.group].result(WAIT_S)
        return {(p.topic, p.partition): p.offset for p in found.topic_partitions}

    def read_once(self):
        """Checks that no record was read twice, except for the last ones of a killed member."""
        for key, end in self.written.items():
            count = sum(last - first + 1 for first, last in self.ranges(key))
            assert count == end or (self.killed and count >= end), f"{key}: {count} records read of {end}; {self.complaint()}"

    def close(self):
        for member in self.alive():
            member.die()


# --- scenarios -----------------------------------------------------------------------------------

def life(scene, kinds):
    """Members join and share the partitions, leave, die and come back. No record is lost. If members leave in order, no
    record is read twice."""
    first, second, third = (kinds * 3)[:3]
    one = scene.join(**first)
    scene.settled()
    scene.is_of(first["protocol"])
    two = scene.join(**second)
    scene.settled()
    scene.write()
    scene.all_read()
    three = scene.join(**third)
    scene.settled()
    scene.write()
    scene.all_read()
    two.leave()
    scene.settled()
    scene.read_once()
    scene.write()
    scene.all_read()
    scene.killed = True
    three.die()
    scene.settled()
    scene.write()
    scene.all_read()
    one.leave()
    scene.write()
    back = scene.join(**first)
    scene.settled()
    scene.all_read()
    assert all(back_first > 0 for _, _, back_first, _ in back.read), "it restarted from the beginning"
    back.leave()
    scene.read_once()


def static(scene, kinds):
    """A static member that returns within its session gets its former partitions, and no other member rebalances."""
    first, second = (kinds * 2)[:2]
    if second["protocol"] == "consumer":
        scene.set_session(45_000)
    other = scene.join(**first, instance="a")
    member = scene.join(**second, instance="b")
    scene.settled()
    scene.write()
    scene.all_read()
    had, noticed = set(member.owned), other.count("partitions_revoked")
    # Under the consumer protocol, an instance id is free only if its member has announced that it will return.
    member.leave() if second["protocol"] == "consumer" else member.die()
    scene.write()
    again = scene.join(**second, instance="b")
    until(scene.complaint, lambda: again.owned == had)
    scene.all_read()
    assert other.count("partitions_revoked") == noticed, f"a rebalance was seen: {scene.complaint()}"
    scene.read_once()


def pattern(scene, kinds):
    """Members subscribe by a pattern. A matching topic that is created later must also be read."""
    kind = kinds[0] | {"topic": None, "pattern": f"^{scene.topic}.*"}
    scene.join(**kind)
    scene.join(**kind)
    scene.settled()
    scene.write()
    scene.all_read()
    scene.create(f"{scene.topic}-later", 3)
    scene.settled()
    scene.write()
    scene.all_read()


def growth(scene, kinds):
    """Added partitions get an owner."""
    from confluent_kafka.admin import NewPartitions
    scene.join(**kinds[0])
    scene.settled()
    ADMIN.create_partitions([NewPartitions(scene.topic, scene.partitions + 3)])[scene.topic].result(WAIT_S)
    scene.written |= {(scene.topic, scene.partitions + more): 0 for more in range(3)}
    scene.settled()
    scene.write()
    scene.all_read()


def migration(scene, kinds):
    """A group moves from the classic protocol to the consumer protocol and back, one member at a time (KIP-848)."""
    classic, consumer = ({"client": kinds[0]["client"], "protocol": protocol} for protocol in ("classic", "consumer"))
    old = [scene.join(**classic), scene.join(**classic)]
    scene.settled()
    for before, after in [(old[0], consumer), (old[1], consumer)]:
        scene.write()
        scene.join(**after)
        scene.settled()
        before.leave()
        scene.settled()
        scene.all_read()
    new = scene.alive()
    for before in new:
        scene.join(**classic)
        scene.settled()
        before.leave()
        scene.settled()
        scene.write()
        scene.all_read()
    scene.read_once()


def kind(client, protocol="classic", strategy="range"):
    return {"client": client, "protocol": protocol, "strategy": strategy}


EAGER = [kind(client) for client in ("java", "librdkafka", "franz", "aiokafka")]
COOPERATIVE = [kind(client, strategy="cooperative-sticky") for client in ("java", "librdkafka", "franz")]
NEXT = [kind(client, "consumer") for client in ("java", "librdkafka", "franz")]

CASES = (
    [(f"{one['client']}: joins, leaves, dies, comes back", life, [one]) for one in EAGER + [kind("kafkajs")]]
    + [(f"{one['client']}, cooperative: joins, leaves, dies, comes back", life, [one]) for one in COOPERATIVE]
    + [(f"{one['client']}, group.protocol=consumer: joins, leaves, dies, comes back", life, [one]) for one in NEXT]
    + [("several clients in one group", life, EAGER), ("several clients in one group, cooperative", life, COOPERATIVE),
       ("several clients in one group, group.protocol=consumer", life, NEXT)]
    + [(f"{one['client']}, static", static, [one]) for one in EAGER]
    # Under the consumer protocol, a member cannot choose its session timeout, so `static` sets that of the group.
    + [("librdkafka, group.protocol=consumer, static", static, [kind("librdkafka", "consumer")])]
    + [(f"{client}: a pattern", pattern, [kind(client)]) for client in ("librdkafka", "franz", "aiokafka")]
    + [("librdkafka, group.protocol=consumer: a pattern", pattern, [kind("librdkafka", "consumer")])]
    + [(f"{one['client']}-{one['protocol']}: partitions are added", growth, [one]) for one in [kind("librdkafka"), *NEXT]]
    + [(f"{client}: classic to consumer protocol and back", migration, [kind(client)]) for client in ("java", "librdkafka")]
)
AT_ONCE = 6


def run(number, case):
    name, scenario, kinds = case
    scene = None
    try:
        scene = Scene(str(number))
        scenario(scene, kinds)
        print(f"ok   groups: {name}", flush=True)
        return True
    except Exception as error:  # A case may fail with any error; the other cases still run.
        print(f"FAIL groups: {name}: {type(error).__name__}: {error}", flush=True)
        return False
    finally:
        if scene:
            scene.close()


def main():
    signal.signal(signal.SIGTERM, end)
    wanted = [case for case in CASES if len(sys.argv) < 3 or any(word in case[0] for word in sys.argv[2:])]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        passed = sum(pool.map(run, range(len(wanted)), wanted))
    print(f"{passed} passed, {len(wanted) - passed} failed")
    sys.exit(passed < len(wanted))


if __name__ == "__main__":
    main()
