"""What the split into crates would mean: each part (file) is put into its crate; arrows between crates and those that point the wrong way."""
import collections, os, re
import deps
from deps import fileedges, mods
ASSIGN = [ # first match wins: prefix of the file -> crate
 ("config/", "config"),
 ("control/postgres/connection.rs", "db"), ("control/postgres/session.rs", "db"), ("control/postgres/server.rs", "db"), ("control/postgres/tls.rs", "db"),
 ("control/postgres/url.rs", "db"), ("control/postgres/rows.rs", "db"), ("control/postgres/statements.rs", "db"), ("control/postgres/error.rs", "db"), ("control/postgres/schema.rs", "db"),
 ("control/postgres/settings.rs", "db"), ("control/sqlite/error.rs", "db"), ("control/store.rs", "control+db"),
 ("control/", "control"),
 ("system.rs", "host"), ("space", "host"), ("task.rs", "host"), ("seldom.rs", "host"), ("memory.rs", "host"), ("long_work.rs", "host"), ("metrics/", "host"),
 ("log/", "log"), ("cold/", "log"), ("validation/", "log"),
 ("replica/ticket.rs", "log"), ("replica/waiters.rs", "log"), ("replica/marks.rs", "log"), ("replica/reorder.rs", "log"), ("replica/budget.rs", "log"),
 ("diskless/", "diskless"),
]
def crate(rel):
    for p, c in ASSIGN:
        if rel.startswith(p): return c
    return "broker"
lines = collections.Counter(); nfiles = collections.Counter()
for mod, f in mods.items(): lines[crate(f.rel)] += f.lines; nfiles[crate(f.rel)] += 1
print({k: (v, nfiles[k]) for k, v in lines.most_common()})
ORDER = ["config", "host", "db", "control+db", "log", "control", "diskless", "broker"]
arrows = collections.Counter(); wrong = collections.defaultdict(collections.Counter)
for (a, b), n in fileedges.items():
    x, y = crate(a), crate(b)
    if x == y: continue
    arrows[(x, y)] += n
    if ORDER.index(y) > ORDER.index(x): wrong[(x, y)][f"{a} -> {b}"] += n
for k, v in sorted(arrows.items()): print(k, v, "WRONG WAY" if k in wrong else "")
for k, v in wrong.items():
    print(k)
    for e, n in v.most_common(40): print("    ", n, e)
