import re, sys, collections, os
from src import *
broker = load("crates/broker/src")
crates = {c: (broker if "broker" in c else load(c)) for c in CRATES}
def head(t): print("\n## " + t)

head("product lines (no tests) and test lines, by crate")
tot = 0
for c, fs in crates.items():
    p = sum(f.lines for f in fs); a = sum(f.text.count("\n") for f in fs); tot += p
    print(f"{c:24} product {p:6}  tests in src {a-p:6}  files {len(fs)}")
print("sum product", tot)

head("broker: product lines and files by folder")
by = collections.Counter(); files = collections.Counter()
for f in broker:
    if f.is_test: continue
    k = f.rel.split("/")[0]; by[k] += f.lines; files[k] += 1
for k, v in by.most_common(): print(f"{k:20} {v:6} {files[k]:4}")

head("functions past 60 lines")
for c, fs in crates.items():
    for f in fs:
        for n, l, k, a, b in f.functions:
            if k > 60: print(f"{c}/{f.rel}:{l} {n} {k}")
head("functions past 50 lines: count by crate")
for c, fs in crates.items(): print(c, sum(1 for f in fs for x in f.functions if x[2] > 50))

head("functions with tuple patterns in their parameters")
cnt = collections.Counter(); rows = []
for c, fs in crates.items():
    for f in fs:
        for n, l, k, args, b in f.functions:
            depth = 0; start = True; hit = False
            # parameters split at depth 0
            parts, cur, d = [], "", 0
            for ch in args:
                if ch in "([{<": d += 1
                if ch in ")]}>": d -= 1
                if ch == "," and d == 0: parts.append(cur); cur = ""
                else: cur += ch
            parts.append(cur)
            if any(re.match(r"\s*\(", p) for p in parts):
                cnt[c] += 1; rows.append(f"{c}/{f.rel}:{l} {n}({' '.join(args.split())[:110]}")
for k, v in cnt.items(): print(k, v)
print(sum(cnt.values()))
for r in rows: print(" ", r)

head("asserts and unreachable! in product code")
for c, fs in crates.items():
    a = {k: sum(len(re.findall(r"\b" + k + r"!\s*\(", f.product)) for f in fs if not f.is_test) for k in ("assert", "assert_eq", "assert_ne", "debug_assert", "debug_assert_eq", "unreachable", "panic", "expect")}
    a["expect"] = sum(len(re.findall(r"\.expect\(", f.product)) for f in fs if not f.is_test)
    print(c, {k: v for k, v in a.items() if v})
for f in broker:
    if f.is_test: continue
    for m in re.finditer(r"\b(assert\w*|unreachable)!\s*\(", f.product):
        print("  ", f.rel, f.text.count("\n", 0, m.start()) + 1, m.group(1))

head("traits of the broker with their implementations in product code and in tests")
traits = {}
for f in broker:
    for m in re.finditer(r"\btrait\s+(\w+)", f.product if not f.is_test else ""):
        traits[m.group(1)] = f.rel
for t, where in traits.items():
    def impls(text): return re.findall(r"impl(?:<[^{;]*?>)?\s+(?:[\w:]+::)?" + t + r"(?:<[^{]*?>)?\s+for\s+([^{]+?)\s*\{", text)
    prod = [x for f in broker if not f.is_test for x in impls(f.product)]
    test = [x for f in broker for x in impls(f.code if f.is_test else "".join(f.code[a:b] for a, b in f.cfg_test))]
    print(f"{t:20} {where:34} product {prod} tests {test}")

head("test hooks in product files: #[cfg(test)] on anything but a module")
n = 0
for c, fs in crates.items():
    for f in fs:
        if f.is_test: continue
        for a, b in f.cfg_test:
            s = " ".join(f.text[a:b].split())
            if re.match(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(pub(\([^)]*\))?\s+)?mod\s", s): continue
            n += 1
            print(f"{c}/{f.rel}:{f.text.count(chr(10),0,a)+1} {s[:110]}")
print(n)
