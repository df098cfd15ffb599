"""Runs the measured clusters of three brokers as processes and reads their use of resources. One is Fullbore, started
by `fullbore cluster up` with its own PostgreSQL. The other is Apache Kafka 4.3.1 with its defaults, whose brokers are
also the KRaft controllers. bench/cluster imports this file."""
import json, os, pathlib, random, signal, socket, subprocess, sys, time
import brokers
from brokers import FULLBORE, Topics, free_port, wait_for_port

BROKERS = 3
# Ports that the system does not choose for outgoing connections.
PORTS = range(20_000, 30_000)


def free_range(count):
    """Returns the first of `count` consecutive free ports."""
    while True:
        first = random.choice(PORTS)
        try:
            for port in range(first, first + count):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", port))
            return first
        except OSError:
            pass


class FullboreCluster(Topics):
    name = "fullbore"

    def __init__(self, temp, settings=None):
        self.directory = pathlib.Path(temp) / "fullbore-cluster"
        self.settings = settings or {}

    def start(self):
        sets = [word for key, value in ({"group.initial.rebalance.delay.ms": 0} | self.settings).items()
                for word in ("--set", f"{key}={value}")]
        command = [FULLBORE, "cluster", "up", "--brokers", str(BROKERS), "--data-dir", self.directory, "--port", str(free_range(BROKERS)),
                   "--json", *sets]
        told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        self.address = told["bootstrap_servers"]
        self.pids = {broker["id"]: broker["pid"] for broker in told["brokers"]}
        self.ports = {broker["id"]: int(broker["address"].rsplit(":", 1)[1]) for broker in told["brokers"]}
        self.postgres = told["postgres"]["pid"]
        self.children = {}

    def stop(self):
        for child in self.children.values():
            child.terminate()
            child.wait(60)
        subprocess.run([FULLBORE, "cluster", "down", "--data-dir", self.directory], check=True, stdout=subprocess.DEVNULL)

    def signal(self, number, how):
        """Sends a signal to a broker and waits until the broker has ended."""
        os.kill(self.pids[number], how)
        if child := self.children.pop(number, None):
            child.wait(60)
        while os.path.exists(f"/proc/{self.pids[number]}"):
            time.sleep(0.01)

    def restart(self, number):
        log = open(self.directory / f"broker-{number}.log", "ab")
        command = [FULLBORE, "serve", "--config", self.directory / f"broker-{number}.properties"]
        self.children[number] = subprocess.Popen(command, stdout=log, stderr=log)
        self.pids[number] = self.children[number].pid
        wait_for_port(self.ports[number], self.children[number])

    def cpu_seconds(self):
        return sum(brokers.cpu_seconds(pid) for pid in self.pids.values())

    def database_cpu_seconds(self):
        """Returns the CPU seconds of all processes of the cluster's PostgreSQL, including those that have ended."""
        def of(pid):
            fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
            return int(fields[1]), sum(map(int, fields[11:15])) / brokers.TICK, sum(map(int, fields[11:13])) / brokers.TICK
        total = of(self.postgres)[1]
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                parent, _, own = of(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
            total += own if parent == self.postgres else 0
        return total

    def memory_mib(self, field):
        return max(brokers.memory_mib(pid, field) for pid in self.pids.values())


class KafkaCluster(Topics):
    name = "kafka"

    def __init__(self, temp):
        controllers = [free_port() for _ in range(BROKERS)]
        voters = ",".join(f"{at + 1}@127.0.0.1:{port}" for at, port in enumerate(controllers))
        self.members = {}
        for number, controller in enumerate(controllers, 1):
            self.members[number] = member = brokers.Kafka(f"kafka-{number}", temp, {
                "node.id": number, "controller.quorum.voters": voters, "offsets.topic.replication.factor": BROKERS,
                "transaction.state.log.replication.factor": BROKERS, "transaction.state.log.min.isr": 2}, controller)
        self.address = ",".join(member.address for member in self.members.values())

    def start(self):
        for member in self.members.values():
            member.launch()
        for member in self.members.values():
            wait_for_port(member.port, member.process)
        end = time.monotonic() + 60
        while subprocess.run([FULLBORE, "topics", "list", "--bootstrap-server", self.address], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL).returncode:
            if time.monotonic() > end:
                sys.exit("the three Kafka brokers did not form a cluster")
            time.sleep(0.2)

    def stop(self):
        for member in self.members.values():
            if member.process:
                member.process.send_signal(signal.SIGTERM)
        for member in self.members.values():
            if member.process:
                try:
                    member.process.wait(30)
                except subprocess.TimeoutExpired:  # Without a quorum, the last controllers would wait for ever.
                    member.process.kill()
                    member.process.wait()

    def signal(self, number, how):
        self.members[number].process.send_signal(how)
        self.members[number].process.wait(120)

    def restart(self, number):
        self.members[number].start()

    def cpu_seconds(self):
        return sum(member.cpu_seconds() for member in self.members.values())

    def memory_mib(self, field):
        return max(member.memory_mib(field) for member in self.members.values())
