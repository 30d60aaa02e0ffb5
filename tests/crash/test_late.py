"""A write of a dead reader that is still in flight cannot land in a slot that is used again.

On a slow device: a loop device over a file, read by a process whose block I/O is throttled. Needs root, loop devices and the
blkio controller; skipped where they are not to be had.
"""
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

import crash
import waste
from slow_device import SlowDevice

LATE = os.path.join(waste.BUILD, "tests", "crash", "crash_late_write")


class Late(crash.Test):
    def setUp(self):
        self.device = SlowDevice(64)
        self.addCleanup(self.device.close)

    def late_write(self, what, how):
        path = os.path.join(self.device.dir, "record")
        with open(path, "wb") as f:
            f.write(os.urandom(4 << 20))
            os.fsync(f.fileno())
        self.device.throttle(2 << 20)
        r = subprocess.run([LATE, path, self.device.tasks, self.device.stat, what, how], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, timeout=waste.LIMIT)
        print("%s, %s: exit %d, %s" % (what, how, r.returncode, r.stdout.decode().strip()), file=sys.stderr)
        return r.returncode

    def test_without_the_hole_a_late_write_lands_in_the_slot(self):
        self.assertEqual(self.late_write("keep", "uring"), 3, "this machine cannot show what the hole is for")

    def test_with_the_hole_it_does_not(self):
        self.assertEqual(self.late_write("punch", "uring"), 0)

    def test_a_dead_pread_is_over_before_the_process_is_reaped(self):
        self.assertIn(self.late_write("keep", "pread"), (4,))

    @staticmethod
    def when_reading(p):
        """A look at slots that are being read; after half a second, at whatever there is."""
        end = time.monotonic() + 0.5
        while True:
            s = crash.look(p.pid)
            if p.poll() is not None or s and s["reading"] or time.monotonic() > end:
                return s

    def test_readers_killed_with_reads_in_flight_on_a_slow_device(self):
        model = os.path.join(self.device.dir, "demo.waste")
        shutil.copytree(waste.DEMO, model, copy_function=shutil.copyfile)
        os.sync()
        plan = self.plan(model)
        args = ["run", model, *self.args[2:], "--budget", plan["floor_bytes"] + 12 * plan["cache_bytes"] // plan["slots"]]
        args[args.index("-n") + 1] = len(self.want)
        self.device.throttle(1 << 20)
        p = waste.start(*args)
        kills = in_flight = tokens = 0

        def further():
            s = p.poll() is None and crash.stats(p.pid)
            return p.poll() is not None or s and s["counters"]["tokens"] > tokens

        while p.poll() is None and kills < 60 and (waste.LONG or kills < 8 or not in_flight):
            pid = waste.stages_of(p.pid).get("reader")
            if pid is None:
                continue
            try:
                self.device.add(pid)
                time.sleep(self.random.uniform(0.05, 0.4))
                s = self.when_reading(p)
                os.kill(pid, signal.SIGKILL)
                kills += 1
                in_flight += bool(s and s["reading"])
                # five deaths at one token would end the request
                s = crash.stats(p.pid)
                tokens = s["counters"]["tokens"] if s else tokens
                waste.wait_for("another token", further)
            except (ProcessLookupError, OSError):
                pass
        r = self.ok(waste.finish(p))
        print("%d kills, %d of them with reads in flight" % (kills, in_flight), file=sys.stderr)
        self.assertEqual(r.json()["ids"], self.want)
        self.assertGreater(in_flight, 0)


if __name__ == "__main__":
    crash.main()
