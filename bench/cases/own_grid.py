"""Case of bench/compare and bench/cluster: our producer and consumer with several numbers of partitions and record
sizes. The goal of each rate is a share of the rate with one partition."""
import shutil
from brokers import Fullbore

PARTITIONS = (1, 12, 100, 1000)
SIZES = ((100, 10_000_000), (1000, 2_000_000), (10_000, 200_000))
MEASURES = (("produce MB/s", ">= {share}x"), ("produce CPU s/GB", "<= 2x"), ("consume MB/s", ">= {share}x"), ("consume CPU s/GB", "<= 2x"))
# The lowest acceptable rate with this number of partitions, as a share of the rate with one partition.
SHARES = {12: 0.9, 100: 0.6, 1000: 0.5}


def own_grid(bench):
    """Measures each cell on its own broker. One broker for all cells would let cells affect each other, because it
    decides only every ten minutes how much to leave in the page cache (log/src/page_cache.rs)."""
    def measure(cell, round_number):
        broker = Fullbore(f"own-grid-{bench.count}", bench.temp)
        broker.start()
        try:
            return produce_consume(bench, broker, cell, round_number)
        finally:
            broker.stop()
            shutil.rmtree(broker.directory)
    rows(bench, measure)


def own_grid_cluster(bench):
    """The same as `own_grid`, with a replica on each of three brokers."""
    rows(bench, lambda cell, round_number: produce_consume(bench, bench.fullbore, cell, round_number, factor=3))


def rows(bench, measure):
    """Measures all cells, and prints the rows of the table. Each round measures every cell once, so that a slow minute
    of the machine affects all cells alike."""
    cells = [(size, records, partitions) for size, records in SIZES for partitions in PARTITIONS]
    rounds = [{cell: measure(cell, round_number) for cell in cells} for round_number in range(bench.rounds)]
    for size, records, partitions in cells:
        for at, (what, goal) in enumerate(MEASURES):
            ours, beside = ([of_round[size, records, count][at] for of_round in rounds] for count in (partitions, 1))
            if partitions == 1:
                bench.alone("own-grid", f"{size} B, 1: {what}", ours, "-")
            else:
                bench.row("own-grid", f"{size} B, {partitions}: {what}", ours, beside, goal.format(share=SHARES[partitions]), "1 partition")


def produce_consume(bench, broker, cell, round_number, factor=1):
    """Returns the MB/s and the brokers' CPU in s/GB, first of a producer and then of a consumer that reads its
    records."""
    size, records, partitions = cell
    label, gigabytes = f"own-grid-{size}-{partitions}", records * size / 1e9

    def work(broker, topic):
        started = broker.cpu_seconds()
        rate = bench.own_perf(broker, f"{label}-produce", topic, records, size)["rate"] * size / 1e6
        produced = broker.cpu_seconds()
        read = bench.own_consume(broker, f"{label}-consume", topic, records)
        return rate, (produced - started) / gigabytes, read, (broker.cpu_seconds() - produced) / gigabytes
    return bench.with_topic(label, work, partitions, factor)(broker, round_number)
