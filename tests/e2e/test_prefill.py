"""Prompts in chunks: the same answers as token by token, through kills, in the smallest memory; progress, limits, an end."""
import json
import os
import re
import signal
import sys
import time

import waste

LOGITS = 1e-5  # between any two ways to compute the same; the bar is 1e-4


def prompt(count):
    """The reference's first prompt, over and over."""
    ids = waste.expected()[0]["ids"]
    return [ids[i % len(ids)] for i in range(count)]


def text(ids):
    return ",".join(map(str, ids))


class Prefill(waste.Test):
    def logits(self, model, ids, chunk, *options):
        return waste.floats(waste.eval_logits(model, ids, "--chunk", chunk, *options))

    def test_every_chunk_size_has_the_reference_s_logits(self):
        for shape in waste.shapes():
            ref = waste.reference(shape)
            one = self.logits(waste.synth(shape), ref["ids"], 1)
            for chunk in (2, 7, 16, 64):
                with self.subTest(shape, chunk=chunk):
                    got = self.logits(waste.synth(shape), ref["ids"], chunk)
                    self.assertLessEqual(waste.distance(got, ref["logits"]), 3 * LOGITS)
                    self.assertLessEqual(waste.distance(got, one), LOGITS)
                    self.assertEqual(waste.top(got, 1), [ref["argmax"]])

    def test_a_long_prompt_in_chunks_of_any_size(self):
        ids = prompt(700)
        one = self.logits(waste.DEMO, ids, 1)
        for chunk in (7, 64, 512, 700):
            with self.subTest(chunk=chunk):
                got = self.logits(waste.DEMO, ids, chunk)
                d = waste.distance(got, one)
                print("chunks of %d against token by token: %.1e" % (chunk, d), file=sys.stderr)
                self.assertLessEqual(d, LOGITS)
                self.assertEqual(waste.top(got, 10), waste.top(one, 10))

    def test_the_smallest_memory_is_enough_and_said(self):
        ids = prompt(300)
        for chunk in (1, 64, 300):
            with self.subTest(chunk=chunk):
                options = ("--chunk", chunk, "--ctx", 512)
                plan = self.plan(waste.DEMO, *options)
                self.assertEqual(plan["chunk"], chunk)
                want = self.logits(waste.DEMO, ids, chunk, "--ctx", 512, "--budget", plan["floor_bytes"] + (64 << 20))
                got = self.logits(waste.DEMO, ids, chunk, "--ctx", 512, "--budget", plan["floor_bytes"])
                self.assertEqual(got, want)
                line = self.refused(waste.waste_run("eval", waste.DEMO, "--ids", text(ids), *options, "--budget",
                                                    plan["floor_bytes"] - 1), "floor", codes=(2,))
                self.assertEqual("chunks of %d tokens" % chunk in line, chunk > 1, line)

    def test_each_expert_is_read_once_a_chunk(self):
        plan = self.plan(waste.DEMO)
        budget = plan["floor_bytes"] + 2 * plan["working_set_slots"] * (plan["cache_bytes"] // plan["slots"])
        r = self.ok(waste.waste_run("bench", waste.DEMO, "--prompt-tokens", 512, "--tokens", 1, "--budget", budget, "--json"))
        record = plan["cache_bytes"] // plan["slots"]
        self.assertLessEqual(r.json()["prefill_bytes_read"], 1.02 * record * plan["expert_slots"])
        self.assertGreater(r.json()["prefill_mac_share"], 0)

    def killed(self, ids, options, stage, moments):
        """Generates while `stage` is killed at some layers of a chunk."""
        p = waste.start("run", waste.DEMO, "--ids", text(ids), "-n", 12, "--temp", 0, "--ignore-eos", "--json", "-q", *options)
        for _ in range(moments):
            pid = waste.stage_of(p, stage)
            until = time.monotonic() + self.random.uniform(0.05, 0.5)
            while time.monotonic() < until and p.poll() is None:
                time.sleep(0.01)
            if p.poll() is not None:
                break
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            waste.wait_for("another %s" % stage, lambda: p.poll() is not None or waste.stages_of(p.pid).get(stage) not in (None, pid))
        return self.ok(waste.finish(p)).json()

    def test_a_stage_that_dies_inside_a_chunk_changes_nothing(self):
        self.random = waste.seed()
        ids = prompt(3000)
        plan = self.plan(waste.DEMO)
        options = ("--chunk", 512, "--threads", 1, "--budget", plan["floor_bytes"] + 4 * plan["cache_bytes"] // plan["slots"])
        want = self.ok(waste.waste_run("run", waste.DEMO, "--ids", text(ids), "-n", 12, "--temp", 0, "--ignore-eos", "--json",
                                       "-q", *options)).json()["ids"]
        for stage in ("compute", "reader"):
            with self.subTest(stage):
                got = self.killed(ids, options, stage, 3)
                print("%s: restarts %s" % (stage, got["restarts"]), file=sys.stderr)
                self.assertEqual(got["ids"], want)

    def test_contexts_are_refused_before_the_work_with_their_numbers(self):
        ids = text(prompt(40))
        self.ok(waste.waste_run("eval", waste.DEMO, "--ids", ids, "--ctx", 40))  # nothing is generated: it may be full
        line = self.refused(waste.waste_run("eval", waste.DEMO, "--ids", ids, "--ctx", 39), "context", codes=(2,))
        self.assertRegex(line, r"40 tokens.* 39")
        line = self.refused(waste.waste_run("run", waste.DEMO, "--ids", ids, "--ctx", 40), "context", codes=(2,))
        self.assertRegex(line, r"40 tokens.* 40: at most 39")
        self.ok(waste.waste_run("run", waste.DEMO, "--ids", ids, "--ctx", 41, "-n", 1))

    def long(self, *options, ids=3500):
        """A prompt that takes a while: token by token on one thread."""
        return waste.start("eval", waste.DEMO, "--ids", text(prompt(ids)), "--chunk", 1, "--threads", 1, "--ctx", 4096, *options)

    def test_a_prompt_that_takes_a_while_says_how_far_it_is(self):
        r = self.ok(waste.finish(self.long()))
        lines = re.findall(rb"prompt: (\d+) of 3500 tokens, ([0-9.]+) tokens/s, (\d+) s left\n", r.err)
        if not lines:
            self.skipTest("the prompt took less than two seconds")
        done = [int(l[0]) for l in lines]
        self.assertEqual(done, sorted(done))
        self.assertTrue(0 < done[0] and done[-1] <= 3500, done)
        for n, rate, left in lines:
            self.assertLessEqual(abs((3500 - int(n)) / float(rate) - int(left)), 1 + 0.1 * int(left))
        self.assertEqual(self.ok(waste.finish(self.long("-q"))).err, b"")

    def test_stats_say_how_far_a_prompt_is(self):
        for _ in range(10):  # until it is not quicker than two looks
            p, looks = self.long(), []
            while p.poll() is None and len(looks) < 2:
                f = (waste.stats(p.pid) or {}).get("prefill")
                if f and f["position"] > (looks[0]["position"] if looks else 0):
                    looks.append(f)
            self.ok(waste.finish(p))
            if len(looks) == 2:
                break
        first, later = looks
        self.assertEqual((first["begin"], first["end"]), (0, 3500))
        self.assertGreater(later["seconds"], first["seconds"])
        self.assertGreater(later["tok_per_s"], 0)

    def test_ctrl_c_ends_a_prompt(self):
        for chunk in (1, 512, 3500):
            with self.subTest(chunk=chunk):
                p = waste.start("eval", waste.DEMO, "--ids", text(prompt(3500)), "--chunk", chunk, "--threads", 1)
                waste.stage_of(p, "compute")
                time.sleep(0.3)
                p.send_signal(signal.SIGINT)
                r = waste.finish(p)
                self.assertIn(r.code, (0, 1), r)  # 0: it was through before
                if r.code:
                    self.assertEqual(len(r.error_lines()), 1, r)


if __name__ == "__main__":
    waste.main()
