"""A stage that dies in the middle of a generation is started again and nothing of the output changes."""
import os
import signal
import sys
import threading
import time

import waste

KILLS = 20 if waste.LONG else 4
TOKENS = 400


class Crash(waste.Test):
    @classmethod
    def setUpClass(cls):
        cls.random = waste.seed()
        cls.args = ["run", waste.DEMO, "--ids", waste.ids_of(waste.genesis()), "-n", TOKENS, "--temp", "0.7",
                    "--seed", "11", "--ignore-eos", "--json", "-q"]
        begin = time.monotonic()
        r = waste.waste_run(*cls.args)
        cls.seconds = time.monotonic() - begin
        if r.code:
            raise AssertionError(str(r))
        cls.want = r.json()["ids"]
        if len(cls.want) != TOKENS:
            raise AssertionError("%d tokens of %d" % (len(cls.want), TOKENS))

    def stage(self, p, name):
        """The pid of a living stage, None once waste-run has ended."""
        def look():
            if p.poll() is not None:
                return -1
            return waste.stages_of(p.pid).get(name)
        pid = waste.wait_for("stage " + name, look)
        return pid if pid > 0 else None

    def stats(self, p):
        r = waste.waste_run("stats", "--json", "--pid", p.pid)
        return r.json() if r.code == 0 else None

    def running(self, p, tokens=20):
        """Waits until some tokens are generated; the stats of that moment."""
        def look():
            if p.poll() is not None:
                self.fail("it ended early\n%s" % waste.finish(p))
            s = self.stats(p)
            return s if s and s["counters"]["generated"] >= tokens else None
        return waste.wait_for("%d tokens" % tokens, look)

    def kill_at_random(self, name):
        p = waste.start(*self.args)
        begin = time.monotonic()
        delay = self.random.uniform(0, type(self).seconds)
        time.sleep(delay)
        pid = self.stage(p, name)
        killed = pid and waste.kill9(pid)
        if not killed:      # the machine is quicker now than it was when the time was taken
            type(self).seconds = max(0.05, 0.7 * (time.monotonic() - begin))
        r = self.ok(waste.finish(p))
        self.assertEqual(r.json()["ids"], self.want, "%s killed after %.3f s" % (name, delay))
        return bool(killed), r.json()["restarts"][name]

    def several(self, name):
        tries = hits = restarts = 0
        while hits < KILLS and tries < 5 * KILLS:
            killed, again = self.kill_at_random(name)
            tries += 1
            hits += killed
            restarts += again
        self.assertGreater(hits, 0, "no kill met a living stage")
        self.assertLessEqual(restarts, hits)
        self.assertGreater(restarts, 0, "killed %d times, restarted never" % hits)

    def test_router_killed_at_random_moments(self):
        self.several("router")

    def test_reader_killed_at_random_moments(self):
        self.several("reader")

    def test_compute_killed_at_random_moments(self):
        self.several("compute")

    def test_all_killed_at_once_with_the_smallest_cache(self):
        floor = self.plan(waste.DEMO)["floor_bytes"]
        p = waste.start(*self.args, "--budget", floor)
        self.running(p)
        for name, pid in waste.stages_of(p.pid).items():
            waste.kill9(pid)
        self.assertEqual(self.ok(waste.finish(p)).json()["ids"], self.want)

    def test_the_trunk_is_not_read_again(self):
        for name in waste.STAGES:
            with self.subTest(name):
                p = waste.start(*self.args)
                before = self.running(p)["counters"]["trunk_bytes_read"]
                self.assertGreater(before, 1 << 20)
                old = self.stage(p, name)
                waste.kill9(old)
                waste.wait_for("a new " + name, lambda: p.poll() is not None or
                               waste.stages_of(p.pid).get(name, old) != old)
                after = self.stats(p)
                r = self.ok(waste.finish(p))
                self.assertEqual(r.json()["restarts"][name], 1)
                self.assertIsNotNone(after, "it ended before a new %s came up: generate more" % name)
                self.assertEqual(after["counters"]["trunk_bytes_read"], before)

    def test_the_next_token_comes_soon(self):
        args = [a for a in self.args if a != "--json"]
        for name in ("compute", "reader"):
            with self.subTest(name):
                p = waste.start(*args, bufsize=0)
                seen = b""
                while len(seen) < 200:
                    piece = os.read(p.stdout.fileno(), 4096)
                    self.assertNotEqual(piece, b"", "it ended early")
                    seen += piece
                old = self.stage(p, name)
                waste.kill9(old)
                begin, last, gap = time.monotonic(), time.monotonic(), 0
                while time.monotonic() < begin + waste.LIMIT:
                    piece = os.read(p.stdout.fileno(), 4096)
                    now = time.monotonic()
                    if not piece:
                        break
                    last, gap = now, max(gap, now - last)
                self.ok(waste.finish(p))
                print("kill -9 of %s: longest pause %.0f ms" % (name, 1e3 * gap), file=sys.stderr)

    def test_restart_is_polite(self):
        for name in waste.STAGES:
            with self.subTest(name):
                p = waste.start(*self.args)
                self.running(p)
                old = self.stage(p, name)
                self.ok(waste.waste_run("restart", name, "--pid", p.pid))
                waste.wait_for("a new " + name, lambda: p.poll() is not None or
                               waste.stages_of(p.pid).get(name, old) != old)
                r = self.ok(waste.finish(p))
                self.assertEqual(r.json()["ids"], self.want)
                self.assertEqual(r.json()["restarts"][name], 1)

    def test_a_stopped_stage_is_noticed_and_replaced(self):
        for name in waste.STAGES if waste.LONG else ("compute",):
            with self.subTest(name):
                p = waste.start(*self.args, "--hang-seconds", "1")
                self.running(p)
                os.kill(self.stage(p, name), signal.SIGSTOP)
                self.assertEqual(self.ok(waste.finish(p)).json()["ids"], self.want)

    def test_no_orphan_outlives_waste_run(self):
        for sig in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            with self.subTest(sig.name):
                p = waste.start(*self.args[:-2], "-q")
                self.running(p)
                stages = waste.stages_of(p.pid)
                self.assertEqual(sorted(stages), sorted(waste.STAGES))
                p.send_signal(sig)
                waste.finish(p)
                for name, pid in stages.items():
                    waste.wait_for("the end of " + name, lambda: not waste.alive(pid))

    def test_not_even_one_that_cannot_look(self):
        p = waste.start(*self.args)
        self.running(p)
        stages = waste.stages_of(p.pid)
        for pid in stages.values():
            os.kill(pid, signal.SIGSTOP)
        waste.kill9(p.pid)
        waste.finish(p)
        for name, pid in stages.items():
            waste.wait_for("the end of " + name, lambda: not waste.alive(pid))

    def test_a_stage_that_keeps_dying_ends_the_request_not_more(self):
        p = waste.start(*self.args)
        self.running(p)
        stop = threading.Event()

        def hunt():
            while not stop.is_set() and p.poll() is None:
                pid = waste.stages_of(p.pid).get("compute")
                if pid:
                    waste.kill9(pid)
                time.sleep(0.002)
        hunter = threading.Thread(target=hunt)
        hunter.start()
        try:
            r = waste.finish(p)
        finally:
            stop.set()
            hunter.join()
        self.refused(r, "compute", codes=(1,))


if __name__ == "__main__":
    waste.main()
