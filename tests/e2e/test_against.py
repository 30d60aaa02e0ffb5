"""waste-fetch verify --against: the relative error of every matrix, as the format's description decodes it here too."""
import json
import math
import os
import shutil
import struct

import waste

LEVELS = (0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6)
# (shape, type of the release, format of the experts, bits of the trunk)
MODELS = (("tiny-k3", "mxfp4", "vq3r", "4"), ("tiny-linear", "bf16", "vq2r", "3"), ("tiny-odd-k3", "f16", "vq4p", "8"),
          ("tiny-odd", "f32", "vq3r", "4"))


def fetch(*args, **kw):
    return waste.waste_run(*args, program=waste.FETCH, **kw)


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


class Release:
    """The values of a release's tensors."""

    def __init__(self, path):
        self.path, self.at = path, {}
        for shard in sorted(f for f in os.listdir(path) if f.endswith(".safetensors")):
            with open(os.path.join(path, shard), "rb") as f:
                n, = struct.unpack("<Q", f.read(8))
                for name, t in json.loads(f.read(n)).items():
                    if name != "__metadata__":
                        self.at[name] = (shard, 8 + n, t)

    def raw(self, name):
        shard, base, t = self.at[name]
        with open(os.path.join(self.path, shard), "rb") as f:
            f.seek(base + t["data_offsets"][0])
            return t, f.read(t["data_offsets"][1] - t["data_offsets"][0])

    def values(self, name):
        if name not in self.at:                             # an MXFP4 pair
            t, packed = self.raw(name + "_packed")
            _, scale = self.raw(name + "_scale")
            codes = [c for b in packed for c in (b & 15, b >> 4)]
            return [LEVELS[c] * 2.0 ** (scale[i // 32] - 127) for i, c in enumerate(codes)]
        t, data = self.raw(name)
        if t["dtype"] == "BF16":
            return list(waste.floats(b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))))
        return list(struct.unpack("<%d%s" % (len(data) // (4 if t["dtype"] == "F32" else 2), {"F32": "f", "F16": "e"}[t["dtype"]]),
                                  data))


class Decoder:
    """A container's weights, from the description of the format."""

    def __init__(self, path):
        self.path = path
        with open(os.path.join(path, "manifest.json")) as f:
            self.manifest = json.load(f)
        quant = self.manifest["expert_quant"]
        self.stages, self.entries, self.bits = quant["stages"], quant["entries"], quant["index_bits"]
        with open(os.path.join(path, "codebooks.bin"), "rb") as f:
            data = f.read()
        size = 16 + self.entries * 16
        self.books = [[h if abs(h) >= 2.0 ** -14 else 0.0 for h in struct.unpack("<%de" % (self.entries * 8), data[o + 16:o + size])]
                      for o in range(0, len(data), size)]
        with open(os.path.join(path, "trunk.bin"), "rb") as f:
            self.trunk = f.read()

    def tensor(self, e):
        n, rows = e["shape"][-1], math.prod(e["shape"][:-1])
        if e["fmt"] == 0:
            return list(struct.unpack_from("<%df" % (rows * n), self.trunk, e["off"]))
        groups = -(-n // 128)
        stride = {2: groups * 128, 3: groups * 64, 7: groups * 48 + 1}[e["fmt"]]
        out = []
        for r in range(rows):
            row = self.trunk[e["off"] + r * stride:e["off"] + (r + 1) * stride]
            bits = int.from_bytes(row, "little")
            scale = struct.unpack_from("<%de" % groups, self.trunk, e["scale_off"] + r * groups * 2)
            for c in range(n):
                q = {2: lambda: struct.unpack_from("b", row, c)[0], 3: lambda: (bits >> 4 * c & 15) - 8,
                     7: lambda: (bits >> 3 * c & 7) - 4}[e["fmt"]]()
                out.append(q * scale[c // 128])
        return out

    def expert(self, layer, expert, kind):
        """Matrix 0 gate, 1 up, 2 down."""
        c, meta = self.manifest["config"], self.manifest["layers"][str(layer)]
        stride = meta["bytes"] // meta["experts"]
        with open(os.path.join(self.path, meta["file"]), "rb") as f:
            f.seek(expert * stride)
            rec = f.read(stride)
        wide, inner = c.get("routed_expert_hidden_size") or c["hidden_size"], c["moe_intermediate_size"]
        rows, cols = (wide, inner) if kind == 2 else (inner, wide)
        index, = struct.unpack_from("<I", rec, 20 + 4 * kind)
        scales, = struct.unpack_from("<I", rec, 32)
        scale = struct.unpack_from("<%de" % rows, rec, scales + 2 * inner * kind)
        per = 3 if self.bits == 6 else self.stages
        book = struct.unpack_from("<H", rec, 10)[0] + kind * self.stages
        out = []
        for r in range(rows):
            for p in range(cols // 8):
                b = rec[index + (((r // 64) * (cols // 8) + p) * 64 + r % 64) * per:][:per]
                if self.bits == 6:
                    word = int.from_bytes(b, "little")
                    b = [word >> 6 * s & 63 for s in range(4)]
                for d in range(8):
                    total = 0.0
                    for s in range(self.stages):
                        total = f32(total + self.books[book + s][b[s] * 8 + d])
                    out.append(f32(total * scale[r]))
        return out


def relative(w, mine):
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(w, mine)) / math.fsum(a * a for a in w))


class Against(waste.Test):
    @classmethod
    def setUpClass(cls):
        cls.random = waste.seed()

    def model(self, shape, dtype, experts, bits):
        """Paths of a release and of what convert makes of it: a dense layer and one of experts; made on first use."""
        source = os.path.join(waste.scratch(), "source-" + shape)
        out = os.path.join(waste.scratch(), "of-" + shape)
        if not os.path.exists(source):
            self.ok(fetch("synth", "-q", "--checkpoint", "--shape", shape, "--layers", 2, "--dtype", dtype,
                          "--shard-size", "1M", source))
            self.ok(fetch("convert", "-q", "--effort", 0, "--experts", experts, "--trunk-bits", bits, source, out))
        return source, out

    def against(self, source, out, *options, code=0):
        r = fetch("verify", "--json", out, "--against", source, *options)
        self.assertEqual(r.code, code, str(r))
        return r.json()

    def test_every_error_is_what_the_format_says(self):
        for model in MODELS:
            with self.subTest(model[0]):
                source, out = self.model(*model)
                release, decoder = Release(source), Decoder(out)
                found = self.against(source, out)["against"]
                error = {m["name"]: m["error"] for m in found["matrices"]}
                names = {n.replace("_packed", "") for n in release.at if not n.endswith("_scale")}
                self.assertEqual(set(error), names)
                entries = sorted(decoder.manifest["trunk"], key=lambda e: e["bytes"])
                chosen = [e for fmt in (0, 2, 3, 7) for e in [e for e in entries if e["fmt"] == fmt][:2]]
                for e in chosen:
                    want = relative(release.values(e["name"]), decoder.tensor(e))
                    self.assertAlmostEqual(error[e["name"]], want, delta=1e-9, msg=e["name"])
                last = int(decoder.manifest["config"]["num_experts"]) - 1
                for kind, number in ((0, 1), (1, 3), (2, 2)):
                    name = "%smodel.layers.1.block_sparse_moe.experts.%d.w%d.weight" % (
                        decoder.manifest["tensor_prefix"], last, number)
                    want = relative(release.values(name), decoder.expert(1, last, kind))
                    self.assertGreater(want, 0.05)
                    self.assertAlmostEqual(error[name], want, delta=1e-9, msg=name)

    def test_summaries_are_of_the_matrices(self):
        source, out = self.model(*MODELS[0])
        found = self.against(source, out)["against"]
        self.assertFalse(found["other_release"])
        errors = [m["error"] for m in found["matrices"]]
        self.assertEqual(errors, sorted(errors, reverse=True))
        gates = [m["error"] for m in found["matrices"] if m["name"].endswith("w1.weight")]
        gate = found["layers"]["1"]["gate"]
        self.assertEqual((gate["matrices"], gate["worst"]), (len(gates), max(gates)))
        self.assertTrue(min(gates) < gate["error"] < max(gates))
        self.assertEqual(found["kinds"]["f32"]["error"], 0)
        self.assertNotIn("gate", found["layers"]["0"])
        text = self.ok(fetch("verify", out, "--against", source)).out.decode()
        self.assertIn(found["matrices"][0]["name"], text)
        self.assertIn("%.3f" % (100 * gate["error"]), text)

    def test_layers_choose(self):
        source, out = self.model(*MODELS[0])
        found = self.against(source, out, "--layers", "0")["against"]
        self.assertTrue(all(".layers.0." in m["name"] for m in found["matrices"]))
        self.assertEqual(set(found["layers"]), {"0"})

    def hurt_source(self, change):
        """A copy of the first model's release of which `change` alters one shard: (name -> tensor entry, data)."""
        source, out = self.model(*MODELS[3])
        path = os.path.join(waste.scratch(), "hurt-source")
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
        return path, out, change(path)

    def rewrite(self, path, name, data):
        shard, base, t = Release(path).at[name]
        with open(os.path.join(path, shard), "r+b") as f:
            f.seek(base + t["data_offsets"][0])
            f.write(data(t["data_offsets"][1] - t["data_offsets"][0]))

    def rename(self, path, old, new):
        for shard in os.listdir(path):
            with open(os.path.join(path, shard), "rb") as f:
                data = f.read()
            with open(os.path.join(path, shard), "wb") as f:
                f.write(data.replace(old.encode() + b'"', new.encode() + b'"'))

    def one(self, path, out, *words):
        damages = self.against(path, out, code=1)["damages"]
        self.assertEqual(len(damages), 1, damages)
        for w in words:
            self.assertIn(w, damages[0]["what"])

    def test_what_does_not_belong_together_is_named(self):
        expert, norm = "model.layers.1.block_sparse_moe.experts.2.w2.weight", "model.layers.0.input_layernorm.weight"
        path, out, _ = self.hurt_source(lambda p: self.rewrite(
            p, expert, lambda n: struct.pack("<%df" % (n // 4), *[self.random.gauss(0, .1) for _ in range(n // 4)])))
        self.one(path, out, expert, "relative error")
        path, out, _ = self.hurt_source(lambda p: self.rewrite(p, expert, bytes))
        self.one(path, out, expert, "relative error")
        path, out, _ = self.hurt_source(lambda p: self.rewrite(p, norm, lambda n: struct.pack("<f", 2.5) * (n // 4)))
        self.one(path, out, norm, "relative error")
        path, out, _ = self.hurt_source(lambda p: self.rename(p, norm, norm[:-1] + "X"))
        damages = self.against(path, out, code=1)["damages"]
        self.assertEqual(len(damages), 2, damages)
        self.assertTrue(any("no such tensor" in d["what"] and norm in d["what"] for d in damages))
        self.assertTrue(any("which the source has" in d["what"] and "weighX" in d["what"] for d in damages))

    def test_an_expert_too_many_in_the_source_is_named(self):
        more, fewer = "model.layers.1.block_sparse_moe.experts.12.w1.weight", "model.layers.1.block_sparse_moe.experts.77.w1.weight"
        path, out, _ = self.hurt_source(lambda p: self.rename(p, more, fewer))
        damages = self.against(path, out, code=1)["damages"]
        self.assertTrue(any("which the source has" in d["what"] and fewer in d["what"] for d in damages), damages)
        self.assertTrue(any("no such tensor" in d["what"] and more in d["what"] for d in damages), damages)

    def test_another_release_is_all_damage(self):
        source, out = self.model(*MODELS[3])
        other = os.path.join(waste.scratch(), "other-seed")
        self.ok(fetch("synth", "-q", "--checkpoint", "--shape", "tiny-odd", "--layers", 2, "--dtype", "f32", "--seed", 5, other))
        found = self.against(other, out, code=1)
        self.assertTrue(found["against"]["other_release"])
        self.assertEqual(len(found["damages"]), len(found["against"]["matrices"]))
        r = fetch("verify", out, "--against", other)
        lines = r.error_lines()
        self.assertEqual(r.code, 1)
        self.assertIn("%s is another release than the one %s was made of: %d" % (other, out, len(found["damages"])), lines[0])
        self.assertEqual(len(lines), 7)                        # that, the five worst, how many more
        worst = sorted((float(d["what"].split("relative error ")[1].split()[0]) for d in found["damages"]), reverse=True)
        self.assertEqual([float(l.split("relative error ")[1].split()[0]) for l in lines[1:6]], worst[:5])
        self.assertIn(" %d more" % (len(worst) - 5), lines[6])
        wrong, _ = self.model(*MODELS[2])
        self.assertGreater(len(self.against(wrong, out, code=1)["damages"]), 10)

    def test_of_many_that_differ_the_worst_are_shown(self):
        """Less than half of all: no other release, but not every line either."""
        def hurt(path):
            for expert in range(12):
                for w in (1, 2):
                    self.rewrite(path, "model.layers.1.block_sparse_moe.experts.%d.w%d.weight" % (expert, w), bytes)
        path, out, _ = self.hurt_source(hurt)
        self.assertFalse(self.against(path, out, code=1)["against"]["other_release"])
        lines = fetch("verify", out, "--against", path).error_lines()
        self.assertEqual(len(lines), 21)
        self.assertIn(" 4 more", lines[-1])

    def test_a_damaged_record_is_not_compared_and_said_once(self):
        source, out = self.model(*MODELS[0])
        hurt = waste.copy_container(out, "against-hurt")
        with open(os.path.join(out, "experts-L1.bin"), "rb") as f:
            data = bytearray(f.read())
        data[3 * (len(data) // 24) + 1000] ^= 1
        waste.replace(hurt, "experts-L1.bin", bytes(data))
        found = self.against(source, hurt, code=1)
        self.assertEqual([(d["expert"]) for d in found["damages"]], [3])
        self.assertFalse(any(".experts.3." in m["name"] for m in found["against"]["matrices"]))

    def test_a_source_that_is_no_directory_of_this_machine(self):
        for source in ("https://127.0.0.1:1/x", "some/model"):
            self.refused(fetch("verify", self.model(*MODELS[0])[1], "--against", source), source, "directory", "waste-fetch get", codes=(2,))

    def test_a_source_that_is_none(self):
        source, out = self.model(*MODELS[0])
        empty = os.path.join(waste.scratch(), "no-source")
        os.makedirs(empty, exist_ok=True)
        for path in (empty, "/nonexistent", os.path.join(out, "trunk.bin")):
            with self.subTest(path):
                self.refused(fetch("verify", out, "--against", path), codes=(2,))


if __name__ == "__main__":
    waste.main(waste.FETCH)
