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

    def kill_at_random(self, name):
        p = waste.start(*self.args)
        begin = time.monotonic()
        delay = self.random.uniform(0, type(self).seconds)
        time.sleep(delay)
        pid = waste.stage_of(p, name)
        killed = pid and waste.kill9(pid)
        if not killed:      # the machine is quicker now than it was when the time was taken
            type(self).seconds = max(0.05, 0.7 * (time.monotonic() - begin))
        r = self.ok(waste.finish(p))
        self.assertEqual(r.json()["ids"], self.want, "%s killed after %.3f s" % (name, delay))
        return bool(killed), r.json()["restarts"][name]

    def several(self, name):
        tries = hits = restarts = 0
        while (hits < KILLS or not restarts) and tries < 10 * KILLS:  # one that dies at the end is not started again
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

    def smallest(self):
        return "--budget", self.plan(waste.DEMO, "--ctx", waste.Endless.CTX)["floor_bytes"]

    def test_all_killed_at_once_with_the_smallest_cache(self):
        run = waste.Endless(self, *self.smallest())
        run.generates()
        for pid in waste.all_stages_of(run.pid).values():
            waste.kill9(pid)
        run.restarted(reader=1, compute=1, router=1)
        run.end()

    def test_the_trunk_is_not_read_again(self):
        for name in waste.STAGES:
            with self.subTest(name):
                run = waste.Endless(self)
                before = run.generates()["counters"]["trunk_bytes_read"]
                self.assertGreater(before, 1 << 20)
                waste.kill9(waste.all_stages_of(run.pid)[name])
                after = run.restarted(**{name: 1})
                self.assertEqual(after["counters"]["trunk_bytes_read"], before)
                self.assertEqual(run.end().json()["restarts"][name], 1)

    def test_the_next_token_comes_soon(self):
        args = [a for a in self.args if a != "--json"]
        args[args.index("-n") + 1] = waste.Endless.TOKENS
        for name in ("compute", "reader"):
            with self.subTest(name):
                p = waste.start(*args, bufsize=0)

                def read(until):
                    """Until that is true of how much there is; the longest pause."""
                    size, gap, last = 0, 0, time.monotonic()
                    while not until(size):
                        piece = os.read(p.stdout.fileno(), 4096)
                        self.assertNotEqual(piece, b"", "it ended early")
                        now = time.monotonic()
                        size, last, gap = size + len(piece), now, max(gap, now - last)
                    return gap
                read(lambda size: size > 200)
                old = waste.stages_of(p.pid)[name]
                waste.kill9(old)
                gap = read(lambda size: size > 500 and waste.stages_of(p.pid).get(name, old) != old)
                p.terminate()
                self.ok(waste.finish(p))
                print("kill -9 of %s: longest pause %.0f ms" % (name, 1e3 * gap), file=sys.stderr)

    def test_restart_is_polite(self):
        for name in waste.STAGES:
            with self.subTest(name):
                run = waste.Endless(self)
                run.generates()
                self.ok(waste.waste_run("restart", name, "--pid", run.pid))
                run.restarted(**{name: 1})
                self.assertEqual(run.end().json()["restarts"][name], 1)

    def test_a_stopped_stage_is_noticed_and_replaced(self):
        for name in waste.STAGES if waste.LONG else ("compute",):
            with self.subTest(name):
                run = waste.Endless(self, "--hang-seconds", "1")
                run.generates()
                os.kill(waste.all_stages_of(run.pid)[name], signal.SIGSTOP)
                run.restarted(**{name: 1})
                run.end()

    def test_no_orphan_outlives_waste_run(self):
        for sig in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            with self.subTest(sig.name):
                run = waste.Endless(self)
                run.generates()
                stages = waste.all_stages_of(run.pid)
                run.p.send_signal(sig)
                waste.finish(run.p)
                for name, pid in stages.items():
                    waste.wait_for("the end of " + name, lambda: not waste.alive(pid))

    def test_not_even_one_that_cannot_look(self):
        run = waste.Endless(self)
        run.generates()
        stages = waste.all_stages_of(run.pid)
        for pid in stages.values():
            os.kill(pid, signal.SIGSTOP)
        waste.kill9(run.pid)
        waste.finish(run.p)
        for name, pid in stages.items():
            waste.wait_for("the end of " + name, lambda: not waste.alive(pid))

    def test_a_stage_that_keeps_dying_ends_the_request_not_more(self):
        run = waste.Endless(self, "--hang-seconds", 600, *self.smallest())
        run.generates()
        # it waits for experts: however late the next kill comes, it has got no further
        reader = waste.stages_of(run.pid)["reader"]
        os.kill(reader, signal.SIGSTOP)
        stop = threading.Event()

        def hunt():
            while not stop.is_set() and run.p.poll() is None:
                pid = waste.stages_of(run.pid).get("compute")
                if pid:
                    waste.kill9(pid)
                time.sleep(0.002)
        hunter = threading.Thread(target=hunt)
        hunter.start()
        try:
            r = waste.finish(run.p)
        finally:
            stop.set()
            hunter.join()
        self.refused(r, "compute died 5 times", codes=(1,))


if __name__ == "__main__":
    waste.main()
