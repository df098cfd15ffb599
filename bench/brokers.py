"""Runs the measured brokers as processes and measures their CPU time and memory. One broker is the built Fullbore. The
other is Apache Kafka 4.3.1, which tests/clients/install has installed. Each has its own directory and free ports. The
programs of bench/ import this file."""
import os, pathlib, signal, socket, subprocess, sys, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLIENTS = ROOT / "target/clients"
FULLBORE = ROOT / "target/release/fullbore"
TICK = os.sysconf("SC_CLK_TCK")
JVM = ["-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
       "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"]
JARS = str(CLIENTS / "java-tools/*")


def java(heap, *arguments):
    return ["java", *heap, *JVM, "-cp", JARS, *map(str, arguments)]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for_port(port, process, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            sys.exit(f"{process.args[0]} ended with status {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.002)
    sys.exit("the broker did not start")


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def memory_mib(pid, field):
    return next(int(line.split()[1]) / 1024 for line in open(f"/proc/{pid}/status") if line.startswith(field))


class Topics:
    """Commands that create and delete topics on the broker or cluster at `address`."""

    def topic(self, name, partitions=1, configs=None, factor=1, within=()):
        pairs = [word for key, value in (configs or {}).items() for word in ("--config", f"{key}={value}")]
        subprocess.run([*within, FULLBORE, "topics", "create", "--bootstrap-server", self.address, "--topic", name, "--partitions",
                        str(partitions), "--replication-factor", str(factor), *pairs], check=True, stdout=subprocess.DEVNULL)
        return name

    def drop(self, name, within=()):
        subprocess.run([*within, FULLBORE, "topics", "delete", "--bootstrap-server", self.address, "--topic", name],
                       check=True, stdout=subprocess.DEVNULL)


class Broker(Topics):
    """A broker process, with methods that measure its CPU time and memory. `settings` are added to the defaults."""

    def __init__(self, name, temp, settings=None):
        self.name, self.directory, self.port, self.settings = name, pathlib.Path(temp) / name, free_port(), settings or {}
        self.directory.mkdir()
        self.address = f"127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        self.launch()
        wait_for_port(self.port, self.process)

    def launch(self):
        log = open(self.directory / "out", "ab")
        self.process = subprocess.Popen(self.command(), stdout=log, stderr=log)

    def stop(self):
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
            self.process = None

    def cpu_seconds(self):
        return cpu_seconds(self.process.pid)

    def memory_mib(self, field):
        return memory_mib(self.process.pid, field)


class Fullbore(Broker):
    def command(self):
        # The initial rebalance delay is 0 for both brokers: here, and for Kafka in the properties that it is shipped
        # with.
        pairs = {"fullbore.admin.listener": "", "listeners": f"PLAINTEXT://{self.address}",
                 "group.initial.rebalance.delay.ms": 0} | self.settings
        sets = [word for key, value in pairs.items() for word in ("--set", f"{key}={value}")]
        return [FULLBORE, "serve", "--data-dir", self.directory / "data", *sets]


class Kafka(Broker):
    """Apache Kafka. `controller` is the port of its KRaft controller."""

    def __init__(self, name, temp, settings=None, controller=None):
        super().__init__(name, temp, settings)
        self.properties = self.directory / "server.properties"
        controller = controller or free_port()
        self.properties.write_text(f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={self.directory}/log
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
""" + "".join(f"{key}={value}\n" for key, value in self.settings.items()))
        subprocess.run(java(["-Xmx256M"], "kafka.tools.StorageTool", "format", "-t", "4L6g3nShT-eMCtK--X86sw", "-c", self.properties),
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def command(self):
        return java(["-Xmx1G", "-Xms1G"], "kafka.Kafka", self.properties)
