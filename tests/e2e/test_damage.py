"""A damaged container gives one clear line and exit 1 or 2: never a signal, a hang or a wrong answer."""
import copy
import json
import os
import struct

import waste

PAGE = 4096
FILES = sorted(os.listdir(waste.DEMO))
HEADER = (("magic", 0, 4), ("layer", 4, 2), ("expert", 6, 2), ("fmt", 8, 1), ("flags", 9, 1), ("codebook", 10, 2),
          ("lowrank", 12, 2), ("zero", 14, 2), ("blocks", 16, 4), ("gate_off", 20, 4), ("up_off", 24, 4),
          ("down_off", 28, 4), ("scale_off", 32, 4), ("crc32", 36, 4), ("reserved", 40, 4), ("reserved2", 44, 4))


def content(name):
    with open(os.path.join(waste.DEMO, name), "rb") as f:
        return f.read()


def changed(data, off, size, value):
    return data[:off] + value.to_bytes(size, "little") + data[off + size:]


class Damage(waste.Test):
    @classmethod
    def setUpClass(cls):
        cls.case = waste.expected()[0]
        cls.random = waste.seed()
        cls.manifest = json.loads(content("manifest.json"))
        cls.bank = "experts-L3.bin"
        cls.stride = cls.manifest["layers"]["3"]["bytes"] // cls.manifest["layers"]["3"]["experts"]

    def run_it(self, container, *options):
        return waste.waste_run("run", container, "--ids", waste.ids_of(self.case), "-n", 20, "--temp", "0", "--json",
                               "-q", *options)

    def refused_or_right(self, r):
        """What is not noticed must not matter."""
        if r.code == 0:
            self.assertEqual(r.json()["ids"], self.case["greedy"], str(r))
        else:
            self.refused(r)

    def damaged(self, name, data):
        c = waste.copy_container(waste.DEMO, "damaged")
        waste.replace(c, name, data)
        return c

    def test_the_copy_itself_is_fine(self):
        c = waste.copy_container(waste.DEMO, "sound")
        self.assertEqual(self.ok(self.run_it(c)).json()["ids"], self.case["greedy"])

    def test_each_file_cut_short(self):
        for name in FILES:
            data = content(name)
            for what, kept in (("byte", data[:-1]), ("page", data[:-PAGE]), ("zero", b""), ("gone", None)):
                with self.subTest("%s: %s" % (name, what)):
                    r = self.run_it(self.damaged(name, kept))
                    if what == "gone" and name in ("chat.json", "tokenizer.model") or name == "manifest.json" and what == "byte":
                        self.refused_or_right(r)       # no words are needed where ids are given; a newline may be last
                    elif name in ("chat.json", "specials.json", "tokenizer.model") and what == "byte":
                        self.refused_or_right(r)       # the last byte may be a newline
                    else:
                        self.refused(r, name)

    def test_each_file_longer_or_a_directory(self):
        for name in FILES:
            with self.subTest(name + ": longer"):
                self.refused_or_right(self.run_it(self.damaged(name, content(name) + b"\0" * PAGE)))
            with self.subTest(name + ": a directory"):
                c = waste.copy_container(waste.DEMO, "damaged")
                os.unlink(os.path.join(c, name))
                os.mkdir(os.path.join(c, name))
                r = self.run_it(c)
                self.refused_or_right(r) if name == "chat.json" else self.refused(r, name)

    def test_a_fifo_does_not_hang(self):
        for name in ("manifest.json", "trunk.bin", self.bank, "tokenizer.model"):
            with self.subTest(name):
                c = waste.copy_container(waste.DEMO, "damaged")
                os.unlink(os.path.join(c, name))
                os.mkfifo(os.path.join(c, name))
                self.refused(self.run_it(c), name)

    def test_each_header_field_of_every_record_changed(self):
        data = content(self.bank)
        checked = {"magic", "layer", "expert", "fmt", "codebook", "lowrank", "blocks", "gate_off", "up_off",
                   "down_off", "scale_off", "crc32"}
        for field, off, size in HEADER:
            for value in (1, (1 << 8 * size) - 1, None):
                bad = data
                for rec in range(0, len(data), self.stride):
                    old = int.from_bytes(data[rec + off:rec + off + size], "little")
                    new = value if value is not None else old ^ (1 << self.random.randrange(8 * size))
                    if new == old:
                        new ^= 2
                    bad = changed(bad, rec + off, size, new)
                with self.subTest("%s = %s" % (field, value)):
                    r = self.run_it(self.damaged(self.bank, bad), *(["--no-verify"] if field != "crc32" else []))
                    if field in checked:
                        self.refused(r, self.bank, "expert", codes=(1, 2))
                    else:
                        self.refused_or_right(r)

    def test_a_flipped_payload_bit(self):
        data, end = content(self.bank), self.payload_end()
        for _ in range(5):
            at = self.random.randrange(48, end) * 8 + self.random.randrange(8)
            bad = bytearray(data)
            for rec in range(0, len(data), self.stride):
                bad[rec + at // 8] ^= 1 << at % 8
            for io in waste.io_modes():
                with self.subTest("bit %d, %s" % (at, io)):
                    line = self.refused(self.run_it(self.damaged(self.bank, bytes(bad)), "--io", io), self.bank,
                                        "expert", codes=(1,))
                    self.assertRegex(line, "crc|checksum")

    def payload_end(self):
        c = self.manifest["config"]
        n, i = c["routed_expert_hidden_size"], c["moe_intermediate_size"]
        return struct.unpack_from("<I", content(self.bank), 32)[0] + (2 * i + n) * 2

    def test_one_bad_record_matters_only_where_it_is_used(self):
        data = content(self.bank)
        codes = set()
        for expert in range(0, 64, 8):
            at = expert * self.stride + 100
            bad = changed(data, at, 1, data[at] ^ 255)
            with self.subTest("expert %d" % expert):
                r = self.run_it(self.damaged(self.bank, bad))
                self.refused_or_right(r)
                codes.add(r.code)
                if r.code:
                    self.refused(r, "layer 3", "expert %d" % expert)

    def test_codebook_headers_and_trunk_bytes_do_not_crash(self):
        books = content("codebooks.bin")
        for field, off, size in (("magic", 0, 4), ("id", 4, 2), ("fmt", 6, 1), ("vec_dim", 7, 1), ("entries", 8, 4)):
            with self.subTest("codebook " + field):
                self.refused_or_right(self.run_it(self.damaged("codebooks.bin", changed(books, off, size, 77))))
        nan = b"\x00\x7e" * (1 << 12)
        with self.subTest("codebooks of nan"):
            self.refused(self.run_it(self.damaged("codebooks.bin", books[:16] + nan + books[16 + len(nan):])))
        with self.subTest("a trunk of nan"):
            line = self.refused(self.run_it(self.damaged("trunk.bin", b"\xff" * len(content("trunk.bin")))))
            self.assertRegex(line, "layer|trunk.bin")

    def mutants(self):
        """(name, manifest) with one value replaced by something that should not be there."""
        values = (None, True, "x", -1, 0, 1, 7, 1 << 31, 1 << 63, 1 << 70, 1e300, 0.5, [], {}, "\u0000", [0] * 100)
        paths = [[k] for k in self.manifest]
        paths += [["config", k] for k in self.manifest["config"]]
        paths += [["config", "linear_attn_config", k] for k in self.manifest["config"]["linear_attn_config"]]
        paths += [["expert_quant", k] for k in self.manifest["expert_quant"]]
        paths += [["layers", "3"], ["layers", "7"]] + [["layers", "3", k] for k in self.manifest["layers"]["3"]]
        for t in (0, 1, 5, len(self.manifest["trunk"]) - 1):
            paths += [["trunk", t]] + [["trunk", t, k] for k in self.manifest["trunk"][t]]
            paths += [["trunk", t, "shape", 0]]
        for path in paths:
            chosen = values if waste.LONG else self.random.sample(values, 4)
            for v in chosen:
                m = copy.deepcopy(self.manifest)
                at = m
                for k in path[:-1]:
                    at = at[k]
                at[path[-1]] = v
                yield "%s = %r" % (".".join(map(str, path)), v), m
            m = copy.deepcopy(self.manifest)
            at = m
            for k in path[:-1]:
                at = at[k]
            del at[path[-1]]
            yield "%s gone" % ".".join(map(str, path)), m

    def test_each_manifest_field_of_a_wrong_kind_or_size(self):
        accepted = []
        for name, m in self.mutants():
            with self.subTest(name):
                c = self.damaged("manifest.json", json.dumps(m).encode())
                r = waste.waste_run("info", c)
                if r.code:
                    self.assertRegex(self.refused(r), r"manifest\.json|damaged/")
                else:
                    accepted.append((name, c, m))
        print("%d manifests accepted" % len(accepted))
        for name, _, m in accepted if waste.LONG else self.random.sample(accepted, min(12, len(accepted))):
            with self.subTest("accepted: " + name):
                r = waste.waste_run("run", self.damaged("manifest.json", json.dumps(m).encode()), "--ids", "1,2,3",
                                    "-n", 2, "--json", "-q")
                if r.code:
                    self.refused(r)

    def test_a_manifest_that_is_not_json(self):
        for text in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"{" * 100000, b"[" * 100000, b'{"format_version": 0}',
                     content("manifest.json") + b"x", content("manifest.json")[:1000]):
            with self.subTest(text[:20]):
                self.refused(waste.waste_run("info", self.damaged("manifest.json", text)), "manifest.json")

    def test_bank_names_stay_inside_the_directory(self):
        for file in ("../experts-L3.bin", "/etc/passwd", "a/b", "..", "", "experts-L3.bin\0x", "x" * 5000):
            with self.subTest(file[:30]):
                m = copy.deepcopy(self.manifest)
                m["layers"]["3"]["file"] = file
                self.refused(waste.waste_run("info", self.damaged("manifest.json", json.dumps(m).encode())))


if __name__ == "__main__":
    waste.main()
