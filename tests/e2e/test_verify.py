"""waste-fetch verify and seal: every byte that changes is noticed, named and counted; waste-run notices what it loads."""
import json
import os
import shutil
import zlib

import waste

PIECE = 16 << 20
WITH_PIECES = ("manifest.json", "trunk.bin", "codebooks.bin", "tokenizer.model", "specials.json")


def fetch(*args, **kw):
    return waste.waste_run(*args, program=waste.FETCH, **kw)


class Verify(waste.Test):
    @classmethod
    def setUpClass(cls):
        cls.random = waste.seed()
        cls.case = waste.expected()[0]
        cls.sealed = os.path.join(waste.scratch(), "sealed")
        shutil.copytree(waste.DEMO, cls.sealed, copy_function=shutil.copyfile)
        r = fetch("seal", cls.sealed)
        assert r.code == 0, str(r)
        with open(os.path.join(cls.sealed, "manifest.json")) as f:
            cls.manifest = json.load(f)
        bank = cls.manifest["layers"]["3"]
        cls.stride, cls.experts = bank["bytes"] // bank["experts"], bank["experts"]

    def content(self, name, container=None):
        with open(os.path.join(container or self.sealed, name), "rb") as f:
            return f.read()

    def damaged(self, name, data):
        c = waste.copy_container(self.sealed, "hurt")
        waste.replace(c, name, data)
        return c

    def flipped(self, name, at):
        data = bytearray(self.content(name))
        data[at] ^= 1 << self.random.randrange(8)
        return self.damaged(name, bytes(data))

    def found(self, container, *options, text=True):
        """The damages verify names in JSON; text says the same number of lines and the count at the end."""
        r = fetch("verify", "--json", container, *options)
        damages = r.json()["damages"]
        self.assertEqual(r.code, 1 if damages else 0, str(r))
        self.assertEqual(r.json()["whole"], not damages)
        if not text:
            return damages
        t = fetch("verify", container, *options)
        self.assertEqual((t.code, len(t.error_lines())), (r.code, len(damages)), str(t))
        last = t.out.decode().splitlines()[-1]
        self.assertIn("damaged in %d place" % len(damages) if damages else "whole", last)
        return damages

    def one(self, container, file, layer=None, expert=None, offset=None, what=""):
        """Exactly one damage, and it is this one."""
        damages = self.found(container)
        self.assertEqual(len(damages), 1, damages)
        d = damages[0]
        self.assertEqual((d["file"], d["layer"], d["expert"]), (file, layer, expert), d)
        if offset is not None:
            self.assertEqual(d["offset"], offset, d)
        self.assertIn(what, d["what"])

    def test_sound_containers_are_whole(self):
        self.assertEqual(self.found(self.sealed), [])
        self.assertEqual(self.found(waste.DEMO), [])
        for shape in ("tiny-odd-k3", "tiny-vq4p", "tiny-odd-vq2r", "tiny-odd-q3", "tiny-dense3", "tiny-subnormal"):
            with self.subTest(shape):
                path = waste.synth(shape, name="whole-" + shape)
                self.assertEqual(self.found(path), [])
                self.ok(fetch("seal", path))
                self.assertEqual(self.found(path), [])

    def test_integrity_says_what_the_files_are(self):
        integrity = json.loads(self.content("integrity.json"))
        files = integrity["files"]
        self.assertEqual(set(files), set(os.listdir(self.sealed)) - {"integrity.json"})
        for name, entry in files.items():
            data = self.content(name)
            want = {"bytes": len(data)}
            if name in WITH_PIECES:
                want["crc32"] = ["%08x" % zlib.crc32(data[i:i + PIECE]) for i in range(0, len(data), PIECE)]
            self.assertEqual(entry, want, name)

    def test_pieces_of_a_large_file(self):
        path = waste.synth_config("large", vocab_size=40000, hidden_size=512)
        self.assertGreater(os.path.getsize(os.path.join(path, "trunk.bin")), 2 * PIECE)
        self.ok(fetch("seal", path))
        with open(os.path.join(path, "integrity.json")) as f:
            entry = json.load(f)["files"]["trunk.bin"]
        with open(os.path.join(path, "trunk.bin"), "rb") as f:
            data = f.read()
        self.assertEqual(entry["crc32"], ["%08x" % zlib.crc32(data[i:i + PIECE]) for i in range(0, len(data), PIECE)])
        r = waste.waste_run("run", path, "--ids", "1,2,3", "-n", 2, "--temp", "0", "-q")
        self.ok(r)
        for at in (0, PIECE - 1, PIECE, 2 * PIECE + 12345, len(data) - 1):
            with self.subTest(at):
                hurt = waste.copy_container(path, "large-hurt")
                bad = bytearray(data)
                bad[at] ^= 1
                waste.replace(hurt, "trunk.bin", bytes(bad))
                self.refused(waste.waste_run("run", hurt, "--ids", "1,2,3", "-n", 2, "-q"), "trunk.bin",
                             "piece %d" % (at // PIECE), codes=(2,))
                damages = [d for d in self.found(hurt) if "piece" in d["what"]]
                self.assertEqual([d["offset"] for d in damages], [at // PIECE * PIECE])

    def test_each_region_of_a_record(self):
        bank, expert = "experts-L3.bin", 17
        data = self.content(bank)
        base = expert * self.stride
        gate, up, down, scales = (int.from_bytes(data[base + o:base + o + 4], "little") for o in (20, 24, 28, 32))
        rows = 2 * self.manifest["config"]["moe_intermediate_size"] + self.manifest["config"]["routed_expert_hidden_size"]
        end = scales + 2 * rows
        self.assertLess(end, self.stride)
        for what, low, high, word in (
                ("magic", 0, 4, "magic"), ("layer", 4, 6, "layer"), ("expert", 6, 8, "expert"), ("fmt", 8, 9, "fmt"),
                ("flags", 9, 10, "flags"), ("codebook", 10, 12, "codebook"), ("low rank", 12, 14, "lowrank"),
                ("zero word", 14, 16, "reserved"), ("blocks", 16, 20, "blocks"), ("gate_off", 20, 24, "gate_off"),
                ("up_off", 24, 28, "up_off"), ("down_off", 28, 32, "down_off"), ("scale_off", 32, 36, "scale_off"),
                ("crc", 36, 40, "crc32"), ("reserved", 40, 48, "reserved"), ("gate", gate, up, "crc32"),
                ("up", up, down, "crc32"), ("down", down, scales, "crc32"), ("scales", scales, end, "crc32"),
                ("first of the padding", end, end + 1, "padding"), ("padding", end, self.stride, "padding")):
            at = base + self.random.randrange(low, high)
            with self.subTest("%s: byte %d" % (what, at)):
                self.one(self.flipped(bank, at), bank, 3, expert, None if word == "padding" else base, word)

    def test_every_kind_of_byte_of_the_other_files(self):
        books, trunk = self.content("codebooks.bin"), self.content("trunk.bin")
        first = self.manifest["trunk"][0]
        places = [("codebooks.bin", 16 + 3), ("codebooks.bin", len(books) - 1), ("trunk.bin", 0),
                  ("trunk.bin", first["scale_off"]), ("trunk.bin", len(trunk) - 1), ("trunk.bin", self.random.randrange(len(trunk))),
                  ("manifest.json", len(self.content("manifest.json")) - 1), ("tokenizer.model", 3), ("specials.json", 40)]
        for name, at in places:
            with self.subTest("%s: byte %d" % (name, at)):
                data = bytearray(self.content(name))
                data[at] ^= 0x11 if name.endswith("json") else 1
                hurt = self.damaged(name, bytes(data))
                self.assertIn((name, at // PIECE * PIECE), {(d["file"], d["offset"]) for d in self.found(hurt)})
                self.refused(waste.waste_run("run", hurt, "--ids", waste.ids_of(self.case), "-n", 2, "-q"), name, codes=(2,))

    def test_any_byte_of_integrity_json_itself(self):
        data = self.content("integrity.json")
        for at in [0, len(data) - 1, data.index(b"crc32"), data.rindex(b"crc32") + 9] + [
                self.random.randrange(len(data)) for _ in range(12)]:
            with self.subTest(at):
                hurt = self.flipped("integrity.json", at)
                self.one(hurt, "integrity.json")
                self.refused(waste.waste_run("run", hurt, "--ids", "1,2", "-n", 1, "-q"), "integrity.json", codes=(2,))
                self.ok(waste.waste_run("run", hurt, "--ids", "1,2", "-n", 1, "-q", "--no-verify"))

    def with_integrity(self, change):
        """A container whose integrity.json has the right checksum of itself but says something else."""
        value = json.loads(self.content("integrity.json"))
        del value["crc32"]
        change(value)
        text = json.dumps(value, indent=1)[:-2]
        return self.damaged("integrity.json", (text + ',\n "crc32": "%08x"\n}\n' % zlib.crc32(text.encode())).encode())

    def test_hostile_integrity(self):
        def files(v):
            return v["files"]

        hostile = {
            "no files": lambda v: v.pop("files"), "files a list": lambda v: v.update(files=[]),
            "no trunk": lambda v: files(v).pop("trunk.bin"), "no manifest": lambda v: files(v).pop("manifest.json"),
            "no checksums": lambda v: files(v)["trunk.bin"].pop("crc32"),
            "too few": lambda v: files(v)["trunk.bin"].update(crc32=[]),
            "too many": lambda v: files(v)["trunk.bin"]["crc32"].append("00000000"),
            "a number": lambda v: files(v)["trunk.bin"].update(crc32=[1]),
            "capitals": lambda v: files(v)["trunk.bin"].update(crc32=["ABCDEF00"]),
            "short": lambda v: files(v)["trunk.bin"].update(crc32=["abc"]),
            "a zero inside": lambda v: files(v)["trunk.bin"].update(crc32=["abc\0def0"]),
            "negative": lambda v: files(v)["trunk.bin"].update(bytes=-1),
            "huge": lambda v: files(v)["trunk.bin"].update(bytes=(1 << 63) - 1),
            "a real": lambda v: files(v)["trunk.bin"].update(bytes=1.5),
            "no bytes": lambda v: files(v).update({"chat.json": {}}), "null": lambda v: files(v).update({"chat.json": None}),
            "a path": lambda v: files(v).update({"../x": {"bytes": 1}}), "dots": lambda v: files(v).update({"..": {"bytes": 1}}),
            "nameless": lambda v: files(v).update({"": {"bytes": 1}}),
            "a long name": lambda v: files(v).update({"x" * 200: {"bytes": 1}}),
            "another checksum": lambda v: v.update(checksum="md5"), "no checksum": lambda v: v.pop("checksum"),
            "another version": lambda v: v.update(format_version=1), "other pieces": lambda v: v.update(piece_bytes=1 << 20),
            "many files": lambda v: files(v).update({"f%d" % i: {"bytes": 1} for i in range(5000)}),
        }
        for what, change in hostile.items():
            with self.subTest(what):
                hurt = self.with_integrity(change)
                self.one(hurt, "integrity.json")
                self.refused(waste.waste_run("run", hurt, "--ids", "1,2", "-n", 1, "-q"), "integrity.json", codes=(2,))
        for name, data in (("empty", b""), ("a word", b"null"), ("deep", b"[" * 100000), ("bytes", bytes(range(256)) * 8)):
            with self.subTest(name):
                self.one(self.damaged("integrity.json", data), "integrity.json")

    def test_a_file_listed_that_is_not_there_or_larger(self):
        hurt = self.with_integrity(lambda v: v["files"].update({"vision.json": {"bytes": 12}}))
        self.one(hurt, "vision.json", what="missing")
        hurt = self.with_integrity(lambda v: v["files"]["chat.json"].update(bytes=9))
        self.one(hurt, "chat.json", what="must be 9")

    def test_truncated_longer_missing_and_odd_files(self):
        for name in sorted(os.listdir(self.sealed)):
            data = self.content(name)
            for what, kept in (("a byte less", data[:-1]), ("half", data[:len(data) // 2]), ("empty", b""),
                               ("a byte more", data + b"\0"), ("a page more", data + bytes(4096)), ("missing", None)):
                if name == "integrity.json" and what == "missing":
                    continue
                with self.subTest("%s: %s" % (name, what)):
                    self.assertIn(name, {d["file"] for d in self.found(self.damaged(name, kept), text=False)})
            if name != "integrity.json":
                with self.subTest(name + ": a directory"):
                    hurt = self.damaged(name, None)
                    os.mkdir(os.path.join(hurt, name))
                    self.assertIn(name, {d["file"] for d in self.found(hurt, text=False)})
                with self.subTest(name + ": a fifo"):
                    hurt = self.damaged(name, None)
                    os.mkfifo(os.path.join(hurt, name))
                    self.assertIn(name, {d["file"] for d in self.found(hurt, text=False)})

    def test_what_is_noticed_without_integrity_json(self):
        def unsealed(name, data):
            hurt = self.damaged(name, data)
            os.unlink(os.path.join(hurt, "integrity.json"))
            return hurt

        bank, stride = self.content("experts-L5.bin"), self.stride
        cut = unsealed("experts-L5.bin", bank[:10 * stride + 5000])
        damages = self.found(cut)
        self.assertEqual({d["file"] for d in damages}, {"experts-L5.bin"})
        self.assertIn(10, {d["expert"] for d in damages})
        self.assertEqual(self.found(unsealed("experts-L5.bin", bank + bytes(stride)))[0]["file"], "experts-L5.bin")
        self.assertEqual(self.found(unsealed("trunk.bin", self.content("trunk.bin") + bytes(4096)))[0]["file"], "trunk.bin")
        norm = next(e for e in self.manifest["trunk"] if e["name"].endswith("layers.4.input_layernorm.weight"))
        trunk = bytearray(self.content("trunk.bin"))
        trunk[norm["off"] + 40:norm["off"] + 44] = b"\0\0\x80\x7f"
        self.one(unsealed("trunk.bin", bytes(trunk)), "trunk.bin", 4, None, norm["off"] + 40, "not finite")
        books = bytearray(self.content("codebooks.bin"))
        books[16 + 20:16 + 22] = b"\0\x7c"
        self.one(unsealed("codebooks.bin", bytes(books)), "codebooks.bin", None, None, 36, "not finite")
        books = bytearray(self.content("codebooks.bin"))
        books[4112 + 4] ^= 64
        self.one(unsealed("codebooks.bin", bytes(books)), "codebooks.bin", None, None, 4112, "id")
        for name, data in (("tokenizer.model", b"no ranks\n"), ("specials.json", b"{"), ("chat.json", b"[1,]")):
            self.one(unsealed(name, data), name)
        self.assertEqual(fetch("verify", "--json", unsealed("chat.json", None)).json()["sealed"], False)

    def test_a_scale_that_is_not_finite_with_the_right_checksum(self):
        data = bytearray(self.content("experts-L2.bin"))
        scales = int.from_bytes(data[32:36], "little")
        c = self.manifest["config"]
        end = scales + 2 * (2 * c["moe_intermediate_size"] + c["routed_expert_hidden_size"])
        data[scales:scales + 2] = b"\0\x7e"
        data[36:40] = zlib.crc32(data[48:end]).to_bytes(4, "little")
        self.one(self.damaged("experts-L2.bin", bytes(data)), "experts-L2.bin", 2, 0, scales, "not finite")

    def test_swapped_banks_and_records(self):
        hurt = waste.copy_container(self.sealed, "hurt")
        waste.replace(hurt, "experts-L1.bin", self.content("experts-L2.bin"))
        waste.replace(hurt, "experts-L2.bin", self.content("experts-L1.bin"))
        damages = self.found(hurt)
        self.assertEqual(len(damages), 2 * self.experts)
        self.assertEqual({d["what"] for d in damages if d["file"] == "experts-L1.bin"}, {"header: layer is 2, must be 1"})
        data, s = self.content("experts-L4.bin"), self.stride
        swapped = data[:2 * s] + data[3 * s:4 * s] + data[2 * s:3 * s] + data[4 * s:]
        damages = self.found(self.damaged("experts-L4.bin", swapped))
        self.assertEqual([(d["layer"], d["expert"], d["what"]) for d in damages],
                         [(4, 2, "header: expert is 3, must be 2"), (4, 3, "header: expert is 2, must be 3")])

    def test_all_of_many_damages_are_named(self):
        hurt = waste.copy_container(self.sealed, "hurt")
        wanted = set()
        for layer in (1, 4, 7):
            name = "experts-L%d.bin" % layer
            data = bytearray(self.content(name))
            for expert in self.random.sample(range(self.experts), 9):
                data[expert * self.stride + self.random.randrange(48, 4096)] ^= 255
                wanted.add((name, layer, expert))
            waste.replace(hurt, name, bytes(data))
        trunk = bytearray(self.content("trunk.bin"))
        trunk[1000] ^= 1
        waste.replace(hurt, "trunk.bin", bytes(trunk))
        wanted.add(("trunk.bin", None, None))
        self.assertEqual({(d["file"], d["layer"], d["expert"]) for d in self.found(hurt)}, wanted)
        some = self.found(hurt, "--layers", "2-4")
        self.assertEqual({(d["layer"]) for d in some if d["layer"]}, {4})
        self.assertEqual({d["layer"] for d in self.found(hurt, "--layers", "7") if d["layer"]}, {7})

    def test_files_that_do_not_belong_are_told(self):
        c = waste.copy_container(self.sealed, "hurt")
        for name in ("experts-L99.bin", "notes.txt"):
            with open(os.path.join(c, name), "w") as f:
                f.write("x")
        r = self.ok(fetch("verify", c))
        self.assertIn(b"experts-L99.bin", r.out)
        self.assertEqual(sorted(fetch("verify", "--json", c).json()["extra"]), ["experts-L99.bin", "notes.txt"])

    def test_seal_refuses_damage_and_does_not_overwrite(self):
        hurt = self.flipped("experts-L3.bin", 100)
        before = self.content("integrity.json", hurt)
        r = fetch("seal", "--force", hurt)
        self.assertEqual(r.code, 1)
        self.assertIn("experts-L3.bin", r.error_lines()[0])
        self.assertEqual(self.content("integrity.json", hurt), before)
        self.assertIn(b"says the same", self.ok(fetch("seal", self.sealed)).out)
        other = self.flipped("trunk.bin", 0)                    # a byte that only integrity.json knows
        self.refused(fetch("seal", other), "something else", "--force", codes=(1,))
        self.ok(fetch("seal", "--force", other))
        self.assertEqual(self.found(other), [])
        bad = self.flipped("integrity.json", 5)
        self.refused(fetch("seal", bad), "--force", codes=(1,))
        self.ok(fetch("seal", "--force", "-q", bad))
        self.assertEqual(self.found(bad), [])

    def test_seal_says_in_json_what_it_did(self):
        bare = waste.copy_container(self.sealed, "bare-json")
        os.unlink(os.path.join(bare, "integrity.json"))
        for changed in (True, False):
            got = self.ok(fetch("seal", "--json", bare)).json()
            self.assertEqual((got["model"], got["whole"], got["sealed"], got["changed"], got["damages"]),
                             (bare, True, True, changed, []))
            self.assertEqual(got["records"], self.ok(fetch("verify", "--json", bare)).json()["records"])
        hurt = self.flipped("experts-L3.bin", 100)
        os.unlink(os.path.join(hurt, "integrity.json"))
        r = fetch("seal", "--json", hurt)
        self.assertEqual((r.code, len(r.error_lines())), (1, 1), str(r))
        self.assertEqual((r.json()["whole"], r.json()["sealed"], r.json()["changed"]), (False, False, False))
        self.assertEqual([d["file"] for d in r.json()["damages"]], ["experts-L3.bin"])

    def test_wrong_use(self):
        for command in ("verify", "seal"):
            self.refused(fetch(command, "/nonexistent"), "/nonexistent", codes=(2,))
            self.refused(fetch(command), codes=(2,))
            self.ok(fetch(command, "--help"))
        for layers in ("9", "3-2", "a", "1-", "-1", "1-99", ""):
            with self.subTest(layers):
                self.refused(fetch("verify", self.sealed, "--layers=" + layers), "--layers", codes=(2,))
        r = fetch("verify", waste.scratch())
        self.assertEqual(r.code, 1)
        self.assertNotIn(b"waste-fetch seal", r.out)            # no advice for what is no container
        bare = waste.copy_container(self.sealed, "bare")
        os.unlink(os.path.join(bare, "integrity.json"))
        self.assertIn(b"waste-fetch seal", self.ok(fetch("verify", bare)).out)


if __name__ == "__main__":
    waste.main(waste.FETCH)
