"""Every rung of the ladder and every refusal of the kernel: the same ids, or one line and exit 2."""
import errno
import json
import os
import re
import resource
import shutil
import subprocess
import unittest

import kernel
import waste
from slow_device import SlowDevice

TWO_DRIVES = os.path.join(waste.BUILD, "tests", "e2e", "two_drives")
MODES = ("auto", "uring", "pread", "uring+direct", "pread+direct")


class Io(waste.Test):
    @classmethod
    def setUpClass(cls):
        cls.case = next(c for c in waste.expected() if not waste.is_raw(c))
        cls.args = ["--ids", waste.ids_of(cls.case), "-n", "20", "--temp", "0", "--json", "-q"]
        cls.uring = waste.has_io_uring()

    def right(self, r):
        self.assertEqual(self.ok(r).json()["ids"], self.case["greedy"])

    def under(self, limit, *options, model=waste.DEMO, args=None):
        p = subprocess.run([waste.RUN, "run", model, *map(str, [*(args or self.args), *options])], stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=waste.LIMIT, preexec_fn=limit)
        return waste.Result(p.args, p.returncode, p.stdout, p.stderr)

    def stats_of(self, *options, limit=None):
        """What `stats` says of a pipeline that runs this."""
        p = waste.start("run", waste.DEMO, "--ids", waste.ids_of(waste.genesis()), "--raw", "-n", 20000, "--ignore-eos",
                        "-q", *options, preexec_fn=limit)
        try:
            def look():
                s = waste.stats(p.pid)
                return s if s and s["counters"]["tokens"] > 0 else None
            return waste.wait_for("the first token", look)
        finally:
            waste.waste_run("stop", "--pid", p.pid)
            waste.finish(p)

    def test_every_mode_gives_the_same_and_is_shown(self):
        for mode in MODES:
            if "uring" in mode and not self.uring:
                continue
            with self.subTest(mode):
                self.right(self.under(None, "--io", mode))
                self.right(self.under(None, "--io", mode, "--depth", "1"))
        s = self.stats_of("--io", "pread", "--depth", "5")
        self.assertRegex(s["io"], r"^pread(\+direct)?$")
        self.assertEqual([d["depth"] for d in s["drives"]], [5])
        self.assertEqual(sum(d["banks"] for d in s["drives"]), 7)

    def test_info_tries_it_out(self):
        io = self.ok(waste.waste_run("info", waste.DEMO, "--json")).json()["io"]
        self.assertIn(io["mode"].split("+")[0], ("uring",) if self.uring else ("uring", "pread"))
        self.assertGreaterEqual(io["drives"][0]["depth"], 1)
        text = self.ok(waste.waste_run("info", waste.DEMO, "--io", "pread")).out.decode()
        self.assertRegex(text, r"reading +pread")

    def test_a_depth_out_of_range_is_refused(self):
        for depth in ("0", "65", "x"):
            self.refused(waste.waste_run("run", waste.DEMO, "--depth", depth, "hi"), "--depth", codes=(2,))

    @unittest.skipUnless(kernel.OPENAT, "not this machine's system call numbers")
    def test_io_uring_refused(self):
        for error in (errno.EPERM, errno.ENOSYS):
            with self.subTest(os.strerror(error)):
                no = kernel.no_io_uring(error)
                self.right(self.under(no))
                self.right(self.under(no, "--io", "pread"))
                for mode in ("uring", "uring+direct"):
                    self.refused(self.under(no, "--io", mode), "io_uring is not available", os.strerror(error),
                                 codes=(2,))
                s = self.stats_of(limit=no)
                self.assertRegex(s["io"], r"^pread")

    @unittest.skipUnless(kernel.OPENAT, "not this machine's system call numbers")
    def test_o_direct_refused_at_open(self):
        no = kernel.no_direct(errno.EINVAL)
        for mode in ("auto", *waste.io_modes()):
            with self.subTest(mode):
                self.right(self.under(no, "--io", mode))
        for mode in (io + "+direct" for io in waste.io_modes()):
            with self.subTest(mode):
                self.refused(self.under(no, "--io", mode), mode + " is not available", "O_DIRECT", codes=(2,))
        s = self.stats_of(limit=no)
        self.assertNotIn("direct", s["io"])
        self.assertEqual(s["drives"][0]["direct_banks"], 0)

    def test_next_to_no_lockable_memory_and_few_descriptors(self):
        def limit():
            kernel.little_memlock(65536)()
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        for mode in ("auto", *waste.io_modes()):
            with self.subTest(mode):
                self.right(self.under(limit, "--io", mode))

    @unittest.skipUnless(waste.may_lock(64 << 20), "memory cannot be locked here")
    def test_mlock(self):
        def locked(pid):
            with open("/proc/%d/status" % pid) as f:
                return next(int(l.split()[1]) for l in f if l.startswith("VmLck:"))
        p = waste.start("run", waste.DEMO, "--ids", waste.ids_of(waste.genesis()), "--raw", "-n", 20000, "--ignore-eos",
                        "-q", "--mlock")
        try:
            waste.wait_for("locked memory", lambda: {"reader", "compute"} <= set(waste.stages_of(p.pid)) and
                           all(locked(waste.stages_of(p.pid)[s]) for s in ("reader", "compute")))
            self.assertGreater(locked(p.pid), 0)
        finally:
            waste.waste_run("stop", "--pid", p.pid)
            waste.finish(p)
        self.right(self.under(None, "--mlock"))

    def test_mlock_that_cannot_be_is_one_line(self):
        r = self.under(kernel.little_memlock(65536), "--mlock")
        if r.code == 0:
            self.skipTest("memory can be locked here whatever the limit says")
        self.refused(r, "--mlock", "ulimit -l", codes=(1, 2))

    def two_devices(self):
        """A slow one and a fast one."""
        slow = SlowDevice(64)
        self.addCleanup(slow.close)
        fast = SlowDevice(64, beside=slow)
        self.addCleanup(fast.close)
        return slow, fast

    def test_banks_on_two_drives(self):
        slow, fast = self.two_devices()
        path = os.path.join(fast.dir, "two-drives")
        shutil.copytree(waste.DEMO, path, copy_function=shutil.copyfile)
        for name in ("experts-L2.bin", "experts-L5.bin", "experts-L6.bin"):
            shutil.move(os.path.join(path, name), slow.dir)
            os.symlink(os.path.join(slow.dir, name), os.path.join(path, name))
        os.sync()
        io = self.ok(waste.waste_run("info", path, "--json")).json()["io"]
        self.assertEqual({d["name"]: d["banks"] for d in io["drives"]}, {slow.name: 3, fast.name: 4})
        for mode in ("auto", "pread"):
            self.right(self.under(None, "--io", mode, model=path))
        slow.throttle(4 << 20)
        self.right(self.under(lambda: slow.add(os.getpid()), model=path))

    def test_drives_of_different_speed_are_read_side_by_side_each_at_its_depth(self):
        slow, fast = self.two_devices()
        for device in (slow, fast):
            with open(os.path.join(device.dir, "bank"), "wb") as f:
                f.write(os.urandom(10 << 20))
                os.fsync(f.fileno())
        slow.throttle(4 << 20)
        for mode in waste.io_modes():
            for depths in ((2, 7), (5, 3)):
                with self.subTest(mode, depths=depths):
                    p = subprocess.run([TWO_DRIVES, slow.tasks, os.path.join(slow.dir, "bank"), str(depths[0]),
                                        os.path.join(fast.dir, "bank"), str(depths[1]), mode],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=waste.LIMIT)
                    self.assertEqual(p.returncode, 0, p.stderr)
                    r = json.loads(p.stdout)
                    self.assertEqual(r["drives"], [slow.name, fast.name])
                    self.assertEqual(r["most_in_flight"], list(depths))
                    # asked for last, and there while the slow one is at it
                    self.assertGreater(r["slow_to_come"], 0)

    @unittest.skipIf(kernel.MemoryGroup.unavailable(), kernel.MemoryGroup.unavailable())
    @unittest.skipIf(waste.SLOW > 1, "a sanitizer takes memory of its own")
    def test_a_cgroup_limit_under_the_size_of_the_banks(self):
        model = big_banks()
        banks = sum(os.path.getsize(os.path.join(model, f)) for f in os.listdir(model) if f.startswith("experts-"))
        args = ["--ids", "5,17,400,23", "--raw", "-n", "24", "--ignore-eos", "--temp", "0", "--json", "-q", "--chunk", "64"]
        want = self.ok(self.under(None, model=model, args=args)).json()["ids"]
        limit = 44 << 20
        self.assertGreater(banks, limit)
        with kernel.MemoryGroup(limit) as group:
            for mode in ("auto", "pread"):
                with self.subTest(mode):
                    r = self.ok(self.under(group.enter, "--io", mode, model=model, args=args))
                    self.assertEqual(r.json()["ids"], want)
            # all of the banks would not fit
            self.refused(self.under(group.enter, "--budget", banks + (32 << 20), model=model, args=args),
                         "over the memory limit of 44.0 MiB", group.path, codes=(2,))


def big_banks():
    """A container whose experts are most of it: some 80 MB."""
    return waste.synth_config("big-banks", num_experts=600)


class Diskbench(waste.Test):
    def run_it(self, *args):
        return waste.waste_run("diskbench", "--seconds", "0.02", *args, program=waste.FETCH)

    def on_a_drive(self, *args):
        r = self.run_it(*args)
        if r.code == 1 and b"O_DIRECT" in r.err:
            self.skipTest("no O_DIRECT here")
        return self.ok(r)

    def check(self, d):
        self.assertEqual([r["depth"] for r in d["depths"]], [1, 2, 4, 8, 16, 32])
        for r in d["depths"]:
            self.assertGreater(r["gb_per_s"], 0)
        self.assertEqual(d["bytes_read"], sum(r["reads"] for r in d["depths"]) * d["read_bytes"])

    def test_a_directory_gets_a_file_that_is_gone_afterwards(self):
        path = os.path.join(waste.scratch(), "empty-disk")
        os.mkdir(path)
        # whatever else has a name that begins like its own
        begin = waste.script("diskbench-there", 'touch "$1/.waste-diskbench-$$"; exec %s diskbench --json --seconds 0.02 "$1"\n'
                             % waste.FETCH)
        r = waste.waste_run(path, program=begin)
        if r.code == 1 and b"O_DIRECT" in r.err:
            self.skipTest("no O_DIRECT here")
        d = self.ok(r).json()
        self.check(d)
        self.assertTrue(d["temporary_file"])
        (there,) = os.listdir(path)
        self.assertEqual(os.path.getsize(os.path.join(path, there)), 0)
        self.assertEqual(d["read_bytes"], 4 << 20)

    def test_a_model_says_what_it_means_in_tokens(self):
        d = self.on_a_drive("--json", waste.DEMO).json()
        self.check(d)
        self.assertEqual(d["read_bytes"], 12288)
        self.assertEqual(d["token_bytes"], 7 * 4 * 12288)
        self.assertFalse(d["temporary_file"])
        for r in d["depths"]:
            self.assertAlmostEqual(r["tok_per_s"], r["gb_per_s"] * 1e9 / d["token_bytes"], delta=0.01 * r["tok_per_s"])
        if d["bypassed"]:
            self.assertGreaterEqual(d["device_bytes"], d["bytes_read"])
        text = self.ok(self.run_it(waste.DEMO)).out.decode()
        self.assertIn("tokens/s", text)
        self.assertIn("/proc/self/io", text)

    def test_what_takes_long_says_how_far_it_is(self):
        """The table row by row; with --json a line of each on stderr, none with -q."""
        self.on_a_drive(waste.DEMO)
        long = ["--seconds", "0.4", waste.DEMO]
        r, w = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)              # a read gives what one write wrote
        p = subprocess.Popen([waste.FETCH, "diskbench", *long], stdout=w)
        os.close(w)
        writes = list(iter(lambda: os.read(r, 4096), b""))
        os.close(r)
        self.assertEqual(p.wait(waste.LIMIT), 0)
        rows = [re.match(rb" +(\d+) +[\d.]+ +[\d.]+ +[\d.]+\n$", t) for t in writes[1:7]]
        self.assertEqual([m and int(m.group(1)) for m in rows], [1, 2, 4, 8, 16, 32], writes)
        err = self.ok(waste.waste_run("diskbench", "--json", *long, program=waste.FETCH)).err.decode()
        self.assertEqual(re.findall(r"^depth (\d+): [\d.]+ GB/s$", err, re.M), ["1", "2", "4", "8", "16", "32"])
        for quiet in (["-q", *long], [waste.DEMO, "--seconds", "0.02"]):
            self.assertEqual(self.ok(waste.waste_run("diskbench", "--json", *quiet, program=waste.FETCH)).err, b"")

    @unittest.skipUnless(os.access("/dev/shm", os.W_OK), "no tmpfs")
    def test_memory_is_not_taken_for_a_drive(self):
        path = "/dev/shm/waste-test-disk-%d" % os.getpid()
        shutil.copytree(waste.DEMO, path)
        try:
            r = self.run_it("--json", path)
            if r.code == 0:
                self.assertFalse(r.json()["bypassed"])
            else:
                self.refused(r, "O_DIRECT", codes=(1,))
        finally:
            shutil.rmtree(path)

    def test_wrong_use_is_exit_2_and_one_line(self):
        self.refused(self.run_it("--size", "5000", waste.DEMO), "--size", codes=(2,))
        self.refused(self.run_it("--seconds", "-1", waste.DEMO), "--seconds", codes=(2,))
        self.refused(self.run_it("/nonexistent"), "/nonexistent", codes=(2,))
        self.refused(self.run_it("--model", "/nonexistent", waste.DEMO), "/nonexistent", codes=(1, 2))


if __name__ == "__main__":
    waste.main()
