"""Cases of bench/compare about the work of a group coordinator. Their clients, in crates/bench/examples, send only the
requests that are measured.
"""
import re
from brokers import ROOT

EXAMPLES = ROOT / "target/release/examples"
# The number of connections, and of commits in flight on each.
COMMITS = ((1, 1), (16, 1), (64, 1), (16, 10))
# Seconds of warm-up in commit_rate.rs, and seconds that are counted.
COMMIT_WARM_S, COMMIT_S = 2, 5
MEMBERS, CHANGES, HEARTBEAT_MS = 50, 5, 10


def commit(bench):
    def committed(broker, label, connections, in_flight):
        """Returns the commits a second, and the broker's CPU microseconds for each commit. The CPU time includes that
        of the warm-up, in which the rate is assumed to be the same."""
        before = broker.cpu_seconds()
        output = bench.run(f"{label}-{broker.name}", [EXAMPLES / "commit_rate", broker.address, connections, in_flight, COMMIT_S])
        rate = float(re.search(r": (\d+) commits/s", output).group(1))
        return rate, (broker.cpu_seconds() - before) * 1e6 / (rate * (COMMIT_S + COMMIT_WARM_S))
    # A JVM reaches its full speed only after tens of thousands of commits.
    for broker in (bench.kafka, bench.fullbore):
        committed(broker, "commit-warm", 16, 10)
    for connections, in_flight in COMMITS:
        of = f"{connections}x{in_flight}"
        ours, theirs = bench.both(lambda broker, _: committed(broker, f"commit-{of}", connections, in_flight))
        bench.row("commit", f"commits/s, {of}", [r[0] for r in ours], [r[0] for r in theirs], ">= 3x")
        bench.row("commit", f"broker CPU us a commit, {of}", [r[1] for r in ours], [r[1] for r in theirs], "-")


def rebalance(bench):
    def rebalanced(broker, label):
        output = bench.run(f"{label}-{broker.name}", [EXAMPLES / "rebalance", broker.address, MEMBERS, CHANGES, HEARTBEAT_MS])
        return [float(ms) for ms in re.search(r"^median +(.*)$", output, re.MULTILINE).group(1).split()]
    for broker in (bench.kafka, bench.fullbore):
        rebalanced(broker, "rebalance-warm")
    ours, theirs = bench.both(lambda broker, _: rebalanced(broker, "rebalance"))
    for at, change, goal in ((1, "all rejoin", "<= 0.5x"), (0, "all join", "-"), (2, "one joins", "-"), (3, "one leaves", "-")):
        bench.row("rebalance", f"ms until stable, {change}", [r[at] for r in ours], [r[at] for r in theirs], goal)
