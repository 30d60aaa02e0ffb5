"""waste-fetch against releases, directories and neighbours that mean it no good: one line, nothing lost, nothing mixed."""
import fcntl
import json
import os
import random
import shutil
import struct
import subprocess

import waste
from release import Container, Test, digests, load_json, release, write_release

SHARD = "model-00001-of-00001.safetensors"
W1 = "language_model.model.layers.1.block_sparse_moe.experts.%s.w1.weight"


def relative(got, want):
    return (sum((a - b) ** 2 for a, b in zip(got, want)) / sum(b * b for b in want)) ** 0.5


class Hostile(Test):
    def changed(self, tensors, config=None, shape="tiny-odd-k3"):
        """A release with these tensors in place of its own; None: without."""
        path = self.out("changed")
        all = {n: t for n, t in {**release(self.made(shape)), **tensors}.items() if t}
        write_release(path, all, config or load_json(self.made(shape), "config.json"))
        return path

    def copy(self, shape="tiny-odd-k3", *options):
        path = self.out("copy")
        shutil.copytree(self.made(shape, *options), path)
        return path

    def write(self, path, data):
        with open(path, "wb") as f:
            f.write(data if isinstance(data, bytes) else json.dumps(data).encode())

    # -- values

    def test_rows_up_to_the_end_of_f16_are_coded(self):
        # 4 times the root mean square is the first scale; the best one for the codes may lie behind the last f16
        shape, rng = [72, 136], random.Random(7)
        rows = [rng.choice((-1, 1)) * 16379.0 for _ in range(72 * 136)]
        raw = struct.pack("<%df" % len(rows), *rows)
        source = self.changed({W1 % e: ("F32", shape, raw) for e in range(13)})
        for experts in ("vq3r", "vq2r", "vq4p"):
            path = self.out("edge")
            self.ok(self.convert(source, path, "--effort", "0", "--experts", experts))
            got = Container(path).expert(1, 5, [(72, 136), (72, 136), (136, 72)])[0]
            for r, row in enumerate(got):
                self.assertLess(relative(row, rows[136 * r:136 * r + 136]), 0.7, "%s row %d" % (experts, r))

    def test_pairs_that_f32_does_not_hold_are_refused(self):
        norm = "model.layers.0.input_layernorm.weight"
        for code, scale in ((7, 252), (7, 253), (15, 254), (3, 254), (4, 254), (6, 254)):
            with self.subTest("code %d, 2^%d" % (code, scale - 127)):
                value = [0, .5, 1, 1.5, 2, 3, 4, 6][code & 7] * 2.0 ** (scale - 127)
                source = self.changed({norm: None, norm + "_packed": ("U8", [128], bytes([code << 4] + [0] * 127)),
                                       norm + "_scale": ("U8", [8], bytes([scale] + [127] * 7))}, shape="tiny-linear")
                r = self.convert(source, self.out("pair"), "-q", "--effort", "0", "--layers", "0")
                self.ok(r) if value < 2.0 ** 128 else self.refused(r, norm, "not finite")

    def test_rows_of_nothing_are_no_damage(self):
        # under half of the least f16 a scale is zero, and the row is
        values = [1e-42, -2e-42, 0.0, 1e-40] * (72 * 136 // 4)
        source, path = self.changed({W1 % 0: ("F32", [72, 136], struct.pack("<%df" % len(values), *values))}), self.out("faint")
        self.ok(self.convert(source, path, "--effort", "0"))
        self.ok(waste.waste_run("verify", "-q", path, "--against", source, program=waste.FETCH))
        got = Container(path).expert(1, 0, [(72, 136), (72, 136), (136, 72)])[0]
        self.assertEqual({x for row in got for x in row}, {0})

    # -- names and configs

    def test_a_matrix_under_two_names_is_refused(self):
        tensors = release(self.made("tiny-odd-k3"))
        for number in ("05", "005"):
            self.refused(self.convert(self.changed({W1 % number: tensors[W1 % 5]}), self.out("refused"), "-q"),
                         "experts.5.w1", "experts.%s.w1" % number, "the same matrix")
        self.refused(self.convert(self.changed({W1 % "+5": tensors[W1 % 5]}), self.out("refused"), "-q"), "experts.+5.w1")

    def test_what_is_wrong_with_a_config_is_said_with_its_file(self):
        source = self.copy()
        config = load_json(source, "config.json")
        for key, value, words in (("hidden_size", None, ["hidden_size is missing"]), ("hidden_size", "x", ["no whole number"]),
                                  ("num_experts", 0, ["num_experts is 0"]), ("num_experts_per_token", 14, ["14 of 13 experts"]),
                                  ("moe_intermediate_size", 76, ["multiples of 8"]), ("linear_attn_config", 1, ["no object"]),
                                  ("first_k_dense_replace", 5, ["leaves no MoE layer"])):
            text = {k: v for k, v in {**config["text_config"], key: value}.items() if v is not None}
            self.write(os.path.join(source, "config.json"), {**config, "text_config": text})
            self.refused(self.convert(source, self.out("refused"), "-q"), os.path.join(source, "config.json"), *words)

    def test_synth_writes_nothing_the_reader_would_refuse(self):
        config, path = load_json(waste.synth("tiny-odd"), "synth.json")["config"], os.path.join(waste.scratch(), "shape.json")
        for change in ({"hidden_act": "gelu"}, {"num_shared_experts": -1}, {"rms_norm_eps": 0}, {"qk_nope_head_dim": 1 << 20}):
            self.write(path, {**config, **change})
            for options in ([], ["--checkpoint"]):
                out = self.out("refused-synth")
                for turn in range(2):                           # nor does the second run say it is there
                    r = waste.waste_run("synth", "--shape", path, *options, out, program=waste.FETCH)
                    self.refused(r, "shape.json", next(iter(change)))
                    self.assertFalse(os.path.exists(out) and os.listdir(out))

    def test_a_generation_config_that_cannot_be_read_is_not_passed_over(self):
        source = self.copy()
        text = {k: v for k, v in load_json(source, "config.json")["text_config"].items() if k != "eos_token_id"}
        self.write(os.path.join(source, "config.json"), {**load_json(source, "config.json"), "text_config": text})
        for data, words in ((b"", ["generation_config.json"]), (b"[]", ["generation_config.json", "no object"]),
                            (b"\xff", ["generation_config.json"]), (b'{"eos_token_id": "x"}', ["eos_token_id"]),
                            (b'{"eos_token_id": 389}', ["eos_token_id"])):
            self.write(os.path.join(source, "generation_config.json"), data)
            self.refused(self.convert(source, self.out("refused"), "-q"), *words)

    def test_json_of_paths_that_are_no_text(self):
        odd = os.path.join(os.fsencode(waste.scratch()), b"caf\xe9 \xf0\x9f\x98\x80 \xed\xa0\x80")
        seen = os.path.join(waste.scratch(), "caf\ufffd \U0001f600 \ufffd\ufffd\ufffd")
        shutil.rmtree(odd, ignore_errors=True)
        os.rename(self.copy(), odd)
        out = odd + b".waste"
        for options in (["--dry-run"], [], []):
            said = self.ok(self.convert(odd, out, "--effort", "0", "--json", *options)).json()
            self.assertEqual(said["container"], seen + ".waste")
        self.write(os.path.join(out, b"extra\xff"), b"")
        said = self.ok(waste.waste_run("verify", "--json", "--against", odd, out, program=waste.FETCH)).json()
        self.assertEqual((said["model"], said["whole"], said["extra"]), (seen + ".waste", True, ["extra\ufffd"]))

    # -- tokens

    def test_tokens_that_cannot_be_used_are_refused_before_anything_is_converted(self):
        ranks, added = "tiktoken.model", "tokenizer_config.json"
        source, old = self.copy(), {}
        for name in (ranks, added):
            with open(os.path.join(source, name), "rb") as f:
                old[name] = f.read()
        half = b"".join(l + b"\n" for l in old[ranks].split(b"\n")[:300])
        table = json.loads(old[added])["added_tokens_decoder"]
        keys = sorted(table, key=int)

        def decoder(d):
            return json.dumps({"added_tokens_decoder": d}).encode()
        for name, data, words in (
                (ranks, b"", ["tokenizer.model"]), (ranks, b"\0\1", ["tokenizer.model"]), (ranks, b"YQ== 0\nYg== 0\n", ["rank 0"]),
                (ranks, half, ["ranks"]), (ranks, b"!" + old[ranks], ["tokenizer.model"]),
                (added, b"[]", ["added_tokens_decoder"]), (added, b"{}", ["added_tokens_decoder"]), (added, decoder([]), ["no object"]),
                (added, decoder({}), ["specials.json"]), (added, decoder({k: table[k] for k in keys[:1]}), ["end token"]),
                (added, decoder({**table, "0" + keys[1]: {"content": "x"}}), ["twice"]),
                (added, decoder({**table, keys[1]: table[keys[0]]}), ["twice"]), (added, decoder({**table, "5": {"content": "x"}}), ["5"]),
                (added, decoder({**table, " 7": {"content": "x"}}), [" 7"]), (added, decoder({**table, "-7": {"content": "x"}}), ["-7"])):
            with self.subTest("%s: %r" % (name, data[:40])):
                path = self.out("refused")
                self.write(os.path.join(source, name), data)
                self.refused(self.convert(source, path, "-q", "--effort", "0"), *words)
                self.assertFalse([n for n in os.listdir(path) if n.startswith("experts") or n == "manifest.json"])
                self.write(os.path.join(source, name), old[name])
                self.ok(self.convert(source, path, "-q", "--effort", "0", "--layers", "0"))  # mended, it goes on
        whole = self.out("tokens")
        self.ok(self.convert(source, whole, "-q", "--effort", "0"))
        os.unlink(os.path.join(whole, "integrity.json"))
        for name, data in (("tokenizer.model", b"YQ== 0\nYg== 0\n"), ("tokenizer.model", half), ("specials.json", b"[]"),
                           ("specials.json", b'[{"id": 1, "text": "x"}]')):
            with open(os.path.join(whole, name), "r+b") as f:
                kept = f.read()
                f.seek(0)
                f.truncate()
                f.write(data)
            r = waste.waste_run("verify", "--json", whole, program=waste.FETCH)
            self.assertEqual((r.code, len(r.json()["damages"])), (1, 1), r)
            self.write(os.path.join(whole, name), kept)

    # -- neighbours

    def test_two_at_work_in_one_directory(self):
        source, path = self.made("tiny-odd-k3"), self.out("shared")
        self.ok(self.convert(source, path, "-q", "--effort", "0", "--layers", "0-2"))
        rest = self.out("rest")
        self.ok(self.convert(source, rest, "-q", "--effort", "0", "--layers", "3-4"))
        before, merged = digests(path), self.out("merged")
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(held, fcntl.LOCK_EX)                        # what a conversion does
        at_work = "another waste-fetch is at work in %s" % path
        self.refused(self.convert(source, path, "-q", "--effort", "0"), at_work)
        self.refused(waste.waste_run("merge", "-q", merged, path, rest, program=waste.FETCH), at_work)
        self.refused(waste.waste_run("synth", "-q", "--shape", "tiny-odd", path, program=waste.FETCH), at_work)
        self.assertEqual(digests(path), before)
        fcntl.flock(held, fcntl.LOCK_SH)                        # what a merge does that only copies
        self.refused(waste.waste_run("merge", "-q", "--move", merged, path, rest, program=waste.FETCH), at_work)
        self.ok(waste.waste_run("merge", "-q", merged, path, rest, program=waste.FETCH))
        self.refused(waste.waste_run("merge", "-q", self.out("again"), path, rest, path + "/", program=waste.FETCH), "one part")
        os.close(held)
        self.ok(self.convert(source, path, "-q", "--effort", "0"))
        self.assertEqual(digests(path), digests(merged))
        os.unlink(os.path.join(path, "integrity.json"))
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(held, fcntl.LOCK_EX)
        self.refused(waste.waste_run("seal", "-q", path, program=waste.FETCH), at_work)
        os.close(held)
        self.ok(waste.waste_run("seal", "-q", path, program=waste.FETCH))
        self.assertEqual(digests(path), digests(merged))

    def test_a_link_in_place_of_a_temporary_file_is_not_followed(self):
        path, victim = self.out("linked"), self.out("victim")
        shutil.copytree(waste.DEMO, path, copy_function=shutil.copyfile)
        os.unlink(os.path.join(path, "integrity.json")) if os.path.exists(os.path.join(path, "integrity.json")) else None
        with open(victim, "w") as f:
            f.write("mine")
        os.symlink(victim, os.path.join(path, "integrity.json.tmp"))
        self.ok(waste.waste_run("seal", "-q", path, program=waste.FETCH))
        with open(victim) as f:
            self.assertEqual(f.read(), "mine")
        self.assertFalse(os.path.islink(os.path.join(path, "integrity.json")))
        self.assertFalse(os.path.lexists(os.path.join(path, "integrity.json.tmp")))
        # nor does one stay where the file cannot take its place
        os.unlink(os.path.join(path, "integrity.json"))
        os.mkdir(os.path.join(path, "integrity.json"))
        self.refused(waste.waste_run("seal", "-q", "--force", path, program=waste.FETCH), "integrity.json")
        self.assertFalse(os.path.lexists(os.path.join(path, "integrity.json.tmp")))

    def interfered(self, meddle, *options):
        """What a conversion says whose shard is changed by meddle(path of the shard) after it was read from."""
        for _ in range(10):  # until it is not quicker than the test
            source, path = self.copy(), self.out("interfered")
            shard = os.path.join(source, SHARD)
            p = waste.start("convert", "-q", "--effort", "1", "--threads", "1", *options, source, path, program=waste.FETCH)
            waste.wait_for("a bank", lambda: p.poll() is not None or os.path.exists(os.path.join(path, "experts-L1.bin.part")))
            meddle(shard)
            r = waste.finish(p)
            if r.code:
                break
        return source, path, shard, r

    def test_a_shard_that_changes_while_it_is_read(self):
        def overwrite(shard):
            with open(shard, "r+b") as f:
                f.seek(-1000, os.SEEK_END)
                f.write(bytes(1000))
        source, path, shard, r = self.interfered(overwrite)
        self.refused(r, shard, "changed")
        done = load_json(path, "manifest.json").get("partial")
        self.assertIsNotNone(done)
        shutil.copyfile(os.path.join(self.made("tiny-odd-k3"), SHARD), shard)
        self.ok(self.convert(source, path, "-q", "--effort", "1"))
        want = self.out("undisturbed")
        self.ok(self.convert(self.made("tiny-odd-k3"), want, "-q", "--effort", "1"))
        self.assertEqual(digests(path), digests(want))

    def test_a_shard_that_took_anothers_name_is_not_deleted(self):
        def replace(shard):
            self.write(shard + ".new", b"precious")
            os.rename(shard + ".new", shard)
        source, path, shard, r = self.interfered(replace, "--reclaim", "on")
        self.refused(r, shard, "not deleted")
        with open(shard, "rb") as f:
            self.assertEqual(f.read(), b"precious")

    def test_links_are_not_reclaimed(self):
        source, path = self.copy(), self.out("linked")
        blob = os.path.join(waste.scratch(), "blob")
        os.rename(os.path.join(source, SHARD), blob)
        os.symlink(blob, os.path.join(source, SHARD))
        for reclaim in ("on", "dry"):
            self.refused(self.convert(source, path, "-q", "--effort", "0", "--reclaim", reclaim), SHARD, "symbolic link")
        self.assertTrue(os.path.islink(os.path.join(source, SHARD)) and os.path.exists(blob))
        self.ok(self.convert(source, path, "-q", "--effort", "0"))

    def test_a_manifest_that_lies_loses_nothing(self):
        work, path = self.copy(), self.out("lied-to")
        self.ok(self.convert(work, path, "-q", "--effort", "0", "--layers", "1-4"))
        manifest, whole = load_json(path, "manifest.json"), self.out("whole")
        self.ok(self.convert(work, whole, "-q", "--effort", "0"))
        truth = digests(whole)
        without = {k: v for k, v in manifest.items() if k != "partial"}
        partial = manifest["partial"]
        for what, lie in {"empty": {}, "list": [], "whole": without, "outer": {**manifest, "partial": {**partial, "outer": True}},
                          "layer": {**manifest, "partial": {**partial, "layers": [0] + partial["layers"]}},
                          "no number": {**manifest, "partial": {**partial, "layers": ["x"] + partial["layers"]}},
                          "no partial": {**manifest, "partial": []}, "another": {**manifest, "trunk": manifest["trunk"][:-1]}}.items():
            with self.subTest(what):
                self.write(os.path.join(path, "manifest.json"), lie)
                before = digests(path)
                self.refused(self.convert(work, path, "-q", "--effort", "0", "--reclaim", "on"), path, "manifest.json")
                self.assertTrue(os.path.exists(os.path.join(work, SHARD)))
                self.assertEqual(digests(path), before)
        self.write(os.path.join(path, "manifest.json"), manifest)
        self.ok(self.convert(work, path, "-q", "--effort", "0", "--reclaim", "on"))
        self.assertEqual(digests(path), truth)

    def test_what_is_whole_needs_no_room_to_write(self):
        source, path = self.made("tiny-odd-k3"), self.out("read-only")
        self.ok(self.convert(source, path, "-q", "--effort", "0"))
        mount = self.out("read-only-mount")
        os.mkdir(mount)
        if subprocess.run(["mount", "--bind", "-o", "ro", path, mount], capture_output=True).returncode:
            self.skipTest("nothing can be mounted")
        try:
            with self.assertRaises(OSError):
                os.mkdir(os.path.join(mount, "x"))
            self.assertIn(b"already there", self.ok(self.convert(source, mount, "--effort", "0")).out)
            self.ok(waste.waste_run("verify", "-q", mount, program=waste.FETCH))
        finally:
            subprocess.run(["umount", mount], check=True)

    def test_a_refused_release_leaves_the_directory_free(self):
        source, path = self.copy(), self.out("free")
        config = load_json(source, "config.json")
        self.write(os.path.join(source, "config.json"), {**config, "text_config": {**config["text_config"], "rms_norm_eps": 0}})
        self.refused(self.convert(source, path, "-q", "--effort", "0"), "rms_norm_eps")
        self.write(os.path.join(source, "config.json"), config)
        os.makedirs(os.path.join(path, ".check"))                # and killed while it looked
        self.write(os.path.join(path, ".check", "trunk.bin"), b"")
        self.ok(self.convert(source, path, "-q", "--effort", "0"))


if __name__ == "__main__":
    waste.main(waste.FETCH)
