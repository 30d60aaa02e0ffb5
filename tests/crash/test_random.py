"""Kills at random moments and random points, of all stages and of waste-run, several in a run, with prompts in chunks of any
size, with --session and --prefix-cache: always the ids of a run nobody disturbed."""
import collections
import json
import os
import re
import signal
import struct
import sys
import threading
import time

import crash
import waste

KILLS = int(os.environ.get("WASTE_KILLS", 1000 if waste.LONG else 60))
HANGS = int(os.environ.get("WASTE_HANGS", 200 if waste.LONG else 6))
WORKERS = 2
HANG_SECONDS = max(2, int(waste.SLOW))  # a busy machine keeps a process waiting, too
CHUNKS = (None, 1, 2, 7, 64)
WORDS = " ".join("The capital of Italy is Rome, and that of France is Paris." for _ in range(12))
SYSTEM = ("You are a helpful assistant that knows all the countries of the world and their capitals, and you answer at "
          "length and in whole sentences, please, and never in one word only.")


class Prompt:
    """What is asked, and how much is computed at once; the ids of a run nobody disturbs."""
    def __init__(self, words, chunk, tokens):
        self.chunk = ["--chunk", str(chunk)] if chunk else []
        what = [WORDS, "--system", SYSTEM] if words else ["--ids", waste.ids_of(waste.genesis())]
        self.args = ["run", waste.DEMO, *what, "-n", str(tokens), "--temp", "0.7", "--seed", "11", "--ignore-eos", *self.chunk,
                     "--json", "-q"]
        self.lock, self.known = threading.Lock(), None

    def want(self):
        with self.lock:
            if self.known is None:
                r = waste.waste_run(*self.args)
                if r.code:
                    raise AssertionError(str(r))
                self.known = r.json()["ids"]
                self.whole = r.json()["prompt_tokens"] + len(self.known)
            return self.known

    def is_over(self, file):
        """Whether a session's file has all of the reply: who was killed then cannot ask for it any more, only for another."""
        self.want()
        if not os.path.exists(file):
            return False
        with open(file, "rb") as f:
            return struct.unpack_from("<I", f.read(48), 40)[0] >= self.whole


class Random(crash.Test):
    def setUp(self):
        self.prompts = [Prompt(words, chunk, self.TOKENS) for words in (False, True) for chunk in CHUNKS]
        self.store = os.path.join(waste.scratch(), "store")  # of kept states, shared by the runs at hand
        self.count = collections.Counter()

    def options(self, random, prompt, session):
        plan = self.plan(waste.DEMO, *prompt.chunk, *session[:2])
        slots = random.choice((0, 4, 12, 84, 448))
        out = ["--budget", plan["floor_bytes"] + slots * plan["cache_bytes"] // plan["slots"]]
        out += [*session, "--io", random.choice(("auto", "pread")), "--threads", random.choice((1, 2, 3))]
        return out + (["--lookahead", random.choice((0, 2, 8))] if random.random() < 0.5 else [])

    def rules(self, random, saves):
        """Up to four lives of each stage end at a point; waste-run's may end in a save."""
        rules = []
        if crash.INJECT:
            table = crash.points()
            for stage in waste.STAGES:
                for life in range(1, random.randint(1, crash.TRIED_AGAIN) + 1):
                    point = "any" if random.random() < 0.5 else random.choice(table[stage])
                    hit = random.randint(1, 4000 if stage == "compute" else 400) if point == "any" else random.randint(1, 60)
                    rules.append("%s:%s:%s:%d:%d" % (stage, point, random.choice(crash.DEADLY), hit, life))
            if saves and random.random() < 0.5:
                rules.append("waste-run:%s:kill:%d" % (random.choice(table["saving"]), random.randint(1, 12)))
        return rules

    def disturb(self, random, p, kills, everything):
        """Kills stages from outside until the run ends, and waste-run too if that is allowed. Returns which, a name a kill."""
        killed = []
        while p.poll() is None and len(killed) < kills:
            time.sleep(random.uniform(0, 2 * self.seconds / kills))
            stages = list(waste.stages_of(p.pid).items())
            victims = random.sample(stages, min(len(stages), 2 if random.random() < 0.2 else 1))
            if everything and random.random() < 0.3:
                victims, kills = [("run", p.pid)], 0
            for name, pid in victims:
                try:
                    os.kill(pid, signal.SIGKILL if name == "run" else random.choice(crash.SIGNALS))
                    killed.append(name)
                except ProcessLookupError:
                    pass
        return killed

    def one_life(self, random, args, env, rules, everything):
        """A waste-run until it ends, or is ended. Returns its result and who died, a name a death."""
        p = waste.start(*args, env=dict(os.environ, **env, **crash.inject(*rules)))
        killed = self.disturb(random, p, random.randint(2, 6), everything)
        r = waste.finish(p)
        return r, killed + re.findall(r"^inject: ([\w-]+):", r.err.decode(), re.M)

    def one_run(self, seed):
        random = waste.random.Random(seed)
        prompt = random.choice(self.prompts)
        file, lives = os.path.join(waste.scratch(), "session-%d" % seed), random.randint(1, 3)
        session = ["--session", file, "--session-every", random.choice((1, 8, 64))] if random.random() < 0.5 else []
        env = {"WASTE_PREFIX_CACHE": "1M", "XDG_CACHE_HOME": self.store} if random.random() < 0.5 else {}
        rules = self.rules(random, session and lives > 1)
        args = [str(a) for a in prompt.args + self.options(random, prompt, session)]
        what, deaths = "WASTE_RUN=%d: WASTE_INJECT=%s %s waste-run %s\n" % (seed, ",".join(rules), env, " ".join(args)), 0
        self.count.update({"with a session": bool(session), "with kept states": bool(env)})
        for life in range(1, lives + 1):
            r, dead = self.one_life(random, args, env, rules if life == 1 else (), session and life < lives)
            deaths += len(dead)
            what += "dead: %s\n%s\n" % (dead, r)
            if r.code != -signal.SIGKILL:
                break
            self.count["waste-run killed"] += 1
            if prompt.is_over(file):
                return deaths, None
        tired = re.search(r"(\w+) died 5 times at token position", r.err.decode())
        if r.code == 1 and tired and dead.count(tired.group(1)) >= 5:
            self.given_up.append(seed)  # that is the rule, and chance may make it so
            return deaths, None
        if r.code != 0:
            return deaths, what
        got = r.json()
        self.count["gone on or put back"] += got["reused_tokens"] > 0
        if session:
            for end in ("", ".old"):
                os.unlink(file + end) if os.path.exists(file + end) else None
            if os.path.exists(file + ".new") or os.path.exists(file + ".lock"):
                return deaths, "left behind beside %s\n%s" % (file, what)
        return deaths, None if got["ids"] == prompt.want() else "other ids\n" + what

    def work(self, one):
        """Calls one(seed) in a few threads until it has had its number of kills."""
        lock, found, total = threading.Lock(), [], [0, 0]
        only = os.environ.get("WASTE_RUN")

        def worker():
            while True:
                with lock:
                    if found or total[0] >= self.goal or (only and total[1]):
                        return
                    total[1] += 1
                    seed = int(only) if only else self.random.randrange(1 << 32)
                try:
                    deaths, wrong = one(seed)
                except Exception as e:  # an assertion in a thread is one of ours
                    deaths, wrong = 0, "run %d: %r" % (seed, e)
                with lock:
                    total[0] += deaths
                    if wrong:
                        found.append(wrong)
        threads = [threading.Thread(target=worker) for _ in range(WORKERS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return total, found

    def test_kills_at_random(self):
        self.goal = KILLS
        self.given_up = []
        (kills, runs), found = self.work(self.one_run)
        print("%d kills in %d runs, %d of them given up after five at one token; %s" % (
            kills, runs, len(self.given_up), ", ".join("%s %d" % c for c in sorted(self.count.items()))), file=sys.stderr)
        self.assertEqual(found, [], found[0] if found else "")
        self.assertLess(len(self.given_up), 2 + runs // 4)

    def hang_some(self, random, p):
        """Stops stages, one or several at once, four times. Returns [(stage, pid)]."""
        victims = []
        for _ in range(4):
            time.sleep(random.uniform(0.1, 0.5))
            stages = waste.all_stages_of(p.pid)
            chosen = random.sample(sorted(stages.items()), random.choice((1, 1, 2, 3)))
            for _, pid in chosen:
                try:
                    os.kill(pid, signal.SIGSTOP)
                except ProcessLookupError:  # it was so slow that it was taken for one that hangs
                    pass
            for name, pid in chosen:
                waste.wait_for("another " + name, lambda: waste.stages_of(p.pid).get(name, pid) != pid)
            victims += chosen
        return victims

    def judge(self, log, victims):
        """By waste-run's own clock, from its log: every one was found, and its successor ran soon. Returns what is wrong."""
        lines = [json.loads(l)["text"] for l in log.decode().splitlines()]
        for name, pid in victims:
            found = [i for i, l in enumerate(lines) if l.startswith("%s (pid %d) gave no sign of life" % (name, pid))]
            if len(found) != 1:
                return "%s (%d) was found %d times" % (name, pid, len(found))
            back = [re.match(name + r" \(pid \d+\) runs again after ([0-9.]+) s", l) for l in lines[found[0]:]]
            took = next((float(m.group(1)) for m in back if m), None)
            if took is None:
                return "%s (%d) has no successor that runs" % (name, pid)
            self.slowest = max(self.slowest, took)
            # the bar; a machine that is busier than this test makes it is late, and only the long suite judges
            if waste.LONG and took > 2 * HANG_SECONDS * waste.SLOW * max(1, os.getloadavg()[0] / os.cpu_count() / 2):
                return "%s (%d) was healed after %.2f s" % (name, pid, took)
        return None

    def one_hang(self, seed):
        run = waste.Endless(self, "--hang-seconds", HANG_SECONDS, asked=crash.CHUNK)
        run.generates(1)
        log = waste.start("log", "--follow", "--json", "--pid", run.pid)
        try:
            victims = self.hang_some(waste.random.Random(seed), run.p)
            names = {name for name, _ in victims}

            def said():
                text, stages = crash.log_of(run.pid), waste.stages_of(run.pid)
                return all("%s (pid %d) runs again" % (name, stages.get(name, 0)) in text for name in names)
            waste.wait_for("all run", said)
            run.end()
            text, missed = log.communicate(timeout=waste.LIMIT)
            wrong = missed.decode() or self.judge(text, victims)
            return len(victims), wrong and "run %d (%s): %s" % (seed, names, wrong)
        finally:
            run.kill()
            log.kill()
            log.communicate()

    def test_hangs_are_healed(self):
        self.goal, self.slowest = HANGS, 0
        (hangs, _), found = self.work(self.one_hang)
        print("%d hangs, the slowest was healed after %.2f s" % (hangs, self.slowest), file=sys.stderr)
        self.assertEqual(found, [], found[0] if found else "")


if __name__ == "__main__":
    crash.main()
