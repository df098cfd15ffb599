"""Cases of bench/compare that send raw frames instead of using a client: the broker's start, its partitions, and long
polls."""
import socket, statistics, subprocess, time
from brokers import FULLBORE, Fullbore
from frames import fetch_frame, produce_frame, produce_succeeded, receive


def restart(broker, topic):
    """Returns how many seconds a stopped broker takes to start and accept a produce. An open port alone does not
    count."""
    started = time.monotonic()
    broker.start()
    frame = produce_frame(topic)
    while True:
        try:
            with socket.create_connection(("127.0.0.1", broker.port), 5) as s:
                s.sendall(frame)
                if produce_succeeded(receive(s)):
                    return time.monotonic() - started
        except OSError:
            pass
        time.sleep(0.001)


def start(bench):
    def work(broker, round_number):
        broker.topic(f"start-{round_number}")
        broker.stop()
        took = restart(broker, f"start-{round_number}")
        time.sleep(5)  # The broker must be idle before its memory is measured.
        return took, broker.memory_mib("VmRSS")
    ours, theirs = bench.both(work)
    bench.row("start", "s to first accepted produce", [r[0] for r in ours], [r[0] for r in theirs], "<= 0.05x")
    bench.row("start", "idle RSS MiB", [r[1] for r in ours], [r[1] for r in theirs], "<= 20 MiB")


def partitions(bench):
    broker = Fullbore("partitions", bench.temp)
    broker.start()
    for i in range(1000):
        broker.topic(f"topic-{i}", 10)
        subprocess.run([FULLBORE, "perf", "produce", "--bootstrap-server", broker.address, "--topic", f"topic-{i}",
                        "--num-records", "100", "--record-size", "100", "--throughput", "-1"], check=True,
                       stdout=subprocess.DEVNULL)
    took = []
    for _ in range(bench.rounds):
        broker.stop()
        took.append(restart(broker, "topic-999"))
    bench.rows.append(dict(case="partitions", measure="restart s", fullbore=took, goal="< 2 s"))
    rss = broker.memory_mib("VmRSS")
    bench.rows.append(dict(case="partitions", measure="RSS MiB", fullbore=[rss], goal="< 200 MiB"))
    print(f"partitions     1,000 topics x 10: restart {statistics.median(took):.3f} s (goal < 2), RSS {rss:.1f} MiB (goal < 200)")
    broker.stop()


def longpoll(bench):
    def work(broker, round_number):
        topic = broker.topic(f"longpoll-{round_number}")
        with socket.create_connection(("127.0.0.1", broker.port), 10) as s:
            started = time.monotonic()
            for i in range(5):
                s.sendall(fetch_frame(topic, i))
            times = []
            for _ in range(5):
                receive(s)
                times.append(time.monotonic() - started)
        (bench.out / f"longpoll-{broker.name}-{round_number}.txt").write_text(" ".join(f"{t:.3f}" for t in times) + "\n")
        broker.drop(topic)
        return times[-1]
    ours, theirs = bench.both(work)
    bench.row("longpoll", "five long polls of 500 ms on one connection, time to the last response, s", ours, theirs, "0.5 s against 2.5 s")
