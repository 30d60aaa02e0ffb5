"""waste-fetch synth: the same bytes as ever, and nothing overwritten."""
import hashlib
import os

import waste


def digests(path):
    out = {}
    for name in os.listdir(path):
        with open(os.path.join(path, name), "rb") as f:
            out[name] = hashlib.sha256(f.read()).hexdigest()
    return out


class Fetch(waste.Test):
    def fetch(self, *args):
        return waste.waste_run(*args, program=waste.FETCH)

    def out(self, name):
        return os.path.join(waste.scratch(), name)

    def test_the_generator_makes_the_bytes_the_references_were_made_of(self):
        for shape in waste.shapes():
            with self.subTest(shape):
                self.assertEqual(digests(waste.synth(shape)), waste.reference(shape)["sha256"])

    def test_threads_change_nothing_and_seeds_do(self):
        made = []
        for i, options in enumerate((["--threads", "1"], ["--threads", "7"], ["--seed", "2"])):
            path = self.out("seed%d" % i)
            self.ok(self.fetch("synth", "-q", "--shape", "tiny-odd-k3", *options, path))
            made.append(digests(path))
        self.assertEqual(made[0], made[1])
        self.assertNotEqual(made[0]["trunk.bin"], made[2]["trunk.bin"])
        self.assertNotEqual(made[0]["experts-L1.bin"], made[2]["experts-L1.bin"])

    def test_formats_and_layers(self):
        for i, options in enumerate((["--fmt", "VQ2R"], ["--fmt", "VQ4P", "--trunk-bits", "3"], ["--layers", "2"],
                                     ["--trunk-bits", "8"])):
            with self.subTest(" ".join(options)):
                self.ok(self.fetch("synth", "--shape", "tiny-linear", *options, self.out("formats%d" % i)))

    def test_a_config_file_is_a_shape(self):
        config = os.path.join(waste.synth("tiny-k3"), "synth.json")
        with open(config) as f:
            text = f.read()
        path = os.path.join(waste.scratch(), "config.json")
        with open(path, "w") as f:
            f.write(text[text.index('"config":') + 9:text.rindex('"expert_fmt"')].rstrip().rstrip(","))
        self.ok(self.fetch("synth", "-q", "--shape", path, self.out("from-config")))
        named, own = digests(waste.synth("tiny-k3")), digests(self.out("from-config"))
        del named["manifest.json"], own["manifest.json"]       # the config's keys stand in another order
        self.assertEqual(named, own)

    def test_a_second_run_finds_it_done_and_a_different_one_is_refused(self):
        path = self.out("twice")
        args = ["synth", "--shape", "tiny-odd", path]
        self.ok(self.fetch(*args))
        before = digests(path)
        self.assertIn(b"already there", self.ok(self.fetch(*args)).out)
        self.refused(self.fetch(*args, "--seed", "9"), path, codes=(1,))
        self.assertEqual(digests(path), before)
        os.unlink(os.path.join(path, "manifest.json"))
        self.ok(self.fetch(*args))
        self.assertEqual(digests(path), before)

    def test_wrong_use(self):
        out = self.out("never")
        for args in (["--shape", "no-such", out], ["--shape", "tiny-k3", "--seed", "x", out],
                     ["--shape", "tiny-k3", "--fmt", "Q4", out], ["--shape", "tiny-k3", "--trunk-bits", "5", out],
                     ["--shape", "tiny-k3", "--layers", "99", out], ["--shape", "/nonexistent.json", out],
                     ["--shape", "tiny-k3", "/nonexistent/dir/out"], ["--shape", "/dev/null", out]):
            with self.subTest(" ".join(args)):
                self.refused(self.fetch("synth", *args))
                self.assertFalse(os.path.exists(out))
        self.assertEqual(self.fetch("synth").code, 2)
        self.assertEqual(self.fetch().code, 2)
        self.refused(self.fetch("nonsense"), codes=(2,))
        for args in (["--help"], ["synth", "--help"], ["synth", "--list"], ["--version"]):
            self.ok(self.fetch(*args))

    def test_it_asks_for_space_before_it_begins(self):
        self.refused(self.fetch("synth", "--shape", "kimi-k3", self.out("big")), "GiB", codes=(1,))
        self.assertEqual(os.listdir(self.out("big")), [])


if __name__ == "__main__":
    waste.main(waste.FETCH)
