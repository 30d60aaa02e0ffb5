"""bench: what it says, of what, and what it refuses."""
import os
import signal

import waste

KEYS = {"decode_tok_per_s", "prefill_tok_per_s", "bytes_per_token", "read_bytes_per_s", "memory_share", "disk_share", "phases",
        "experts"}


class Bench(waste.Test):
    def bench(self, *options, model=waste.DEMO, **kw):
        return waste.waste_run("bench", model, "-q", *options, **kw)

    def measured(self, *options, **kw):
        got = self.ok(self.bench("--json", *options, **kw)).json()
        self.assertLessEqual(KEYS, set(got))
        self.assertEqual(set(got["phases"]), {"experts", "trunk", "attention", "wait_experts", "wait_embedding", "other"})
        self.assertLessEqual({"hits", "misses", "bytes_read", "prefetched", "prefetch_used"}, set(got["experts"]))
        self.assertGreater(got["read_bytes_per_s"], 0)
        self.assertAlmostEqual(sum(got["phases"].values()), got["decode_seconds"], delta=0.1 * got["decode_seconds"])
        self.assertAlmostEqual(got["decode_tok_per_s"], got["tokens"] / got["decode_seconds"], places=3)
        self.assertAlmostEqual(got["memory_share"],
                               got["bytes_per_token"] * got["decode_tok_per_s"] / got["read_bytes_per_s"], places=5)
        return got

    def ids(self, data):
        path = os.path.join(waste.scratch(), "bench.ids")
        with open(path, "wb") as f:
            f.write(data)
        return path

    def test_what_it_says_of_containers_of_all_kinds(self):
        for shape in (None, "tiny-one", "tiny-all", "tiny-few", "tiny-unshared", "tiny-dense0", "tiny-odd-k3"):
            with self.subTest(shape):
                model = waste.synth(shape) if shape else waste.DEMO
                config = self.ok(waste.waste_run("info", model, "--json")).json()
                got = self.measured("--tokens", 3, "--prompt-tokens", 5, model=model)
                self.assertEqual((got["prompt_tokens"], got["tokens"], got["status"]), (5, 3, "length"))
                # every token asks each MoE layer for top_k experts
                self.assertEqual(got["experts"]["hits"] + got["experts"]["misses"],
                                 3 * config["moe_layers"] * config["top_k"])

    def test_one_token(self):
        got = self.measured("--tokens", 1, "--prompt-tokens", 1)
        self.assertEqual((got["prompt_tokens"], got["tokens"]), (1, 1))

    def test_step_feeds_the_given_ids(self):
        for text in (b"1,2,3,1343", b" [1, 2, 3, 1343]\r\n", b"1\n2\n3\n1343\n", b"1 2\t3 , 1343"):
            with self.subTest(text):
                got = self.measured("--step", "--ids-file", self.ids(text))
                self.assertEqual((got["tokens"], len(got["steps"])), (4, 4))
                self.assertEqual(got["experts"]["hits"] + got["experts"]["misses"], 4 * 7 * 4)

    def test_a_step_does_all_that_one_that_generates_does(self):
        """lm_head's phase, too: where every token wants all experts, nothing is read after the first."""
        model = waste.synth("tiny-all")
        layers = self.ok(waste.waste_run("info", model, "--json")).json()["layers"]
        decode = self.measured("--tokens", 4, "--prompt-tokens", 4, model=model)
        steps = self.measured("--step", "--ids-file", self.ids(b"1 2 3 4"), model=model)["steps"]
        for s in steps[1:]:
            self.assertEqual(s["phases"], round(decode["phases_per_layer"] * layers) + 1)
            self.assertTrue(0 <= s["serial_share"] <= 1, s)

    def test_a_file_that_is_no_list_of_ids(self):
        for text, words in ((b"", ["no token ids"]), (b" \n", ["no token ids"]), (b"[]", ["no token ids"]), (b"1 2 x3", ["x3"]),
                            (b"1,,2", [": ,"]), (b"1,2,", ["too early"]), (b"[1,2", ["too early"]), (b"1] 2", ["2"]),
                            (b"[[1]]", ["[1"]), (b"1.5", ["1.5"]), (b"-1", ["-1"]), (b"4294967296", ["4294967296"]),
                            (b"1,2\0junk", ["zero byte"]), (b"\xef\xbb\xbf1", ["not a token id"]), (b"1344", ["1344", "vocabulary"])):
            with self.subTest(text):
                path = self.ids(text)
                line = self.refused(self.bench("--step", "--json", "--ids-file", path), *words, codes=(2,))
                if b"1344" not in text:
                    self.assertIn(path, line)

    def test_a_context_too_small_for_what_is_asked(self):
        """Not fewer tokens than were asked for, in silence."""
        ask = ("--tokens", 10, "--prompt-tokens", 10)
        self.assertEqual(self.measured(*ask, "--ctx", 21)["tokens"], 10)
        for ctx in (20, 11, 10, 1):
            with self.subTest(ctx):
                self.refused(self.bench(*ask, "--ctx", ctx), "--ctx", codes=(2,))
        step = ("--step", "--ids-file", self.ids(b"1 2 3"))
        self.assertEqual(self.measured(*step, "--ctx", 3)["tokens"], 3)
        self.refused(self.bench(*step, "--ctx", 2), "--ctx", codes=(2,))

    def test_an_end_in_the_middle_shows_what_there_is(self):
        ids = self.ids(b" ".join(b"%d" % (i % 1344) for i in range(100000)))
        for options in (("--tokens", 100000), ("--step", "--ids-file", ids)):
            with self.subTest(options[0]):
                p = waste.start("bench", waste.DEMO, "--json", "-q", *options)
                waste.wait_for("some tokens", lambda: (waste.stats(p.pid) or {"counters": {"tokens": 0}})["counters"]["tokens"] > 50)
                p.send_signal(signal.SIGINT)
                got = self.ok(waste.finish(p)).json()
                self.assertEqual(got["status"], "cancelled")
                self.assertGreater(got["tokens"], 0)
                self.assertLess(got["tokens"], 100000)
                self.assertGreaterEqual(got["experts"]["hits"] + got["experts"]["misses"], got["tokens"] * 28)

    def test_an_end_before_there_is_anything(self):
        p = waste.start("bench", waste.DEMO, "--json", "-q", "--prompt-tokens", 200000, "--chunk", 1)
        waste.wait_for("a prompt that has begun",
                       lambda: (waste.stats(p.pid) or {"counters": {"tokens": 0}})["counters"]["tokens"] > 5)
        p.send_signal(signal.SIGINT)
        self.refused(waste.finish(p), "ended before", codes=(1,))


if __name__ == "__main__":
    waste.main()
