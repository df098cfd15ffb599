"""Case of bench/compare: producers in transactions of one second, over numbers of partitions, record sizes and
codecs."""
from cases.replicas import pick

# The record size, the number of partitions, the codec, and the numbers of records that Java's producer and ours send.
CELLS = (
    (100, 1, "none", 4_000_000, 20_000_000),
    (100, 12, "none", 4_000_000, 20_000_000),
    (100, 100, "none", 4_000_000, 10_000_000),
    (1000, 1, "none", 1_000_000, 4_000_000),
    (1000, 12, "none", 1_000_000, 4_000_000),
    (1000, 100, "none", 1_000_000, 2_000_000),
    (1000, 1000, "none", 500_000, 1_000_000),
    (10_000, 12, "none", 100_000, 300_000),
    (1000, 12, "zstd", 300_000, 1_000_000),
)
SECOND = ["--transaction-duration-ms", 1000]


def grid(bench):
    """Java's producer in transactions on both brokers. Then ours on our broker, in transactions and without."""
    for size, partitions, codec, java_records, own_records in CELLS:
        cell = f"{size} B, {partitions} partition{'s' if partitions > 1 else ''}, {'uncompressed' if codec == 'none' else codec}"
        label = f"tx-grid-{size}-{partitions}-{codec}"
        properties = [f"compression.type={codec}"]

        def in_java(broker, topic):
            before = broker.cpu_seconds()
            words = [*SECOND, "--transactional-id", topic]
            rate = bench.java_perf(broker, f"{label}-{broker.name}", topic, java_records, size, properties=properties, words=words)["rate"]
            return rate, (broker.cpu_seconds() - before) * 1e9 / (java_records * size)
        ours, theirs = bench.both(bench.with_topic(label, in_java, partitions))
        for at, (measure, goal) in enumerate((("records/s, Java", ">= 1.3x"), ("broker CPU s/GB, Java", "<= 0.35x"))):
            bench.row("tx-grid", f"{cell}: {measure}", pick(ours, at), pick(theirs, at), goal)
        within, without = [], []
        for number in range(bench.rounds):
            for at, (rates, words) in enumerate(((within, SECOND), (without, []), (without, []), (within, SECOND))):
                def own(broker, topic):
                    return bench.own_perf(broker, f"{label}-own-{len(words)}", topic, own_records, size, properties=properties, words=words)["rate"]
                rates.append(bench.with_topic(f"{label}-own-{at}", own, partitions)(bench.fullbore, number))
        bench.row("tx-grid", f"{cell}: records/s, our producer", within, without, ">= 0.95x", "no transactions")
