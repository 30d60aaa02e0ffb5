"""waste-fetch merge: parts of a conversion become the container that one run makes, byte for byte, or a clear refusal."""
import json
import os
import shutil
import subprocess
import sys
import time

import waste
from release import load_json

LAYERS = 5
SPLITS = (("0-1", "2", "3-4"), ("0", "1-4"))


def fetch(*args, **kw):
    return waste.waste_run(*args, program=waste.FETCH, **kw)


def content(path):
    out = {}
    for name in os.listdir(path):
        with open(os.path.join(path, name), "rb") as f:
            out[name] = f.read()
    return out


class Merge(waste.Test):
    @classmethod
    def setUpClass(cls):
        cls.random = waste.seed()
        cls.source = cls.path("source")
        cls.make("synth", "--checkpoint", "--shape", "tiny-odd-k3", "--shard-size", "2M", cls.source)
        cls.whole = cls.convert("whole")
        cls.parts = {layers: cls.convert("part-" + layers, "--layers", layers) for split in SPLITS for layers in split}

    @classmethod
    def path(cls, name):
        return os.path.join(waste.scratch(), name)

    @classmethod
    def make(cls, command, *args):
        r = fetch(command, "-q", *args)
        assert r.code == 0, str(r)

    @classmethod
    def convert(cls, name, *options):
        cls.make("convert", "--effort", 0, *options, cls.source, cls.path(name))
        return cls.path(name)

    def copy(self, layers, name):
        path = self.path("copy-" + name)
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.parts[layers], path, copy_function=shutil.copyfile)
        return path

    def out(self):
        path = self.path("merged")
        shutil.rmtree(path, ignore_errors=True)
        return path

    def flip(self, path, name, at):
        with open(os.path.join(path, name), "r+b") as f:
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ 1]))

    def test_parts_in_any_order_give_the_undivided_container(self):
        want = content(self.whole)
        self.assertIn("integrity.json", want)
        for split in SPLITS:
            order = list(split)
            self.random.shuffle(order)
            with self.subTest(" ".join(order)):
                out = self.out()
                self.ok(fetch("merge", out, *(self.parts[p] for p in order)))
                self.assertEqual(content(out), want)
                self.ok(fetch("verify", out, "--against", self.source))
                self.assertIn(b"already there", self.ok(fetch("merge", out, *(self.parts[p] for p in order))).out)

    def test_overlapping_parts_that_agree_are_taken(self):
        out = self.out()
        self.ok(fetch("merge", out, *self.parts.values()))
        self.assertEqual(content(out), content(self.whole))
        out = self.out()
        self.ok(fetch("merge", out, self.whole, self.parts["2"]))
        self.assertEqual(content(out), content(self.whole))

    def test_overlapping_parts_that_differ_are_refused(self):
        with open(os.path.join(self.parts["2"], "manifest.json")) as f:
            manifest = json.load(f)
        entry = manifest["trunk"][self.random.randrange(len(manifest["trunk"]))]
        book = manifest["layers"]["2"]["codebook_base"] * (16 + 256 * 16) + 100
        for name, at in (("trunk.bin", entry["off"] + self.random.randrange(entry["bytes"])), ("codebooks.bin", book),
                         ("experts-L2.bin", self.random.randrange(manifest["layers"]["2"]["bytes"]))):
            with self.subTest(name):
                hurt = self.copy("2", "differs")
                self.flip(hurt, name, at)
                self.refused(fetch("merge", self.out(), self.parts["0"], self.parts["1-4"], hurt), name, "differ", codes=(1,))

    def test_missing_layers_are_named(self):
        for given, words in ((("0-1", "2"), ("layer 3", "layer 4")), (("1-4",), ("no layer", "layer 0")),
                             (("0", "2"), ("layer 1", "layer 3"))):
            with self.subTest(" ".join(given)):
                out = self.out()
                line = self.refused(fetch("merge", out, *(self.parts[p] for p in given)), *words, codes=(1,))
                self.assertNotIn("layer 2", line)
                self.assertFalse(os.path.exists(out))

    def test_an_unfinished_part_lacks_what_it_says(self):
        part = self.copy("3-4", "unfinished")
        p = subprocess.Popen([waste.FETCH, "convert", "-q", "--effort", "0", "--layers", "3-4", self.source, self.path("cut")])
        waste.wait_for("a manifest", lambda: os.path.exists(os.path.join(self.path("cut"), "manifest.json")) or p.poll() is not None)
        p.kill()
        p.wait()
        r = fetch("merge", self.out(), self.parts["0-1"], self.parts["2"], self.path("cut"))
        if r.code == 0:                                        # it was quick
            self.assertEqual(content(self.path("merged")), content(self.whole))
        else:
            self.refused(r, "layer 4", codes=(1,))
        os.unlink(os.path.join(part, "experts-L4.bin"))
        self.refused(fetch("merge", self.out(), self.parts["0-1"], self.parts["2"], part), "experts-L4.bin", codes=(1,))
        part = self.copy("3-4", "unfinished")
        with open(os.path.join(part, "experts-L3.bin"), "r+b") as f:
            f.truncate(4096)
        self.refused(fetch("merge", self.out(), self.parts["0-1"], self.parts["2"], part), "experts-L3.bin", codes=(1,))

    def test_parts_of_other_conversions_are_refused(self):
        other = self.path("other-source")
        self.make("synth", "--checkpoint", "--shape", "tiny-odd-k3", "--seed", "9", "--dtype", "f16", other)
        for name, source, options in (("effort", self.source, ("--effort", 1)), ("bits", self.source, ("--effort", 0, "--trunk-bits", 8)),
                                      ("format", self.source, ("--effort", 0, "--experts", "vq2r")), ("source", other, ("--effort", 0))):
            with self.subTest(name):
                part = self.path("converted-" + name)
                self.make("convert", "--layers", "3-4", *options, source, part)
                self.refused(fetch("merge", self.out(), self.parts["0-1"], self.parts["2"], part), "not parts of one conversion",
                             codes=(1,))
        part = self.copy("3-4", "words")
        with open(os.path.join(part, "tokenizer.model"), "a") as f:
            f.write("!")
        self.refused(fetch("merge", self.out(), self.parts["0-1"], self.parts["2"], part), "tokenizer.model", codes=(1,))
        self.refused(fetch("merge", self.out(), self.parts["0-1"], waste.synth("tiny-odd-k3")), codes=(1,))

    def test_parts_of_another_fine_tune_are_refused(self):
        """The same layout, other values."""
        other, part = self.path("fine-tune"), self.path("converted-fine-tune")
        self.make("synth", "--checkpoint", "--shape", "tiny-odd-k3", "--shard-size", "2M", "--seed", "9", other)
        self.make("convert", "--effort", 0, "--layers", "3-4", other, part)
        for order in ((self.parts["0-1"], self.parts["2"], part), (part, self.parts["2"], self.parts["0-1"])):
            out = self.out()
            self.refused(fetch("merge", out, *order), "not parts of one conversion", "convert.json", codes=(1,))
            self.assertFalse(os.path.exists(out))

    def test_json_says_what_was_made(self):
        out, given = self.out(), [self.parts[p] for p in SPLITS[0]]
        first, again = (self.ok(fetch("merge", "--json", out, *given)).json() for _ in range(2))
        self.assertEqual((first["container"], first["whole"], first["already_there"]), (out, True, False))
        self.assertEqual((again["container"], again["whole"], again["already_there"]), (out, True, True))
        size = sum(os.path.getsize(os.path.join(out, f)) for f in os.listdir(out) if f.endswith(".bin"))
        self.assertLess(abs(first["bytes"] - size), size / 100)
        self.assertGreater(first["seconds"], 0)

    def test_out_is_never_something_else(self):
        out = self.out()
        os.mkdir(out)
        with open(os.path.join(out, "notes"), "w") as f:
            f.write("mine")
        given = [self.parts[p] for p in SPLITS[0]]
        self.refused(fetch("merge", out, *given), "other content", codes=(1,))
        self.assertEqual(content(out), {"notes": b"mine"})
        never = self.out()
        self.refused(fetch("merge", never, given[0]), codes=(1,))
        self.assertFalse(os.path.exists(never))
        self.refused(fetch("merge", given[0], *given), "one of the parts", codes=(1,))
        self.refused(fetch("merge", self.path("x")), codes=(2,))
        self.refused(fetch("merge", self.path("x"), "/nonexistent"), "/nonexistent", codes=(2,))

    def test_hostile_parts(self):
        with open(os.path.join(self.parts["3-4"], "manifest.json")) as f:
            good = json.load(f)

        def changed(change):
            m = json.loads(json.dumps(good))
            change(m)
            return m

        hostile = {
            "off": changed(lambda m: m["trunk"][0].update(off=1 << 62)), "bytes": changed(lambda m: m["trunk"][0].update(bytes=1 << 62)),
            "negative": changed(lambda m: m["trunk"][0].update(off=-1)), "no name": changed(lambda m: m["trunk"][0].pop("name")),
            "a layer that is not there": changed(lambda m: m["trunk"][0].update(name="language_model.model.layers.1.x")),
            "a layer beyond": changed(lambda m: m["trunk"][0].update(name="language_model.model.layers.99.x")),
            "a name": changed(lambda m: m["layers"]["3"].update(file="../../x")),
            "another's bank": changed(lambda m: m["layers"]["3"].update(file="experts-L4.bin")),
            "book": changed(lambda m: m["layers"]["3"].update(codebook_base=65535)),
            "more layers": changed(lambda m: m["partial"]["layers"].append(77)), "a word": changed(lambda m: m["partial"]["layers"].append("a")),
            "one layer more": changed(lambda m: m["partial"]["layers"].append(2)), "no layers": changed(lambda m: m.pop("layers")),
            "no trunk": changed(lambda m: m.update(trunk={})), "a list": [], "no config": changed(lambda m: m.pop("config")),
            "stages": changed(lambda m: m["expert_quant"].update(stages=0)), "no partial": changed(lambda m: m.pop("partial")),
            "bank size": changed(lambda m: m["layers"]["3"].update(bytes=(1 << 62))),
        }
        for what, manifest in hostile.items():
            with self.subTest(what):
                part = self.copy("3-4", "hostile")
                with open(os.path.join(part, "manifest.json"), "w") as f:
                    json.dump(manifest, f)
                out = self.out()
                self.refused(fetch("merge", out, part, self.parts["0-1"], self.parts["2"]), codes=(1,))
                self.refused(fetch("merge", out, self.parts["0-1"], self.parts["2"], part), codes=(1,))
                self.assertFalse(os.path.exists(os.path.join(out, "manifest.json")))

    def test_a_whole_that_the_reader_refuses_is_not_published(self):
        parts = [self.copy(p, "odd%d" % i) for i, p in enumerate(SPLITS[0])]
        for part in parts:
            manifest = load_json(part, "manifest.json")
            manifest["config"]["rms_norm_eps"] = 0
            with open(os.path.join(part, "manifest.json"), "w") as f:
                json.dump(manifest, f)
        out = self.out()
        for turn in range(2):                                   # nor does the second run say it is there
            self.refused(fetch("merge", "-q", out, *parts), "rms_norm_eps", codes=(1,))
            self.assertFalse(os.path.exists(os.path.join(out, "manifest.json")))

    def test_killed_at_any_moment_it_goes_on(self):
        want, total, patience = content(self.whole), 0, 0.15
        for move in (False, True):
            for turn in range(40 if waste.LONG else 4):
                with self.subTest("%s %d" % ("--move" if move else "copy", turn)):
                    parts = [self.copy(p, "kill%d" % i) for i, p in enumerate(SPLITS[0])]
                    out, args = self.out(), ["--move"] if move else []
                    kills = 0
                    while True:
                        p = subprocess.Popen([waste.FETCH, "merge", "-q", out, *parts, *args], stderr=subprocess.PIPE)
                        time.sleep(self.random.random() * patience * (kills + 1))
                        if p.poll() is None:
                            p.kill()
                            kills += 1
                        err = p.communicate()[1]
                        if p.returncode != -9:
                            break
                        if os.path.exists(os.path.join(out, "manifest.json")):
                            self.assertEqual(content(out), want)
                    total += kills
                    patience *= 1 if total else 0.5  # where a merge is quicker, kills come earlier
                    self.assertEqual(p.returncode, 0, err)
                    self.ok(fetch("merge", "-q", out, *parts, *args))
                    self.assertEqual(content(out), want)
                    if move:
                        self.assertFalse(any("experts" in n for p in parts for n in os.listdir(p)))
        print("%d kills" % total, file=sys.stderr)
        self.assertGreater(total, 0)

    def test_a_part_is_told_as_such(self):
        part = self.parts["0-1"]
        for command in ("info", "plan", "run"):
            self.refused(waste.waste_run(command, part), "partial", "2 of 5 layers", codes=(2,))
        r = fetch("verify", part)
        self.assertEqual(r.code, 1)
        self.assertIn("partial", r.error_lines()[0])


if __name__ == "__main__":
    waste.main(waste.FETCH)
