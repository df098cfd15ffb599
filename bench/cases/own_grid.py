"""Case of bench/compare and bench/cluster: our producer and consumer over partitions and sizes, beside the cell with one partition."""
import shutil
from brokers import FULLBORE, Fullbore

PARTITIONS = (1, 12, 100, 1000)
SIZES = ((100, 10_000_000), (1000, 2_000_000), (10_000, 200_000))
MEASURES = (("produce MB/s", ">= {share}x"), ("produce CPU s/GB", "<= 2x"), ("consume MB/s", ">= {share}x"), ("consume CPU s/GB", "<= 2x"))
# Least rate of a cell, of the cell with one partition.
SHARES = {12: 0.9, 100: 0.6, 1000: 0.5}


# The page cache left to the system: each cell pays for new pages then, that with one partition too.
SYSTEM_PAGES = {"fullbore.page.cache.kept.bytes": -1}


def own_grid(bench, settings=None):
    """Each cell has a broker of its own, since a broker remembers for minutes what pages cost. A round takes every cell in turn."""
    def measure(cell, round_number):
        broker = Fullbore(f"own-grid-{bench.count}", bench.temp, settings)
        broker.start()
        try:
            return produce_consume(bench, broker, cell, round_number)
        finally:
            broker.stop()
            shutil.rmtree(broker.folder)
    rows(bench, measure)


def own_grid_cluster(bench):
    """The same with a replica on each of three brokers."""
    rows(bench, lambda cell, round_number: produce_consume(bench, bench.fullbore, cell, round_number, factor=3))


def rows(bench, measure):
    cells = [(size, records, partitions) for size, records in SIZES for partitions in PARTITIONS]
    results = {cell: [] for cell in cells}
    for round_number in range(bench.rounds):
        for cell in cells:
            results[cell].append(measure(cell, round_number))
    for size, records, partitions in cells:
        cell, point = results[size, records, partitions], results[size, records, 1]
        for at, (measure, goal) in enumerate(MEASURES):
            ours, beside = [of_round[at] for of_round in cell], [of_round[at] for of_round in point]
            if partitions == 1:
                bench.alone("own-grid", f"{size} B, 1: {measure}", ours, "-")
            else:
                bench.row("own-grid", f"{size} B, {partitions}: {measure}", ours, beside, goal.format(share=SHARES[partitions]), "1 partition")


def produce_consume(bench, broker, cell, round_number, factor=1):
    """Rate in MB/s and the brokers' CPU in s/GB, of a producer and then of a consumer that reads what it sent."""
    size, records, partitions = cell
    label, gigabytes = f"own-grid-{size}-{partitions}", records * size / 1e9
    topic = broker.topic(f"{label}-{round_number}", partitions, factor=factor)
    try:
        started = broker.cpu_seconds()
        rate = bench.own_perf(broker, f"{label}-produce", topic, records, size)["rate"] * size / 1e6
        produced = broker.cpu_seconds()
        output = bench.run(f"{label}-consume", [FULLBORE, "perf", "consume", "--bootstrap-server", broker.address, "--topic", topic,
                                                "--num-records", records])
        read = float(output.strip().splitlines()[-1].split(",")[3])
        return rate, (produced - started) / gigabytes, read, (broker.cpu_seconds() - produced) / gigabytes
    finally:
        broker.drop(topic)
