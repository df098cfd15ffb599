"""Cases of bench/cluster: brokers that are killed or stopped under load, and an idle cluster with many partitions."""
import json, signal, subprocess, threading, time
from brokers import FULLBORE, cpu_seconds

RECORDS_S, RUN_S, BEFORE_S = 1_000, 40, 8
IDLE_TOPICS, IDLE_PARTITIONS, IDLE_S = 300, 10, 30


def describe(cluster, *words):
    said = subprocess.run([FULLBORE, "topics", "describe", "--bootstrap-server", cluster.address, *words, "--json"],
                          stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(said)["topics"]


def partitions(cluster, topic):
    return describe(cluster, "--topic", topic)[0]["partitions"]


def wait_until_whole(cluster, seconds=120):
    """Waits until every replica of every partition is in sync. Returns how many seconds this took."""
    started = time.monotonic()
    while describe(cluster, "--under-replicated-partitions"):
        if time.monotonic() > started + seconds:
            raise TimeoutError(f"{cluster.name}: replicas are still out of sync after {seconds} s")
        time.sleep(0.05)
    return time.monotonic() - started


def paused(bench, cluster, label, befalls):
    """Returns the longest latency in ms of Java's paced producer (acks=all) while `befalls` injects a fault into the
    cluster. A record that fails ends the run."""
    topic = cluster.topic(label, 1, {"min.insync.replicas": 2}, factor=3)
    failed = []

    def later():
        time.sleep(BEFORE_S)
        try:
            befalls(topic)
        except Exception as error:
            failed.append(error)
    thread = threading.Thread(target=later)
    thread.start()
    # The producer connects during its first seconds, which are not counted.
    result = bench.java_perf(cluster, f"{label}-{cluster.name}", topic, RECORDS_S * RUN_S, 1000, RECORDS_S,
                             warmup=RECORDS_S * (BEFORE_S - 3), properties=["acks=all", "linger.ms=0"])
    thread.join()
    if failed:
        raise failed[0]
    wait_until_whole(cluster)
    cluster.drop(topic)
    return result["max"]


def failover(bench):
    for role in ("leader", "follower"):
        def killed(cluster, round_number):
            def befalls(topic):
                partition = partitions(cluster, topic)[0]
                leader = partition["leader"]
                number = leader if role == "leader" else next(n for n in partition["replicas"] if n != leader)
                cluster.signal(number, signal.SIGKILL)
                time.sleep(RUN_S / 2)
                cluster.restart(number)
            return paused(bench, cluster, f"failover-{role}-{round_number}", befalls)
        ours, theirs = bench.both(killed)
        bench.row("failover", f"ms until acks=all again, {role} killed", ours, theirs, "<= 3,000 ms")


def rolling(bench):
    def restarted(cluster, round_number):
        def befalls(topic):
            for number in (1, 2, 3):
                cluster.signal(number, signal.SIGTERM)
                cluster.restart(number)
                wait_until_whole(cluster)
        return paused(bench, cluster, f"rolling-{round_number}", befalls)
    ours, theirs = bench.both(restarted)
    bench.row("rolling", "longest gap, ms, each restarted in turn", ours, theirs, "<= 500 ms")


def idle(bench):
    """Fullbore alone: the CPU time that 3,000 idle partitions take, and how long a killed broker takes to be back in
    every ISR."""
    cluster = bench.fullbore
    bench.kafka.stop()  # Kafka's threads use CPU time even while they are idle.
    for number in range(IDLE_TOPICS):
        cluster.topic(f"idle-{number}", IDLE_PARTITIONS, factor=3)
    wait_until_whole(cluster)
    time.sleep(10)
    before = {number: cpu_seconds(cluster.pids[number]) for number in cluster.pids}
    database, started = cluster.database_cpu_seconds(), time.monotonic()
    time.sleep(IDLE_S)
    took = time.monotonic() - started
    cpu = [100 * (cpu_seconds(cluster.pids[number]) - before[number]) / took for number in cluster.pids]
    bench.alone("idle", "% of a core, the busiest of three brokers", [max(cpu)], "< 2")
    bench.alone("idle", "% of a core, PostgreSQL", [100 * (cluster.database_cpu_seconds() - database) / took], "2")
    bench.alone("idle", "RSS MiB, the largest broker", [cluster.memory_mib("VmRSS")], "< 60")
    back = []
    for number in (1, 2, 3):
        cluster.signal(number, signal.SIGKILL)
        while all(number in partition["isr"] for topic in describe(cluster) for partition in topic["partitions"]):
            time.sleep(0.1)
        started = time.monotonic()
        cluster.restart(number)
        wait_until_whole(cluster)
        back.append(time.monotonic() - started)
    bench.alone("idle", "s from its start until in every ISR", back, "< 5")
    bench.kafka.start()
