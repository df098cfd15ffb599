import os, re
from src import *
H = {"rules/sequence": ["crates/rules/src/sequence/model.rs", "crates/rules/src/sequence/rows.rs", "crates/rules/src/sequence/shrink.rs", "crates/rules/src/sequence/parking/tests.rs"],
 "rules/replica": ["crates/rules/src/replica/model.rs", "crates/rules/src/replica/model/controller.rs", "crates/rules/src/replica/model/world.rs"],
 "rules/commit": ["crates/rules/src/commit/model.rs"],
 "rules/group/classic": ["crates/rules/src/group/classic/model.rs"], "rules/group/consumer": ["crates/rules/src/group/consumer/model.rs"],
 "producer/window": ["crates/producer/src/window/model.rs"],
 "sim": [os.path.relpath(p, ROOT) for p in rust_files(ROOT + "/sim")],
 "diskless/schedules": [os.path.relpath(p, ROOT) for p in rust_files(ROOT + "/crates/diskless/src/schedules")]}
t = 0
for k, fs in H.items():
    text = "".join(open(os.path.join(ROOT, f)).read() for f in fs if os.path.exists(os.path.join(ROOT, f)))
    n = text.count("\n"); t += n
    print(f"{k:22} {n:5} lines; random: {sorted(set(re.findall(r'fastrand|proptest|Random|splitmix|Rng', text)))}; types {sorted(set(re.findall(r'(?:struct|enum) (World|Step|Fault|Client|Fate|Op|Event|Schedule|Clock|Model|Settings)', text)))}")
print(t)
