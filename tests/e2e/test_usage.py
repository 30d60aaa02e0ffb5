"""usage.waste: what a run learns is kept for the next one, wherever it may be kept, and never changes a token."""
import json
import os
import shutil
import struct
import unittest

import waste

ARGS = ("Hello", "-n", "12", "--temp", "0", "--lookahead", "0", "--json")


def parse(path):
    with open(path, "rb") as f:
        data = f.read()
    magic, version, turns = struct.unpack_from("<IIQ", data)
    assert (magic, version) == (0x47535557, 1), data[:16]
    return turns, [struct.unpack_from("<HHIII", data, at) for at in range(16, len(data), 16)]


def warnings(r):
    return [l for l in r.error_lines() if l.startswith("waste-run: warning: ")]


class Usage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.plain = waste.waste_run("run", waste.DEMO, *ARGS, "--usage", "off").json()

    def setUp(self):
        self.dir = os.path.join(waste.scratch(), self.id().rsplit(".", 1)[1])
        os.makedirs(self.dir)
        self.before = sorted(os.listdir(waste.DEMO))

    def tearDown(self):
        self.assertEqual(sorted(os.listdir(waste.DEMO)), self.before)

    def run_it(self, *args, model=waste.DEMO, **env):
        r = waste.waste_run("run", model, *ARGS, *args, env={"XDG_CACHE_HOME": self.dir, **env})
        self.assertEqual(r.code, 0, r)
        self.assertEqual(r.json()["text"], self.plain["text"])
        return r

    def kept(self):
        d = os.path.join(self.dir, "waste")
        return [os.path.join(d, f) for f in os.listdir(d)]

    def copy_of_the_model(self):
        to = os.path.join(self.dir, "m.waste")
        shutil.copytree(waste.DEMO, to)
        return to

    def test_runs_add_to_what_is_kept(self):
        self.run_it("--usage", "cache")
        (path,) = self.kept()
        turns, entries = parse(path)
        steps = self.plain["prompt_tokens"] + self.plain["tokens"]
        self.assertIn(turns, (steps - 1, steps))
        self.assertTrue(all(1 <= layer <= 7 and expert < 64 and 0 < hits <= turns and last <= turns and zero == 0
                            for layer, expert, hits, last, zero in entries), entries)
        # with so few turns nothing has faded by half: four experts a layer and turn
        hits = sum(e[2] for e in entries if e[0] == 3)
        self.assertTrue(0.8 * 4 * turns < hits <= 1.1 * 4 * turns, (hits, turns))
        self.run_it("--usage", "cache")
        (path,) = self.kept()
        self.assertEqual(parse(path)[0], 2 * turns)

    def test_default_off_and_environment(self):
        self.run_it()
        self.assertFalse(os.path.exists(os.path.join(self.dir, "waste")))  # WASTE_USAGE=off
        r = waste.waste_run("run", waste.DEMO, *ARGS, env={"XDG_CACHE_HOME": self.dir, "WASTE_USAGE": ""})
        self.assertEqual(r.code, 0, r)
        self.assertEqual(len(self.kept()), 1)
        shutil.rmtree(os.path.join(self.dir, "waste"))
        r = waste.waste_run("bench", waste.DEMO, "--tokens", "2", env={"XDG_CACHE_HOME": self.dir, "WASTE_USAGE": ""})
        self.assertEqual(r.code, 0, r)
        self.assertFalse(os.path.exists(os.path.join(self.dir, "waste")))

    def test_in_the_models_directory(self):
        model = self.copy_of_the_model()
        self.run_it("--usage", "model", model=model)
        turns, _ = parse(os.path.join(model, "usage.waste"))
        self.assertGreater(turns, 0)
        self.assertEqual(sorted(os.listdir(model)), sorted(self.before + ["usage.waste"]))
        # another user of the model starts from its list and keeps a list of his own
        self.run_it("--usage", "cache", model=model)
        self.assertEqual(parse(self.kept()[0])[0], 2 * turns)
        self.assertEqual(parse(os.path.join(model, "usage.waste"))[0], turns)

    def test_a_bad_file_is_a_warning(self):
        self.run_it("--usage", "cache")
        (path,) = self.kept()
        with open(path, "rb") as f:
            good = f.read()
        for bad, why in ((b"", "not a usage file"), (good[:-1], "16 and 16 for each expert"), (b"x" * len(good), "not a usage file"),
                         (good + good[16:], "at most"), (good[:32] + good[16:32], "a second time"), (good[:16] + b"\xff" * 16, "has no expert")):
            with open(path, "wb") as f:
                f.write(bad)
            self.warned(self.run_it("--usage", "cache", "-q"), path, why)
            self.assertGreater(parse(path)[0], 0)  # and a good one takes its place
        self.assertEqual(warnings(self.run_it("--usage", "cache")), [])

    def warned(self, r, *words):
        """Of one thing, with these words."""
        lines = warnings(r)
        self.assertEqual(len(lines), 1, r)
        for w in words:
            self.assertIn(w, lines[0], r)

    def test_the_models_own_list_may_be_bad(self):
        model = self.copy_of_the_model()
        path = os.path.join(model, "usage.waste")
        with open(path, "wb") as f:
            f.write(b"usage")
        self.warned(self.run_it("--usage", "cache", model=model), path, "not a usage file")
        self.assertEqual(warnings(self.run_it("--usage", "cache", model=model)), [])  # a list of our own comes before it
        self.warned(self.run_it("--usage", "model", model=model), path, "not a usage file")
        self.assertEqual(warnings(self.run_it("--usage", "model", model=model)), [])

    def test_what_is_found_again_is_said_once_and_in_stats(self):
        model = self.copy_of_the_model()
        path = os.path.join(model, "usage.waste")
        os.mkdir(path)
        p = waste.start("chat", model, "--usage", "model", stdin=waste.subprocess.PIPE)
        try:
            waste.wait_for("a pipeline that runs", lambda: (
                waste.stats(p.pid) or {"stages": {"reader": {}}})["stages"]["reader"].get("state") == "running")
            waste.wait_for("its warning", lambda: waste.stats(p.pid)["warnings"])
            for _ in range(2):  # another reader finds the same
                self.assertEqual(waste.waste_run("restart", "reader", "--pid", p.pid, "-q").code, 0)
            (text,) = waste.stats(p.pid)["warnings"]
            shown = waste.waste_run("stats", "--pid", p.pid).out.decode()
            log = [json.loads(l) for l in waste.waste_run("log", "--json", "--pid", p.pid).out.decode().splitlines()]
        finally:
            p.stdin.close()
            p.stdin = None
            r = waste.finish(p)
        self.assertIn(path + ": not a regular file", text)
        self.assertIn("  warning      %s\n" % text, shown)
        self.assertEqual([l["level"] for l in log if l["text"] == text], ["warning"] * 3)
        self.assertEqual(warnings(r), ["waste-run: warning: " + text])

    def test_what_cannot_be_kept_at_the_end_is_said(self):
        model = self.copy_of_the_model()
        os.mkdir(os.path.join(model, "usage.waste"))
        first, last = warnings(self.run_it("--usage", "model", model=model))
        self.assertIn("usage.waste: not a regular file", first)
        self.assertIn("what was learned is not kept: %s/usage.waste: Is a directory" % model, last)

    def test_where_nothing_can_be_written(self):
        model = self.copy_of_the_model()
        # a file where the directory should be: not even root can write there
        open(os.path.join(self.dir, "waste"), "w").close()
        self.warned(self.run_it("--usage", "cache", model=model), "option --usage", os.path.join(self.dir, "waste"))
        self.assertEqual(sorted(os.listdir(model)), self.before)
        # who did not ask for it does not miss it
        self.assertEqual(warnings(self.run_it(model=model, WASTE_USAGE="")), [])
        r = self.run_it("--usage", "cache", model=model, XDG_CACHE_HOME="", HOME="")
        self.warned(r, "option --usage", "XDG_CACHE_HOME", "HOME")


if __name__ == "__main__":
    unittest.main()
