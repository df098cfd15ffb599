"""Arrows between the parts of the broker crate (product code): count of `crate::part` names; and circles between folders at any depth."""
import re, collections, os
from src import *
fs = [f for f in load("crates/broker/src") if not f.is_test]
mods = {}   # module path tuple -> folder
for f in fs:
    p = f.rel[:-3].split("/")
    if p[-1] in ("mod", "lib"): p = p[:-1]
    mods[tuple(p)] = f
def folder_of(mod):  # folder in which the file stands
    d = os.path.dirname(mods[mod].rel); return d or "."
def resolve(mod, path):
    """the deepest module that a path names, from `mod`."""
    p = list(path)
    if not p: return None
    if p[0] == "crate": at, p = (), p[1:]
    elif p[0] == "self": at, p = mod, p[1:]
    elif p[0] == "super":
        at = mod
        while p and p[0] == "super": at, p = at[:-1], p[1:]
    elif mod + (p[0],) in mods: at = mod
    else: return None
    while p and at + (p[0],) in mods: at, p = at + (p[0],), p[1:]
    return at if at in mods else None
def expand(tree, pre=()):
    tree = tree.strip()
    m = re.match(r"^([\w:]+)::\{(.*)\}$", tree, re.S)
    if m:
        for part in split(m.group(2)): yield from expand(part, pre + tuple(m.group(1).split("::")))
    elif tree.startswith("{"):
        for part in split(tree[1:-1]): yield from expand(part, pre)
    elif tree:
        yield pre + tuple(re.sub(r"\s+as\s+\w+$", "", tree).split("::"))
def split(s):
    out, cur, d = [], "", 0
    for c in s:
        if c == "{": d += 1
        if c == "}": d -= 1
        if c == "," and d == 0: out.append(cur); cur = ""
        else: cur += c
    return out + [cur]
def rank(mod): return mod[0] if mod else "lib"
part = collections.Counter(); fold = collections.Counter(); detail = collections.defaultdict(collections.Counter)
fileedges = collections.Counter()
for mod, f in mods.items():
    code = f.product
    uses = []
    for m in re.finditer(r"\buse\s+([^;]+);", code):
        uses += list(expand(" ".join(m.group(1).split())))
    rest = re.sub(r"\buse\s+[^;]+;", "", code)
    rest = re.sub(r"pub\((?:in\s+)?(?:crate|super|self)[^)]*\)", "", rest)
    for m in re.finditer(r"\b((?:crate|self|super)(?:::\w+)+)", rest): uses.append(tuple(m.group(1).split("::")))
    for m in re.finditer(r"(?<![\w:])(\w+)((?:::\w+)+)", rest):
        if (m.group(1),) and mod + (m.group(1),) in mods: uses.append(tuple((m.group(1) + m.group(2)).split("::")))
    for u in uses:
        t = resolve(mod, u)
        if t is None or t == mod: continue
        a, b = rank(mod), rank(t)
        if a != b:
            part[(a, b)] += 1
            detail[(a, b)][u[len(u)-1]] += 1
        x, y = os.path.dirname(f.rel) or ".", os.path.dirname(mods[t].rel) or "."
        if x != y: fold[(x, y)] += 1
        fileedges[(f.rel, mods[t].rel)] += 1
if __name__ == "__main__":
    print("## arrows between parts:", len(part))
    parts = sorted({a for a, _ in part} | {b for _, b in part})
    for a in parts:
        print(f"{a:16} ->", ", ".join(f"{b} {n}" for (x, b), n in sorted(part.items(), key=lambda e: -e[1]) if x == a))
    # circles between folders
    g = collections.defaultdict(set)
    for (a, b) in fold: g[a].add(b)
    def reach(a):
        seen, todo = set(), list(g[a])
        while todo:
            x = todo.pop()
            if x not in seen: seen.add(x); todo += g[x]
        return seen
    R = {a: reach(a) for a in list(g)}
    done = set()
    print("\n## folders that are in a circle (a folder with what is under it is one room; `mod.rs` re-exports count)")
    for a in sorted(R):
        if a in R[a] and a not in done:
            scc = sorted(x for x in R[a] if a in R.get(x, ()))
            done |= set(scc)
            print(len(scc), scc)
            for x in scc:
                for y in sorted(g[x]):
                    if y in scc: print("    ", x, "->", y, fold[(x, y)])
    print("\n## what diskless takes of control, log, replica")
    for b in ("control", "log", "replica", "space", "metrics", "system", "task", "seldom", "memory", "long_work", "validation", "config"):
        print("diskless ->", b, dict(detail[("diskless", b)].most_common()))
    for a in ("log", "validation", "cold", "space", "control", "replica"):
        for b in parts:
            if (a, b) in detail and b not in ("config",): print(a, "->", b, dict(detail[(a, b)].most_common(30)))
