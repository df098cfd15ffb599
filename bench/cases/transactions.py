"""Cases of transactions, which bench/compare runs on one broker and bench/cluster on three. Java's clients are in
bench/java/TransactionBench.java, ours in crates/bench/examples/transaction_rate.rs, and librdkafka's in
bench/transactions_copy.py."""
import re, signal, subprocess, threading, time
from brokers import CLIENTS, FULLBORE, ROOT, Fullbore, java
from cases.clients import java_consumes
from cases.failover import RUN_S, partitions, wait_until_whole
from cases.groups import EXAMPLES
from cases.replicas import pick

# How many batches of each producer the broker remembers. Our producer has more than 5 batches in flight only if the
# broker remembers more than 5.
RETAIN = 100
LONG, RECORDS = 3000, 2_000_000
RATE_S, PACED, PACED_S = 10, 20, 60
COPIED, COPY = 200_000, 100
READ, READ_TRANSACTION = 2_000_000, 1000


def numbers(output, names):
    """Extracts the numbers of a line such as `12.3 transactions/s, commit p50 1.2 ms, p99 3.4 ms, max 5.6 ms`."""
    return dict(zip(names, map(float, re.findall(r"(?<![a-z])\d+\.\d+", output))))


def in_java(bench, broker, label, heap, *words):
    source = ROOT / "bench/java/TransactionBench.java"
    command = java([heap], source, *words)
    return bench.run(f"{label}-{broker.name}", command)


def produce(bench):
    """Java's producer with transactions of three seconds at full speed, on both brokers. Then our producer, with
    transactions of one second and without any."""
    for in_flight in (5, 1):
        def work(broker, topic):
            before = broker.cpu_seconds()
            words = ["--transactional-id", topic, "--transaction-duration-ms", LONG]
            rate = perf(bench, broker, f"tx-java-{in_flight}", topic, RECORDS, words, [f"max.in.flight.requests.per.connection={in_flight}"], True)
            return rate, (broker.cpu_seconds() - before) / (RECORDS / 1e6)
        ours, theirs = bench.both(bench.with_topic(f"tx-java-{in_flight}", work))
        if in_flight == 5:
            beside = [rate for rate, _ in theirs]
        for at, (measure, goal) in enumerate((("records/s", ">= 1.3x"), ("broker CPU s/GB", "<= 0.35x"))):
            bench.row("tx-produce", f"{measure}, Java, in flight {in_flight}", pick(ours, at), pick(theirs, at), goal if in_flight == 5 else "-")
    wide = Fullbore("fullbore-wide", bench.temp, {"max.idempotence.batches.to.retain": RETAIN})
    wide.start()
    try:
        for in_flight in (1, 5, 10, 20, "auto"):
            def alone(broker, topic):
                words = ["--transactional-id", topic, "--transaction-duration-ms", LONG]
                return perf(bench, broker, f"tx-own-{in_flight}", topic, 3 * RECORDS, words, [f"max.in.flight.requests.per.connection={in_flight}"])
            rates = [bench.with_topic(f"tx-own-{in_flight}", alone)(wide, n) for n in range(bench.rounds)]
            bench.row("tx-produce", f"records/s, our producer / Java on Kafka, in flight {in_flight}", rates, beside, ">= 8x")
    finally:
        wide.stop()
    # Each round runs A B B A. The first run of a pair is slower, because its memory is still cold.
    with_them, without = [], []
    pair = ((with_them, ["--transaction-duration-ms", 1000]), (without, []))
    for n in range(bench.rounds):
        for at, (rates, words) in enumerate((*pair, *reversed(pair))):
            def once(broker, topic):
                return perf(bench, broker, "tx-second" if words else "tx-none", topic, 3 * RECORDS, words, [])
            rates.append(bench.with_topic(f"tx-second-{at}", once)(bench.fullbore, n))
    bench.row("tx-produce", "records/s, our producer, transactions of one second", with_them, without, ">= 0.95x", "no transactions")


def perf(bench, broker, label, topic, records, words, properties, is_java=False):
    """Returns how many records of 1,000 bytes ProducerPerformance or `perf produce` sends per second."""
    tool = java(["-Xmx512M"], "org.apache.kafka.tools.ProducerPerformance") if is_java else [FULLBORE, "perf", "produce"]
    command = [*tool, "--bootstrap-server", broker.address, "--topic", topic, "--num-records", records, "--record-size", 1000, "--throughput", -1,
               *words, *(["--command-property", *properties] if properties else [])]
    return bench.produced(bench.run(f"{label}-{broker.name}", command))["rate"]


def rate(bench, size=100, factor=1, case="tx-rate", producers=(1, 32)):
    """Transactions of ten records, one after another, in each of several Java producers and then in each of ours."""
    names = ("rate", "p50", "p99", "max")
    for count in producers:
        def work(broker, topic, is_own=False):
            before, label = broker.cpu_seconds(), f"tx-rate-{count}{'-own' if is_own else ''}"
            words = [broker.address, topic, count, 10, size, RATE_S]
            output = bench.run(f"{label}-{broker.name}", [EXAMPLES / "transaction_rate", *words]) if is_own else \
                in_java(bench, broker, label, "-Xmx1G", "rate", *words)
            told = numbers(next(line for line in output.splitlines() if " transactions/s, " in line), names)
            # The CPU time includes the three seconds of warm-up, but `rate` does not. The rate in the warm-up is
            # assumed to be the same.
            return told | {"cpu": (broker.cpu_seconds() - before) * 1e6 / max(1, told["rate"] * (RATE_S + 3))}
        ours, theirs = bench.both(bench.with_topic(f"{case}-{count}", work, 3, factor))
        own = [bench.with_topic(f"{case}-own-{count}", lambda b, t: work(b, t, True), 3, factor)(bench.fullbore, n) for n in range(bench.rounds)]
        of = f"10 x {size} B, {count} producer{'s' if count > 1 else ''}"
        least = "2x" if factor > 1 else "5x" if count == 1 else "4x"
        most = "<= 0.6x" if factor > 1 and count == 1 else "-"
        bench.row(case, f"transactions/s, {of}", pick(ours, "rate"), pick(theirs, "rate"), f">= {least}")
        bench.row(case, f"broker CPU us per transaction, {of}", pick(ours, "cpu"), pick(theirs, "cpu"), "<= 0.3x")
        for name in ("p50", "p99"):
            bench.row(case, f"commit {name} ms, {of}", pick(ours, name), pick(theirs, name), most)
        bench.row(case, f"transactions/s, {of}, our producer / Java on Kafka", pick(own, "rate"), pick(theirs, "rate"), "-" if factor > 1 else ">= 10x")
        bench.row(case, f"broker CPU us per transaction, {of}, our producer / Java on Kafka", pick(own, "cpu"), pick(theirs, "cpu"), "<= 0.3x")


def rate_cluster(bench):
    rate(bench, 1000, 3, "tx-rate", (1, 32))


def paced(bench):
    """Twenty transactions of one record a second, and a consumer that reads them."""
    def work(broker, topic):
        lines = in_java(bench, broker, "tx-paced", "-Xmx512M", "paced", broker.address, topic, PACED, PACED_S).splitlines()
        return [numbers(line, ("p50", "p99", "max")) for line in lines if " p50 " in line]
    ours, theirs = bench.both(bench.with_topic("tx-paced", work))
    for at, what in enumerate(("commitTransaction", "send to read_committed poll")):
        for name, goal in (("p50", "<= 0.7x"), ("p99", "<= 0.5x")):
            bench.row("tx-paced", f"{name} ms, {what}", [run[at][name] for run in ours], [run[at][name] for run in theirs], goal)


def copy(bench):
    """Copies a topic in transactions of 100 records. The copier with librdkafka reads a topic of three partitions.
    TransactionalMessageCopier and `fullbore copy` read a topic of one partition."""
    def filled(broker, partitions):
        topic = broker.topic(f"tx-from-{partitions}-{bench.count}", partitions)
        bench.own_perf(broker, f"tx-fill-{broker.name}", topic, COPIED, 100)
        return topic

    def librdkafka(broker, topic):
        source = filled(broker, 3)
        script = [CLIENTS / "venv/bin/python", ROOT / "bench/transactions_copy.py"]
        output = bench.run(f"tx-copy-librdkafka-{broker.name}", [*script, broker.address, source, topic, COPIED, COPY])
        broker.drop(source)
        return numbers(output, ("rate",))["rate"]

    def copier(broker, topic):
        source = filled(broker, 1)
        command = java(["-Xmx512M"], "org.apache.kafka.tools.TransactionalMessageCopier", "--broker-list", broker.address, "--input-topic", source,
                       "--input-partition", 0, "--output-topic", topic, "--consumer-group", f"group-{topic}", "--transactional-id", topic,
                       "--transaction-size", COPY, "--max-messages", COPIED)
        return took(bench, broker, source, f"tx-copy-java-{broker.name}", command)

    def own(broker, topic):
        source = filled(broker, 1)
        command = [FULLBORE, "copy", "-b", broker.address, "--from", source, "--to", topic, "--group", f"group-{topic}",
                   "--transaction-records", COPY, "--exit"]
        return took(bench, broker, source, "tx-copy-own", command)
    ours, theirs = bench.both(bench.with_topic("tx-copy", librdkafka, 3))
    bench.row("tx-copy", "records/s, librdkafka on both", ours, theirs, ">= 3x")
    java_ours, java_theirs = bench.both(bench.with_topic("tx-copier", copier))
    bench.row("tx-copy", "records/s, TransactionalMessageCopier", java_ours, java_theirs, "-")
    copied = [bench.with_topic("tx-copy-own", own)(bench.fullbore, n) for n in range(bench.rounds)]
    bench.row("tx-copy", "records/s, fullbore copy / Java's on Kafka", copied, java_theirs, ">= 10x")


def took(bench, broker, source, label, command):
    """Runs a copier. Returns the records per second, counted from the start of its process to the end."""
    began = time.monotonic()
    bench.run(label, command)
    rate = COPIED / (time.monotonic() - began)
    broker.drop(source)
    return rate


def read(bench):
    """Reads a topic in which a tenth of the transactions are aborted, at both isolation levels."""
    rates = {}
    for broker in (bench.kafka, bench.fullbore):
        broker.topic("tx-read")
        in_java(bench, broker, "tx-read-fill", "-Xmx512M", "fill", broker.address, "tx-read", READ, 1000, READ_TRANSACTION, 10)
    # Both levels read the same number of records. Otherwise the longer run would be faster, because Java compiles more
    # code.
    levels, records = ("read_committed", "read_uncommitted"), READ * 9 // 10

    def once(broker, round_number):
        # The levels alternate, and successive rounds begin with different levels. Other load on the machine thus
        # affects both.
        order = levels if round_number % 2 == 0 else levels[::-1]
        rate = {level: java_consumes(bench, broker, "tx-read", f"{level}-{round_number}", records, [f"isolation.level={level}"]) for level in order}
        return [rate[level] for level in levels]
    both = bench.both(once)
    for at, level in enumerate(levels):
        rates[level] = [pick(of, at) for of in both]
        own = [own_read(bench, level, records) for _ in range(bench.rounds)]
        bench.row("tx-read", f"MB/s, Java, {level}", *rates[level], ">= 1x")
        bench.row("tx-read", f"MB/s, perf consume / Java, {level}", own, rates[level][1], "-")
    for at, who in enumerate(("Fullbore", "Kafka")):
        bench.row("tx-read", f"MB/s, Java on {who}, read_committed beside read_uncommitted", rates["read_committed"][at], rates["read_uncommitted"][at],
                  ">= 0.95x" if at == 0 else "-", "read_uncommitted")
    for broker in (bench.kafka, bench.fullbore):
        broker.drop("tx-read")


def own_read(bench, level, records):
    output = bench.run(f"tx-read-own-{level}", [FULLBORE, "perf", "consume", "--bootstrap-server", bench.fullbore.address, "--topic", "tx-read",
                                                "--num-records", records, "--command-property", f"isolation.level={level}"])
    return float(output.strip().splitlines()[-1].split(",")[3])


def failover(bench):
    """Kills the leader of a producer's partition, or the producer's coordinator, during a run. Reports the longest
    transaction."""
    for role in ("leader", "coordinator"):
        def killed(cluster, round_number):
            topic, run = cluster.topic(f"tx-{role}-{round_number}", 1, {"min.insync.replicas": 2}, factor=3), f"tx-{role}-{round_number}"
            thread = threading.Thread(target=lambda: (time.sleep(8), kill(cluster, topic, role, f"{run}-0")))
            thread.start()
            output = in_java(bench, cluster, f"tx-failover-{role}", "-Xmx512M", "rate", cluster.address, topic, 1, 10, 1000, RUN_S, f"run={run}")
            thread.join()
            wait_until_whole(cluster)
            cluster.drop(topic)
            line = next(line for line in output.splitlines() if " transactions/s, " in line)
            return numbers(line, ("rate", "p50", "p99", "max"))["max"]
        ours, theirs = bench.both(killed)
        bench.row("tx-failover", f"longest transaction, ms, {role} killed", ours, theirs, "<= 3,000 ms")


def kill(cluster, topic, role, transactional_id):
    """Kills the leader or the coordinator with SIGKILL. Restarts it after half of the run."""
    number = partitions(cluster, topic)[0]["leader"]
    if role == "coordinator":
        told = subprocess.run([FULLBORE, "transactions", "describe", "-b", cluster.address, "--transactional-id", transactional_id],
                              stdout=subprocess.PIPE, text=True, check=True).stdout
        number = int(told.splitlines()[-1].split()[0])
    cluster.signal(number, signal.SIGKILL)
    time.sleep(RUN_S / 2)
    cluster.restart(number)
