"""Clients of bench/load that no tool offers: silent connections, members of groups, and slow readers and writers. A
consumer measures how old records are when they arrive. Frames are written by hand in versions that both Kafka 4.3 and
Fullbore serve. Each kind is one process, which bench/load starts as

    load_clients.py idle|members|slow-readers|slow-writers|tail ADDRESS ...

and which prints `ready ...` when all its clients are connected. It ends when its standard input is closed, and then
prints one line of JSON.
"""
import heapq, json, resource, selectors, socket, struct, sys, threading, time

sys.dont_write_bytecode = True
from frames import framed, produce_frame, receive, text

API_VERSIONS, METADATA, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, SYNC_GROUP, LIST_GROUPS, CREATE_TOPICS = 18, 3, 10, 11, 12, 14, 16, 19
PRODUCE, FETCH, LIST_OFFSETS = 0, 1, 2
SLOW_TICK_S = 0.25


def raise_descriptors():
    """Raises the limit of descriptors as far as the system permits. The broker inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (100_000, hard):
        try:
            return resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard)))
        except (ValueError, OSError):
            pass


def connect(address, receive_buffer=None):
    host, port = address.rsplit(":", 1)
    s = socket.socket()
    if receive_buffer:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.settimeout(60)
    s.connect((host, int(port)))
    return s


def call(s, api, version, body):
    """Sends a request. Returns the response without its correlation id."""
    s.sendall(framed(api, version, 1, body))
    return receive(s)[4:]


def string(data, at):
    length = struct.unpack_from(">h", data, at)[0]
    return data[at + 2:at + 2 + max(length, 0)].decode(), at + 2 + max(length, 0)


def percentile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else None


def until_told(stop):
    """Sets the event when standard input is closed."""
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()


# -- requests of one kind each -----------------------------------------------------------------------------------------

def create_topics(s, names, partitions):
    topics = b"".join(text(name) + struct.pack(">ihii", partitions, 1, 0, 0) for name in names)
    answer = call(s, CREATE_TOPICS, 2, struct.pack(">i", len(names)) + topics + struct.pack(">i?", 120_000, False))
    count, at = struct.unpack_from(">i", answer, 4)[0], 8
    for _ in range(count):
        name, at = string(answer, at)
        error = struct.unpack_from(">h", answer, at)[0]
        _, at = string(answer, at + 2)
        if error:
            sys.exit(f"topic {name} was refused with error {error}")


def produce_to_all(s, topic, partitions):
    """Writes a record to each partition of a new topic. Repeats the request while some partitions have no leader
    yet."""
    batch = batch_of(topic)
    body = struct.pack(">hhi", -1, -1, 30_000) + struct.pack(">i", 1) + text(topic) + struct.pack(">i", partitions)
    body += b"".join(struct.pack(">ii", index, len(batch)) + batch for index in range(partitions))
    end = time.monotonic() + 120
    while time.monotonic() < end:
        answer = call(s, PRODUCE, 3, body)
        _, at = string(answer, 4)
        errors = [struct.unpack_from(">h", answer, at + 4 + 22 * i + 4)[0] for i in range(partitions)]
        if not any(errors):
            return
        time.sleep(0.02)
    sys.exit(f"cannot write to {topic}: errors {errors}")


def batch_of(topic, made={}):
    """Returns a batch of one record. The batch is cached, because Python computes its checksum slowly."""
    if not made:
        frame = produce_frame(topic)
        made["batch"] = frame[frame.index(text(topic)) + len(text(topic)) + 12:]
    return made["batch"]


def metadata_of_all(s):
    """Requests the metadata of all topics. Returns the size of the response and how many seconds it took."""
    started = time.perf_counter()
    answer = call(s, METADATA, 4, struct.pack(">i?", -1, False))
    return len(answer), time.perf_counter() - started


def list_groups(s):
    """Lists all groups. Returns how many there are and how many seconds it took."""
    started = time.perf_counter()
    answer = call(s, LIST_GROUPS, 1, b"")
    return struct.unpack_from(">i", answer, 6)[0], time.perf_counter() - started


def fetch_body(topic, partition, offset, wait_ms, max_bytes):
    body = struct.pack(">iiiib", -1, wait_ms, 1, max_bytes, 0) + struct.pack(">i", 1) + text(topic)
    return body + struct.pack(">iiqi", 1, partition, offset, max_bytes)


# -- kinds of clients
# ---------------------------------------------------------------------------------------------------

def idle(address, count):
    """Opens connections. Each of them sends ApiVersions once."""
    stop = threading.Event()
    open_ = []
    for _ in range(count):
        s = connect(address)
        call(s, API_VERSIONS, 0, b"")
        open_.append(s)
    until_told(stop)
    print("ready", len(open_), flush=True)
    stop.wait()
    lost = 0
    for s in open_:
        s.setblocking(False)
        try:
            lost += s.recv(1) == b""
        except BlockingIOError:
            pass
        except OSError:
            lost += 1
    print(json.dumps(dict(connections=count, lost=lost)))


def join(s, group):
    """Joins an empty group as its only member. Returns the generation and the member id."""
    subscription = struct.pack(">h", 0) + struct.pack(">i", 1) + text("topic-0") + struct.pack(">i", -1)
    end = time.monotonic() + 120
    while struct.unpack_from(">h", call(s, FIND_COORDINATOR, 1, text(group) + b"\0"), 4)[0]:
        if time.monotonic() > end:
            sys.exit("no coordinator was found")
        time.sleep(0.2)
    body = text(group) + struct.pack(">ii", 45_000, 60_000) + text("") + text("consumer") + struct.pack(">i", 1) + text("range")
    while True:
        answer = call(s, JOIN_GROUP, 3, body + struct.pack(">i", len(subscription)) + subscription)
        error, generation = struct.unpack_from(">hi", answer, 4)
        if not error:
            break
        if error not in (14, 15, 16) or time.monotonic() > end:  # The coordinator is still loading, or is moving.
            sys.exit(f"{group}: JoinGroup was refused with error {error}")
        time.sleep(0.2)
    _, at = string(answer, 10)
    _, at = string(answer, at)
    member, _ = string(answer, at)
    assignment = struct.pack(">h", 0) + struct.pack(">i", 1) + text("topic-0") + struct.pack(">iii", 1, 0, -1)
    body = text(group) + struct.pack(">i", generation) + text(member) + struct.pack(">i", 1) + text(member)
    error = struct.unpack_from(">h", call(s, SYNC_GROUP, 2, body + struct.pack(">i", len(assignment)) + assignment), 4)[0]
    if error:
        sys.exit(f"{group}: SyncGroup was refused with error {error}")
    return generation, member


def members(address, count, interval_s):
    """Runs groups of one member each. The members send heartbeats, whose times are printed."""
    stop, selector, due, times, errors = threading.Event(), selectors.DefaultSelector(), [], [], 0
    started = time.monotonic()
    beats = []
    for number in range(count):
        s = connect(address)
        generation, member = join(s, f"group-{number}")
        beats.append((s, framed(HEARTBEAT, 2, 1, text(f"group-{number}") + struct.pack(">i", generation) + text(member))))
        s.setblocking(False)
        selector.register(s, selectors.EVENT_READ, number)
        # The members that have joined already send heartbeats while others still join, so that no session expires.
        heapq.heappush(due, (time.monotonic() + interval_s * (number % 97) / 97, number))
        errors += beat(selector, beats, due, interval_s, times, 0)
    until_told(stop)
    print("ready", count, f"{time.monotonic() - started:.3f}", flush=True)
    times.clear()
    while not stop.is_set():
        errors += beat(selector, beats, due, interval_s, times, 0.05)
    print(json.dumps(dict(groups=count, heartbeats=len(times), errors=errors, p50_ms=percentile(times, 0.5), p99_ms=percentile(times, 0.99))))


def beat(selector, beats, due, interval_s, times, wait_s, sent={}):
    """Sends the heartbeats that are due, and waits up to `wait_s` seconds for responses. Returns the number of
    errors."""
    now, errors = time.monotonic(), 0
    while due and due[0][0] <= now:
        at, number = heapq.heappop(due)
        s, frame = beats[number]
        if number not in sent:
            sent[number] = time.perf_counter()
            s.send(frame)
        heapq.heappush(due, (max(at + interval_s, now), number))
    for key, _ in selector.select(wait_s):
        answer = key.fileobj.recv(64)
        if not answer:
            sys.exit(f"the broker closed the connection of member {key.data}")
        times.append((time.perf_counter() - sent.pop(key.data)) * 1e3)
        errors += struct.unpack_from(">h", answer, 12)[0] != 0
    return errors


def slow_readers(address, topic, count, bytes_s):
    """Runs readers. Each requests the whole topic several times and reads only a few bytes now and then."""
    stop, sockets = threading.Event(), []
    for _ in range(count):
        s = connect(address, receive_buffer=16 * 1024)
        for _ in range(5):
            s.sendall(framed(FETCH, 4, 1, fetch_body(topic, 0, 0, 500, 50 << 20)))
        s.setblocking(False)
        sockets.append(s)
    until_told(stop)
    print("ready", len(sockets), flush=True)
    took, closed = 0, set()
    while not stop.wait(SLOW_TICK_S):
        for number, s in enumerate(sockets):
            try:
                more = len(s.recv(max(1, int(bytes_s * SLOW_TICK_S))))
                took += more
                if not more:
                    closed.add(number)
            except BlockingIOError:
                pass
            except OSError:
                closed.add(number)
    print(json.dumps(dict(clients=count, bytes=took, closed=len(closed))))


def slow_writers(address, topic, count):
    """Runs writers. Each sends a produce request of one megabyte, at four bytes a second."""
    stop, sockets = threading.Event(), []
    frame = struct.pack(">i", 1 << 20) + produce_frame(topic)[4:]
    for _ in range(count):
        s = connect(address)
        s.setblocking(False)
        sockets.append(s)
    until_told(stop)
    print("ready", len(sockets), flush=True)
    at, closed = 0, set()
    while not stop.wait(SLOW_TICK_S):
        for number, s in enumerate(sockets):
            try:
                s.send(frame[at:at + 1] or b"x")
            except OSError:
                closed.add(number)
        at += 1
    print(json.dumps(dict(clients=count, bytes_each=at, closed=len(closed))))


def tail(address, topic):
    """A consumer at the end of a topic with one partition. Measures the age of the newest record in each response."""
    stop, ages, total = threading.Event(), [], 0
    s = connect(address)
    answer = call(s, LIST_OFFSETS, 1, struct.pack(">ii", -1, 1) + text(topic) + struct.pack(">iiq", 1, 0, -1))
    offset = struct.unpack_from(">q", answer, len(answer) - 8)[0]
    until_told(stop)
    print("ready", offset, flush=True)
    started = time.monotonic()
    # The fields before the error code are the throttle time, topics, name, partitions and index.
    prefix = 4 + 4 + 2 + len(topic) + 4 + 4
    while not stop.is_set():
        answer = call(s, FETCH, 4, fetch_body(topic, 0, offset, 500, 1 << 20))
        now = time.time() * 1e3
        error, _, _, aborted = struct.unpack_from(">hqqi", answer, prefix)
        if error:
            sys.exit(f"Fetch was refused with error {error}")
        at = prefix + 22 + 16 * max(aborted, 0) + 4
        newest, total = None, total + len(answer) - at
        while at + 61 <= len(answer):
            base, length = struct.unpack_from(">qi", answer, at)
            if at + 12 + length > len(answer):
                break
            offset = base + struct.unpack_from(">i", answer, at + 23)[0] + 1
            newest = struct.unpack_from(">q", answer, at + 35)[0]
            at += 12 + length
        if newest is not None:
            ages.append(now - newest)
    print(json.dumps(dict(answers=len(ages), mb_s=total / (time.monotonic() - started) / 1e6, p50_ms=percentile(ages, 0.5),
                          p99_ms=percentile(ages, 0.99), max_ms=max(ages, default=None))))


KINDS = {
    "idle": lambda address, count: idle(address, int(count)),
    "members": lambda address, count, interval_s: members(address, int(count), float(interval_s)),
    "slow-readers": lambda address, topic, count, bytes_s: slow_readers(address, topic, int(count), float(bytes_s)),
    "slow-writers": lambda address, topic, count: slow_writers(address, topic, int(count)),
    "tail": tail,
}

if __name__ == "__main__":
    raise_descriptors()
    KINDS[sys.argv[1]](*sys.argv[2:])
