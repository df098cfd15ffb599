"""Methods of the large types, by file, in product code; fields of structs; uses of the seven flags; definitions and uses of the outcome types."""
import re, collections
from src import *
fs = [f for f in load("crates/broker/src") if not f.is_test]
rules = [f for f in load("crates/rules/src") if not f.is_test]
def impls(f, t):
    for m in re.finditer(r"\bimpl(?:<[^>]*>)?\s+" + t + r"(?:<[^>]*>)?\s*\{", f.product):
        e = match(f.product, m.end() - 1); yield f.product[m.end():e]
def methods(body):
    d = 0
    for m in re.finditer(r"[{}]|\bfn\s+(\w+)", body):
        if m.group() == "{": d += 1
        elif m.group() == "}": d -= 1
        elif d == 0: yield m.group(1)
for t in ("Replica", "Log", "Groups", "Control", "Image", "Partitions", "Segment", "Shard", "Writer", "Shared", "WriterState", "Line", "KnownPartition", "DisklessPartition", "AnyPartition", "Diskless", "IndexOwner", "Index", "Node"):
    by = {f.rel: list(methods("\n".join(impls(f, t)))) for f in fs}
    by = {k: v for k, v in by.items() if v}
    print(f"\n## {t}: {sum(map(len, by.values()))} methods in {len(by)} files")
    if t in ("Replica",):
        for k, v in by.items(): print("  ", k, len(v), " ".join(v))
    else: print("   ", {k: len(v) for k, v in by.items()})
print("\n## fields of structs with more than 12")
for f in fs:
    for m in re.finditer(r"\bstruct\s+(\w+)[^;{(]*\{", f.product):
        e = match(f.product, m.end() - 1); body = f.product[m.end():e]
        n = len(re.findall(r"(?m)^\s+(?:pub(?:\([^)]*\))?\s+)?\w+\s*:", body))
        if n > 12: print("  ", n, m.group(1), f.rel)
print("\n## the flags of Replica: stores and loads")
for flag in ("has_news", "settled", "is_open", "is_absent", "being_made", "has_untold_cut", "leaving", "by_somebody", "in_time"):
    hits = []
    for f in fs:
        for m in re.finditer(r"\.(" + flag + r")\s*\.(store|load|swap)", f.product):
            hits.append(f"{f.rel}:{f.text.count(chr(10),0,m.start())+1} {m.group(2)}")
    print(flag, hits)
print("\n## callers of the flag readers")
for fn in ("is_settled", "is_open", "is_absent", "is_being_opened", "is_being_made", "is_unwritten", "is_leaving", "is_refused", "is_broken", "ask_to_open", "opened", "open_failure_since", "is_in_use"):
    c = collections.Counter()
    for f in fs:
        n = len(re.findall(r"\." + fn + r"\(", f.product))
        if n: c[f.rel] += n
    print(fn, dict(c))
OUT = "Verdict Admission CommitVerdict Refusal Outcome Admitted PendingAnswer Settled BatchAdmission ParkedAnswer Appended AnswerTicket BatchAnswer LaterAnswer Lack Waited Taken Stopped Pause Awaits PendingBatch".split()
MORE = "AppendError ReplicationTicket FlushTicket LogAppendInfo Known LookedAt Looked CommitAnswer WriteOutcome Invalid RefusedBatch EarlyBatches Early EarlyAnswer LaterRoom Room Waiting Offered PartitionAppend BatchNumber Unreplicated PendingWrite Told WriteError SequenceRefusal InvalidBatch Expired Acknowledges Acknowledgement".split()
print("\n## outcome types: where defined, files and times named in product code")
for name in OUT + MORE:
    where, n, files = [], 0, 0
    for base, group in (("broker", fs), ("rules", rules)):
        for f in group:
            for m in re.finditer(r"\b(?:enum|struct|type|trait)\s+" + name + r"\b", f.product):
                where.append(f"{base}/{f.rel}:{f.text.count(chr(10),0,m.start())+1}")
            k = len(re.findall(r"\b" + name + r"\b", f.product))
            n += k; files += k > 0
    print(f"{name:18} {n:4} in {files:3}  {where}")
