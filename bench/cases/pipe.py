"""Case of bench/compare: how fast `fullbore produce` and `fullbore consume` move a file of lines through a broker,
compared with kcat through the same broker. Both tools produce from standard input and consume to standard output. The
consumed file must equal the produced one."""
import filecmp, os, random, string, subprocess, sys, time
from brokers import FULLBORE

LINES, LINE = 1_000_000, 100
FILLED = "pipe-filled"


def pipe(bench):
    broker, source = bench.fullbore, bench.temp / "lines"
    write_lines(source)
    tools = {
        "fullbore": (lambda topic: [FULLBORE, "produce", "-b", broker.address, "-t", topic],
                     lambda topic: [FULLBORE, "consume", "-b", broker.address, "-t", topic, "-e"]),
        "kcat": (lambda topic: ["kcat", "-P", "-b", broker.address, "-t", topic],
                 lambda topic: ["kcat", "-C", "-b", broker.address, "-t", topic, "-e", "-q"]),
    }
    # Both tools consume the records of one topic, so that they get the same batches.
    moved(bench, "pipe-fill", tools["fullbore"][0](broker.topic(FILLED)), source, os.devnull)
    produced, consumed = ({name: [] for name in tools} for _ in range(2))
    for number in range(bench.rounds):
        for name in sorted(tools, reverse=number % 2 == 0):
            produce, consume = tools[name]
            topic = broker.topic(f"pipe-{name}-{number}")
            produced[name].append(moved(bench, f"pipe-produce-{name}", produce(topic), source, os.devnull))
            last = bench.run(f"pipe-last-{name}", [FULLBORE, "consume", "-b", broker.address, "-t", topic, "-o", -1, "-e", "-f", "%o"])
            if int(last) != LINES - 1:
                sys.exit(f"the last line that {name} produced is number {last}, not {LINES - 1}")
            broker.drop(topic)
            got = bench.temp / "got"
            consumed[name].append(moved(bench, f"pipe-consume-{name}", consume(FILLED), os.devnull, got))
            if not filecmp.cmp(source, got, shallow=False):
                sys.exit(f"{name} did not consume the lines that were produced")
    broker.drop(FILLED)
    for what, results in (("produce", produced), ("consume", consumed)):
        for at, unit in enumerate(("lines/s", "client CPU s")):
            ours, theirs = ([run[at] for run in results[name]] for name in ("fullbore", "kcat"))
            bench.row("pipe", f"{unit}, {what}", ours, theirs, "-", beside="kcat")


def write_lines(path):
    letters = "".join(random.Random(4).choices(string.ascii_letters, k=1 << 20))
    with open(path, "w") as file:
        for number in range(LINES):
            at = number * 7919 % (len(letters) - LINE)
            file.write(letters[at:at + LINE] + "\n")


def moved(bench, label, command, source, target):
    """Moves lines between two files with a tool. Returns the lines a second and the CPU seconds."""
    with open(source, "rb") as stdin, open(target, "wb") as stdout:
        started = time.monotonic()
        process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, text=True)
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        took = time.monotonic() - started
    process.stderr.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu = usage.ru_utime + usage.ru_stime
    bench.keep(label, [*command, "<", source, ">", target], f"{said}status {process.returncode}, {took:.3f} s, CPU {cpu:.3f} s\n")
    if process.returncode:
        sys.exit(f"{label} failed, see {bench.out}:\n{said[-2000:]}")
    return LINES / took, cpu
