"""Starts a link between two network namespaces and brokers at its far end, and measures a plain TCP stream over the
link. bench/wan imports this file. As a program, it receives the stream (--receive) or sends it (--send SECONDS)."""
import os, socket, subprocess, sys, time
import brokers
from brokers import FULLBORE

# All processes of the machine share its network namespaces. The names therefore contain the id of the measuring
# process, which passes them to both ends of its stream.
NEAR, FAR = f"fblnear{os.getpid()}", f"fblfar{os.getpid()}"
NEAR_ADDRESS, FAR_ADDRESS = "10.77.0.1", "10.77.0.2"
STREAM_PORT = 7
# The file with TCP's congestion control. Each network namespace has its own value, and begins with that of the machine.
CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"


def within(namespace, command):
    return ["ip", "netns", "exec", namespace, *map(str, command)]


class Link:
    """The process of the link. The namespaces are removed when it ends."""

    def __init__(self, rtt):
        self.process = subprocess.Popen([FULLBORE, "perf", "link", "--namespaces", f"{NEAR},{FAR}", "--rtt", rtt],
                                        stdout=subprocess.PIPE, text=True)
        self.says = self.process.stdout.readline().strip()
        if not self.says:
            sys.exit("cannot start the link")
        self.stream = subprocess.Popen(within(FAR, [sys.executable, __file__, "--receive"]), stdout=subprocess.PIPE, text=True)
        self.stream.stdout.readline()

    def congestion_control(self, name):
        for namespace in (NEAR, FAR):
            if subprocess.run(within(namespace, ["sh", "-c", f"echo {name} >{CONGESTION_CONTROL}"])).returncode:
                self.end()
                sys.exit(f"{name} is not in /proc/sys/net/ipv4/tcp_allowed_congestion_control")

    def end(self):
        self.stream.terminate()
        self.process.terminate()
        print(self.process.communicate()[0].strip())


class Placed:
    """A broker in the namespace of one end of the link. `place` must be called before the broker starts."""

    def place(self, namespace, host):
        self.namespace, self.host, self.address = namespace, host, f"{host}:{self.port}"

    def launch(self):
        log = open(self.directory / "out", "ab")
        self.process = subprocess.Popen(within(self.namespace, self.command()), stdout=log, stderr=log)

    def start(self):
        self.launch()
        end = time.monotonic() + 60
        while subprocess.run(within(self.namespace, [FULLBORE, "topics", "list", "--bootstrap-server", self.address]),
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit(f"{self.name} did not start:\n{open(self.directory / 'out').read()[-2000:]}")
            time.sleep(0.2)

    def topic(self, name, partitions=1):
        return super().topic(name, partitions, within=within(self.namespace, []))

    def drop(self, name):
        super().drop(name, within=within(self.namespace, []))


class Fullbore(Placed, brokers.Fullbore):
    def __init__(self, name, temp, settings=None, end=(FAR, FAR_ADDRESS)):
        super().__init__(name, temp, settings)
        self.place(*end)


class Kafka(Placed, brokers.Kafka):
    def __init__(self, name, temp, settings=None, end=(FAR, FAR_ADDRESS), controller=None):
        super().__init__(name, temp, settings, controller)
        self.place(*end)
        self.properties.write_text(self.properties.read_text().replace("127.0.0.1", self.host))


def receive_streams():
    """Receives streams one after another. Answers each with its speed in MB/s, which leaves out the first third of its
    time."""
    with socket.create_server((FAR_ADDRESS, STREAM_PORT)) as server:
        print("ready", flush=True)
        while True:
            stream, _ = server.accept()
            space, total, marks = bytearray(1 << 20), 0, []
            while count := stream.recv_into(space):
                total += count
                marks.append((time.monotonic(), total))
            first, last = marks[0][0], marks[-1][0]
            at, before = next(mark for mark in marks if mark[0] >= first + (last - first) / 3)
            stream.sendall(f"{total} bytes in {last - first:.3f} s; steady {(total - before) / (last - at) / 1e6:.3f} MB/s\n".encode())
            stream.close()


def send_stream(seconds):
    with socket.create_connection((FAR_ADDRESS, STREAM_PORT)) as stream:
        piece, end = bytes(1 << 18), time.monotonic() + seconds
        while time.monotonic() < end:
            stream.sendall(piece)
        stream.shutdown(socket.SHUT_WR)
        print(stream.makefile().read().strip())


if __name__ == "__main__":
    receive_streams() if sys.argv[1] == "--receive" else send_stream(float(sys.argv[2]))
