#!/usr/bin/env python3
"""cachesim against answers known otherwise. usage: test_cachesim.py CACHESIM"""

import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
from itertools import combinations

PROGRAM = sys.argv.pop(1)


def run(text, *options):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False) as f:
        f.write(text)
    try:
        return subprocess.run([PROGRAM, *options, f.name], capture_output=True, text=True), f.name
    finally:
        os.unlink(f.name)


def lines(tokens):
    return "".join(json.dumps({"layers": t}) + "\n" for t in tokens)


def hits(tokens, slots, policy):
    done, _ = run(lines(tokens), "--json", "--slots", str(slots), "--policy", policy)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def count(tokens):
    return sum(len(layer) for t in tokens for layer in t)


def best(tokens, slots):
    """The most hits there can be, by trying every choice of what to keep."""
    states = {frozenset(): 0}
    for token in tokens:
        for i, layer in enumerate(token):
            wanted = frozenset((i, e) for e in layer)
            new = {}
            for have, n in states.items():
                n += len(wanted & have)
                others = have - wanted
                keep = min(len(others), slots - len(wanted))
                for kept in combinations(sorted(others), keep):
                    after = wanted | frozenset(kept)
                    new[after] = max(new.get(after, 0), n)
            states = new
    return max(states.values())


class Cachesim(unittest.TestCase):
    def test_lru_by_hand(self):
        # 2 slots, 1 layer: 1 miss, 2 miss, 1 hit, 3 miss (2 goes), 1 hit, 2 miss
        tokens = [[[e]] for e in (1, 2, 1, 3, 1, 2)]
        r = hits(tokens, 2, "lru")
        self.assertEqual((r["hits"], r["first_half"], r["second_half"]), (33.333, 33.333, 33.333))

    def test_lfu_remembers_and_the_forgetful_does_not(self):
        # 1 1 1 | 2 2 3 3: after 3 replaces 2, LFU knows 2's two uses; 2 slots
        tokens = [[[e]] for e in (1, 1, 1, 2, 2, 3, 2, 3)]
        self.assertEqual(hits(tokens, 2, "lfu")["hits"], 37.5)
        tokens = [[[e]] for e in (1, 1, 2, 3, 2, 3, 2, 4, 2)]
        # lfu: 2 counts 3 when 4 comes and wins its place back from nobody: 1 leaves
        self.assertGreater(hits(tokens, 2, "lfu")["hits"], hits(tokens, 2, "lfu-forgetful")["hits"])

    def test_a_layer_is_in_memory_at_once(self):
        tokens = [[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[0, 1, 2, 3]]]
        self.assertEqual(hits(tokens, 4, "optimum")["hits"], 0)
        self.assertEqual(hits(tokens, 8, "optimum")["hits"], 33.333)
        # what is demanded is a hit before anything is evicted for its neighbours
        tokens = [[[5]], [[6]], [[5, 7]]]
        self.assertEqual(hits(tokens, 2, "lru")["hits"], 25.0)

    def test_the_optimum_is_the_best_there_is(self):
        rng = random.Random(5)
        for n in range(12):
            tokens = [[sorted(rng.sample(range(5), 2)) for _ in range(2)] for _ in range(8)]
            for slots in (2, 3, 4, 5):
                got = hits(tokens, slots, "optimum")["hits"] * count(tokens) / 100
                self.assertAlmostEqual(got, best(tokens, slots), places=2)

    def test_nobody_beats_the_optimum_and_each_policy_runs(self):
        rng = random.Random(6)
        tokens = [[rng.sample(range(20), 4) for _ in range(5)] for _ in range(60)]
        done, _ = run(lines(tokens), "--json", "--sizes", "0.5,1,2,9")
        rows = [json.loads(x) for x in done.stdout.splitlines()]
        self.assertEqual(len(rows), 24)
        for row in rows:
            top = next(r for r in rows if r["size"] == row["size"] and r["policy"] == "optimum")
            self.assertLessEqual(row["hits"], top["hits"])
            if row["size"] == 9:  # everything fits: each expert is read once
                once = len({(i, e) for t in tokens for i, x in enumerate(t) for e in x})
                self.assertAlmostEqual(row["hits"], 100 - 100 * once / count(tokens), places=2)

    def test_the_readers_policy_beats_the_named_ones_where_choices_have_a_habit(self):
        rng = random.Random(7)
        topics = [[rng.sample(range(32), 12) for _ in range(6)] for _ in range(3)]
        tokens = []
        for n in range(240):
            topic = topics[n // 40 % 3]
            tokens.append([rng.sample(topic[i][: 6 if n % 2 else 12], 4) for i in range(6)])
        for size in ("0.5", "1", "2"):
            done, _ = run(lines(tokens), "--json", "--sizes", size)
            got = {r["policy"]: r["hits"] for r in map(json.loads, done.stdout.splitlines())}
            for other in ("lru", "lfu", "lfu-forgetful", "decayed"):
                self.assertGreater(got["waste"], got[other], (size, got))

    def test_errors_name_the_line(self):
        good = '{"layers": [[1, 2]]}\n'
        for bad in ("{", "[]", '{"layers": 3}', '{"layers": [[1, 1]]}', '{"layers": [[1], [2]]}',
                    '{"layers": [[]]}', '{"layers": [[-1]]}', '{"layers": [[65535]]}',
                    '{"layers": [["1"]]}', '{"layers": [[1.5]]}', '{"layers": []}', ""):
            done, path = run(good + good + bad + "\n" + good)
            self.assertEqual(done.returncode, 1, bad)
            self.assertTrue(done.stderr.startswith(f"cachesim: {path}:3: "), done.stderr)
        done, _ = run("")
        self.assertIn("no tokens", done.stderr)
        done = subprocess.run([PROGRAM, "/"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (1, "cachesim: /: cannot be read\n"))
        self.assertEqual(run(good, "--help")[0].returncode, 0)
        done, _ = run(good, "--slots", "1")
        self.assertIn("1 slots, a layer needs 2", done.stderr)
        for options in (("--sizes", "0"), ("--sizes", "1,,2"), ("--policy", "mru"), ("--what",)):
            done, _ = run(good, *options)
            self.assertEqual(done.returncode, 2, options)


if __name__ == "__main__":
    unittest.main()
