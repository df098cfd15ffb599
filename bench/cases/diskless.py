"""Cases of bench/diskless. Each starts its brokers on the measured store and prints its figures with their goals.

`far` is a broker with a slow store, and `near` has no delays. `serial` is a far broker that serves one request at a
time and closes no object early.
"""
import contextlib, json, re, statistics, subprocess, sys, time
from brokers import CLIENTS, FULLBORE, ROOT, java as run_java
from runs import RECORD

SERIAL = {"diskless.puts.per.second.max": 0, "fullbore.connection.requests.max": 1}
WIDE = ["buffer.memory=134217728"]
MB, MIB = 1e6, 1 << 20
# Amazon's price of a million PUTs in us-east-1, and the number of seconds in a month.
PUT_DOLLARS, MONTH_S = 5, 86_400 * 30.4
# The clients at the end of a topic measure the latency of one record in this many.
ONE_IN = 20
TAIL_CLIENTS = [CLIENTS / "venv/bin/python", ROOT / "bench/tail_clients.py"]
IDLE_S = 30


def percentile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def flood(bench):
    with bench.broker("near") as near, bench.broker("far") as far, bench.broker("serial", SERIAL) as serial:
        for what, properties, share, most in [("all defaults", [], 0.9, 100), ("buffer.memory 128 MiB", WIDE, 0.8, 350)]:
            at_near, at_far, used = [], [], []
            for _ in range(bench.rounds):
                at_near.append(bench.rate(near, "flood", bench.records, properties)[0])
                rate, cpu = bench.rate(far, "flood", bench.records, properties)
                at_far.append(rate)
                used.append(cpu)
            least = min(share * statistics.median(at_near), most)
            bench.tell("flood", f"MB/s, {what}", at_far, (">=", least), ("near", at_near))
            bench.tell("flood", f"broker's CPU s/GB, {what}", used, ("<=", 2.5))
        at_serial = [bench.rate(serial, "flood", bench.records // 40)[0] for _ in range(bench.rounds)]
        at_far = [bench.rate(far, "flood", bench.records)[0] for _ in range(bench.rounds)]
        bench.tell("flood", "MB/s, all defaults", at_far, None, ("serial", at_serial))
        bench.tell("flood", "largest RSS, MiB", [far.memory_mib("VmHWM")], ("<=", 400))


def partitions(bench):
    """Throughput with many partitions that have few records each."""
    with bench.broker("far") as far:
        for size in (1000, 100):
            one = None
            for count in (1, 2, 3, 8, 64, 1000) if size == RECORD else (1, 64):
                runs = [bench.rate(far, f"partitions-{count}", bench.records * RECORD // size // 2, partitions=count, size=size) for _ in range(bench.rounds)]
                rates, used = zip(*runs)
                one = one or statistics.median(rates)
                bench.tell("partitions", f"MB/s, {count} partitions, {size} B", list(rates), (">=", max(100 if size == RECORD else 0, 0.9 * one)))
                bench.tell("partitions", f"broker's CPU s/GB, {count} partitions, {size} B", list(used), ("<=", 2.5) if size == RECORD and count <= 64 else None)


def java(bench):
    with bench.broker("far") as far, bench.broker("serial", SERIAL) as serial:
        for batch, share, least in [(16384, 0.015, 0), (1_000_000, 0.15, 20)]:
            records = max(int(bench.records * share), 1000)
            properties = [f"batch.size={batch}", "max.in.flight.requests.per.connection=5", "max.request.size=2097152"]
            at_serial = [bench.rate(serial, "java", records // 10, properties, bench.java_perf)[0] for _ in range(bench.rounds)]
            at_far = [bench.rate(far, "java", records, properties, bench.java_perf)[0] for _ in range(bench.rounds)]
            goal = (">=", max(8 * statistics.median(at_serial), least))
            bench.tell("java", f"MB/s, batch.size {batch}", at_far, goal, ("serial", at_serial))


def alone(bench):
    """Latency of records that are sent one by one with pauses between."""
    for name, more, goal in [("far", {}, ("<=", bench.put + 15)), ("serial", SERIAL, None)]:
        with bench.broker(name, more) as broker:
            topic = bench.topic(broker, "alone")
            took = [bench.honest(broker, "alone", topic, 2, max(bench.seconds, 5))["p50_ms"] for _ in range(bench.rounds)]
            bench.tell("alone", f"p50 ms, {name}", took, goal)


def paced(bench):
    goals = {0: (None, None), 10: (75, 150), 25: (40, 90), 100: (None, None)}
    for ceiling, above in goals.items():
        with bench.broker(f"ceiling-{ceiling}", {"diskless.puts.per.second.max": ceiling}) as broker:
            topic = bench.topic(broker, "paced")
            runs = [steady(bench, broker, "paced", topic, bench.seconds) for _ in range(bench.rounds)]
            for key, over in zip(("p50_ms", "p99_ms"), above):
                goal = ("<=", bench.put + over) if over else None
                bench.tell("paced", f"{key[:3]} ms, ceiling {ceiling}", [run[key] for run in runs], goal)
            bench.tell("paced", f"$ a month for PUTs, ceiling {ceiling}", [run["dollars"] for run in runs])


def steady(bench, broker, label, topic, seconds):
    """1,000 records a second: the percentiles, and the price of a month's PUTs at this pace."""
    before = asked(broker)
    run = bench.honest(broker, label, topic, 1000, seconds)
    puts_s = (asked(broker) - before) / seconds
    return run | {"dollars": puts_s * MONTH_S * PUT_DOLLARS / 1e6}


def asked(broker):
    """Returns how many PUTs the broker has sent so far, including hedges."""
    return broker.metric("puts_total") + broker.metric("hedged_puts_total")


def slow_puts(bench):
    """Latency while one PUT in a hundred takes three seconds longer than usual."""
    if not hasattr(bench.store, "slow_puts"):
        return print("slow-puts: skipped; needs --store s3", flush=True)
    with bench.broker("slow-puts", port=bench.store.slow_puts(100, 3)) as broker:
        topic = bench.topic(broker, "slow")
        # The run is long enough for about six slow PUTs per round.
        runs = [bench.honest(broker, "slow-puts", topic, 1000, 4 * bench.seconds) for _ in range(bench.rounds)]
        bench.tell("slow-puts", "p99 ms, 1 % of PUTs + 3 s", [run["p99_ms"] for run in runs], ("<=", 4 * bench.put))
        bench.tell("slow-puts", "p50 ms", [run["p50_ms"] for run in runs])
        bench.tell("slow-puts", "PUTs sent again beside themselves", [broker.metric("hedged_puts_total")])


def hanging_puts(bench):
    """Latency while one PUT in ten gets no answer, then one in five, then one in three. All other PUTs take their usual
    time."""
    if not hasattr(bench.store, "slow_puts"):
        return print("hanging-puts: skipped; needs --store s3", flush=True)
    for one_in in (10, 5, 3):
        with bench.broker(f"hanging-{one_in}", port=bench.store.slow_puts(one_in, 3600)) as broker:
            topic = bench.topic(broker, "hanging")
            runs = [timed_out_or(lambda: bench.honest(broker, "hanging-puts", topic, 1000, 2 * bench.seconds)) for _ in range(bench.rounds)]
            for key in ("p50_ms", "p99_ms"):
                bench.tell("hanging-puts", f"{key[:3]} ms, one PUT in {one_in} hangs", [run[key] for run in runs])
            bench.tell("hanging-puts", f"% of PUTs sent again, one in {one_in} hangs", [100 * broker.metric("hedged_puts_total") / broker.metric("puts_total")])


def neighbours(bench):
    """Latency of a paced producer while others send at full speed. The store's link carries 20 MB/s."""
    if not hasattr(bench.store, "narrow"):
        return print("neighbours: skipped; needs --store s3", flush=True)
    for flooders, uploads in ((0, 8), (1, 8), (4, 8), (16, 8), (4, 1)):
        runs, name = [], f"beside {flooders} flooders, {uploads} uploads"
        for _ in range(bench.rounds):
            settings = {"diskless.produce.upload.thread.pool.size": uploads}
            with bench.broker(f"beside-{flooders}", settings, port=bench.store.narrow(20 * MIB)) as broker:
                topic = bench.topic(broker, "paced")
                with flooding(broker, bench.topic(broker, "flood"), flooders):
                    time.sleep(bench.seconds)
                    before, began = broker.metric("put_bytes_total"), time.monotonic()
                    runs.append(timed_out_or(lambda: bench.honest(broker, "neighbours", topic, 100, 2 * bench.seconds)))
                    rate = (broker.metric("put_bytes_total") - before) / MB / (time.monotonic() - began)
        for key in ("p50_ms", "p99_ms"):
            bench.tell("neighbours", f"{key[:3]} ms of 100 records a second {name}", [run[key] for run in runs])
        bench.tell("neighbours", f"MB/s into the store {name}, of 21", [rate])


def narrow(bench):
    """A producer at full speed whose broker reaches the store over a slow link. Measures how much of the link's
    capacity is used for objects."""
    if not hasattr(bench.store, "narrow"):
        return print("narrow: skipped; needs --store s3", flush=True)
    for rate in (500_000, 2_000_000, 10_000_000, 50_000_000):
        with bench.broker(f"narrow-{rate}", port=bench.store.narrow(rate)) as broker:
            with flooding(broker, bench.topic(broker, "narrow"), 1):
                # The first sleep lets the first objects arrive. The second sleep is the measurement, long enough for
                # ten more objects of 8 MiB at this rate. Each sleep is limited to about two minutes.
                time.sleep(min(120, 16 * MIB / rate) + 5)
                before, began = broker.metric("put_bytes_total"), time.monotonic()
                time.sleep(max(bench.seconds, min(120, 80 * MIB / rate)))
                put = broker.metric("put_bytes_total") - before
                share = 100 * put / rate / (time.monotonic() - began)
            bench.tell("narrow", f"% of a link of {rate / MB} MB/s that became objects", [share])
            bench.tell("narrow", f"PUTs sent again at {rate / MB} MB/s", [broker.metric("hedged_puts_total")])
            bench.tell("narrow", f"PUTs that failed at {rate / MB} MB/s", [broker.metric("put_failures_total")])


def timed_out_or(honest):
    """Returns the percentiles, or infinity if the producer failed to write a record."""
    try:
        return honest()
    except SystemExit:
        return {"p50_ms": float("inf"), "p99_ms": float("inf")}


@contextlib.contextmanager
def flooding(broker, topic, count):
    """Starts `count` producers in separate processes. They have more records to send than they can send in the run."""
    command = [FULLBORE, "perf", "produce", "--bootstrap-server", broker.address, "--topic", topic, "--num-records", 10**9,
               "--record-size", RECORD, "--throughput", -1, "--command-property", "buffer.memory=33554432"]
    producers = [subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    finally:
        for producer in producers:
            producer.kill()
            producer.wait()


def long_polls(bench):
    """The topic has 20 MB in small batches. 100 polls wait for more bytes than that, while ten records a second are
    written."""
    for polls in (0, 100):
        runs, used = [], []
        for _ in range(bench.rounds):
            with bench.broker(f"polls-{polls}") as broker:
                topic = bench.topic(broker, "polled")
                command = [CLIENTS / "venv/bin/python", ROOT / "bench/long_polls.py", broker.address, topic, polls, 40 << 20, 20_000]
                polling = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                try:
                    if polling.stdout.readline().strip() != "ready":
                        sys.exit("long-polls: the polls failed")
                    before = broker.cpu_seconds()
                    runs.append(bench.honest(broker, "long-polls", topic, 10, 2 * bench.seconds))
                    used.append((broker.cpu_seconds() - before) / (2 * bench.seconds))
                finally:
                    polling.kill()
                    polling.wait()
        for key in ("p50_ms", "p99_ms", "max_ms"):
            bench.tell("long-polls", f"{key[:-3]} ms of ten records a second beside {polls} polls", [run[key] for run in runs])
        bench.tell("long-polls", f"cores of the broker beside {polls} polls", used)


def behind(bench):
    """A librdkafka consumer reads 200 MB that were written before, with several values of fetch.min.bytes."""
    records = 200_000
    with bench.broker("behind") as broker:
        topic = bench.topic(broker, "behind")
        bench.own_perf(broker, "behind-write", topic, records, RECORD)
        for what in (["fetch.min.bytes=1"], ["fetch.min.bytes=1000000"], ["fetch.min.bytes=5000000", "fetch.message.max.bytes=50000000"]):
            took = []
            for _ in range(bench.rounds):
                broker.stop()
                broker.start()
                command = [CLIENTS / "venv/bin/python", ROOT / "bench/behind.py", broker.address, topic, records, *what]
                took.append(float(bench.run("behind", command).split()[-1]))
            bench.tell("behind", f"s for 200 MB, {', '.join(what)}", took)


@contextlib.contextmanager
def tailing(bench, broker, label, topic, records_s, seconds, zones=("-", "-")):
    """Runs a producer and a consumer at the end of a topic during the caller's work, and yields a list. After the work,
    the list gets the times at which each observed record was sent, acknowledged and read. `zones` are the zones of the
    brokers that the consumer and the producer use."""
    numbers = [("consume", zones[0], ONE_IN), ("produce", zones[1], records_s, RECORD, seconds, ONE_IN)]
    commands = [[*map(str, TAIL_CLIENTS), kind, broker.address, topic, *map(str, rest)] for kind, *rest in numbers]
    seen = []
    consumer = subprocess.Popen(commands[0], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if consumer.stdout.readline().strip() != "ready":
            sys.exit(f"{label}: the consumer failed")
        producer = subprocess.Popen(commands[1], stdout=subprocess.PIPE, text=True)
        try:
            yield seen
            produced = json.loads(producer.communicate()[0] or "null")
        finally:
            producer.kill()
        time.sleep(1)  # The consumer may not have read the last acknowledged records yet.
        consumed = json.loads(consumer.communicate("")[0] or "null")
    finally:
        consumer.kill()
    if not produced or not consumed:
        sys.exit(f"{label}: a client failed")
    missing = produced.keys() - consumed.keys()
    if missing:
        sys.exit(f"{label}: {len(missing)} of {len(produced)} observed records were acknowledged and not read")
    # The clients start during the first seconds, which are not counted.
    first = min(sent for sent, _ in produced.values()) + min(2, seconds / 5)
    seen += [(sent, acknowledged, consumed[offset]) for offset, (sent, acknowledged) in produced.items() if sent >= first]
    rows = "\n".join(f"{sent:.6f} {acknowledged:.6f} {read:.6f}" for sent, acknowledged, read in seen)
    bench.keep(label, commands[1], f"sent, acknowledged and read, in seconds\n{rows}\n")


def behind_ms(seen, q):
    """Returns how long after its acknowledgement a record is read. A record that is read before that counts as 0."""
    return percentile([max(read - acknowledged, 0) * 1e3 for _, acknowledged, read in seen], q)


def tail(bench):
    """A producer of 20 MB/s and a consumer at the end of its topic."""
    gets, behind = [], {0.5: [], 0.99: []}
    with bench.broker("tail") as broker:
        for _ in range(bench.rounds):
            topic = bench.topic(broker, "tail")
            before = [broker.metric(name) for name in ("gets_total", "put_bytes_total")]
            with tailing(bench, broker, "tail", topic, 20_000, 2 * bench.seconds) as seen:
                pass
            after = [broker.metric(name) for name in ("gets_total", "put_bytes_total")]
            gets.append((after[0] - before[0]) / ((after[1] - before[1]) / MB))
            for q, found in behind.items():
                found.append(behind_ms(seen, q))
    bench.tell("tail", "GETs a MB", gets, ("<=", 0.01))
    bench.tell("tail", "p50 ms from acknowledged to read", behind[0.5], ("<=", 10))
    bench.tell("tail", "p99 ms from acknowledged to read", behind[0.99])


def tail_elsewhere(bench):
    """The same as `tail`, except that the consumer and the producer use different brokers."""
    if not hasattr(bench.store, "run"):
        return print("tail-elsewhere: skipped; needs --store postgres", flush=True)
    gets, behind = [], {0.5: [], 0.99: []}
    with bench.broker("here", {"broker.rack": "here"}) as here, bench.broker("there", {"broker.rack": "there", "node.id": 2}, of=here) as there:
        for _ in range(bench.rounds):
            topic = bench.topic(here, "tail")
            before = there.metric("gets_total"), here.metric("puts_total")
            with tailing(bench, here, "tail-elsewhere", topic, 20_000, 2 * bench.seconds, ("there", "here")) as seen:
                pass
            after = there.metric("gets_total"), here.metric("puts_total")
            gets.append((after[0] - before[0]) / (after[1] - before[1]))
            for q, found in behind.items():
                found.append(behind_ms(seen, q))
    bench.tell("tail-elsewhere", "GETs an object", gets, ("<=", 1))
    bench.tell("tail-elsewhere", "p50 ms from acknowledged to read", behind[0.5], ("<=", 100 + bench.get))
    bench.tell("tail-elsewhere", "p99 ms from acknowledged to read", behind[0.99])


def catch_up(bench):
    """Reads 2 GiB that were written before a restart of the broker, beside a paced consumer at the end of a topic."""
    records = bench.catch_up // RECORD
    rates, gets, tails = [], [], {"without": [], "beside": []}
    with bench.broker("catch-up") as broker:
        old, paced_topic = bench.topic(broker, "old"), bench.topic(broker, "tail")
        bench.own_perf(broker, "catch-up-write", old, records, RECORD)
        for _ in range(bench.rounds):
            broker.stop()
            broker.start()
            rates.append(consumed(bench, broker, old, records))
            gets.append(broker.metric("gets_total") / (records * RECORD / MB))
            for name in tails:
                broker.stop()
                broker.start()
                # `tailing` expects offsets from 0 on, so each run has a new topic.
                paced_topic = bench.topic(broker, "tail")
                with tailing(bench, broker, f"catch-up-{name}", paced_topic, 1000, 2 * bench.seconds) as seen:
                    if name == "beside":
                        end = time.monotonic() + 2 * bench.seconds
                        while time.monotonic() < end:
                            consumed(bench, broker, old, records)
                tails[name].append(percentile([(read - sent) * 1e3 for sent, _, read in seen], 0.99))
    bench.tell("catch-up", "MB/s of a consumer that is behind", rates, (">=", 200))
    bench.tell("catch-up", "GETs a MB", gets)
    goal = ("<=", 1.5 * statistics.median(tails["without"]))
    bench.tell("catch-up", "p99 ms from sent to read at the tail, beside", tails["beside"], goal, ("without", tails["without"]))


def consumed(bench, broker, topic, records):
    """Returns the speed of a consumer in MB/s. It leaves out the time in which the consumer finds leaders and
    offsets."""
    output = bench.run("catch-up-consume", [FULLBORE, "perf", "consume", "--bootstrap-server", broker.address, "--topic", topic,
                                            "--num-records", records, "--timeout", 60_000])
    header, line = [line.split(",") for line in output.splitlines() if line.count(",") >= 9][-2:]
    fields = {name.strip(): value.strip() for name, value in zip(header, line)}
    if int(fields["data.consumed.in.nMsg"]) < records:
        sys.exit(f"catch-up: read {fields['data.consumed.in.nMsg']} of {records} records")
    return records * RECORD / MB / (int(fields["fetch.time.ms"]) / 1e3)


def index(bench):
    """Measures commits and lookups of the index alone, with a test in the broker's source. The index's file is in
    --disk, or else in --folder."""
    command = ["cargo", "test", "--release", "--workspace", "--lib", "diskless::index::measure", "--", "--ignored", "--nocapture"]
    output = bench.run("index", ["env", "-C", ROOT, f"TMPDIR={bench.disk}", *command])
    figures = {line.split(":")[0]: re.search(r"p50 (\S+) ms, p99 (\S+) ms, max (\S+) ms", line) for line in output.splitlines() if " ms, p99 " in line}
    for what, found in figures.items():
        p50, p99, _ = map(float, found.groups())
        is_find = what.startswith("find")
        bench.tell("index", f"p50 ms, {what}", [p50], None if is_find else ("<=", 30))
        bench.tell("index", f"p99 ms, {what}", [p99], ("<=", 2) if is_find else None)


def commits(bench):
    """Offset commits one at a time, beside a producer at full speed. The clients run on the broker's machine."""
    example = ROOT / "target/release/examples/commit_rate"
    if not example.exists():
        sys.exit(f"{example} is missing: cargo build --release --examples -p fullbore-bench")

    def p99(broker, label):
        output = bench.run(label, [example, broker.address, 1, 1, bench.seconds])
        return float(re.search(r"p99 ([0-9.]+) us", output).group(1)) / 1e3

    with bench.broker("commits") as broker:
        topic, without, beside = bench.topic(broker, "flood"), [], []
        for _ in range(bench.rounds):
            without.append(p99(broker, "commits-without"))
            # More records than the producer can send in this time.
            command = [FULLBORE, "perf", "produce", "--bootstrap-server", broker.address, "--topic", topic, "--num-records", 10**9,
                       "--record-size", RECORD, "--throughput", -1]
            producer = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
            try:
                beside.append(p99(broker, "commits-beside"))
                if producer.poll() is not None:
                    sys.exit("commits: the producer ended early")
            finally:
                producer.kill()
                producer.wait()
            broker.drop(topic)
            topic = bench.topic(broker, "flood")
    goal = ("<=", 1.5 * statistics.median(without))
    bench.tell("commits", "p99 ms of offset commits beside a producer", beside, goal, ("without", without))


def idle(bench):
    """PUTs of an idle broker that has written a few records before."""
    puts = []
    with bench.broker("idle") as broker:
        bench.honest(broker, "idle", bench.topic(broker, "idle"), 100, 3)
        for _ in range(bench.rounds):
            time.sleep(1)
            before = broker.metric("puts_total")
            time.sleep(IDLE_S)
            puts.append(broker.metric("puts_total") - before)
        bench.tell("idle", f"PUTs within {IDLE_S} s", puts, ("<=", 0))
        bench.tell("idle", "RSS, MiB", [broker.memory_mib("VmRSS")])


def transactions(bench):
    """Transactions of one second at full speed, transactions of one record one after another, and a consumer at
    read_committed."""
    rates, gets, alone, source = [], [], [], ROOT / "bench/java/TransactionBench.java"
    every_second = ["--transactional-id", "bench", "--transaction-duration-ms", 1000]
    with bench.broker("far") as far:
        for _ in range(bench.rounds):
            topic = bench.topic(far, "transactions")
            command = [FULLBORE, "perf", "produce", "--bootstrap-server", far.address, "--topic", topic, "--num-records", bench.records,
                       "--record-size", RECORD, "--throughput", -1, *every_second]
            rates.append(bench.produced(bench.run("transactions-flood", command))["rate"] * RECORD / MB)
            far.drop(topic)
        for _ in range(bench.rounds):
            topic = bench.topic(far, "alone")
            output = bench.run("transactions-alone", run_java(["-Xmx256M"], source, "rate", far.address, topic, 1, 1, 100, bench.seconds))
            alone.append(1e3 / float(output.split()[0]))
        for _ in range(bench.rounds):
            topic, records = bench.topic(far, "tail"), 20_000 * bench.seconds
            before = far.metric("gets_total")
            command = [FULLBORE, "perf", "consume", "--bootstrap-server", far.address, "--topic", topic, "--num-records", records, "--timeout", 30_000,
                       "--command-property", "isolation.level=read_committed"]
            reader = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
            bench.run("transactions-tail", [FULLBORE, "perf", "produce", "--bootstrap-server", far.address, "--topic", topic, "--num-records", records,
                                            "--record-size", RECORD, "--throughput", 20_000, *every_second])
            if reader.wait(60):
                sys.exit("transactions: the consumer did not read all records")
            gets.append((far.metric("gets_total") - before) / (records * RECORD / MB))
    bench.tell("transactions", "MB/s, transactions of 1 s", rates, (">=", 90))
    bench.tell("transactions", "ms a transaction of one record, Java", alone, ("<=", 2 * bench.put + 40))
    bench.tell("transactions", "GETs a MB of a reader of what is committed", gets, ("<=", 0.01))


CASES = {"flood": flood, "partitions": partitions, "java": java, "alone": alone, "paced": paced, "slow-puts": slow_puts, "hanging-puts": hanging_puts, "neighbours": neighbours, "narrow": narrow, "long-polls": long_polls, "behind": behind, "tail": tail, "tail-elsewhere": tail_elsewhere, "catch-up": catch_up, "index": index,
         "commits": commits, "idle": idle, "transactions": transactions}
