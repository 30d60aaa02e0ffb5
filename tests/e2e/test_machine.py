"""Other circumstances: instruction sets, file systems, limits, users. The answer stays the same."""
import os
import pwd
import resource
import shutil
import subprocess
import tempfile
import unittest

import kernel
import waste

LOGITS = 1e-5


class Machine(waste.Test):
    @classmethod
    def setUpClass(cls):
        cls.case = waste.expected()[0]
        cls.args = ["--ids", waste.ids_of(cls.case), "-n", "20", "--temp", "0", "--json", "-q"]

    def right(self, r):
        self.assertEqual(self.ok(r).json()["ids"], self.case["greedy"])

    def limited(self, model, *options, limit=None, **kw):
        """Runs it in a child that first calls limit()."""
        p = subprocess.run([waste.RUN, "run", model, *self.args, *options], stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=waste.LIMIT, preexec_fn=limit, **kw)
        return waste.Result(p.args, p.returncode, p.stdout, p.stderr)

    def test_every_instruction_set_agrees_with_the_reference(self):
        seen = []
        for level in ("c", "avx2", "avx512", "vnni", "zen4", "neon"):
            with self.subTest(level):
                r = waste.waste_run("run", waste.DEMO, *self.args, env={"WASTE_CPU": level})
                if r.code == 2 and level.encode() in r.err:
                    continue                                 # this machine has it not, and the line says so
                self.right(r)
                seen.append(level)
                path = os.path.join(waste.scratch(), level + ".f32")
                self.ok(waste.waste_run("eval", waste.DEMO, "--ids", waste.ids_of(self.case), "--logits", path, "-q",
                                        env={"WASTE_CPU": level}))
                with open(path, "rb") as f:
                    self.assertLessEqual(waste.distance(waste.floats(f.read()), self.case["logits"]), LOGITS)
        self.assertIn("c", seen)
        print("levels:", *seen)

    def test_a_level_that_does_not_exist_is_refused(self):
        for command in (("run", waste.DEMO, *self.args), ("bench", waste.DEMO), ("plan", waste.DEMO), ("info", waste.DEMO)):
            line = self.refused(waste.waste_run(*command, env={"WASTE_CPU": "mmx"}), "WASTE_CPU", "mmx", codes=(2,))
            self.assertRegex(line, r"it has c\b")
        self.assertEqual(self.ok(waste.waste_run("info", waste.DEMO, "--json", env={"WASTE_CPU": "c"})).json()["kernels"], "c")

    def test_a_cpu_that_is_not_ours_is_named(self):
        cpu, *others = sorted(os.sched_getaffinity(0))
        for n in (*others[:1], 1023):
            p = subprocess.run([waste.RUN, "info", waste.DEMO, "--cpus", "%d,%d" % (cpu, n)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=waste.LIMIT,
                               preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
            self.refused(waste.Result(p.args, p.returncode, p.stdout, p.stderr), "--cpus", "CPU %d " % n, codes=(2,))

    @unittest.skipUnless(os.access("/dev/shm", os.W_OK), "no tmpfs")
    def test_a_file_system_without_direct_io(self):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as d:
            shutil.copytree(waste.DEMO, os.path.join(d, "m"))
            for io in ("auto", *waste.io_modes()):
                with self.subTest(io):
                    r = self.limited(os.path.join(d, "m"), "--io", io)
                    self.right(r)

    def test_paths_of_any_kind(self):
        link = os.path.join(waste.scratch(), "a link with spaces\nand a newline ü")
        if not os.path.islink(link):
            os.symlink(waste.DEMO, link)
        self.right(self.limited(link))
        self.right(self.limited(os.path.relpath(waste.DEMO, "/"), cwd="/"))
        self.right(self.limited(waste.DEMO + "///"))
        files = os.path.join(waste.scratch(), "links")
        os.mkdir(files)
        for name in os.listdir(waste.DEMO):
            os.symlink(os.path.join(waste.DEMO, name), os.path.join(files, name))
        self.right(self.limited(files))

    def test_few_file_descriptors_and_no_locked_memory(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        self.right(self.limited(waste.DEMO, limit=limit))

    def test_compute_has_its_first_cpu_to_itself(self):
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < 2:
            self.skipTest("one CPU")
        for threads, alone in ((len(cpus), True), (len(cpus) + 1, False)):
            p = waste.start("chat", waste.DEMO, "--threads", threads, stdin=subprocess.PIPE)
            try:
                stages = waste.all_stages_of(p.pid)
                waste.wait_for("the reader to leave it", lambda: not alone or all(
                    cpus[0] not in os.sched_getaffinity(stages[s]) for s in ("reader", "router")))
                if not alone: # nobody is pinned: nobody has to leave
                    self.assertIn(cpus[0], os.sched_getaffinity(stages["router"]))
                else:
                    waste.wait_for("compute to be on it", lambda: os.sched_getaffinity(stages["compute"]) == {cpus[0]})
            finally:
                p.stdin.close()
                p.stdin = None
                waste.finish(p)

    def test_closed_streams_and_an_empty_environment(self):
        self.right(self.limited(waste.DEMO, limit=lambda: os.close(0)))
        self.right(self.limited(waste.DEMO, env={}))

    @unittest.skipUnless(os.geteuid() == 0, "not root")
    def test_an_ordinary_user(self):
        user = pwd.getpwnam("nobody")
        with tempfile.TemporaryDirectory(dir="/tmp") as d:
            os.chmod(d, 0o755)
            for name in ("cli/waste-run", "reader/waste-reader", "compute/waste-compute", "router/waste-router"):
                shutil.copy(os.path.join(waste.BUILD, name), d)
            shutil.copytree(waste.DEMO, os.path.join(d, "m"))

            def become():
                os.setgroups([])
                os.setgid(user.pw_gid)
                os.setuid(user.pw_uid)
            p = subprocess.run([os.path.join(d, "waste-run"), "run", os.path.join(d, "m"), *self.args],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               timeout=waste.LIMIT, preexec_fn=become, env={})
            self.right(waste.Result(p.args, p.returncode, p.stdout, p.stderr))

    def test_info_says_how_many_threads_and_why(self):
        one = {min(os.sched_getaffinity(0))}
        for options, want in (((), "cores"), (("--threads", 3), "--threads"), (("--cpus", min(one)), "--cpus")):
            argv = [waste.RUN, "info", waste.DEMO, *map(str, options)]
            for json in (True, False):
                p = subprocess.run(argv + ["--json"] * json, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True,
                                   timeout=waste.LIMIT, preexec_fn=lambda: os.sched_setaffinity(0, one))
                threads = 3 if options[:1] == ("--threads",) else 1
                if json:
                    got = waste.Result(argv, 0, p.stdout, b"").json()
                    self.assertEqual((got["threads"], got["threads_by"], got["cpus"], got["cores"]), (threads, want, 1, 1))
                else:
                    line = next(l for l in p.stdout.decode().splitlines() if l.split()[0] == "threads")
                    self.assertEqual(line.split()[1], str(threads))
                    self.assertIn("1 cores of 1 CPUs" if want == "cores" else want, line)
        plan, info = (self.ok(waste.waste_run(c, waste.DEMO, "--json")).json() for c in ("plan", "info"))
        for key in ("threads", "threads_by", "cpus", "cores", "cpu_quota", "cpu_quota_path"):
            self.assertEqual(plan[key], info[key])

    @unittest.skipIf(kernel.MemoryGroup.unavailable(), kernel.MemoryGroup.unavailable())
    @unittest.skipIf(waste.SLOW > 1, "a sanitizer takes memory of its own")
    def test_a_cgroup_limit_is_a_limit(self):
        for mib, fits in ((200, True), (12, False)):
            with self.subTest("%d MiB" % mib), kernel.MemoryGroup(mib << 20) as group:
                r = self.limited(waste.DEMO, limit=group.enter)
                self.right(r) if fits else self.refused(r, "memory", codes=(2,))


if __name__ == "__main__":
    waste.main()
