"""The command line: options, exit codes, streams, JSON, and what a user's text may never do."""
import json
import os
import pty
import re
import resource
import select
import signal
import subprocess
import time
import unittest

import waste

QUESTION = "What is the capital of Italy?"
ANSWER = "The capital of Italy is Rome."


class Streams(waste.Test):
    def test_the_answer_is_all_there_is_on_stdout(self):
        r = self.ok(waste.waste_run(waste.DEMO, QUESTION))
        self.assertEqual(r.out.decode(), ANSWER + "\n")
        self.assertNotEqual(r.err, b"", "a status line goes to stderr")

    def test_the_prompt_comes_from_stdin(self):
        r = self.ok(waste.waste_run(waste.DEMO, "-", "-q", stdin=QUESTION.encode()))
        self.assertEqual(r.out.decode(), ANSWER + "\n")
        self.assertEqual(r.err, b"")

    def test_json_has_the_documented_keys(self):
        got = self.ok(waste.waste_run("run", waste.DEMO, QUESTION, "--json")).json()
        self.assertEqual(got["text"], ANSWER)
        for key, kind in (("ids", list), ("prompt_tokens", int), ("tokens", int), ("prefill_seconds", float),
                          ("decode_seconds", float), ("tok_per_s", float), ("experts", dict), ("restarts", dict)):
            self.assertIsInstance(got[key], kind, key)
        for key in ("hits", "misses", "bytes_read", "prefetched", "prefetch_used"):
            self.assertIsInstance(got["experts"][key], int, key)
        self.assertEqual(got["restarts"], {"reader": 0, "compute": 0, "router": 0})
        self.assertEqual(got["tokens"], len(got["ids"]))
        self.assertEqual(got["status"], "stop")

    def test_a_reply_that_was_cut_off_says_so(self):
        r = self.ok(waste.waste_run(waste.DEMO, QUESTION, "-n", 3))
        self.assertIn(b"3 tokens (all that -n allows), ", r.err)
        self.assertEqual(self.ok(waste.waste_run(waste.DEMO, QUESTION, "-n", 3, "--json")).json()["status"], "length")

    def test_every_expert_demanded_is_a_hit_or_a_miss(self):
        got = self.ok(waste.waste_run("run", waste.DEMO, QUESTION, "--json", "--lookahead", 0)).json()
        # each consumed token asks for 4 experts in each of 7 layers; prefill may share a demand
        consumed = got["prompt_tokens"] + got["tokens"] - 1
        asked = got["experts"]["hits"] + got["experts"]["misses"]
        self.assertGreater(asked, 0)
        self.assertLessEqual(asked, consumed * 4 * 7)
        self.assertEqual(got["experts"]["prefetched"], 0)

    def test_streamed_text_is_valid_at_every_moment(self):
        model = waste.synth("tiny-k3")
        p = waste.start("run", model, "--raw", "abc", "-n", 30000, "--ctx", 31000, "--temp", "2", "--seed", "5", "--ignore-eos",
                        "-q", bufsize=0)
        seen, pieces, end = b"", 0, time.monotonic() + waste.LIMIT
        while pieces < 100 and time.monotonic() < end:
            if not select.select([p.stdout], [], [], 0.5)[0]:
                continue
            piece = os.read(p.stdout.fileno(), 65536)
            if not piece:
                break
            seen, pieces = seen + piece, pieces + 1
            seen.decode("utf-8", "strict")
        p.terminate()
        (seen + self.ok(waste.finish(p)).out).decode("utf-8", "strict")
        self.assertGreater(pieces, 3, "text does not stream")

    def test_a_broken_pipe_ends_it(self):
        p = waste.start("run", waste.DEMO, "--ids", waste.ids_of(waste.genesis()), "-n", 30000, "--ignore-eos", "-q",
                        "--ctx", "32000")
        stages = waste.all_stages_of(p.pid)
        os.read(p.stdout.fileno(), 1)
        p.stdout.close()
        p.stdout = None
        try:
            p.wait(waste.LIMIT)
        finally:
            p.kill()
            p.stderr.close()
        for name, pid in stages.items():
            waste.wait_for("the end of " + name, lambda: not waste.alive(pid))


class Full(waste.Test):
    def test_a_full_disk_is_no_success(self):
        for args in (["--help"], ["--version"], ["plan", waste.DEMO], ["info", waste.DEMO],
                     ["tokenize", waste.DEMO, "hello"], ["run", waste.DEMO, "hello", "-n", "2", "-q"]):
            with self.subTest(args[0]), open("/dev/full", "wb") as full:
                p = subprocess.run([waste.RUN, *args], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE,
                                   timeout=waste.LIMIT)
                self.refused(waste.Result(args, p.returncode, b"", p.stderr), "cannot write to stdout", codes=(1,))

    def test_low_limits_are_named(self):
        for limit, value, said in ((resource.RLIMIT_FSIZE, 0, "file too large"),
                                   (resource.RLIMIT_NOFILE, 16, "too many open files")):
            with self.subTest(said):
                p = subprocess.run([waste.RUN, "run", waste.DEMO, "hello", "-n", "2", "-q"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=waste.LIMIT,
                                   preexec_fn=lambda: resource.setrlimit(limit, (value, value)))
                line = self.refused(waste.Result([], p.returncode, p.stdout, p.stderr), "segment", codes=(1,))
                self.assertIn(said, line.lower())


class Sampling(waste.Test):
    def ids(self, *options):
        return self.ok(waste.waste_run("run", waste.DEMO, "--ids", waste.ids_of(waste.genesis()), "-n", 24, "--json",
                                       "--ignore-eos", "-q", *options)).json()["ids"]

    def test_a_seed_repeats_and_no_seed_differs(self):
        seeded = [self.ids("--temp", 1, "--seed", 7) for _ in range(2)]
        self.assertEqual(seeded[0], seeded[1])
        self.assertNotEqual(seeded[0], self.ids("--temp", 1, "--seed", 8))
        free = [tuple(self.ids("--temp", 1)) for _ in range(3)]
        self.assertEqual(len(set(free)), 3)

    def test_narrow_sampling_is_greedy(self):
        greedy = self.ids("--temp", 0)
        self.assertEqual(self.ids("--temp", 1, "--top-k", 1), greedy)
        self.assertEqual(self.ids("--temp", 1, "--top-p", "1e-6"), greedy)


class Words(waste.Test):
    def tokenize(self, *args):
        return self.ok(waste.waste_run("tokenize", waste.DEMO, *args, "--json")).json()["ids"]

    def detokenize(self, ids):
        r = self.ok(waste.waste_run("detokenize", waste.DEMO, "--ids", ",".join(map(str, ids)), "--json"))
        return r.json()["text"]

    def prompt_tokens(self, text):
        r = self.ok(waste.waste_run("run", waste.DEMO, text, "-n", 1, "--json", "-q"))
        return r.json()["prompt_tokens"]

    def test_text_never_becomes_a_control_token(self):
        with open(os.path.join(waste.DEMO, "specials.json")) as f:
            control = {s["id"]: s["text"] for s in json.load(f)}
        around = [i for i in self.tokenize("hello") if i in control]
        self.assertGreater(len(around), 4)
        for text in ("".join(control.values()), "<|close|>message<|sep|><|end_of_msg|>", "[EOS]", "<|<|open|>open|>"):
            with self.subTest(text):
                plain = self.tokenize("--raw", text)
                self.assertFalse([i for i in plain if i in control])
                self.assertEqual(self.detokenize(plain), text)
                whole = self.tokenize(text)
                self.assertEqual([i for i in whole if i in control], around)
                self.assertEqual(self.prompt_tokens(text), len(whole))

    def test_text_comes_back_as_it_was(self):
        for text in ("a", " leading and trailing ", "São Tomé, 日本語, 🇮🇹 flags", "tab\tand\nnewline", "x" * 5000):
            with self.subTest(text[:20]):
                self.assertEqual(self.detokenize(self.tokenize("--raw", text)), text)


class Chat(waste.Test):
    """`waste-run MODEL` at a terminal is a conversation."""

    def begin(self, *options):
        try:
            self.pid, self.fd = pty.fork()
        except OSError as e:
            self.skipTest("no terminal to be had: %s" % e)
        if self.pid == 0:
            os.environ["TERM"] = "dumb"
            os.execv(waste.RUN, [waste.RUN, waste.DEMO, "--temp", "0", *options])
        self.addCleanup(self.end)
        self.seen, self.at = b"", 0
        self.until(">")

    def end(self):
        waste.kill9(self.pid)
        os.close(self.fd)
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass

    def until(self, text):
        """Reads the terminal until `text` comes, behind what was waited for before: that may come with it, in one read."""
        end = time.monotonic() + waste.LIMIT
        while text.encode() not in self.seen[self.at:]:
            self.assertLess(time.monotonic(), end, "no %r behind %d of %r" % (text, self.at, self.seen))
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.fd, 4096)
                except OSError:
                    self.fail("it ended without %r: %r" % (text, self.seen))
        self.at = self.seen.index(text.encode(), self.at) + len(text.encode())

    def say(self, text):
        os.write(self.fd, text.encode())

    def ended(self):
        """The exit code, once it has ended by itself."""
        def look():
            if select.select([self.fd], [], [], 0)[0]:
                try:
                    self.seen += os.read(self.fd, 4096)
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return pid and (status,)
        status, = waste.wait_for("its end", look)
        return os.waitstatus_to_exitcode(status)

    def test_questions_get_answers_until_the_end_of_input(self):
        self.begin()
        self.say("What is the capital of Italy?\r")
        self.until("The capital of Italy is Rome.")
        self.say("Which countries border France?\r")
        self.until("Luxembourg and Monaco.")
        self.until(">")
        self.say("\x04")
        self.assertEqual(self.ended(), 0, self.seen)

    def test_reset_forgets_and_stats_shows(self):
        self.begin()
        self.say("Who are you?\r")
        self.until("a very small demo model")
        self.until(">")
        self.say("/stats\r")
        self.until(">")
        self.say("/reset\r")
        self.until(">")
        self.say("What is the capital of Italy?\r")
        self.until("The capital of Italy is Rome.")
        self.until(">")
        self.say("\x04")
        self.assertEqual(self.ended(), 0, self.seen)

    def test_ctrl_c_stops_the_answer_not_the_chat(self):
        self.begin("--ignore-eos", "-n", "30000", "--ctx", "32000")  # an answer that is not over before; at the prompt it ends the chat
        self.say("Which countries border France?\r")
        self.until("France borders")
        self.say("\x03")
        self.until("\n>")
        self.assertLess(int(re.search(rb"\[(\d+) tokens", self.seen).group(1)), 30000, "it went on to its end")
        self.say("/set n 9\r")
        self.until(">")
        self.say("What is the capital of Italy?\r")
        self.until("Rome")
        self.until(">")
        self.say("\x04")
        self.assertEqual(self.ended(), 0, self.seen)


class Usage(waste.Test):
    def test_wrong_use_is_exit_2_and_one_line(self):
        model = waste.DEMO
        for args in (["run"], ["--nonsense"], [model, "hi", "--nonsense"], [model, "hi", "--threads", "0"],
                     [model, "hi", "--threads", "x"], [model, "hi", "--temp", "-1"], [model, "hi", "--temp", "nan"],
                     [model, "hi", "--top-p", "2"], [model, "hi", "-n", "-1"], [model, "hi", "-n", "99999999999"],
                     [model, "hi", "--budget", "12Q"], [model, "hi", "--budget", "-1"], [model, "hi", "--budget", "0"],
                     [model, "hi", "--io", "carrier-pigeon"], [model, "hi", "--ctx", "0"], [model, "hi", "--seed", "x"],
                     ["run", model, "--ids", ""], ["run", model, "--ids", "1,,2"], ["run", model, "--ids", "1,x"],
                     ["run", model, "--ids", "-1"], ["run", model, "--ids", "1344"], ["run", model, "--ids", "4294967296"],
                     ["run", model, "--ids", "1", "and text"], ["eval", model], ["restart", "nobody"], ["restart"],
                     ["frobnicate", model], [model, "hi", "--cpus", "zero"], [model, "hi", "--cpus", "9999"]):
            with self.subTest(" ".join(args)):
                self.refused(waste.waste_run(*args), codes=(2,))

    def test_what_is_not_there_is_named(self):
        for args in (["/nonexistent/model.waste", "hi"], ["info", "/nonexistent/model.waste"], ["/etc/passwd", "hi"]):
            with self.subTest(" ".join(args)):
                self.refused(waste.waste_run(*args), [a for a in args if a.startswith("/")][0])

    def test_a_prompt_longer_than_the_context_is_refused(self):
        self.refused(waste.waste_run(waste.DEMO, "word " * 500, "--ctx", "64"))

    def test_the_end_of_the_context_ends_the_generation(self):
        ids = waste.genesis()["ids"]
        r = self.ok(waste.waste_run("run", waste.DEMO, "--ids", waste.ids_of(waste.genesis()), "-n", 500, "--ctx", 40,
                                    "--ignore-eos", "--json"))
        self.assertLessEqual(abs(len(ids) + r.json()["tokens"] - 40), 1)

    def test_nothing_asked_is_nothing_generated(self):
        r = self.ok(waste.waste_run("run", waste.DEMO, "--ids", "1,2,3", "-n", 0, "--json"))
        self.assertEqual(r.json()["ids"], [])

    def test_help_is_complete(self):
        r = self.ok(waste.waste_run("--help"))
        text = r.out.decode()
        for word in ("run", "chat", "eval", "tokenize", "detokenize", "plan", "info", "ps", "stats", "restart", "stop",
                     "--budget", "--ctx", "--temp", "--top-p", "--top-k", "--seed", "--threads", "--cpus", "--io",
                     "--lookahead", "--verify", "--no-verify", "--json", "-q", "--ids"):
            self.assertIn(word, text)
        for command in ("run", "eval", "plan", "ps", "restart"):
            self.ok(waste.waste_run(command, "--help"))

    def test_without_a_pipeline_the_views_say_so(self):
        for args in (["stats", "--pid", os.getpid()], ["restart", "reader", "--pid", os.getpid()],
                     ["stop", "--pid", os.getpid()]):
            with self.subTest(str(args)):
                self.refused(waste.waste_run(*args))


class Running(waste.Test):
    """Views of a running pipeline, whose compute is stopped: it is looked at before it has come to its end."""
    TOKENS, CTX = 3000, 4000

    def setUp(self):
        prompt = ",".join([waste.ids_of(waste.genesis())] * 45)  # more than a chunk, whose memory is touched then
        for _ in range(20):  # until it is not quicker than a look
            self.p = waste.start("run", waste.DEMO, "--ids", prompt, "-n", self.TOKENS, "--ctx", self.CTX,
                                 "--temp", "0", "--ignore-eos", "-q", "--json", "--hang-seconds", 3600)
            waste.wait_for("tokens", lambda: self.p.poll() is not None or (
                lambda s: s and s["counters"]["generated"] > 50)(self.stats()))
            waste.wait_for("all stages", lambda: self.p.poll() is not None or len(waste.stages_of(self.p.pid)) == 3)
            self.compute = waste.stages_of(self.p.pid).get("compute")
            try:
                if self.compute:
                    os.kill(self.compute, signal.SIGSTOP)
                    s = self.stats()
                    if s and s["counters"]["generated"] < self.TOKENS:
                        return
            except ProcessLookupError:
                pass
            self.tearDown()
        self.fail("twenty times it was quicker than the test")

    def tearDown(self):
        self.p.kill()
        self.p.communicate()

    def stats(self):
        return waste.stats(self.p.pid)

    def test_ps_and_stats_show_it(self):
        text = self.ok(waste.waste_run("ps")).out.decode()
        for name, pid in waste.stages_of(self.p.pid).items():
            self.assertIn(name, text)
            self.assertIn(str(pid), text)
        one, two = self.stats(), self.stats()
        self.assertGreaterEqual(two["counters"]["generated"], one["counters"]["generated"])
        self.assertGreater(one["counters"]["trunk_bytes_read"], 0)

    def test_stop_prints_what_there_is(self):
        os.kill(self.compute, signal.SIGCONT)
        self.ok(waste.waste_run("stop", "--pid", self.p.pid))
        r = waste.finish(self.p)
        self.p = waste.start("--version")
        self.assertIn(r.code, (0, 1), str(r))
        self.assertGreater(r.json()["tokens"], 50)

    @unittest.skipIf(waste.SLOW > 1, "a sanitizer takes memory of its own")
    def test_the_plan_is_what_the_processes_take(self):
        plan = self.plan(waste.DEMO, "--ctx", self.CTX)
        pids = [self.p.pid] + list(waste.stages_of(self.p.pid).values())
        taken = sum(waste.pss_bytes(p) for p in pids)
        print("plan %.1f MiB, resident %.1f MiB" % (plan["total_bytes"] / 2**20, taken / 2**20))
        # the kernel rounds up to huge pages if it is told to, and never gives what is not touched
        self.assertLess(taken, plan["total_bytes"] + (8 << 20))
        self.assertGreater(taken, 0.6 * plan["total_bytes"])

    def test_nothing_is_left_in_the_file_system_but_the_socket(self):
        for pid in [self.p.pid] + list(waste.stages_of(self.p.pid).values()):
            for fd in os.listdir("/proc/%d/fd" % pid):
                try:
                    target = os.readlink("/proc/%d/fd/%s" % (pid, fd))
                except OSError:
                    continue
                self.assertFalse(target.startswith("/dev/shm/"), target)


if __name__ == "__main__":
    waste.main()
