"""Holds a path table to the code: the functions named stand in the files named; counts files, entries and visits.

A row is `file function ...` in the order of calls; `<` marks a return to a frame that goes on working (counted as a visit, not as an entry).
    python3 paths.py today     what is
    python3 paths.py narrow-target | wide-target   what is to be: NOT FOUND is the list of what is left to do
"""
import sys, re, glob, os
from src import *
P = {"B": "crates/broker/src", "W": "crates/wire/src", "R": "crates/rules/src", "L": "crates/log/src", "D": "crates/diskless/src", "C": "crates/control/src", "H": "crates/host/src"}
cache = {}
def file(short):
    k, rest = short.split("/", 1)
    p = os.path.join(ROOT, P.get(k, k), rest)
    if p not in cache: cache[p] = File(p, os.path.dirname(p), set()) if os.path.exists(p) else None
    return cache[p]
for path in sorted(glob.glob(os.path.join(os.path.dirname(os.path.abspath(__file__)), "paths", (sys.argv[1] if len(sys.argv) > 1 else "today") + "*.txt"))):
    rows = [l.split() for l in open(path) if l.strip() and not l.startswith("#")]
    files, entries, visits, last, missing = {}, 0, 0, None, []
    for short, *fns in rows:
        back = short.startswith("<"); short = short.lstrip("<")
        if short != last:
            visits += 1
            files.setdefault(short, 0)
            if not back: entries += 1; files[short] += 1
        last = short
        f = file(short)
        if f is None: missing.append(short); continue
        have = {n for n, *_ in f.functions}
        missing += [f"{short} {fn}" for fn in fns if fn != "-" and fn not in have and not re.search(r"\bfn\s+" + fn + r"\b", f.product)]
    many = {k.split("/", 1)[1]: v for k, v in files.items() if v > 1}
    print(f"{os.path.basename(path):28} files {len(files):3}  entries {entries:3}  visits {visits:3}  entered twice or more: {len(many)} {many}")
    if missing: print("     NOT FOUND:", len(missing), missing)
