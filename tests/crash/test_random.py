"""Kills at random moments and random points, of all stages, several in a run: always the ids of a run nobody disturbed."""
import os
import signal
import sys
import threading
import time

import crash
import waste

KILLS = int(os.environ.get("WASTE_KILLS", 1000 if waste.LONG else 60))
HANGS = int(os.environ.get("WASTE_HANGS", 200 if waste.LONG else 6))
WORKERS = 2
HANG_SECONDS = 1


class Random(crash.Test):
    def options(self, random):
        plan = self.plan(waste.DEMO)
        slots = random.choice((0, 4, 12, 84, 448))
        out = ["--budget", plan["floor_bytes"] + slots * plan["cache_bytes"] // plan["slots"]]
        out += ["--io", random.choice(("auto", "pread")), "--threads", random.choice((1, 2, 3))]
        return out + (["--lookahead", random.choice((0, 2, 8))] if random.random() < 0.5 else [])

    def rules(self, random):
        """Up to four lives of each stage end at a point."""
        rules = []
        if crash.INJECT:
            table = crash.points()
            for stage in waste.STAGES:
                for life in range(1, random.randint(1, crash.TRIED_AGAIN) + 1):
                    point = "any" if random.random() < 0.5 else random.choice(table[stage])
                    hit = random.randint(1, 4000 if stage == "compute" else 400) if point == "any" else random.randint(1, 60)
                    rules.append("%s:%s:%s:%d:%d" % (stage, point, random.choice(crash.DEADLY), hit, life))
        return rules

    def disturb(self, random, p, kills):
        """Kills stages from outside until the run ends. Returns how many."""
        n = 0
        while p.poll() is None and n < kills:
            time.sleep(random.uniform(0, 2 * self.seconds / kills))
            stages = list(waste.stages_of(p.pid).items())
            victims = random.sample(stages, min(len(stages), 2 if random.random() < 0.2 else 1))
            for _, pid in victims:
                try:
                    os.kill(pid, random.choice(crash.SIGNALS))
                    n += 1
                except ProcessLookupError:
                    pass
        return n

    def one_run(self, seed):
        random = waste.random.Random(seed)
        options, rules, outside = self.options(random), self.rules(random), random.randint(2, 6)
        args = [str(a) for a in self.args + options]
        p = waste.start(*args, env=dict(os.environ, **crash.inject(*rules)))
        killed = self.disturb(random, p, outside)
        r = waste.finish(p)
        what = "WASTE_RUN=%d: WASTE_INJECT=%s waste-run %s, %d killed from outside\n%s" % (
            seed, ",".join(rules), " ".join(args), killed, r)
        deaths = len([l for l in r.error_lines() if l.startswith("inject: ")]) + killed
        if r.code == 1 and b" died 5 times within 10 s at token position" in r.err and deaths >= 5:
            self.given_up.append(seed)  # that is the rule, and chance may make it so
            return deaths, None
        if r.code != 0:
            return deaths, what
        return deaths, None if r.json()["ids"] == self.want else "other ids\n" + what

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
        print("%d kills in %d runs, %d of them given up after five at one token" % (kills, runs, len(self.given_up)),
              file=sys.stderr)
        self.assertLessEqual(len(self.given_up), 1 + runs // 20)
        self.assertEqual(found, [], found[0] if found else "")

    def one_hang(self, seed):
        """Stops one stage or several at once; each has a successor, in the long suite within twice the limit."""
        random = waste.random.Random(seed)
        args = [str(a) for a in self.arguments(3000)] + ["--hang-seconds", str(HANG_SECONDS)]
        p = waste.start(*args)
        hangs, wrong, slowest = 0, None, 0
        try:
            for _ in range(4):
                time.sleep(random.uniform(0.2, 0.6))
                stages = waste.wait_for("three stages", lambda: p.poll() is not None or
                                        len(waste.stages_of(p.pid)) == 3 and waste.stages_of(p.pid))
                if p.poll() is not None:
                    break
                victims = random.sample(sorted(stages.items()), random.choice((1, 1, 2, 3)))
                begin = time.monotonic()
                for _, pid in victims:
                    os.kill(pid, signal.SIGSTOP)
                for name, pid in victims:
                    waste.wait_for("another " + name, lambda: p.poll() is not None or
                                   waste.stages_of(p.pid).get(name, pid) != pid, 60 * waste.SLOW)
                    took = time.monotonic() - begin
                    slowest = max(slowest, took)
                    # a busy machine is late; how soon is judged by the long suite alone
                    if waste.LONG and took > 2 * HANG_SECONDS * waste.SLOW:
                        wrong = "%s stopped: a successor after %.2f s" % (name, took)
                hangs += len(victims)
        except (AssertionError, ProcessLookupError) as e:
            wrong = repr(e)
        finally:
            p.kill()
            waste.finish(p)
        self.slowest = max(self.slowest, slowest)
        return hangs, wrong and "run %d: %s" % (seed, wrong)

    def test_hangs_are_healed(self):
        self.goal, self.slowest = HANGS, 0
        (hangs, _), found = self.work(self.one_hang)
        print("%d hangs, the slowest was healed after %.2f s" % (hangs, self.slowest), file=sys.stderr)
        self.assertEqual(found, [], found[0] if found else "")


if __name__ == "__main__":
    crash.main()
