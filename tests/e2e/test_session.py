"""--session: a conversation that outlives waste-run, whatever ends that."""
import json
import os
import resource
import signal
import struct
import subprocess
import time
import zlib

import waste

QUESTION = "What is the capital of Italy?"
TOKENS = 1200 if waste.LONG else 500
KILLS = 20 if waste.LONG else 4
COPIES = 40 if waste.LONG else 6
EVERY = 16

HEADER = struct.Struct("<8sIIQQIIIIQ" + "QII" * 4 + "II")


def path(name):
    return os.path.join(waste.scratch(), name)


def header(name):
    """Tokens and position of a session file."""
    with open(name, "rb") as f:
        h = HEADER.unpack(f.read(HEADER.size))
    return h[7], h[8]


def clear(name):
    for end in ("", ".old", ".new", ".lock"):
        if os.path.lexists(name + end):
            os.unlink(name + end)
    return name


def read(name):
    with open(name, "rb") as f:
        return f.read()


def write(name, data):
    with open(name, "wb") as f:
        f.write(data)


def run(file, *options, **kw):
    return waste.waste_run("run", waste.DEMO, "--session", file, *options, "--json", "-q", **kw)


def chat(file, lines, *options):
    r = waste.waste_run("chat", waste.DEMO, "--session", file, *options, "--json",
                        stdin="".join(l + "\n" for l in lines).encode())
    return r, [json.loads(l) for l in r.out.decode().splitlines()]


def stats(p):
    return waste.stats(p.pid)


def hold(p, file, tokens, every, whole):
    """Stops compute when so many tokens are there, and saved but for the last few: its pid, None if the reply, which has `whole`
    tokens with its prompt, was quicker."""
    def look():
        s = p.poll() is None and stats(p)
        return p.poll() is not None or s and s["counters"]["tokens"] >= tokens
    waste.wait_for("%d tokens" % tokens, look)
    compute = waste.stages_of(p.pid).get("compute")
    if compute is None:
        return None
    try:
        os.kill(compute, signal.SIGSTOP)
    except ProcessLookupError:
        return None
    s = stats(p)
    at = s["counters"]["tokens"] if s else whole
    if at >= whole - every:
        os.kill(compute, signal.SIGCONT)
        return None
    # a save is due after half of that
    waste.wait_for("a position near %d" % at, lambda: os.path.exists(file) and header(file)[1] > at - every // 2)
    return compute


def held(test, begin, file, tokens, every, whole):
    """A run that begin() starts, and its compute: see hold()."""
    for _ in range(20):
        clear(file)
        p = begin()
        compute = hold(p, file, tokens, every, whole)
        if compute:
            return p, compute
        waste.finish(p)
    test.fail("twenty times it was quicker than the test")


def replies(events):
    return [e["message"]["content"] for e in events if e["event"] == "end"]


class Long(waste.Test):
    """One long reply, with a seed: the undisturbed ids, and the same after whatever happens."""
    @classmethod
    def setUpClass(cls):
        cls.random = waste.seed()
        cls.args = ["--ids", waste.ids_of(waste.genesis()), "-n", TOKENS, "--temp", "0.8", "--ignore-eos",
                    "--session-every", EVERY]
        cls.prompt = len(waste.genesis()["ids"])
        begin = time.monotonic()
        r = waste.waste_run("run", waste.DEMO, *cls.args, "--seed", 5, "--json", "-q")
        cls.seconds = time.monotonic() - begin
        if r.code:
            raise AssertionError(str(r))
        cls.want = r.json()["ids"]

    def start(self, file, *options, seed=("--seed", 5)):
        return waste.start("run", waste.DEMO, "--session", file, *self.args, *seed, *options, "--hang-seconds", 3600, "--json", "-q")

    def held(self, file, **kw):
        """A run that has some tokens, saved but for the last few, and its compute, which is stopped, so that the end of the reply
        is not before what a test does next.
        """
        return held(self, lambda: self.start(file, **kw), file, 60, EVERY, self.prompt + TOKENS)

    def test_killed_again_and_again_the_reply_is_the_same(self):
        file = clear(path("kills"))
        ids, kills, at = None, 0, 0
        while ids is None:
            p = self.start(file)
            time.sleep(self.random.uniform(0.1, max(0.3, 0.6 * self.seconds)))
            if kills < KILLS and p.poll() is None:
                waste.kill9(p.pid)
                waste.finish(p)
                kills += 1
                if os.path.exists(file):
                    count, now = header(file)
                    self.assertGreaterEqual(now, at, "state was lost")
                    at = now
                    if count == self.prompt + TOKENS:   # the reply was over, it only did not say so any more: to ask again is to
                        at, _ = 0, clear(file)          # ask for another one
            else:
                r = self.ok(waste.finish(p))
                ids = r.json()["ids"]
                self.assertEqual(r.json()["reused_tokens"], at)
        self.assertEqual(ids, self.want)
        self.assertFalse(os.path.exists(file + ".lock"))

    def test_no_more_than_every_n_tokens_are_computed_again(self):
        file = path("every")
        p, _ = self.held(file)  # a save that has begun comes to its end, and it is not too old
        waste.kill9(p.pid)
        waste.finish(p)
        position = header(file)[1]
        r = self.ok(waste.finish(self.start(file))).json()
        self.assertEqual(r["ids"], self.want)
        self.assertEqual((r["prompt_tokens"], r["reused_tokens"]), (self.prompt, position))

    def test_whatever_was_saved_at_full_speed_goes_on_with_the_same_tokens(self):
        file = path("fast")
        for rest in (0, 0.1, 1):    # a slow disk takes its time for each save: compute has to wait for it
            copies = self.saves(file, rest)
            if len({header(c)[1] for c in copies}) > 2:
                break
        self.assertGreater(len({header(c)[1] for c in copies}), 2, "saves are rare")
        for copy in self.random.sample(copies[:-1], min(COPIES, len(copies) - 1)):
            r = self.ok(waste.finish(self.start(copy)))
            self.assertEqual(r.json()["ids"], self.want, "from %d tokens, position %d" % header(copy))
        for copy in copies:
            clear(copy)

    def saves(self, file, rest):
        """Links to what is saved in a reply in which compute stands still so long, again and again."""
        p = self.start(clear(file), "--session-every", 1)
        copies, seen = [], None
        while p.poll() is None:
            try:
                now = os.stat(file).st_ino, os.stat(file).st_mtime_ns
                if now != seen:
                    copy = clear(path("fast-%d" % len(copies)))
                    os.link(file, copy)
                    copies.append(copy)
                    seen = now
            except FileNotFoundError:
                pass
            compute = rest and waste.stages_of(p.pid).get("compute")
            if compute:
                try:
                    os.kill(compute, signal.SIGSTOP)
                    time.sleep(rest)
                    os.kill(compute, signal.SIGCONT)
                except ProcessLookupError:
                    pass
            time.sleep(0.001 if not rest else 0.02)
        self.assertEqual(self.ok(waste.finish(p)).json()["ids"], self.want)
        return copies

    def ended(self, end):
        file = path("ended")
        for _ in range(5):  # it looks ten times a second whether somebody wants the end, if it has a CPU
            p, compute = self.held(file, seed=())
            end(p)
            time.sleep(1)
            os.kill(compute, signal.SIGCONT)
            part = self.ok(waste.finish(p)).json()
            if part["status"] == "cancelled":
                break
        self.assertEqual(part["status"], "cancelled")
        # all of it was saved: nothing is computed twice, and the seed nobody gave is the same
        r = self.ok(run(file)).json()
        self.assertEqual(r["ids"][:len(part["ids"])], part["ids"])
        self.assertEqual(len(r["ids"]), TOKENS)
        self.assertEqual(r["reused_tokens"], self.prompt + len(part["ids"]) - 1)

    def test_sigterm_saves(self):
        self.ended(lambda p: p.send_signal(signal.SIGTERM))

    def test_ctrl_c_saves(self):
        self.ended(lambda p: p.send_signal(signal.SIGINT))

    def test_stop_saves(self):
        stops = []
        self.ended(lambda p: stops.append(waste.start("stop", "--pid", p.pid)))
        self.ok(waste.finish(stops[-1]))  # it waits for the end

    def test_a_stage_that_dies_changes_nothing(self):
        file = path("stage")
        p, compute = self.held(file)
        waste.kill9(compute)
        self.assertEqual(self.ok(waste.finish(p)).json()["ids"], self.want)
        # one that dies right after its state was put back, too
        p, _ = self.held(file)
        waste.kill9(p.pid)
        waste.finish(p)
        p = self.start(file)
        compute = waste.stage_of(p, "compute")
        if compute:
            waste.kill9(compute)
        self.assertEqual(self.ok(waste.finish(p)).json()["ids"], self.want)

    def test_a_disk_that_is_full_costs_no_answer_and_no_file(self):
        file = path("full")
        p, compute = self.held(file)    # no save is due, none is on its way
        resource.prlimit(p.pid, resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))
        old = read(file)
        os.kill(compute, signal.SIGCONT)
        waste.wait_for("a save that fails", lambda: p.poll() is not None or
                       (stats(p) or {"counters": {"session_save_failures": 0}})["counters"]["session_save_failures"] >= 2)
        log = waste.ask("log", pid=p.pid).out.decode() if p.poll() is None else file
        r = waste.finish(p)
        self.assertEqual(r.code, 3, str(r))
        self.assertEqual((r.json()["ids"], r.json()["session_saved"]), (self.want, False))
        self.assertIn(file, log)
        lines = r.error_lines()
        self.assertEqual(len(lines), 1, r)
        self.assertIn("cannot write " + file, lines[0])
        self.assertEqual(read(file), old)
        self.assertFalse(os.path.exists(file + ".new"))
        self.assertEqual(self.ok(waste.finish(self.start(file))).json()["ids"], self.want)

    def test_one_file_one_process(self):
        file = path("shared")
        p, compute = self.held(file)
        for r in (run(file, *self.args), run(file, "--ids", "1")):
            self.refused(r, file, "in use", "pid %d" % p.pid, codes=(1,))
        r, _ = chat(file, ["Hello!"])
        self.refused(r, file, "in use", codes=(1,))
        os.kill(compute, signal.SIGCONT)
        self.assertEqual(self.ok(waste.finish(p)).json()["ids"], self.want)
        self.assertFalse(os.path.exists(file + ".lock"))


class Turns(waste.Test):
    """What a conversation becomes over several processes."""
    def test_many_processes_are_one_conversation(self):
        _, events = chat(clear(path("one")), [QUESTION, "Hello!", "Thanks!"])
        whole = replies(events)
        self.assertEqual(len(whole), 3)
        file = clear(path("many"))
        texts = [self.ok(run(file, q)).json() for q in (QUESTION, "Hello!", "Thanks!")]
        self.assertEqual([t["text"] for t in texts], whole)
        # each turn has put the past back instead of computing it
        self.assertEqual(texts[0]["reused_tokens"], 0)
        self.assertEqual(texts[1]["reused_tokens"], texts[0]["prompt_tokens"] + texts[0]["tokens"] - 1)
        self.assertEqual(header(file), header(path("one")))
        r, events = chat(file, ["/save " + path("many.json")])
        self.ok(r)
        with open(path("many.json")) as f:
            messages = json.load(f)["messages"]
        self.assertEqual([m["content"] for m in messages], [QUESTION, whole[0], "Hello!", whole[1], "Thanks!", whole[2]])
        self.assertIn("6 messages", events[0]["text"])

    def test_chat_goes_on_where_it_was(self):
        file = clear(path("talk"))
        self.ok(chat(file, [QUESTION], "--system", "You are terse.")[0])
        r, events = chat(file, ["Thanks!"], "--system", "You are terse.")
        self.ok(r)
        self.assertEqual(replies(events), ["You are welcome."])
        end = events[-1]
        self.assertGreater(end["reused_tokens"], 30)
        self.assertLess(end["prompt_tokens"], 30)
        # another system message: everything anew
        r, events = chat(file, ["Thanks!"], "--system", "Other.")
        self.assertEqual(events[-1]["reused_tokens"], 0)
        self.assertGreater(events[-1]["prompt_tokens"], 60)
        # forgotten is forgotten
        self.ok(chat(file, ["/reset"])[0])
        _, events = chat(file, [QUESTION, "/save " + path("talk.json")])
        with open(path("talk.json")) as f:
            self.assertEqual([m["role"] for m in json.load(f)["messages"]], ["system", "user", "assistant"])

    def test_a_chat_that_was_killed_in_a_reply_goes_on_with_it(self):
        file = path("killed")
        options = ["--ignore-eos", "-n", "300", "--session-every", "8"]
        _, events = chat(clear(path("whole")), [QUESTION], *options)
        want = replies(events)
        def begin():
            p = waste.start("chat", waste.DEMO, "--session", file, *options, "--hang-seconds", 3600, "--json", stdin=subprocess.PIPE)
            p.stdin.write((QUESTION + "\n").encode())
            p.stdin.flush()
            return p
        p, _ = held(self, begin, file, 60, 8, 300)
        waste.kill9(p.pid)
        waste.finish(p)
        r, events = chat(file, ["/save " + path("killed.json")], *options)
        self.ok(r)
        self.assertEqual(replies(events), want)
        with open(path("killed.json")) as f:
            self.assertEqual([m["content"] for m in json.load(f)["messages"]], [QUESTION] + want)
        # killed at the prompt: nothing is lost at all
        p = waste.start("chat", waste.DEMO, "--session", file, "-n", 4, "--json", stdin=subprocess.PIPE)
        p.stdin.write(b"Hello!\n")
        p.stdin.flush()
        end = next(e for e in map(json.loads, p.stdout) if e["event"] == "end")
        waste.wait_for("the save at rest", lambda: header(file)[0] == end["context"])
        waste.kill9(p.pid)
        waste.finish(p)
        r, events = chat(file, ["/save " + path("killed.json")])
        with open(path("killed.json")) as f:
            self.assertEqual(len(json.load(f)["messages"]), 4)

    def test_run_without_a_prompt_goes_on_with_what_n_cut_off(self):
        whole = self.ok(waste.waste_run("run", waste.DEMO, QUESTION, "--json", "-q")).json()
        file = clear(path("piecemeal"))
        ids = self.ok(run(file, QUESTION, "-n", 3)).json()["ids"]
        while len(ids) < len(whole["ids"]):
            ids += self.ok(run(file, "-n", 4)).json()["ids"]
        self.assertEqual(ids, whole["ids"])
        r, events = chat(file, ["/save " + path("piecemeal.json")])
        with open(path("piecemeal.json")) as f:
            self.assertEqual(json.load(f)["messages"][1]["content"], whole["text"])
        # a reply that ended by itself wants a prompt
        self.refused(run(file), "prompt is empty", codes=(2,))
        # with nothing but a prompt consumed, the reply comes from a log that is computed again
        file = clear(path("prompt"))
        self.assertEqual(self.ok(run(file, QUESTION, "-n", 0)).json()["ids"], [])
        self.assertEqual(self.ok(run(file)).json()["ids"], whole["ids"])

    def test_another_prompt_closes_a_reply_that_was_cut_off(self):
        file = clear(path("other"))
        p = waste.start("run", waste.DEMO, "--session", file, QUESTION, "--ignore-eos", "-n", 100000, "--ctx", 100100,
                        "--session-every", 8, "-q")
        waste.wait_for("a save", lambda: os.path.exists(file) and header(file)[1] > 60)
        waste.kill9(p.pid)
        waste.finish(p)
        self.assertEqual(self.ok(run(file, "Thanks!")).json()["status"], "stop")
        chat(file, ["/save " + path("other.json")])
        with open(path("other.json")) as f:
            messages = json.load(f)["messages"]
        self.assertEqual([m["role"] for m in messages], ["user", "assistant", "user", "assistant"])
        self.assertTrue(messages[1]["content"].startswith("The capital of Italy is Rome."))

    def test_tokens_without_messages(self):
        ids = waste.genesis()["ids"]
        want = self.ok(waste.waste_run("run", waste.DEMO, "--ids", waste.ids_of(waste.genesis()), "-n", 8, "--json", "-q")).json()["ids"]
        file = clear(path("raw"))
        self.ok(run(file, "--ids", ",".join(map(str, ids[:5])), "-n", 0))
        r = self.ok(run(file, "--ids", ",".join(map(str, ids[5:])), "-n", 8)).json()
        self.assertEqual(r["ids"], want)
        self.assertEqual(r["reused_tokens"], 5)
        self.refused(run(file, "Hello"), file, "--ids or --raw", codes=(2,))
        self.refused(chat(file, ["Hello"])[0], file, codes=(2,))
        file = clear(path("words"))
        self.ok(run(file, "Hello!"))
        self.refused(run(file, "--ids", "1,2"), file, "messages", codes=(2,))

    def test_the_context_must_hold_it(self):
        file = clear(path("ctx"))
        self.ok(run(file, QUESTION))
        self.refused(run(file, "Hello!", "--ctx", 40), "40", codes=(2,))
        self.ok(run(file, "Hello!", "--ctx", 128))
        # what a full context ended goes on in a larger one
        whole = self.ok(waste.waste_run("run", waste.DEMO, QUESTION, "--json", "-q")).json()["ids"]
        file = clear(path("small"))
        first = self.ok(run(file, QUESTION, "--ctx", 40)).json()
        self.assertEqual(first["status"], "context")
        self.assertEqual(first["ids"] + self.ok(run(file)).json()["ids"], whole)

    def cut_off(self, file, n):
        """A reply to QUESTION of n tokens that is killed when 200 are saved, and not many more."""
        for _ in range(20):
            p = waste.start("run", waste.DEMO, "--session", clear(file), QUESTION, "--ignore-eos", "--session-every", 8, "-q", "-n", n)
            waste.wait_for("a save", lambda: os.path.exists(file) and header(file)[1] > 200 or p.poll() is not None)
            waste.kill9(p.pid)
            waste.finish(p)
            if 200 < header(file)[1] < n:
                return header(file)[0]
        self.fail("twenty times it was quicker than the test")

    def test_the_context_must_hold_a_reply_that_was_cut_off(self):
        file = path("cut")
        count = self.cut_off(file, 600)
        good = read(file)
        for ctx in (33, 64, count - 1):
            self.refused(run(file, "--ctx", ctx), file, "%d tokens" % count, "holds %d" % ctx, codes=(2,))
            self.refused(chat(file, [], "--ctx", ctx)[0], file, "%d tokens" % count, codes=(2,))
            self.assertEqual(read(file), good)
        whole = self.ok(waste.waste_run("run", waste.DEMO, QUESTION, "--ignore-eos", "-n", 600, "--json", "-q")).json()
        full = self.ok(run(file, "--ctx", count)).json()
        self.assertEqual((full["status"], full["ids"]), ("context", whole["ids"][:len(full["ids"])]))

    def test_a_prompt_that_was_cancelled_is_not_forgotten(self):
        """Ctrl-C before anything of it was consumed: compute is stopped meanwhile."""
        file = path("early")
        for _ in range(5):  # without a CPU it may not have seen one of them when compute goes on
            p = waste.start("chat", waste.DEMO, "--session", clear(file), "--json", "--hang-seconds", 3600, stdin=subprocess.PIPE)

            def running():
                s = stats(p)
                return s and all(v["state"] == "running" for v in s["stages"].values()) and waste.stages_of(p.pid).get("compute")
            compute = waste.wait_for("a pipeline", running)
            os.kill(compute, signal.SIGSTOP)
            p.stdin.write(QUESTION.encode() + b"\n")
            p.stdin.flush()
            time.sleep(0.5)
            os.kill(p.pid, signal.SIGINT)
            time.sleep(0.3)
            os.kill(compute, signal.SIGCONT)
            self.ok(waste.finish(p))
            count, position = header(file) if os.path.exists(file) else (0, 0)
            if position < count:
                break
        self.assertLess(position, count, "it was consumed: this tests nothing")
        r, events = chat(file, ["/save " + path("early.json"), "Thanks!"])
        self.ok(r)
        self.assertGreater(events[-1]["context"], count)
        with open(path("early.json")) as f:
            self.assertEqual(json.load(f)["messages"][0]["content"], QUESTION)

    def test_a_reply_that_failed_goes_on_at_the_next_start(self):
        """A record is damaged on the disk, and then it is not."""
        name, file = "experts-L3.bin", clear(path("failed"))
        model = waste.copy_container(waste.DEMO, "failing")
        whole = read(os.path.join(model, name))
        want = self.ok(waste.waste_run("run", waste.DEMO, QUESTION, "--json", "-q")).json()["text"]

        def chat_of(lines):
            r = waste.waste_run("chat", model, "--session", file, "--json", stdin="".join(l + "\n" for l in lines).encode())
            return r, [json.loads(l) for l in r.out.decode().splitlines()]
        waste.replace(model, name, bytes(b ^ 0xff for b in whole))
        r, events = chat_of([QUESTION])
        self.assertEqual((r.code, replies(events)), (1, []), r)
        waste.replace(model, name, whole)
        r, events = chat_of([])
        self.assertEqual(replies(events), [want])
        self.assertEqual(self.ok(r).code, 0)

    def test_other_arithmetic_is_told_and_stays_out_of_the_store(self):
        """What was begun at another level of the CPU goes on, with a line, and is kept for no other conversation."""
        store = path("foreign-store")
        env = {"WASTE_PREFIX_CACHE": "64M", "XDG_CACHE_HOME": store, "WASTE_CPU": "c"}
        file = path("foreign")
        self.cut_off(file, 400)
        r = self.ok(run(file, env=env))
        self.assertEqual(len(r.json()["ids"]), 400)
        lines = r.error_lines()
        self.assertEqual(len(lines), 1, r)
        for word in (file, "was begun with", "goes on with c "):
            self.assertIn(word, lines[0])
        self.assertEqual(run(file, "Thanks!", env=env).error_lines(), [])
        kept = os.path.join(store, "waste", "prefix")
        def saved(where, lines):
            r = waste.waste_run("chat", waste.DEMO, "--session", file, "--json", env=where, stdin="".join(l + "\n" for l in lines).encode())
            self.ok(r)
            return len(os.listdir(kept)) if os.path.isdir(kept) else 0
        self.cut_off(file, 400)
        self.assertEqual(saved(env, ["/save " + path("foreign.json")]), 0)
        self.assertEqual(saved(env, ["/reset", QUESTION, "/save " + path("own.json")]), 1)


class Damage(waste.Test):
    """Files that are not what they were."""
    def make(self, name, turns=1):
        file = clear(path(name))
        for q in (QUESTION, "Hello!")[:turns]:
            self.ok(run(file, q))
        return file

    def test_a_damaged_file_is_named_and_left_alone(self):
        file = self.make("damaged")
        good = read(file)
        os.unlink(file + ".old") if os.path.exists(file + ".old") else None
        for bad, word in ((good[:100], "cut off"), (good[:-1], "cut off"), (b"", "empty"), (good + b"x", "behind"),
                          (b"hello", "no saved conversation"), (good[:50] + b"\xff" + good[51:], "checksum"),
                          (good[:-1000] + bytes([good[-1000] ^ 1]) + good[-999:], "checksum"),
                          (bytes(len(good)), "no saved conversation")):
            write(file, bad)
            self.refused(run(file, "Hello!"), file, word, codes=(2,))
            self.assertEqual(read(file), bad)
        write(file, good)
        self.ok(run(file, "Hello!"))

    def test_the_older_file_is_what_a_damaged_one_leaves(self):
        file = self.make("older", turns=2)
        write(file, read(file)[:-5])
        r = self.ok(run(file, "Thanks!", "-n", 2))
        lines = r.error_lines()
        self.assertEqual(len(lines), 1, r)
        for word in (file + ":", "cut off", file + ".old"):
            self.assertIn(word, lines[0])
        # a single save: the damaged one does not take the older one's place
        old = read(self.make("rested"))
        write(file, b"damaged")
        write(file + ".old", old)
        r, _ = chat(file, ["/reset"])
        self.ok(r)
        self.assertNotEqual(read(file), b"damaged")
        self.assertEqual(read(file + ".old"), old)
        write(file, b"x")
        write(file + ".old", b"y")
        self.refused(run(file, "Thanks!"), file, file + ".old", codes=(2,))

    def test_another_models_file_is_told(self):
        file = self.make("model")
        data = bytearray(read(file))
        data[16] ^= 1       # the fingerprint, and a checksum that fits
        data[HEADER.size - 4:HEADER.size] = struct.pack("<I", zlib.crc32(bytes(data[:HEADER.size - 4])))
        write(file, data)
        write(file + ".old", b"not looked at")
        self.refused(run(file, "Hello!"), file, "another model", codes=(2,))
        self.assertEqual(read(file), bytes(data))

    def test_a_place_that_cannot_be_written_is_told_before_the_work(self):
        for bad in (path("no/such/dir/s"), waste.scratch(), ""):
            self.refused(run(bad, QUESTION), bad or "--session", codes=(2,))

    def test_a_link_stays_a_link(self):
        file = self.make("target")
        link = clear(path("link"))
        os.symlink(file, link)
        before = read(file)
        self.ok(run(link, "Hello!"))
        self.assertTrue(os.path.islink(link))
        self.assertNotEqual(read(file), before)
        # so does one that leads to what is not there yet; and one that leads to itself is told
        for target in (file, os.path.basename(file)):
            os.unlink(link)
            os.symlink(target, link)
            clear(file)
            self.ok(run(link, QUESTION))
            self.assertTrue(os.path.islink(link))
            self.assertGreater(header(file)[1], 20)
            self.ok(run(link, "Hello!"))
        os.unlink(link)
        os.symlink(link, link)
        self.refused(run(link, QUESTION), link, codes=(2,))
        os.unlink(link)

    def test_what_is_beside_it_is_in_nobodys_way(self):
        """A FIFO where a save is written, a lock that somebody else has made of something."""
        mine = path("mine")
        write(mine, b"mine")
        for end in (".new", ".lock"):
            for make in (os.mkfifo, lambda name: os.symlink(mine, name), lambda name: os.link(mine, name),
                         lambda name: write(name, b"left")):
                file = clear(path("beside"))
                make(file + end)
                self.ok(run(file, QUESTION))
                self.assertEqual(read(mine), b"mine")
                self.assertGreater(header(file)[1], 20)
                self.assertEqual([e for e in (".new", ".lock") if os.path.lexists(file + e)], [])


if __name__ == "__main__":
    waste.main()
