"""waste-run eval: the next-token table and perplexity, held against the logits themselves."""
import math
import os
import time

import waste

TEXT = "In the beginning God created the heaven and the earth. São Tomé!\n"


def softmax_log(logits, i):
    most = max(logits)
    return logits[i] - most - math.log(sum(math.exp(x - most) for x in logits))


class Table(waste.Test):
    def test_rows_are_the_largest_logits_with_their_probabilities(self):
        case = waste.expected()[0]
        got = self.ok(waste.waste_run("eval", waste.DEMO, "--ids", waste.ids_of(case), "--top", 5, "--json", "-q")).json()
        self.assertEqual([row["id"] for row in got["top"]], waste.top(case["logits"], 5))
        for row in got["top"]:
            self.assertAlmostEqual(math.log(row["prob"]), softmax_log(case["logits"], row["id"]), delta=0.02)
        self.assertEqual(got["top"][0]["text"], "The")

    def test_the_table_has_a_row_a_token_and_quotes_its_text(self):
        r = self.ok(waste.waste_run("eval", waste.DEMO, "--raw", TEXT, "--top", 3, "-q"))
        lines = r.out.decode().splitlines()
        self.assertEqual(len(lines), 4)
        self.assertEqual(lines[0].split(), ["rank", "id", "logit", "prob", "text"])
        for i, line in enumerate(lines[1:]):
            self.assertEqual(line.split()[0], str(i + 1))
            self.assertTrue(line.endswith('"'), line)


class EveryPosition(waste.Test):
    """--all computes the text in chunks, and the logits are those of one token after the other."""

    def rows(self, data, count):
        logits = waste.floats(data)
        vocab = len(logits) // count
        return [logits[i * vocab:(i + 1) * vocab].tolist() for i in range(count)]

    def test_chunks_of_any_size_agree(self):
        for model in (waste.DEMO, waste.synth("tiny-odd-k3")):
            ids = [1 + 7 * i % 200 for i in range(150)]
            one = self.rows(waste.eval_logits(model, ids, "--chunk", 1, every=True), len(ids))
            for chunk in (("--chunk", 7), ("--chunk", 64), ("--chunk", 149), ("--chunk", 512), ()):
                with self.subTest(model=model, chunk=chunk):
                    got = self.rows(waste.eval_logits(model, ids, *chunk, every=True), len(ids))
                    self.assertLess(max(waste.distance(a, b) for a, b in zip(got, one)), 1e-4)
                    self.assertEqual([waste.top(a, 1) for a in got], [waste.top(b, 1) for b in one])
            last = self.rows(waste.eval_logits(model, ids), 1)[0]
            self.assertLess(waste.distance(last, one[-1]), 1e-4)

    def test_a_compute_that_dies_changes_nothing(self):
        ids = [1 + 7 * i % 200 for i in range(3000)]
        options = ("--ids", ",".join(map(str, ids)), "--all", "--chunk", 128, "-q", "--logits")
        files = [os.path.join(waste.scratch(), n) for n in ("whole.f32", "killed.f32")]
        self.ok(waste.waste_run("eval", waste.DEMO, *options, files[0]))
        for _ in range(10):  # until it is not quicker than the first kill
            p = waste.start("eval", waste.DEMO, *options, files[1])
            killed, size = 0, lambda: os.path.exists(files[1]) and os.path.getsize(files[1])
            while p.poll() is None and killed < 3:
                if size() > killed * os.path.getsize(files[0]) // 4:
                    pid = waste.stages_of(p.pid).get("compute")
                    killed += bool(pid) and waste.kill9(pid)
                time.sleep(0.01)
            self.ok(waste.finish(p))
            if killed:
                break
            os.unlink(files[1])
        self.assertGreater(killed, 0)
        with open(files[0], "rb") as a, open(files[1], "rb") as b:
            self.assertTrue(a.read() == b.read())

    def test_a_full_disk_ends_it_with_one_line(self):
        for every in ((), ("--all",)):
            self.refused(waste.waste_run("eval", waste.DEMO, "--ids", "1,2,3", "--logits", "/dev/full", *every), "/dev/full",
                         codes=(1,))


class Perplexity(waste.Test):
    def setUp(self):
        self.path = os.path.join(waste.scratch(), "text.txt")
        with open(self.path, "w") as f:
            f.write(TEXT)
        out = self.ok(waste.waste_run("tokenize", "--model", waste.DEMO, "-", stdin=TEXT.encode())).out
        self.ids = [int(i) for i in out.decode().split(",")]

    def want(self, ids):
        """-log p of every token but the first, from the logits."""
        logits = waste.floats(waste.eval_logits(waste.DEMO, ids, every=True))
        vocab = len(logits) // len(ids)
        return [-softmax_log(logits[i * vocab:(i + 1) * vocab].tolist(), ids[i + 1]) for i in range(len(ids) - 1)]

    def perplexity(self, *options):
        return self.ok(waste.waste_run("eval", waste.DEMO, "--perplexity", self.path, "--json", *options)).json()

    def test_it_is_the_mean_over_the_tokens(self):
        want = self.want(self.ids)
        got = self.perplexity()
        self.assertEqual(got["tokens"], len(want))
        self.assertAlmostEqual(got["nll"], sum(want) / len(want), places=5)
        self.assertAlmostEqual(got["ppl"], math.exp(sum(want) / len(want)), delta=1e-4 * got["ppl"])
        self.assertAlmostEqual(got["bits_per_byte"], sum(want) / math.log(2) / len(TEXT.encode()), places=5)

    def test_a_text_longer_than_the_context_is_scored_in_windows(self):
        want = []
        for at in range(0, len(self.ids) - 1, 9):  # a context of 10 takes 9 and foretells one more
            want += self.want(self.ids[at:at + 10])
        got = self.perplexity("--ctx", 10)
        self.assertEqual(got["tokens"], len(self.ids) - 1)
        self.assertAlmostEqual(got["nll"], sum(want) / len(want), places=5)

    def test_chunks_of_any_size_give_the_same(self):
        one = self.perplexity("--chunk", 1)
        for options in (("--chunk", 7), ("--chunk", 64), (), ("--ctx", 10, "--chunk", 4), ("--ctx", 10)):
            want = self.perplexity("--ctx", 10, "--chunk", 1) if "--ctx" in options else one
            got = self.perplexity(*options)
            self.assertEqual(got["tokens"], want["tokens"])
            self.assertAlmostEqual(got["nll"], want["nll"], delta=1e-4 * want["nll"])

    def test_progress_goes_to_stderr_unless_quiet(self):
        r = self.ok(waste.waste_run("eval", waste.DEMO, "--perplexity", self.path))
        self.assertIn(b"100 %", r.err)
        self.assertIn(b"ppl", r.out)
        self.assertEqual(self.ok(waste.waste_run("eval", waste.DEMO, "--perplexity", self.path, "-q")).err, b"")

    def test_what_cannot_be_scored_is_refused(self):
        for data in (b"", b"a"):
            path = os.path.join(waste.scratch(), "short.txt")
            with open(path, "wb") as f:
                f.write(data)
            self.refused(waste.waste_run("eval", waste.DEMO, "--perplexity", path), "short.txt", codes=(2,))
        self.refused(waste.waste_run("eval", waste.DEMO, "--perplexity", "/nonexistent"), "/nonexistent", codes=(2,))
        self.refused(waste.waste_run("eval", waste.DEMO, "text", "--perplexity", self.path), codes=(2,))

    def test_ctrl_c_ends_it_with_one_line(self):
        path = os.path.join(waste.scratch(), "long.txt")
        with open(path, "w") as f:
            f.write(TEXT * 2000)
        p = waste.start("eval", waste.DEMO, "--perplexity", path, "-q")
        waste.wait_for("stages", lambda: len(waste.stages_of(p.pid)) == 3)
        time.sleep(0.5)
        p.send_signal(2)
        r = waste.finish(p)
        self.refused(r, "ended", codes=(1,))


if __name__ == "__main__":
    waste.main()
