"""waste-fetch synth: the same bytes as ever, and nothing overwritten."""
import json
import os

import waste
from release import digests, release, values


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
        for i, options in enumerate((["--experts", "vq2r"], ["--experts", "VQ4P", "--trunk-bits", "3"], ["--layers", "2"],
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
        first = self.out("killed-at-once")                     # while it wrote its first file
        os.mkdir(first)
        with open(os.path.join(first, "synth.json.tmp"), "w") as f:
            f.write("{")
        self.ok(self.fetch("synth", "--shape", "tiny-odd", first))
        self.assertEqual(digests(first), before)

    def checkpoint(self, shape, *options):
        """A release's directory, made on first use."""
        path = self.out("-".join(("release", shape) + options))
        if not os.path.exists(path):
            self.ok(self.fetch("synth", "-q", "--checkpoint", "--shape", shape, *options, path))
        return path

    def test_a_release_has_the_names_and_the_files_of_a_release(self):
        with open(os.path.join(waste.DEMO, "manifest.json")) as f:
            trunk = {e["name"] for e in json.load(f)["trunk"]}          # of a converted K3 release

        def plain(names):
            return {".".join("N" if p.isdigit() else p for p in n.split(".")) for n in names}

        tensors = release(self.checkpoint("tiny-k3"))
        self.assertEqual(plain(n for n in tensors if ".experts." not in n), plain(trunk))
        expert = {n.rsplit("experts.0.", 1)[1]: (d, s) for n, (d, s, _) in tensors.items() if ".layers.1." in n and ".experts.0." in n}
        self.assertEqual(expert, {"w1.weight_packed": ("U8", [96, 64]), "w1.weight_scale": ("U8", [96, 4]),
                                  "w2.weight_packed": ("U8", [128, 48]), "w2.weight_scale": ("U8", [128, 3]),
                                  "w3.weight_packed": ("U8", [96, 64]), "w3.weight_scale": ("U8", [96, 4])})
        self.assertEqual(sorted(f for f in os.listdir(self.checkpoint("tiny-k3")) if not f.startswith("model-")),
                         ["config.json", "generation_config.json", "model.safetensors.index.json", "synth.json",
                          "tiktoken.model", "tokenizer_config.json"])
        with open(os.path.join(self.checkpoint("tiny-k3"), "config.json")) as f:
            config = json.load(f)
        self.assertEqual((config["architectures"], config["text_config"]["hidden_size"]),
                         (["KimiK3ForConditionalGeneration"], 256))
        tensors = release(self.checkpoint("tiny-linear"))
        self.assertEqual(tensors["model.layers.1.block_sparse_moe.experts.23.w2.weight"][:2], ("BF16", [256, 96]))
        self.assertEqual(tensors["model.layers.0.self_attn.A_log"][0], "F32")

    def test_a_release_has_the_type_that_was_asked_for_and_centred_weights(self):
        first = None
        for dtype in ("f32", "f16", "bf16"):
            with self.subTest(dtype):
                tensors = release(self.checkpoint("tiny-odd-k3", "--dtype", dtype))
                d, shape, data = tensors["language_model.model.layers.1.block_sparse_moe.experts.3.w1.weight"]
                v = values(d, data)
                self.assertEqual((d, shape), (dtype.upper(), [72, 136]))
                first = first or v
                self.assertLess(waste.distance(v, first), {"f32": 1e-9, "f16": 1e-3, "bf16": 4e-3}[dtype])
                mean, square = sum(v) / len(v), sum(x * x for x in v) / len(v)
                self.assertLess(abs(mean), 4 * (square / len(v)) ** 0.5)
                self.assertLess(abs(square * 136 - 1), 0.1)
        self.refused(self.fetch("synth", "--checkpoint", "--shape", "tiny-odd-k3", "--dtype", "mxfp4", self.out("odd4")),
                     "multiples of 32", codes=(2,))

    def test_a_release_is_the_same_in_any_shards_by_any_threads(self):
        whole = release(self.checkpoint("tiny-k3"))
        for options in (["--shard-size", "1000000"], ["--shard-size", "4096"], ["--threads", "1"]):
            with self.subTest(" ".join(options)):
                path = self.checkpoint("tiny-k3", *options)
                self.assertEqual(release(path), whole)
                if options[1] == "1000000":
                    self.assertGreater(len([f for f in os.listdir(path) if f.startswith("model-0")]), 5)
        self.assertNotEqual(release(self.checkpoint("tiny-k3", "--seed", "2")), whole)
        args = ["synth", "--checkpoint", "--shape", "tiny-k3", self.checkpoint("tiny-k3")]
        self.assertIn(b"already there", self.ok(self.fetch(*args)).out)
        self.refused(self.fetch(*args, "--dtype", "bf16"), self.checkpoint("tiny-k3"), codes=(1,))

    def test_wrong_use(self):
        out = self.out("never")
        for args in (["--shape", "no-such", out], ["--shape", "tiny-k3", "--seed", "x", out],
                     ["--shape", "tiny-k3", "--experts", "Q4", out], ["--shape", "tiny-k3", "--trunk-bits", "5", out],
                     ["--shape", "tiny-k3", "--layers", "99", out], ["--shape", "/nonexistent.json", out],
                     ["--shape", "tiny-k3", "/nonexistent/dir/out"], ["--shape", "/dev/null", out],
                     ["--shape", "tiny-k3", "--dtype", "bf16", out], ["--shape", "tiny-k3", "--shard-size", "9999", out],
                     ["--shape", "tiny-k3", "--checkpoint", "--experts", "vq2r", out],
                     ["--shape", "tiny-k3", "--checkpoint", "--dtype", "int4", out]):
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
        self.assertFalse(os.path.exists(self.out("big")))
        os.mkdir(self.out("kept"))                             # it is not ours to remove
        self.refused(self.fetch("synth", "--shape", "kimi-k3", self.out("kept")), "GiB", codes=(1,))
        self.assertEqual(os.listdir(self.out("kept")), [])

    def test_json_says_what_was_made(self):
        for kind, options in (("container", ()), ("release", ("--checkpoint",))):
            path = self.out("json-" + kind)
            args = ("synth", "--json", "--shape", "tiny-linear", *options, path)
            first, again = self.ok(self.fetch(*args)).json(), self.ok(self.fetch(*args)).json()
            self.assertEqual((first[kind], first["whole"], first["already_there"]), (path, True, False))
            self.assertEqual((again[kind], again["whole"], again["already_there"]), (path, True, True))
            large = [f for f in os.listdir(path) if f.endswith((".bin", ".safetensors"))]
            size = sum(os.path.getsize(os.path.join(path, f)) for f in large)
            self.assertLess(abs(first["bytes"] - size), size / 100)
            self.assertGreater(first["seconds"], 0)
        shapes = self.ok(self.fetch("synth", "--list", "--json")).json()["shapes"]
        text = self.ok(self.fetch("synth", "--list")).out.decode()
        self.assertEqual([s["name"] for s in shapes], [l.split()[0] for l in text.splitlines()])
        self.assertTrue(all(s["bytes"] > 0 for s in shapes))


if __name__ == "__main__":
    waste.main(waste.FETCH)
