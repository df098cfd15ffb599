"""Cases of bench/cluster: topics with a replica on every broker, at full speed and one record at a time."""
import re
from brokers import CLIENTS, ROOT
from cases.groups import EXAMPLES

FACTORS = (1, 3)
SWEEP_PARTITIONS = 9
# The record size, and the numbers of records that Java's producer and ours send.
SWEEP = ((64, 16_000_000, 30_000_000), (1024, 2_000_000, 4_000_000))


def pick(results, key):
    return [result[key] for result in results]


def replicated(bench):
    """Topics of one partition, 1,024 bytes, acks=all, with one replica and with three."""
    for records, warm in ((25_000, 0), (1_000_000, 100_000)):
        rates = {}
        for factor in FACTORS:
            def work(cluster, topic):
                before = cluster.cpu_seconds()
                result = bench.java_perf(cluster, f"rf{factor}-{records}-{cluster.name}", topic, records + warm, 1024, warmup=warm,
                                         properties=["acks=all"])
                result["cpu"] = (cluster.cpu_seconds() - before) / ((records + warm) * 1024 / 1e9)
                return result
            ours, theirs = bench.both(bench.with_topic(f"rf-{factor}-{records}", work, factor=factor))
            rates[factor] = (pick(ours, "rate"), pick(theirs, "rate"))
            bench.row("replicated", f"records/s, {records}, factor {factor}", *rates[factor], ">= 1.25x" if factor == 3 else "-")
            bench.row("replicated", f"brokers' CPU s/GB, {records}, factor {factor}", pick(ours, "cpu"), pick(theirs, "cpu"), "-")
        for at, who in enumerate(("Fullbore", "Kafka")):
            bench.row("replicated", f"{who}: factor 3 of factor 1, {records}", rates[3][at], rates[1][at], ">= 0.8" if at == 0 else "-", who)
    own, _ = bench.both(lambda cluster, n: own_rate(bench, cluster, n, "all", 1, 1024, 2_000_000) if cluster is bench.fullbore else None)
    bench.row("replicated", "ours on ours / Java on Kafka, factor 3", own, rates[3][1], ">= 6x")


def own_rate(bench, cluster, round_number, acks, partitions, size, records):
    def work(cluster, topic):
        return bench.own_perf(cluster, f"own-{size}-{partitions}-acks-{acks}", topic, records, size, warmup=records // 10,
                              properties=[f"acks={acks}"])["rate"]
    return bench.with_topic(f"own-{size}-{partitions}-{acks}", work, partitions, factor=3)(cluster, round_number)


def sweep(bench):
    """Topics of nine partitions, for combinations of requests in flight, acks and record sizes, as in
    `fullbore perf sweep --table seed-000`."""
    for size, java_records, own_records in SWEEP:
        for acks, in_flights in (("all", (1, 2, 5)), ("1", (5,))):
            for in_flight in in_flights:
                def work(cluster, topic):
                    before = cluster.cpu_seconds()
                    result = bench.java_perf(cluster, f"sweep-{size}-{acks}-{in_flight}-{cluster.name}", topic, java_records, size,
                                             warmup=java_records // 10, properties=[
                        f"acks={acks}", f"max.in.flight.requests.per.connection={in_flight}",
                        f"enable.idempotence={str(acks == 'all').lower()}"])
                    result["cpu"] = (cluster.cpu_seconds() - before) / (java_records * size / 1e9)
                    return result
                ours, theirs = bench.both(bench.with_topic(f"sweep-{size}-{acks}-{in_flight}", work, SWEEP_PARTITIONS, factor=3))
                label = f"{size} B, acks={acks}, in flight {in_flight}"
                bench.row("sweep", f"records/s, {label}", pick(ours, "rate"), pick(theirs, "rate"), ">= 2x")
                bench.row("sweep", f"p95 ms, {label}", pick(ours, "p95"), pick(theirs, "p95"), "-")
                bench.row("sweep", f"brokers' CPU s/GB, {label}", pick(ours, "cpu"), pick(theirs, "cpu"), "<= 0.35x")
                if (acks, in_flight) == ("all", 5):
                    best = pick(theirs, "rate")
        own = {acks: bench.both(lambda cluster, n: own_rate(bench, cluster, n, acks, SWEEP_PARTITIONS, size, own_records)
                                if cluster is bench.fullbore else None)[0] for acks in ("all", "1")}
        bench.row("sweep", f"ours on ours / Java on Kafka, {size} B", own["all"], best, ">= 6x")
        bench.row("sweep", f"ours, acks=all of acks=1, {size} B", own["all"], own["1"], ">= 0.85", "acks=1")


def sync(bench):
    def work(cluster, topic):
        output = bench.run(f"sync-{cluster.name}", [CLIENTS / "venv/bin/python", ROOT / "bench/sync.py", cluster.address, topic, 10000])
        return [float(x) for x in output.split()]
    ours, theirs = bench.both(bench.with_topic("sync", work, factor=3))
    for i, (name, goal) in enumerate((("p50 ms", "<= 0.55x"), ("p99 ms", "<= 0.5x"), ("p99.9 ms", "-"), ("records/s", "-"))):
        bench.row("sync", name, [r[i] for r in ours], [r[i] for r in theirs], goal)


def commit(bench):
    """Offset commits with a replica of __consumer_offsets on every broker, over 16 connections with 10 in flight on
    each."""
    def committed(cluster, label):
        output = bench.run(f"{label}-{cluster.name}", [EXAMPLES / "commit_rate", cluster.address.split(",")[0], 16, 10, 5])
        return float(re.search(r": (\d+) commits/s", output).group(1))
    for cluster in (bench.kafka, bench.fullbore):
        committed(cluster, "commit-warm")
    ours, theirs = bench.both(lambda cluster, _: committed(cluster, "commit"))
    bench.row("commit", "commits/s, 16x10, factor 3", ours, theirs, ">= 3x")
