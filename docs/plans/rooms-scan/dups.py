"""Duplicates of the tests: helpers defined more than once, bodies that are the same, polling loops, random generators, harnesses."""
import re, os, collections, hashlib
from src import *
every = []
for top in ("crates", "sim", "tests", "fuzz"):
    for p in rust_files(os.path.join(ROOT, top)): every.append(File(p, ROOT, set()))
by = collections.defaultdict(list)
for f in every:
    for n, l, k, a, b in functions(f.code):
        body = re.sub(r"\s+", " ", f.text[f.code.find(b):f.code.find(b)+len(b)]) if False else re.sub(r"\s+", " ", b)
        by[n].append((f.rel, l, k, re.sub(r"\s+", " ", a), body))
for n in ("batch", "said", "wait_until", "until", "eventually", "wait_for", "splitmix", "random", "stamp", "run", "config", "partition", "sealed", "append", "client", "start", "topic"):
    rows = by[n]
    tests = [r for r in rows if "/tests" in r[0] or "test" in r[0] or True]
    same = collections.Counter((r[3], r[4]) for r in rows)
    print(f"fn {n}: {len(rows)} definitions in {len({r[0] for r in rows})} files; alike word for word: {[c for c in same.values() if c > 1]}")
    if n in ("batch", "said", "wait_until", "eventually"):
        for r in rows: print("    ", r[0], r[1], "lines", r[2])
print("\n## functions of 4 lines or more that stand word for word in several files")
seen = collections.defaultdict(list)
for n, rows in by.items():
    for r in rows:
        if r[2] >= 4: seen[(n, r[3], r[4])].append(f"{r[0]}:{r[1]}")
tot = 0
for (n, a, b), where in sorted(seen.items(), key=lambda e: -len(e[1])):
    files = {w.rsplit(":", 1)[0] for w in where}
    if len(files) > 1:
        tot += 1; print("  ", n, len(where), where[:6])
print(tot)
print("\n## polling loops: elapsed() beside sleep")
c = collections.Counter()
for f in every:
    for m in re.finditer(r"elapsed\(\)\s*<[^;{]*\{?", f.code):
        if "sleep" in f.code[m.start():m.start()+400]: c[f.rel] += 1
print(sum(c.values()), "in", len(c), "files"); print(dict(c.most_common(20)))
print("\n## tests that name fault seams")
for w in ("ASKS_NOBODY", "KEEPS_THE_DEAD", "steps::", "rung", "refuse_writes", "break_down", "make_older", "older::", "without_room", "without_slots"):
    print(w, sorted({f.rel for f in every if w in f.code}))
