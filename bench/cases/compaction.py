"""Case of bench/compare: how long a compaction of 1 GB takes, what it costs, and how it affects a paced producer of
another topic. The records supersede each other.

Keys are random, so every segment keeps some records. While the log is filled, min.compaction.lag.ms forbids compaction.
The time runs from the removal of that setting until the segments stop changing, at about one record per key. The active
segment is never compacted. The log is filled and compacted twice. The first compaction runs alone and gives the
time and the CPU time. The second runs beside the producer, which sends for as long as the first one took.
"""
import os, random, string, subprocess, sys, threading, time
from brokers import FULLBORE, Fullbore, Kafka
from runs import RECORD

RECORDS, KEYS, SEGMENT = 1_000_000, 200_000, 100 << 20
# Before the measurement, each broker compacts a log of RECORDS / WARM records, to warm up Kafka's JVM.
WARM = 5
PACED_RECORDS_S, PACED_LEAST_S = 5_000, 3
# Seconds without a change after which the log counts as compacted, and the maximum number of seconds to wait for that.
SETTLED_S, COMPACTED_MAX_S = 2, 300
POLL_S = 0.01
# If a log has more records per key than this, it is not compacted yet.
SLACK = 1.05
LAG_MS = 86_400_000


def compact(bench):
    settings = {"log.cleaner.backoff.ms": 100}
    brokers = Kafka("kafka-compact", bench.temp, settings), Fullbore("fullbore-compact", bench.temp, settings)
    files = {scale: write_keyed(bench.temp / f"keyed-{scale}", scale) for scale in (WARM, 1)}
    try:
        for broker in brokers:
            broker.start()
            broker.topic("paced")
            compacted(bench, broker, fill(bench, broker, "warm", files, WARM))
            broker.drop("warm")
        ours, theirs = bench.both(lambda broker, number: work(bench, broker, number, files), brokers)
    finally:
        for broker in brokers:
            broker.stop()
    for measure in ours[0]:
        bench.row("compact", measure, [r[measure] for r in ours], [r[measure] for r in theirs], "-")


def work(bench, broker, number, files):
    alone, beside = (fill(bench, broker, f"compact-{how}-{number}", files, 1) for how in ("alone", "beside"))
    # The filled log is written to the disk now. Otherwise the system might do that during the measurement.
    os.sync()
    took, cpu, size = compacted(bench, broker, alone)
    # The first second of a paced run is not counted.
    seconds = 1 + max(PACED_LEAST_S, took)
    os.sync()
    without = bench.honest(broker, "compact-paced-alone", "paced", PACED_RECORDS_S, seconds)
    during = {}
    paced = threading.Thread(target=lambda: during.update(bench.honest(
        broker, "compact-paced-beside", "paced", PACED_RECORDS_S, seconds)))
    os.sync()
    paced.start()
    time.sleep(1)
    compacted(bench, broker, beside)
    paced.join()
    if not during:
        sys.exit("the producer beside the compaction failed")
    for topic in (alone, beside):
        broker.drop(topic)
    return {"s": took, "broker CPU s": cpu, "MB left": size / 1e6, "p99 ms, paced producer alone": without["p99_ms"],
            "p99 ms, paced producer beside": during["p99_ms"], "x, p99 beside to alone": during["p99_ms"] / without["p99_ms"]}


def write_keyed(path, scale):
    """Writes lines KEY:VALUE. Each value has RECORD bytes."""
    chance = random.Random(4)
    letters = "".join(chance.choices(string.ascii_letters, k=1 << 20))
    with open(path, "w") as file:
        for number in range(RECORDS // scale):
            at = number * 7919 % (len(letters) - RECORD)
            file.write(f"k{chance.randrange(KEYS // scale):06}:{letters[at:at + RECORD]}\n")
    return path


def fill(bench, broker, topic, files, scale):
    """Creates a topic with the records of the files. Its compaction is not permitted yet."""
    broker.topic(topic, configs={"cleanup.policy": "compact", "segment.bytes": SEGMENT // scale, "min.cleanable.dirty.ratio": 0.01,
                                 "min.compaction.lag.ms": LAG_MS})
    bench.run(f"compact-fill-{broker.name}", [FULLBORE, "produce", "-b", broker.address, "-t", topic, "-K", ":", files[scale]])
    return topic


def segments(broker, topic):
    """Returns the size of each segment, oldest first. Leaves out files that compaction is writing and files that wait
    for deletion."""
    found = []
    for directory in broker.directory.rglob(f"{topic}-0"):
        for path in directory.glob("*.log"):
            try:
                found.append((path.name, path.stat().st_size))
            except FileNotFoundError:
                pass
    return sorted(found)


def compacted(bench, broker, topic):
    """Permits the compaction. Returns the seconds until the log's size has settled, the CPU seconds until then, and the
    remaining bytes."""
    filled = segments(broker, topic)
    total = sum(size for _, size in filled)
    most = total * KEYS / RECORDS * SLACK + filled[-1][1]
    cpu, started = broker.cpu_seconds(), time.monotonic()
    command = [FULLBORE, "configs", "alter", "--bootstrap-server", broker.address, "--topic", topic, "--add-config",
               "min.compaction.lag.ms=0"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    sizes = [(0.0, total, cpu)]
    while True:
        now = time.monotonic() - started
        size = sum(size for _, size in segments(broker, topic))
        if size != sizes[-1][1]:
            sizes.append((now, size, broker.cpu_seconds()))
        elif size <= most and now - sizes[-1][0] > SETTLED_S:
            break
        if now > COMPACTED_MAX_S:
            sys.exit(f"{broker.name} did not compact {topic} within {COMPACTED_MAX_S} s: {size} bytes are left, more than {most:.0f}")
        time.sleep(POLL_S)
    bench.keep(f"compact-sizes-{broker.name}", command, "".join(
        f"{at:.3f} s, {size} bytes, broker CPU {used - cpu:.2f} s\n" for at, size, used in sizes))
    took, left, used = sizes[-1]
    return took, used - cpu, left
