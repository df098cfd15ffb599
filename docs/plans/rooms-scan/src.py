"""Reads the Rust sources of /work/main without what is compiled for tests only. Regex and brace matching; good to a percent."""
import os, re, sys
ROOT = os.environ.get("TREE", "/work/main")

def rust_files(base):
    for d, dirs, fs in os.walk(base):
        dirs[:] = sorted(x for x in dirs if x != "target")
        for f in sorted(fs):
            if f.endswith(".rs"):
                yield os.path.join(d, f)

def blank(text):
    """Same length, comments and string contents blanked, so that braces and words count only where they are code."""
    out, i, n = list(text), 0, len(text)
    def fill(a, b):
        for k in range(a, b):
            if out[k] != "\n": out[k] = " "
    while i < n:
        c = text[i]
        if text.startswith("//", i):
            j = text.find("\n", i); j = n if j < 0 else j
            fill(i, j); i = j
        elif text.startswith("/*", i):
            j = text.find("*/", i); j = n if j < 0 else j + 2
            fill(i, j); i = j
        elif c == '"' or (c in "br" and re.match(r'b?r?#*"', text[i:i+6]) and (i == 0 or not (text[i-1].isalnum() or text[i-1] == "_"))):
            m = re.match(r'(b?)(r?)(#*)"', text[i:i+8])
            if m.group(2):
                end = '"' + m.group(3)
                j = text.find(end, i + m.end()); j = n if j < 0 else j + len(end)
            else:
                j = i + m.end()
                while j < n and text[j] != '"':
                    j += 2 if text[j] == "\\" else 1
                j += 1
            fill(i, min(j, n)); i = j
        elif c == "'":
            m = re.match(r"'(\\.[^']*|[^\\'])'", text[i:i+12])
            if m:
                fill(i, i + m.end()); i += m.end()
            else:
                i += 1
        else:
            i += 1
    return "".join(out)

def match(code, at, open_="{", close="}"):
    depth = 0
    for i in range(at, len(code)):
        if code[i] == open_: depth += 1
        elif code[i] == close:
            depth -= 1
            if depth == 0: return i
    return len(code) - 1

CFG = re.compile(r"#\[cfg\((?:test|all\(test[^\]]*|any\(test[^\]]*)\)\]")

def item_end(code, at):
    """End of the item or statement that starts after an attribute at `at`."""
    i = at
    while True:
        while i < len(code) and code[i].isspace(): i += 1
        if code.startswith("#[", i):
            i = match(code, i + 1, "[", "]") + 1
        else: break
    depth = 0
    for j in range(i, len(code)):
        c = code[j]
        if c in "([": depth += 1
        elif c in ")]":
            depth -= 1
            if depth < 0: return j
        elif c == "{" and depth == 0:
            e = match(code, j)
            rest = code[e+1:e+3]
            return e + 1
        elif c in ";," and depth == 0:
            return j + 1
    return len(code)

def is_test_path(rel):
    parts = rel.split("/")
    name = parts[-1]
    return name in ("tests.rs", "model.rs", "by_hand.rs", "own.rs", "double.rs", "flooded.rs", "tries.rs", "measure.rs", "rows.rs", "shrink.rs", "counting.rs") or name.endswith("_tests.rs") or "tests" in parts[:-1] or "schedules" in parts[:-1] or "model" in parts[:-1]

def test_modules(base):
    """Files that are declared by `#[cfg(test)] mod x;`, whatever they are called."""
    found = set()
    for path in rust_files(base):
        code = blank(open(path).read())
        for m in re.finditer(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", code):
            d, name = os.path.split(path)
            stem = name[:-3]
            here = d if stem in ("mod", "lib", "main") else os.path.join(d, stem)
            for cand in (os.path.join(here, m.group(1) + ".rs"), os.path.join(here, m.group(1))):
                found.add(cand)
            # `mod tests;` inside x.rs may also be in x/tests.rs only
    return found

class File:
    def __init__(self, path, base, tests):
        self.path, self.rel = path, os.path.relpath(path, base)
        self.text = open(path).read()
        self.code = blank(self.text)
        self.is_test = any(path == t or path.startswith(t + "/") for t in tests)
        self.cfg_test = []       # spans
        at = 0
        for m in CFG.finditer(self.code):
            if m.start() < at: continue
            end = item_end(self.code, m.end())
            self.cfg_test.append((m.start(), end)); at = end
        keep = list(self.code); keept = list(self.text)
        for a, b in self.cfg_test:
            for k in range(a, b):
                if keep[k] != "\n": keep[k] = " "
                if keept[k] != "\n": keept[k] = " "
        self.product = "".join(keep)
        dropped = set()
        for a, b in self.cfg_test:
            dropped.update(range(self.text.count("\n", 0, a), self.text.count("\n", 0, b) + (1 if self.text[b-1:b] == "}" else 0)))
        self.lines = 0 if self.is_test else self.text.count("\n") - len(dropped)
        self.functions = [] if self.is_test else list(functions(self.product))

FN = re.compile(r"\bfn\s+(\w+)")
def functions(code):
    for m in FN.finditer(code):
        p = code.find("(", m.end())
        # generics may contain parentheses: find the first "(" at angle depth 0
        depth, p = 0, m.end()
        while p < len(code):
            c = code[p]
            if c == "<": depth += 1
            elif c == ">" and code[p-1] != "-": depth -= 1
            elif c == "(" and depth <= 0: break
            p += 1
        q = match(code, p, "(", ")")
        b = q
        while b < len(code) and code[b] not in "{;": b += 1
        if b >= len(code) or code[b] == ";": continue
        e = match(code, b)
        yield m.group(1), code.count("\n", 0, m.start()) + 1, code.count("\n", m.start(), e) + 1, code[p+1:q], code[b:e+1]

def load(crate):
    base = os.path.join(ROOT, crate)
    tests = test_modules(base)
    return [File(p, base, tests) for p in rust_files(base)]

CRATES = [f"crates/{name}/src" for name in sorted(os.listdir(os.path.join(ROOT, "crates"))) if name != "schedules"] + ["sim/src"]
