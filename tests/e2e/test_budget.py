"""Another budget while a pipeline runs, and memory that others want: the ids stay the same."""
import json
import os
import subprocess
import time
import unittest

import kernel
import waste

N = 20000                                                     # more than any of this takes; then it is stopped
CTX = 20480


class Budget(waste.Test):
    @classmethod
    def setUpClass(cls):
        cls.args = ["run", waste.DEMO, "--ids", waste.ids_of(waste.genesis()), "--raw", "-n", N, "--ignore-eos", "--temp",
                    0, "--ctx", CTX, "--json", "-q"]
        cls.floor = waste.waste_run("plan", waste.DEMO, "--ctx", CTX, "--json").json()

    def stats(self, p):
        return self.ok(waste.ask("stats", "--json", pid=p.pid)).json()

    def begun(self, p):
        def look():
            s = waste.stats(p.pid)
            return s and s["counters"]["tokens"] > 30
        waste.wait_for("some tokens", look)

    def same(self, r):
        """What it generated until it was stopped is what an undisturbed run generates."""
        ids = self.ok(r).json()["ids"]
        self.assertGreater(len(ids), 30)
        at = self.args.index("-n") + 1
        want = self.ok(waste.waste_run(*self.args[:at], len(ids), *self.args[at + 1:])).json()["ids"]
        self.assertEqual(ids, want)

    def budget(self, p, size):
        return waste.ask("budget", size, "--json", pid=p.pid)

    def settled(self, p, slots=None):
        def look():
            s = self.stats(p)
            c = s["cache"]
            return s if c["slots_in_use"] == c["slots_wanted"] and slots in (None, c["slots_wanted"]) else None
        return waste.wait_for("the cache to follow", look)

    def test_smaller_and_larger_while_it_runs(self):
        p = waste.start(*self.args)
        self.begun(p)
        floor = self.floor["floor_bytes"]
        try:
            self.refused(self.budget(p, "1M"), "under the floor", codes=(2,))
            self.refused(self.budget(p, "many"), "is no size", codes=(2,))
            for i in range(4):
                self.ok(self.budget(p, "1G"))
                s = self.settled(p)
                self.assertEqual(s["cache"]["slots_in_use"], self.floor["expert_slots"])
                time.sleep(0.05)
                self.ok(self.budget(p, "%dK" % (floor // 1024 + 20 + 40 * i)))
                s = self.settled(p)
                slots = s["cache"]["slots_in_use"]
                self.assertGreaterEqual(slots, self.floor["floor_slots"])
                self.assertLess(slots, self.floor["floor_slots"] + 20)
                # the pages are gone, not only the slots
                self.assertLessEqual(s["segments"]["cache"], slots * s["slot_bytes"])
                self.assertLessEqual(s["cache"]["budget_bytes"], floor + (21 + 40 * i) * 1024)
                if i == 1:
                    waste.kill9(waste.stages_of(p.pid)["reader"])   # its successor keeps to the budget
                    waste.wait_for("another reader", lambda: "reader" in waste.stages_of(p.pid))
                    self.settled(p, slots)
                if i == 2:
                    self.ok(waste.waste_run("restart", "all", "--pid", p.pid))
                    self.settled(p, slots)
            for size in ("1G", "max"):
                self.ok(self.budget(p, "%dK" % (floor // 1024 + 20)))
                said = self.ok(self.budget(p, size)).json()
                self.assertEqual(said["slots"], self.floor["expert_slots"])
                self.assertLess(said["budget_bytes"], 1 << 30)
        finally:
            waste.waste_run("stop", "--pid", p.pid)
            r = waste.finish(p)
        self.same(r)

    def test_the_floor_is_the_plans(self):
        """Also where states of conversations are kept: they give way, and come back with the memory."""
        system = "You are a helpful assistant that knows all the countries of the world and their capitals. " * 3
        env = dict(os.environ, WASTE_PREFIX_CACHE="64M", XDG_CACHE_HOME=waste.scratch())
        plan = self.ok(waste.waste_run("plan", waste.DEMO, "--json", env=env)).json()
        self.assertGreater(plan["prefix_bytes"], 1 << 20)
        p = waste.start("chat", waste.DEMO, "--system", system, "-n", 1, "--json", env=env, stdin=subprocess.PIPE)

        def ask(text):
            p.stdin.write(b"/reset\n" + text.encode() + b"\n")
            p.stdin.flush()
            for line in p.stdout:
                event = json.loads(line)
                if event["event"] == "end":
                    return
        try:
            for i in range(8):
                ask("%d countries" % i)
            for size in (plan["floor_bytes"], plan["total_bytes"]):
                said = self.ok(self.budget(p, size)).json()
                self.assertLessEqual(said["budget_bytes"], size)
            self.refused(self.budget(p, plan["floor_bytes"] - 1), "under the floor", codes=(2,))
            self.assertEqual(self.ok(self.budget(p, plan["floor_bytes"])).json()["slots"], plan["floor_slots"])
            self.settled(p, plan["floor_slots"])    # at rest: what the last chunk asked for counts no more
        finally:
            p.stdin.close()
            p.stdin = None
            r = waste.finish(p)
        self.ok(r)

    def test_all_that_may_be_had(self):
        plan = self.ok(waste.waste_run("plan", waste.DEMO, "--budget", "max", "--json")).json()
        self.assertEqual(plan["slots"], plan["expert_slots"])
        self.assertEqual(plan["budget_bytes"], plan["allowed_bytes"])
        self.assertRegex(self.ok(waste.waste_run("plan", waste.DEMO, "--budget=max")).out, rb"budget +\S+ \S+  max\n")

    def test_nobody_to_ask(self):
        self.refused(waste.waste_run("budget", "1G", "--pid", "1"), codes=(1, 2))

    @unittest.skipIf(kernel.MemoryGroup.unavailable(), kernel.MemoryGroup.unavailable())
    @unittest.skipIf(waste.SLOW > 1, "a sanitizer takes memory of its own")
    def test_a_limit_that_comes_closer_shrinks_the_cache(self):
        with kernel.MemoryGroup(1 << 30) as group:
            self.same(self.limited(group))

    def limited(self, group):
        p = waste.start(*self.args, preexec_fn=group.enter)
        try:
            self.begun(p)
            self.ok(self.budget(p, "1G"))
            time.sleep(0.3)
            before = self.stats(p)["cache"]
            self.assertEqual(before["pressure_shrinks"], 0)
            group.limit(group.used() + (256 << 10))
            after = waste.wait_for("a smaller cache", lambda: (lambda c: c if c["pressure_shrinks"] and
                                   c["slots_in_use"] < c["slots_budget"] else None)(self.stats(p)["cache"]))
            self.assertGreaterEqual(after["slots_in_use"], self.floor["floor_slots"])
            self.assertIn(b"memory is short", waste.ask("log", pid=p.pid).out)
            group.limit(1 << 30)
        finally:
            waste.waste_run("stop", "--pid", p.pid)
            r = waste.finish(p)
        return r


if __name__ == "__main__":
    waste.main()
