"""waste-fetch convert: what is in the container, by a second reader; broken off, cut up, resumed; releases that are none."""
import json
import math
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

import waste
from release import (Container, Test, digests, load_json, quantised, read_shard, release, weight, write_release,
                     write_shard)

# Relative weight error that must not be reached, in %: the public converter's for three and two bits; a scalar
# quantiser's for four stages of 64 entries.
BAR = {"vq3r": 19.5, "vq2r": 33, "vq4p": 24}


def distance(got, want):
    return 100 * math.sqrt(sum((a - b) ** 2 for a, b in zip(got, want)) / sum(b * b for b in want))


class Convert(Test):
    def check_trunk(self, source, path, bits=4):
        tensors, manifest = release(source), load_json(path, "manifest.json")
        with open(os.path.join(path, "trunk.bin"), "rb") as f:
            trunk = f.read()
        want = {n for n in tensors if ".experts." not in n}
        self.assertEqual({e["name"] for e in manifest["trunk"]}, want)
        end = 0
        for e in manifest["trunk"]:
            shape, v = weight(tensors, e["name"])
            self.assertEqual((e["off"], e["shape"]), (end, shape), e["name"])
            end += e["bytes"]
            rule = 0 if len(shape) == 1 or len(v) < 65536 else \
                2 if "embed_tokens" in e["name"] or "lm_head" in e["name"] else {8: 2, 4: 3, 3: 7}[bits]
            self.assertEqual(e["fmt"], rule, e["name"])
            if rule == 0:
                self.assertEqual(list(waste.floats(trunk[e["off"]:end])), list(v), e["name"])
            else:
                payload, scales = quantised(v, len(v) // shape[-1], shape[-1], {2: 8, 3: 4, 7: 3}[rule])
                self.assertEqual(trunk[e["off"]:e["scale_off"]] == payload, True, e["name"])
                self.assertEqual(trunk[e["scale_off"]:end] == scales, True, e["name"])
        self.assertEqual(end, len(trunk))

    def experts(self, source, path, picks):
        """{(layer, expert, kind): (decoded, original)}, flat."""
        tensors, config = release(source), load_json(path, "manifest.json")["config"]
        prefix = load_json(path, "manifest.json")["tensor_prefix"]
        inner, width = config["moe_intermediate_size"], config.get("routed_expert_hidden_size") or config["hidden_size"]
        box, out = Container(path), {}
        for layer, expert in picks:
            got = box.expert(layer, expert, [(inner, width), (inner, width), (width, inner)])
            for kind, w in enumerate(("w1", "w3", "w2")):
                name = "%smodel.layers.%d.block_sparse_moe.experts.%d.%s.weight" % (prefix, layer, expert, w)
                out[layer, expert, kind] = sum(got[kind], []), list(weight(tensors, name)[1])
        return out

    def check_experts(self, source, path, bar):
        manifest = load_json(path, "manifest.json")
        last = max(map(int, manifest["layers"]))
        count = manifest["layers"][str(last)]["experts"]
        for key, (got, want) in self.experts(source, path, [(1, 0), (2, count // 2), (last, count - 1)]).items():
            self.assertLess(distance(got, want), bar, "layer %d expert %d kind %d" % key)

    def test_every_type_of_weights_becomes_the_container_that_the_format_describes(self):
        for shape, options, formats in (
                ("tiny-k3", [], ["--experts", "vq3r", "--effort", "0"]), ("tiny-linear", [], ["--experts", "vq2r", "--trunk-bits", "8"]),
                ("tiny-odd-k3", ["--dtype", "f32"], ["--experts", "vq4p", "--trunk-bits", "3"]),
                ("tiny-odd", ["--dtype", "f16"], ["--effort", "0"])):
            with self.subTest(shape):
                source, path = self.made(shape, *options), self.out("made-" + shape)
                self.ok(self.convert(source, path, *formats))
                self.check_trunk(source, path, int(formats[3]) if len(formats) > 3 and formats[2] == "--trunk-bits" else 4)
                self.check_experts(source, path, BAR[formats[1]] if formats[0] == "--experts" else BAR["vq3r"])
                self.assertEqual(sorted(load_json(path, "convert.json")), sorted(set(load_json(path, "convert.json"))))
                self.ok(waste.waste_run("run", path, "--ids", "1,2,3", "-n", "4", "--ignore-eos", "-q"))

    def test_values_of_each_type_are_what_they_are(self):
        # by hand: bit patterns of the three types and of a pair, with the numbers they are
        config = {**load_json(self.made("tiny-linear"), "config.json")}
        tensors = dict(release(self.made("tiny-linear")))
        norm = "model.layers.%d.input_layernorm.weight"
        patterns = {"BF16": ([0x3f80, 0xc049, 0x0001, 0x0000], [1.0, -3.140625, 9.183549615799121e-41, 0.0], "<H"),
                    "F16": ([0x3c00, 0xc248, 0x0001, 0x7bff], [1.0, -3.140625, 2.0 ** -24, 65504.0], "<H"),
                    "F32": ([0x3f800000, 0xc0490fdb, 0x00000001, 0x7f7fffff],
                            [1.0, -3.1415927410125732, 1.401298464324817e-45, 3.4028234663852886e38], "<I")}
        for layer, (dtype, (bits, _, code)) in enumerate(patterns.items()):
            tensors[norm % layer] = (dtype, [256], b"".join(struct.pack(code, b) for b in bits) * 64)
        # 0.5 * 2^-1, -6 * 2^-1; 1.5 * 2^127; the smallest exponent
        packed = bytes([0xf1] * 16 + [0x33] * 16 + [0x22] * 16 + [0x22] * 16)
        tensors[norm % 3 + "_packed"] = ("U8", [128], packed * 2)
        tensors[norm % 3 + "_scale"] = ("U8", [8], bytes([126, 254, 0, 127]) * 2)
        pair = ([0.25, -3.0] * 16 + [1.5 * 2.0 ** 127] * 32 + [2.0 ** -127] * 32 + [1.0] * 32) * 2
        del tensors[norm % 3]
        source, path = self.out("values"), self.out("values.waste")
        write_release(source, tensors, config)
        self.ok(self.convert(source, path, "--effort", "0"))
        with open(os.path.join(path, "trunk.bin"), "rb") as f:
            trunk = f.read()
        for e in load_json(path, "manifest.json")["trunk"]:
            for layer, (dtype, (_, numbers, _)) in enumerate(patterns.items()):
                if e["name"] == norm % layer:
                    self.assertEqual(list(waste.floats(trunk[e["off"]:e["off"] + 1024])), numbers * 64, dtype)
            if e["name"] == norm % 3:
                self.assertEqual(list(waste.floats(trunk[e["off"]:e["off"] + 1024])), pair)

    def test_the_summary_tells_the_error_that_a_second_reader_finds(self):
        source, path = self.made("tiny-odd", "--dtype", "f16"), self.out("summary")
        said = self.ok(self.convert(source, path, "--effort", "0", "--json")).json()
        count = load_json(path, "manifest.json")["layers"]["2"]["experts"]
        found = self.experts(source, path, [(2, e) for e in range(count)])
        for kind, name in enumerate(("gate", "up", "down")):
            got, want = ([x for e in range(count) for x in found[2, e, kind][i]] for i in (0, 1))
            self.assertAlmostEqual(said["weight_error"][name]["layers"]["2"] * 100, distance(got, want), delta=0.01)

    def test_more_effort_means_less_error(self):
        source, last = self.made("tiny-k3"), 100.0
        for effort in ("0", "1", "2"):
            said = self.ok(self.convert(source, self.out("effort"), "--effort", effort, "--json")).json()
            worst = max(said["weight_error"][k]["all"] for k in ("gate", "up", "down"))
            self.assertLess(worst, last)
            last = worst

    def test_the_bytes_depend_on_no_thread_and_no_instruction_set(self):
        # tests/kernels/search.c compares the levels' codes; here it is the whole of a layer
        source = self.made("tiny-odd", "--dtype", "f16")
        for experts in ("vq3r", "vq2r", "vq4p"):
            first = None
            for env, threads in (({}, "1"), ({}, "3"), ({"WASTE_CPU": "avx2"}, "2")):
                path = self.out("same")
                r = self.convert(source, path, "--experts", experts, "--effort", "0", "--layers", "1", "--threads", threads,
                                 env={**os.environ, **env})
                if r.code and b"no such level" in r.err:
                    continue
                self.ok(r)
                first = first or digests(path)
                self.assertEqual(digests(path), first, "%s %s threads" % (env, threads))

    def test_vision_tensors_are_matrices_of_eight_bits(self):
        tensors = dict(release(self.made("tiny-k3")))
        config = load_json(self.made("tiny-k3"), "config.json")
        config["vision_config"] = {"patch_size": 14, "vt_hidden_size": 96}
        rng = random.Random(5)
        big = [rng.randrange(-2000, 2000) / 1024 for _ in range(96 * 3 * 16 * 16)]
        small = [rng.randrange(-2000, 2000) / 1024 for _ in range(8 * 3 * 4 * 4)]
        tensors["vision_tower.patch_embed.proj.weight"] = ("F32", [96, 3, 16, 16], struct.pack("<%df" % len(big), *big))
        tensors["vision_tower.small.weight"] = ("F32", [8, 3, 4, 4], struct.pack("<%df" % len(small), *small))
        source, path = self.out("vision"), self.out("vision.waste")
        write_release(source, tensors, config)
        self.ok(self.convert(source, path, "--effort", "0"))
        entries = {e["name"]: e for e in load_json(path, "manifest.json")["trunk"]}
        with open(os.path.join(path, "trunk.bin"), "rb") as f:
            trunk = f.read()
        e = entries["vision_tower.patch_embed.proj.weight"]
        self.assertEqual((e["fmt"], e["shape"]), (2, [96, 768]))
        payload, scales = quantised(big, 96, 768, 8)
        self.assertEqual(trunk[e["off"]:e["off"] + e["bytes"]], payload + scales)
        e = entries["vision_tower.small.weight"]
        self.assertEqual((e["fmt"], e["shape"]), (0, [8, 3, 4, 4]))
        self.assertEqual(list(waste.floats(trunk[e["off"]:e["off"] + e["bytes"]])), small)
        self.assertEqual(load_json(path, "vision.json"), config["vision_config"])
        self.assertEqual(load_json(path, "manifest.json")["config"]["_outer"]["vision_config"], config["vision_config"])

    def test_small_files(self):
        source, path = self.made("tiny-k3"), self.out("small")
        self.ok(self.convert(source, path, "--effort", "0"))
        with open(os.path.join(source, "tiktoken.model"), "rb") as a, open(os.path.join(path, "tokenizer.model"), "rb") as b:
            self.assertEqual(a.read(), b.read())
        added = load_json(source, "tokenizer_config.json")["added_tokens_decoder"]
        self.assertEqual(load_json(path, "specials.json"), [{"id": int(i), "text": added[i]["content"]} for i in sorted(added, key=int)])
        self.assertEqual(load_json(path, "chat.json"), load_json(waste.DEMO, "chat.json"))
        outer = load_json(source, "config.json")
        text = outer.pop("text_config")
        self.assertEqual(load_json(path, "manifest.json")["config"], {**text, "_outer": outer})

    def test_a_part_is_known_as_one_and_is_completed(self):
        source, whole, path = self.made("tiny-k3"), self.out("whole"), self.out("part")
        self.ok(self.convert(source, whole, "--effort", "0"))
        said = self.ok(self.convert(source, path, "--effort", "0", "--layers", "2-3", "--json")).json()
        self.assertEqual((said["whole"], said["layers_done"], said["layers"]), (False, 2, 6))
        self.assertEqual(load_json(path, "manifest.json")["partial"], {"outer": False, "layers": [2, 3], "of": 6})
        self.refused(waste.waste_run("info", path), "partial", "2 of 6", "waste-fetch convert")
        self.refused(waste.waste_run("run", path, "x"), "partial")
        banks = {n: os.stat(os.path.join(path, n)).st_mtime_ns for n in ("experts-L2.bin", "experts-L3.bin")}
        self.ok(self.convert(source, path, "--effort", "0"))
        self.assertEqual(digests(path), digests(whole))
        self.assertEqual({n: os.stat(os.path.join(path, n)).st_mtime_ns for n in banks}, banks)
        self.assertIn(b"already there", self.ok(self.convert(source, path, "--effort", "0")).out)
        self.refused(self.convert(source, path, "--effort", "1"), path, "other content")
        for text in ("3-2", "0-6", "x", "-1", "1-", "1-2-3"):
            self.refused(self.convert(source, self.out("no"), "--layers", text), "--layers", codes=(2,))

    def test_nothing_is_written_when_only_asked(self):
        source, path = self.made("tiny-k3"), self.out("dry")
        said = self.ok(self.convert(source, path, "--dry-run", "--json")).json()
        self.assertFalse(os.path.exists(path))
        self.ok(self.convert(source, path, "--effort", "0"))
        size = {n: os.stat(os.path.join(path, n)).st_size for n in os.listdir(path)}
        self.assertEqual((said["trunk_bytes"], said["codebook_bytes"], said["expert_bytes"], said["fits"]),
                         (size["trunk.bin"], size["codebooks.bin"], sum(size["experts-L%d.bin" % i] for i in range(1, 6)), True))
        self.assertRegex(self.ok(self.convert(source, path, "--dry-run")).out.decode(), r": \d+(\.\d+)? MiB needed, ")

    # -- releases that are none

    def broken(self, change):
        """A copy of a release with one thing changed by change(path)."""
        path = self.out("broken")
        shutil.copytree(self.made("tiny-odd-k3"), path)
        change(path)
        return path

    def head(self, edit, shard="model-00001-of-00001.safetensors"):
        """A change: edit(header, data) gives another header (a dict or bytes), and data or None."""
        def change(path):
            file = os.path.join(path, shard)
            write_shard(file, *edit(*read_shard(file)))
        return change

    def entry(self, match, **over):
        """A change of one tensor's entry; values may be functions of the old one."""
        def edit(head, data):
            name = next(n for n in head if n.endswith(match))
            for key, v in over.items():
                head[name][key] = v(head[name][key]) if callable(v) else v
            return head, data
        return self.head(edit)

    def bytes_of(self, match, data):
        """A change of the first bytes of a tensor."""
        def edit(head, old):
            at = next(t["data_offsets"][0] for n, t in head.items() if n.endswith(match))
            return head, old[:at] + data + old[at + len(data):]
        return self.head(edit)

    def index(self, edit):
        def change(path):
            name = os.path.join(path, "model.safetensors.index.json")
            index = load_json(name)
            edit(index["weight_map"])
            with open(name, "w") as f:
                json.dump(index, f)
        return change

    def text(self, name, data):
        def change(path):
            with open(os.path.join(path, name), "wb") as f:
                f.write(data)
        return change

    def config(self, **over):
        def change(path):
            c = load_json(path, "config.json")
            c["text_config"].update(over)
            with open(os.path.join(path, "config.json"), "w") as f:
                json.dump(c, f)
        return change

    def test_what_is_no_release_is_refused_in_one_line(self):
        shard = "model-00001-of-00001.safetensors"
        norm, w1 = "layers.0.input_layernorm.weight", "layers.1.block_sparse_moe.experts.0.w1.weight"

        def renamed(old, new):
            def edit(head, data):
                name = next(n for n in head if n.endswith(old))
                return {(name[:-len(old)] + new if n == name else n): t for n, t in head.items()}, data
            return self.head(edit)

        def without_index(change):
            def both(path):
                os.unlink(os.path.join(path, "model.safetensors.index.json"))
                os.rename(os.path.join(path, shard), os.path.join(path, "model.safetensors"))
                file = os.path.join(path, "model.safetensors")
                write_shard(file, *change(*read_shard(file)))
            return both

        def drop(match):
            """A release that never had these tensors."""
            def edit(head, data):
                out, kept = {}, b""
                for n, t in head.items():
                    if n != "__metadata__" and match not in n:
                        raw = data[slice(*t["data_offsets"])]
                        out[n] = dict(t, data_offsets=[len(kept), len(kept) + len(raw)])
                        kept += raw
                return out, kept
            return without_index(edit)

        def twice(path):
            shutil.copy(os.path.join(path, shard), os.path.join(path, "other.safetensors"))
            self.index(lambda m: m.update({next(iter(m)): "other.safetensors"}))(path)

        def cut(path):
            file = os.path.join(path, shard)
            os.truncate(file, os.path.getsize(file) - 1)

        def raw(first):
            return lambda path: self.text(shard, first)(path)

        nan16, quiet = b"\xc0\x7f", b"\0\0\x80\xff"
        faults = [
            (raw(b""), shard), (raw(b"\x01\0\0"), shard), (raw(b"\xff" * 8 + b"{}"), "header"),
            (raw(struct.pack("<Q", 1 << 33) + b"{}"), "header"), (raw(struct.pack("<Q", 2) + b"[]"), "no object"),
            (self.head(lambda h, d: (b'{"a": 1, "a": 2}', d)), "duplicate"), (self.head(lambda h, d: (b"{", d)), shard),
            (self.head(lambda h, d: (b'{"a": 1}', d)), "no object"), (self.head(lambda h, d: (b'{"a": {}}', d)), "dtype"),
            (self.entry(norm, dtype="F7"), norm, "dtype"), (self.entry(norm, dtype="F32"), norm, "bits"),
            (self.entry(norm, shape=[-1]), norm, "shape"), (self.entry(norm, shape=[1.5]), norm, "shape"),
            (self.entry(norm, shape=200), norm, "shape"), (self.entry(norm, shape=[1] * 7), norm, "shape"),
            (self.entry(norm, shape=[1 << 31, 1 << 31, 8]), norm), (self.entry(norm, shape=[1 << 40]), norm, "shape"),
            (self.entry(norm, data_offsets=lambda o: o[::-1]), norm, "data_offsets"),
            (self.entry(norm, data_offsets=[0, 1 << 60]), norm, "data_offsets"), (self.entry(norm, data_offsets=[0]), norm),
            (self.entry(norm, data_offsets=lambda o: [o[0] - 2, o[1] - 2]), "overlap"),
            (self.head(lambda h, d: (h, d + b"\0")), "bytes of data"), (cut, "bytes"),
            (self.entry(norm, shape=[199], data_offsets=lambda o: [o[0] + 2, o[1]]), "gap"),
            (self.index(lambda m: m.update({"no.such.weight": shard})), "no.such.weight"),
            (self.index(lambda m: m.pop(next(iter(m)))), "not in the index"),
            (self.index(lambda m: m.update({k: "../x.safetensors" for k in list(m)[:1]})), "no shard's name"),
            (self.index(lambda m: m.update({k: "lost.safetensors" for k in list(m)[:1]})), "missing", "lost.safetensors"),
            (self.index(lambda m: m.update({k: 7 for k in list(m)[:1]})), "no shard's name"), (twice, "is in"),
            (self.text("model.safetensors.index.json", b"{"), "index.json"), (self.text("model.safetensors.index.json", b"{}"), "weight_map"),
            (lambda p: os.unlink(os.path.join(p, shard)), "missing", shard),
            (lambda p: os.unlink(os.path.join(p, "config.json")), "config.json"), (self.text("config.json", b"[]"), "config.json"),
            (self.config(moe_intermediate_size=80), "w1", "shape"), (self.config(num_experts=14), "missing", "experts.13.w1"),
            (self.config(num_experts=12), "experts.12"), (self.config(num_hidden_layers=6, first_k_dense_replace=1), "missing"),
            (self.config(hidden_size=208), "cannot be read"), (self.config(num_hidden_layers="x"), "num_hidden_layers"),
            (lambda p: os.unlink(os.path.join(p, "tiktoken.model")), "tiktoken.model"),
            (lambda p: os.unlink(os.path.join(p, "tokenizer_config.json")), "tokenizer_config.json"),
            (self.text("tokenizer_config.json", b'{"added_tokens_decoder": {"-1": {"content": "a"}}}'), "-1"),
            (self.text("tokenizer_config.json", b'{"added_tokens_decoder": {"9": {}}}'), "token 9"),
            (drop(w1), "missing", w1), (drop("layers.0.input_layernorm"), "input_layernorm"), (drop("lm_head"), "lm_head"),
            (without_index(lambda h, d: ({n.replace("experts.0.w1", "experts.0.w9"): t for n, t in h.items()}, d)), "w9"),
            (renamed(norm, "x.weight"), norm, "not there"),
            (self.bytes_of(norm, nan16), norm, "not finite"), (self.bytes_of("layers.2.self_attn.A_log", quiet), "A_log", "not finite"),
            (self.bytes_of(w1, nan16), w1, "not finite"), (self.bytes_of("experts.12.w2.weight", nan16), "w2.weight", "not finite"),
        ]
        for i, (change, *words) in enumerate(faults):
            with self.subTest("fault %d: %s" % (i, words)):
                path = self.out("refused")
                self.refused(self.convert(self.broken(change), path, "-q", "--effort", "0"), *words)
                self.assertFalse(os.path.exists(os.path.join(path, "manifest.json"))
                                 and "partial" not in load_json(path, "manifest.json"))

    def test_pairs_that_are_none_are_refused(self):
        tensors, config = release(self.made("tiny-k3")), load_json(self.made("tiny-k3"), "config.json")
        name = "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight"
        dtype, shape, scale = tensors[name + "_scale"]
        for change, words in (
                ({name + "_scale": None}, ["w1.weight_scale"]), ({name + "_scale": (dtype, [shape[0], shape[1] - 1], scale[shape[0]:])}, ["pair"]),
                ({name + "_scale": ("BF16", [shape[0], shape[1] // 2], scale)}, ["pair"]),
                ({name + "_scale": (dtype, shape, b"\xff" + scale[1:])}, ["w1.weight", "not finite"]),
                ({name + "_packed": None}, ["w1.weight_scale"]), ({name: ("BF16", [1], b"\0\0")}, ["w1.weight is in"])):
            with self.subTest(words):
                source, path = self.out("pairs"), self.out("refused")
                changed = {n: t for n, t in dict(tensors, **change).items() if t}
                write_release(source, changed, config)
                self.refused(self.convert(source, path, "-q", "--effort", "0"), *words)

    def test_nothing_is_overwritten(self):
        path = self.out("mine")
        os.mkdir(path)
        self.text("letter.txt", b"dear")(path)
        self.refused(self.convert(self.made("tiny-k3"), path), "other content")
        self.assertEqual(os.listdir(path), ["letter.txt"])
        self.refused(self.convert(self.out("nowhere"), self.out("x")), "nowhere")

    # -- killed

    def spawn(self, *args):
        return subprocess.Popen([waste.FETCH, "convert", "-q", *args], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def check_reclaimed(self, source, weight_map, path):
        """Nothing is deleted that a killed run still needs."""
        gone = {s for s in weight_map.values() if not os.path.exists(os.path.join(source, s))}
        if not gone:
            return 0
        manifest = load_json(path, "manifest.json")
        done = manifest.get("partial", {"outer": True, "layers": range(1000)})
        for name, shard in weight_map.items():
            if shard in gone:
                layer = name.split("model.layers.")[1].split(".")[0] if "model.layers." in name else None
                self.assertTrue(done["outer"] if layer is None else int(layer) in done["layers"], "%s of %s" % (name, shard))
        return len(gone)

    def kill_at_random(self, reclaim, rounds):
        rng = waste.seed()
        source = self.made("tiny-k3", "--shard-size", "300k")
        weight_map = load_json(source, "model.safetensors.index.json")["weight_map"]
        whole, path = self.out("undisturbed"), self.out("killed")
        begin = time.monotonic()
        self.ok(self.convert(source, whole, "--effort", "0"))
        seconds, want, kills, deleted, kept = time.monotonic() - begin, digests(whole), 0, 0, 0
        # where chance let every kill miss what it is to hit, it gets more of them
        while kills < rounds or (kills < 20 * rounds and not (kept and (deleted or not reclaim))):
            work, path = self.out("source"), self.out("killed")
            shutil.copytree(source, work)
            while True:
                p = self.spawn(work, path, "--effort", "0", *(["--reclaim", "on"] if reclaim else []))
                try:
                    _, err = p.communicate(timeout=rng.uniform(0, 1.2 * seconds))
                    self.assertEqual(p.returncode, 0, err)
                    break
                except subprocess.TimeoutExpired:
                    p.send_signal(signal.SIGKILL)
                    p.communicate()
                kills += 1
                deleted += self.check_reclaimed(work, weight_map, path) > 0
                if os.path.exists(os.path.join(path, "manifest.json")):
                    partial = load_json(path, "manifest.json").get("partial")
                    kept += bool(partial)
                    if partial:
                        self.refused(waste.waste_run("info", path), "partial")
            self.assertEqual(digests(path), want)
            self.assertEqual(sum(n.endswith(".safetensors") for n in os.listdir(work)), 0 if reclaim else len(set(weight_map.values())))
        print("%d kills, %d with a part done, %d with shards deleted" % (kills, kept, deleted), file=sys.stderr)
        self.assertGreater(kept, 0)
        if reclaim:
            self.assertGreater(deleted, 0)

    def test_killed_at_random_moments(self):
        self.kill_at_random(False, 100 if waste.LONG else 4)

    def test_killed_at_random_moments_while_the_source_is_deleted(self):
        self.kill_at_random(True, 100 if waste.LONG else 4)

    def test_reclaim_dry_says_what_reclaim_on_does(self):
        source = self.made("tiny-k3", "--shard-size", "300k")
        shards = sorted(n for n in os.listdir(source) if n.endswith(".safetensors"))
        r = self.ok(self.convert(source, self.out("dry-reclaim"), "--effort", "0", "--reclaim", "dry"))
        self.assertEqual(sorted(n for n in os.listdir(source) if n.endswith(".safetensors")), shards)
        for s in shards:
            self.assertIn(s.encode(), r.out)

    def test_a_source_that_was_replaced_is_not_mixed_in(self):
        source, other = (self.made("tiny-k3", "--shard-size", "300k", *seed) for seed in ((), ("--seed", "9")))
        for reclaim in ("off", "on"):
            with self.subTest(reclaim):
                work, path = self.out("replaced"), self.out("mixed")
                shutil.copytree(source, work)
                self.ok(self.convert(work, path, "--effort", "0", "--layers", "0-2", "--reclaim", reclaim))
                before, left = digests(path), [n for n in os.listdir(work) if n.endswith(".safetensors")]
                for n in left:
                    shutil.copyfile(os.path.join(other, n), os.path.join(work, n))
                self.refused(self.convert(work, path, "--effort", "0", "--reclaim", reclaim), path, "other content")
                self.assertEqual(digests(path), before)
                self.assertEqual(sorted(n for n in os.listdir(work) if n.endswith(".safetensors")), sorted(left))
                for n in left:
                    shutil.copyfile(os.path.join(source, n), os.path.join(work, n))
                self.ok(self.convert(work, path, "--effort", "0", "--reclaim", reclaim))

    def test_what_is_wrong_everywhere_is_said_once(self):
        tensors, config = release(self.made("tiny-linear")), load_json(self.made("tiny-linear"), "config.json")
        source = self.out("wrong-everywhere")
        write_release(source, {n: (d, shape, b"\xff" * len(raw)) for n, (d, shape, raw) in tensors.items()}, config)
        for turn in range(10):
            self.refused(self.convert(source, self.out("refused"), "-q", "--effort", "0", "--threads", "8"), "not finite")

    def test_reclaim_of_a_part_leaves_what_others_need(self):
        source, work, path = self.made("tiny-k3", "--shard-size", "300k"), self.out("shared-source"), self.out("first-half")
        shutil.copytree(source, work)
        weight_map = load_json(source, "model.safetensors.index.json")["weight_map"]
        self.ok(self.convert(work, path, "--effort", "0", "--layers", "0-2", "--reclaim", "on"))
        self.assertGreater(self.check_reclaimed(work, weight_map, path), 0)
        self.ok(self.convert(work, path, "--effort", "0", "--reclaim", "on"))
        self.assertIn(b"already there", self.ok(self.convert(work, path, "--effort", "0", "--reclaim", "on")).out)
        self.ok(self.convert(source, self.out("reference"), "--effort", "0"))
        self.assertEqual(digests(path), digests(os.path.join(waste.scratch(), "reference")))


if __name__ == "__main__":
    waste.main(waste.FETCH)
