"""Cases of bench/compare with Kafka's clients and ours: at full speed, one record at a time, and at a fixed pace."""
import sys
from brokers import CLIENTS, ROOT, java

CONSUMED = 2_000_000


def java_consumes(bench, broker, topic, group, records, properties=()):
    """Returns fetch.MB.sec of ConsumerPerformance, in MB/s. It leaves out the time to join the group.

    With a hundred partitions, ConsumerPerformance sometimes ends 48 records early, also with Kafka's broker. Another
    group then reads the topic again.
    """
    for again in ("", "-again"):
        command = java(["-Xmx512M"], "org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", broker.address, "--topic",
                       topic, "--num-records", records, "--group", group + again, "--timeout", 30_000,
                       *(["--command-property", *properties] if properties else []))
        output = bench.run(f"consume-java-{broker.name}", command)
        names, values = [[word.strip() for word in line.split(",")] for line in output.splitlines() if line.count(",") >= 9][-2:]
        told = dict(zip(names, values))
        # The tool reports success even if records are missing.
        if int(told["data.consumed.in.nMsg"]) >= records:
            return float(told["fetch.MB.sec"])
        print(f"ConsumerPerformance got {told['data.consumed.in.nMsg']} of {records} records from {broker.name}", file=sys.stderr)
    sys.exit("ConsumerPerformance ended early twice")


def java_produce(bench):
    def work(broker, topic):
        before = broker.cpu_seconds()
        result = bench.java_perf(broker, f"java-produce-{broker.name}", topic, 1_000_000, 1000)
        result["cpu"] = (broker.cpu_seconds() - before) / 1.0  # 1,000,000 x 1000 B is one GB
        result["rss"] = broker.memory_mib("VmHWM")
        return result
    ours, theirs = bench.both(bench.with_topic("java-produce", work))
    pick = lambda results, key: [r[key] for r in results]
    bench.row("java-produce", "records/s", pick(ours, "rate"), pick(theirs, "rate"), ">= 1.2x")
    bench.row("java-produce", "broker CPU s/GB", pick(ours, "cpu"), pick(theirs, "cpu"), "<= 0.3x")
    bench.row("java-produce", "broker peak RSS MiB", pick(ours, "rss"), pick(theirs, "rss"), "<= 0.1x")


def own_produce(bench):
    for size, ours_n, theirs_n, goal in ((1000, 3_000_000, 1_000_000, ">= 5x"), (100, 20_000_000, 5_000_000, ">= 6x")):
        def work(broker, topic):
            if broker is bench.kafka:
                return bench.java_perf(broker, f"own-produce-{size}-kafka", topic, theirs_n, size)
            return bench.own_perf(broker, f"own-produce-{size}-fullbore", topic, ours_n, size)
        ours, theirs = bench.both(bench.with_topic(f"own-produce-{size}", work))
        bench.row("own-produce", f"records/s, {size} B", [r["rate"] for r in ours], [r["rate"] for r in theirs], goal)


def grid(bench):
    """Java's producer and consumer on both brokers, for several numbers of partitions and record sizes."""
    for size, records in ((1000, 1_000_000), (100, 4_000_000)):
        for partitions in (1, 12, 100, 1000):
            cell, gigabytes = f"{size} B, {partitions}", records * size / 1e9

            def work(broker, topic):
                started = broker.cpu_seconds()
                rate = bench.java_perf(broker, f"grid-{size}-{partitions}-{broker.name}", topic, records, size)["rate"]
                produced = broker.cpu_seconds()
                read = java_consumes(bench, broker, topic, f"group-of-{topic}", records)
                return rate, (produced - started) / gigabytes, read, (broker.cpu_seconds() - produced) / gigabytes
            ours, theirs = bench.both(bench.with_topic(f"grid-{size}-{partitions}", work, partitions))
            for i, (measure, goal) in enumerate((("produce records/s", ">= 1.5x"), ("produce CPU s/GB", "<= 0.3x"),
                                                 ("consume MB/s", ">= 1x"), ("consume CPU s/GB", "<= 0.3x"))):
                bench.row("grid", f"{cell}: {measure}", [r[i] for r in ours], [r[i] for r in theirs], goal)


def codecs(bench):
    """Java's producer with compressed batches. Fullbore has a second topic with fullbore.produce.validation=header. On
    the first topic the broker decompresses each batch, and the difference between the two topics is the cost of
    that."""
    for codec in ("lz4", "snappy", "zstd", "gzip"):
        for size, records in ((1000, 300_000), (100, 2_000_000)):
            gigabytes = records * size / 1e9

            def work(broker, topic, label="records"):
                before = broker.cpu_seconds()
                name = f"codecs-{codec}-{size}-{label}-{broker.name}"
                rate = bench.java_perf(broker, name, topic, records, size, properties=[f"compression.type={codec}"])["rate"]
                return rate, (broker.cpu_seconds() - before) / gigabytes

            believes = bench.with_topic(f"codecs-header-{codec}-{size}", lambda broker, topic: work(broker, topic, "header"), 12,
                                        configs={"fullbore.produce.validation": "header"})
            ours, theirs = bench.both(bench.with_topic(f"codecs-{codec}-{size}", work, 12))
            header, _ = bench.both(lambda broker, n: None if broker is bench.kafka else believes(broker, n))
            for i, (measure, goal) in enumerate((("records/s", ">= 1.1x"), ("broker CPU s/GB", "<= 0.4x"))):
                bench.row("codecs", f"{codec}, {size} B: {measure}", [r[i] for r in ours], [r[i] for r in theirs], goal)
                bench.row("codecs", f"{codec}, {size} B, header: {measure}", [r[i] for r in header], [r[i] for r in theirs], "-")


def sync(bench):
    def work(broker, topic):
        output = bench.run(f"sync-{broker.name}", [CLIENTS / "venv/bin/python", ROOT / "bench/sync.py", broker.address, topic, 20000])
        return [float(x) for x in output.split()]
    ours, theirs = bench.both(bench.with_topic("sync", work))
    for i, (name, goal) in enumerate((("p50 ms", "<= 0.9x"), ("p99 ms", "<= 0.7x"), ("p99.9 ms", "-"), ("records/s", "-"))):
        bench.row("sync", name, [r[i] for r in ours], [r[i] for r in theirs], goal)


def paced(bench):
    def work(broker, topic):
        return bench.java_perf(broker, f"paced-java-{broker.name}", topic, 700_000, 1000, 10_000, warmup=100_000)
    ours, theirs = bench.both(bench.with_topic("paced", work))
    own, _ = bench.both(lambda broker, n: bench.with_topic("paced-own", lambda b, t: bench.own_perf(
        b, "paced-own-fullbore", t, 700_000, 1000, 10_000, warmup=100_000))(broker, n) if broker is bench.fullbore else None)
    # With acks=0 the tool does not wait for a response, so this is the latency of the tool itself.
    floor = [bench.with_topic("paced-floor", lambda b, t: bench.java_perf(
        b, "paced-floor", t, 700_000, 1000, 10_000, warmup=100_000, properties=["acks=0"]))(bench.fullbore, 0)]
    for key, goal in (("p99", "<= 0.5x"), ("p999", "<= 0.3x")):
        bench.row("paced", f"{key} ms, Java with acks=0 / Java on Kafka", [r[key] for r in floor], [r[key] for r in theirs], "-")
        bench.row("paced", f"{key} ms, Java on both", [r[key] for r in ours], [r[key] for r in theirs], goal)
        bench.row("paced", f"{key} ms, perf produce / Java on Kafka", [r[key] for r in own], [r[key] for r in theirs], goal)


def consume(bench):
    for broker in (bench.kafka, bench.fullbore):
        broker.topic("consume")
        bench.own_perf(broker, f"consume-fill-{broker.name}", "consume", CONSUMED, 1000)

    def java_consume(broker, round_number):
        return java_consumes(bench, broker, "consume", f"consume-{round_number}", CONSUMED)

    def own_consume(broker, _):
        return None if broker is bench.kafka else bench.own_consume(broker, "consume-own", "consume", CONSUMED)
    ours, theirs = bench.both(java_consume)
    own, _ = bench.both(own_consume)
    bench.row("consume", "MB/s, Java in a group on both", ours, theirs, ">= 1x")
    bench.row("consume", "MB/s, perf consume / Java on Kafka", own, theirs, ">= 2x")
    for broker in (bench.kafka, bench.fullbore):
        broker.drop("consume")
