"""--prefix-cache: conversations that begin alike are put back, and nothing else changes."""
import json
import os
import re
import shutil
import struct
import time

import waste

QUESTION = "What is the capital of Italy?"
SYSTEM = ("You are a helpful assistant that knows all the countries of the world and their capitals, and you answer in "
          "one sentence only, please, and never at length.")
LONG_QUESTION = " ".join("What is the capital of Italy?" for _ in range(12))
CACHE = {"WASTE_PREFIX_CACHE": "64M"}


def fresh(name):
    """An empty cache directory of a test's own; the environment that names it."""
    path = os.path.join(waste.scratch(), name)
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path)
    return dict(CACHE, XDG_CACHE_HOME=path)


def files(env):
    store = os.path.join(env["XDG_CACHE_HOME"], "waste", "prefix")
    return sorted(os.path.join(store, f) for f in os.listdir(store)) if os.path.isdir(store) else []


def run(env, *options, prompt=QUESTION):
    return waste.waste_run("run", waste.DEMO, prompt, *options, "--json", "-q", env=env)


def chat(env, lines, *options):
    r = waste.waste_run("chat", waste.DEMO, *options, "--json", env=env,
                        stdin="".join(l + "\n" for l in lines).encode())
    return r, [json.loads(l) for l in r.out.decode().splitlines()]


def ends(events):
    return [e for e in events if e["event"] == "end"]


class Reuse(waste.Test):
    def test_a_system_message_is_computed_once(self):
        env = fresh("system")
        long = ["--temp", "0.9", "--seed", "3", "--ignore-eos", "-n", "150"]
        want = self.ok(run({}, "--system", SYSTEM, *long)).json()
        first = self.ok(run(env, "--system", SYSTEM, *long)).json()
        again = self.ok(run(env, "--system", SYSTEM, *long)).json()
        self.assertEqual((first["reused_tokens"], want["reused_tokens"]), (0, 0))
        self.assertGreater(again["reused_tokens"], 40)
        self.assertEqual([first["ids"], again["ids"]], [want["ids"]] * 2)
        self.assertEqual(again["prompt_tokens"], want["prompt_tokens"])
        self.assertEqual(len(files(env)), 1)
        # another question after the same system message, from chat and eval too
        _, events = chat(env, ["Hello!"], "--system", SYSTEM)
        self.assertEqual(ends(events)[0]["reused_tokens"], again["reused_tokens"])
        r = self.ok(waste.waste_run("eval", waste.DEMO, "Hello!", "--system", SYSTEM, "--json", env=env)).json()
        self.assertEqual(r["reused_tokens"], again["reused_tokens"])
        plain = self.ok(waste.waste_run("eval", waste.DEMO, "Hello!", "--system", SYSTEM, "--json")).json()
        self.assertEqual(r["top"], plain["top"])
        # another system message is another conversation
        self.assertEqual(self.ok(run(env, "--system", "X" + SYSTEM)).json()["reused_tokens"], 0)

    def test_logits_are_the_same_bit_for_bit(self):
        env = fresh("logits")
        found = []
        for where, reused in (({}, False), (env, False), (env, True)):
            path = os.path.join(waste.scratch(), "last.f32")
            r = self.ok(waste.waste_run("eval", waste.DEMO, LONG_QUESTION, "--system", SYSTEM, "--logits", path, "--json", env=where))
            self.assertEqual(r.json()["reused_tokens"] > 0, reused)
            with open(path, "rb") as f:
                found.append(f.read())
        self.assertEqual(found[1:], found[:1] * 2)

    def logits(self, *options, env):
        """The logits behind a prompt, and how much of it was put back."""
        path = os.path.join(waste.scratch(), "some.f32")
        r = self.ok(waste.waste_run("eval", waste.DEMO, LONG_QUESTION, "--system", SYSTEM, "--logits", path, "--json", *options, env=env))
        with open(path, "rb") as f:
            return f.read(), r.json()["reused_tokens"]

    def test_a_state_of_other_arithmetic_is_another(self):
        """Levels of the CPU and sizes of chunks give numbers that differ in their last bits."""
        env, seen = fresh("levels"), {}
        ways = [(level, chunk) for level in self.levels() for chunk in ((), ("--chunk", "16"), ("--chunk", "1"))]
        for again in (False, True):
            for level, chunk in ways:
                where = {"WASTE_CPU": level}
                want, _ = seen.setdefault((level, chunk), self.logits(*chunk, env=where))
                got, reused = self.logits(*chunk, env=dict(env, **where))
                self.assertEqual(reused > 0, again, (level, chunk))
                self.assertTrue(got == want, "other numbers after a state was put back: %s %s" % (level, chunk))
        self.assertGreater(len({want for want, _ in seen.values()}), 1, "no two of these differ: this tests nothing")

    def levels(self):
        """Of this processor, those that WASTE_CPU may name."""
        return [l for l in ("c", "avx2", "avx512", "vnni", "zen4", "neon")
                if waste.waste_run("eval", waste.DEMO, "--ids", "1", env={"WASTE_CPU": l}).code == 0]

    def test_a_state_is_put_back_only_where_the_prompt_is_cut(self):
        """A conversation that was loaded is cut behind its system message and its last one, and not where a shorter one,
        that it begins with, was."""
        words = {"role": "user", "content": LONG_QUESTION}
        messages = [{"role": "system", "content": SYSTEM}, words, {"role": "assistant", "content": "Rome it is, and nothing else."},
                    {"role": "user", "content": "Which countries border France, and what are their capitals? " * 9}]
        lines = []
        for count in (2, 4):
            lines += ["/load " + os.path.join(waste.scratch(), "loaded-%d.json" % count), "/retry"]
            with open(lines[-2].split()[1], "w") as f:
                json.dump(messages[:count], f)

        def state(env):
            """What was put back of each of the two, and the state after them, as a session holds it."""
            file = os.path.join(waste.scratch(), "loaded")
            for end in ("", ".old"):
                os.unlink(file + end) if os.path.exists(file + end) else None
            _, events = chat(env, lines, "-n", "1", "--seed", "3", "--session", file)
            with open(file, "rb") as f:
                data = f.read()
            return [e["reused_tokens"] for e in ends(events)], data[128 + sum(struct.unpack_from("<Q", data, at)[0] for at in (56, 72)):]
        (plain, want), (reused, got) = state({}), state(fresh("cuts"))
        self.assertEqual(plain, [0, 0])
        self.assertEqual(reused, [0, len(self.ids(SYSTEM))])
        self.assertTrue(got == want, "another state")

    def test_off_is_off(self):
        env = dict(fresh("off"), WASTE_PREFIX_CACHE="0")
        for _ in range(2):
            self.assertEqual(self.ok(run(env, "--system", SYSTEM)).json()["reused_tokens"], 0)
        self.assertEqual(files(env), [])
        self.assertEqual(self.plan(waste.DEMO)["prefix_bytes"], 0)

    def test_chat_takes_back_and_goes_back(self):
        env = fresh("chat")
        lines = [QUESTION, "Hello!", "/retry", "Thanks!", "/save " + os.path.join(waste.scratch(), "talk.json"), "/stats"]
        r, events = chat(env, lines, "--system", SYSTEM)
        self.ok(r)
        _, plain = chat({}, lines, "--system", SYSTEM)
        self.assertEqual([e["message"] for e in ends(events)], [e["message"] for e in ends(plain)])
        first, second, again, _ = ends(events)
        # the turn before the one that is taken back is there, but for its last token
        self.assertEqual(again["reused_tokens"], first["context"] - 1)
        self.assertEqual(second["reused_tokens"], 0)      # it never went away
        self.assertGreater(again["prompt_tokens"], again["reused_tokens"])
        stats = [e for e in events if e["event"] == "stats"][0]
        self.assertEqual(stats["reused_tokens"], again["reused_tokens"])
        self.assertEqual(stats["counters"]["reused_tokens"], again["reused_tokens"])
        # what was saved is loaded by another process: all of it but the last token is there
        load = "/load " + os.path.join(waste.scratch(), "talk.json")
        _, events = chat(env, [load, "Hello!", "/reset", QUESTION])
        _, plain = chat({}, [load, "Hello!", "/reset", QUESTION])
        loaded, reset = ends(events)
        self.assertEqual([loaded["message"], reset["message"]], [e["message"] for e in ends(plain)])
        self.assertEqual(loaded["reused_tokens"], stats["context"] - 1)
        # after /reset the system message is
        self.assertEqual(reset["reused_tokens"], len(self.ids(SYSTEM)))

    def test_retry_goes_back_behind_a_reply_of_other_tokens(self):
        """What a model says may be other tokens than those its words become: the ones it was said in count."""
        env, saved = fresh("retry"), os.path.join(waste.scratch(), "odd.json")
        lines = [QUESTION, "/save " + saved, "/set temp 0", LONG_QUESTION, "/retry", "/retry", "Thanks!", "/set think show", "/retry"]
        hot = ("--system", SYSTEM, "--temp", "3", "--seed", "1", "--ignore-eos", "-n", "40")
        r, events = chat(env, lines, *hot)
        self.ok(r)
        first, second, again, thrice, thanks, other = ends(events)
        self.assertEqual(first["message"]["role"], "assistant")
        words = self.ok(waste.waste_run("render", saved, waste.DEMO, "--ids")).out.decode().split(",")
        self.assertNotIn(len(words), range(first["context"], first["context"] + 8), "the very tokens its words become")
        for e in (again, thrice):
            self.assertEqual(e["prompt_tokens"], second["context"] - second["tokens"])
            self.assertGreater(e["reused_tokens"], e["prompt_tokens"] - 16)  # all but the opening of a reply
            self.assertEqual((e["message"], e["context"]), (second["message"], second["context"]))
        # where replies open otherwise the past does, too: it is made anew
        self.assertNotEqual(other["prompt_tokens"], thanks["context"] - thanks["tokens"])
        # the same without anything kept: they were the right tokens
        _, plain = chat({}, lines, *hot)
        self.assertEqual([e["message"] for e in ends(plain)], [e["message"] for e in ends(events)])
        self.assertEqual([e["reused_tokens"] for e in ends(plain)], [0] * 6)
        self.assertEqual([e["context"] for e in ends(plain)], [e["context"] for e in ends(events)])

    def ids(self, system):
        talk = json.dumps({"messages": [{"role": "system", "content": system}], "add_generation_prompt": False})
        r = waste.waste_run("render", "-", waste.DEMO, "--ids", stdin=talk.encode())
        return self.ok(r).out.decode().split(",")

    def test_a_compute_that_dies_while_it_is_put_back_changes_nothing(self):
        env = fresh("dies")
        args = ["--system", SYSTEM, "--ignore-eos", "-n", "200", "--temp", "0.7", "--seed", "9"]
        want = self.ok(run(env, *args)).json()["ids"]
        random = waste.seed()
        kills = 0
        for _ in range(20 if waste.LONG else 4):
            p = waste.start("run", waste.DEMO, QUESTION, *args, "--json", "-q", env=dict(os.environ, **env))
            pid = waste.stage_of(p, "compute")
            time.sleep(random.uniform(0, 0.15))
            kills += bool(pid) and waste.kill9(pid)
            r = self.ok(waste.finish(p)).json()
            self.assertEqual(r["ids"], want)
            self.assertGreater(r["reused_tokens"], 40)
        self.assertGreater(kills, 0)

    def test_a_damaged_file_costs_its_tokens_and_no_more(self):
        env = fresh("damaged")
        want = self.ok(run(env, "--system", SYSTEM)).json()["ids"]
        path, = files(env)
        with open(path, "rb") as f:
            good = f.read()
        for bad in (good[:1000], good[:-200] + bytes([good[-200] ^ 4]) + good[-199:], b"", b"x" * len(good)):
            with open(path, "wb") as f:
                f.write(bad)
            r = self.ok(run(env, "--system", SYSTEM))
            self.assertEqual((r.json()["ids"], r.json()["reused_tokens"]), (want, 0))
            (line,) = r.error_lines()
            self.assertRegex(line, "^waste-run: warning: %s: .*; what it kept is computed again$" % re.escape(path))
            # it was made anew
            self.assertGreater(self.ok(run(env, "--system", SYSTEM)).json()["reused_tokens"], 40)

    def test_the_directory_stays_within_its_size(self):
        env = fresh("size")
        for i in range(6):
            self.ok(run(dict(env, WASTE_PREFIX_CACHE="600K"), "--system", "%d: %s" % (i, SYSTEM)))
            self.assertLessEqual(sum(os.path.getsize(f) for f in files(env)), 600 << 10)
        self.assertGreater(len(files(env)), 1)
        r = self.ok(run(dict(env, WASTE_PREFIX_CACHE="600K"), "--system", "5: " + SYSTEM)).json()
        self.assertGreater(r["reused_tokens"], 40)
        # none at all where one is larger than all that is allowed
        env = fresh("tiny")
        self.ok(run(dict(env, WASTE_PREFIX_CACHE="1K"), "--system", SYSTEM))
        self.assertEqual(files(env), [])

    def test_a_place_that_cannot_be_written_costs_nothing(self):
        env = fresh("file")
        os.rmdir(env["XDG_CACHE_HOME"])
        with open(env["XDG_CACHE_HOME"], "w"):
            pass
        r = self.ok(run(dict(env, WASTE_USAGE="off"), "--system", SYSTEM))
        self.assertEqual(r.json()["status"], "stop")
        self.assertEqual(r.error_lines(), [])  # nobody had anything there

    def test_memory_is_planned(self):
        env = fresh("plan")
        least = self.plan(waste.DEMO)["floor_bytes"]
        def plan(*options):
            return self.ok(waste.waste_run("plan", waste.DEMO, "--json", *options, env=env)).json()
        p, without = plan(), self.plan(waste.DEMO)
        self.assertGreater(p["prefix_bytes"], 1 << 20)
        self.assertEqual((p["slots"], p["floor_bytes"]), (without["slots"], least))
        self.assertEqual(p["total_bytes"], p["control_bytes"] + p["trunk_bytes"] + p["session_bytes"] + p["cache_bytes"] +
                         p["prefix_bytes"] + sum(p["process_bytes"].values()))
        # a budget of no more than the floor has no room for it, and works
        self.assertEqual(plan("--budget", "%dK" % ((least + 1023) // 1024))["prefix_bytes"] >> 14, 0)
        for budget in (1, 2, 4, 8):
            given = least + (budget << 20)
            p = plan("--budget", str(given))
            self.assertLessEqual(p["total_bytes"], given)
            self.assertGreater(p["prefix_bytes"], 0)
            self.assertLessEqual(p["prefix_bytes"], max((budget << 20) // 8 + (32 << 10), given - p["total_bytes"] + p["prefix_bytes"]))


class Sessions(waste.Test):
    """A prompt that is computed in parts, and cut off in one of them, is gone on with in the same parts."""
    def test_killed_in_a_long_prompt(self):
        words = " ".join("The capital of Italy is Rome." for _ in range(120))
        args = ["--system", SYSTEM, "--ignore-eos", "-n", "60", "--ctx", "4096"]
        want = self.ok(run({}, *args, prompt=words)).json()
        env = fresh("prompt-cache")
        for attempt in range(10):
            file = os.path.join(waste.scratch(), "prompt-%d" % attempt)
            p = waste.start("run", waste.DEMO, words, *args, "--session", file, "--session-every", "16", "--json", "-q",
                            env=dict(os.environ, **env))

            def position():
                if not os.path.exists(file):
                    return 0
                with open(file, "rb") as f:
                    return struct.unpack_from("<I", f.read(48), 44)[0]
            waste.wait_for("some of the prompt", lambda: position() > 20 or p.poll() is not None)
            waste.kill9(p.pid)
            waste.finish(p)
            at = position()
            if at < want["prompt_tokens"]:
                break
        self.assertLess(at, want["prompt_tokens"], "it was quicker than the test ten times")
        r = self.ok(run(env, *args, "--session", file, prompt=words)).json()
        self.assertEqual(r["ids"], want["ids"])
        self.assertEqual((r["prompt_tokens"], r["reused_tokens"]), (want["prompt_tokens"], at))
        # what goes on from another past leaves the session whole
        lines = ["Hello!", "/retry", "Thanks!"]
        _, events = chat(env, lines, "--session", file)
        _, again = chat(env, ["/save " + os.path.join(waste.scratch(), "again.json")], "--session", file)
        with open(os.path.join(waste.scratch(), "again.json")) as f:
            self.assertEqual([m["content"] for m in json.load(f)["messages"]][3:],
                             ["Hello!", ends(events)[1]["message"]["content"], "Thanks!", ends(events)[2]["message"]["content"]])


if __name__ == "__main__":
    waste.main()
