"""Two brokers with a link between them. A topic's leader is at the near end and its only follower at the far end.
bench/wan imports this file."""
import pathlib, subprocess, sys, time
import brokers, link
from brokers import FULLBORE
from link import FAR, FAR_ADDRESS, NEAR, NEAR_ADDRESS, within

ENDS = ((NEAR, NEAR_ADDRESS), (FAR, FAR_ADDRESS))


class Pair(brokers.Topics):
    """A pair of brokers, `near` and `far`. Clients are at the near end."""

    def begin(self, near, far):
        self.near, self.far, self.address = near, far, near.address
        self.near.launch()
        self.far.launch()
        end = time.monotonic() + 60
        # Once a topic can be created on both brokers, the far broker is registered.
        while self.command(["create", "--topic", "probe", "--replica-assignment", self.assignment], subprocess.DEVNULL).returncode:
            if time.monotonic() > end:
                sys.exit(f"the two brokers of {self.name} did not form a cluster; see {self.near.directory}")
            time.sleep(0.5)

    def command(self, words, errors=None):
        return subprocess.run(within(NEAR, [FULLBORE, "topics", *words, "--bootstrap-server", self.address]),
                              stdout=subprocess.DEVNULL, stderr=errors)

    def topic(self, name, partitions=1):
        assignment = ",".join([self.assignment] * partitions)
        self.command(["create", "--topic", name, "--replica-assignment", assignment]).check_returncode()
        return name

    def drop(self, name):
        self.command(["delete", "--topic", name]).check_returncode()

    def stop(self):
        for broker in (self.far, self.near):
            broker.process.terminate()
        for broker in (self.far, self.near):
            try:
                broker.process.wait(30)
            except subprocess.TimeoutExpired:
                broker.process.kill()


class FullborePair(Pair):
    """A pair of Fullbore brokers. Both reach the database over a Unix socket, so its requests do not cross the link."""
    name, assignment = "fullbore-pair", "11:12"

    def __init__(self, temp):
        self.directory = pathlib.Path(temp) / "pair"

    def start(self):
        # Starts PostgreSQL with `cluster up`. The broker that this command starts as well is not measured.
        subprocess.run([FULLBORE, "cluster", "up", "--brokers", "1", "--data-dir", self.directory, "--port", str(brokers.free_port())],
                       check=True, stdout=subprocess.DEVNULL)
        lines = (self.directory / "broker-1.properties").read_text().splitlines()
        database = next(line.split("=", 1)[1] for line in lines if line.startswith("control.plane="))
        self.begin(*(link.Fullbore(f"pair-{number}", self.directory.parent, {
            "node.id": number, "control.plane": database, "max.idempotence.batches.to.retain": 64}, end)
            for number, end in zip((11, 12), ENDS)))

    def stop(self):
        super().stop()
        subprocess.run([FULLBORE, "cluster", "down", "--data-dir", self.directory], stdout=subprocess.DEVNULL)


class KafkaPair(Pair):
    """A pair of Kafka brokers with the system's socket buffers. Each end has a controller."""
    name, assignment = "kafka-pair", "1:2"

    def __init__(self, temp):
        self.temp = temp

    def start(self):
        controllers = [brokers.free_port() for _ in ENDS]
        voters = ",".join(f"{at + 1}@{host}:{port}" for at, ((_, host), port) in enumerate(zip(ENDS, controllers)))
        buffers = {f"{of}.buffer.bytes": -1 for of in ("socket.send", "socket.receive", "replica.socket.receive")}
        self.begin(*(link.Kafka(f"pair-kafka-{at + 1}", self.temp, buffers | {"node.id": at + 1, "controller.quorum.voters": voters},
                                ENDS[at], controllers[at]) for at in range(len(ENDS))))
