"""A pipeline that cannot start says why in one line and leaves nothing; one that lacks something it can do without goes on."""
import errno
import os
import re
import resource
import subprocess
import unittest

import kernel
import waste

# x86-64; elsewhere these are skipped
CALLS = {"memfd_create": 319, "pidfd_open": 434, "eventfd2": 290, "socket": 41, "seccomp": 317, "fork": 56}


def own_mounts(*mounts):
    """A command that runs what follows it after these mounts, seen by nobody else; None: not possible here."""
    script = " && ".join(mounts) + ' && exec "$0" "$@"'
    argv = ["unshare", "-m", "sh", "-c", script]
    try:
        ok = subprocess.run([*argv, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        ok = False
    return argv if ok else None


class Start(waste.Test):
    @classmethod
    def setUpClass(cls):
        cls.case = waste.expected()[0]
        cls.args = ["run", waste.DEMO, "--ids", waste.ids_of(cls.case), "-n", "20", "--temp", "0", "--json", "-q"]

    def run_it(self, limit=None, program=waste.RUN, before=(), args=None):
        p = subprocess.Popen([*before, program, *map(str, args or self.args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, preexec_fn=limit,
                             env=dict(os.environ, ASAN_OPTIONS="detect_leaks=0"))  # that wants what is refused here
        r = waste.finish(p)
        self.assertEqual(waste.stages_of(p.pid), {})
        return r

    def right(self, r):
        self.assertEqual(self.ok(r).json()["ids"], self.case["greedy"])

    # ---- programs ----

    def test_a_stage_that_is_not_there(self):
        for stage in waste.STAGES:
            line = self.refused(self.run_it(program=waste.programs("no-" + stage, **{stage: None})), codes=(2,))
            self.assertIn("program waste-%s is neither in" % stage, line)

    def test_a_stage_that_is_no_program(self):
        junk = os.path.join(waste.scratch(), "junk")
        with open(junk, "wb") as f:
            f.write(b"\x7fELF and no more")
        os.chmod(junk, 0o755)
        for stage in ("reader", "compute"):
            line = self.refused(self.run_it(program=waste.programs("junk-" + stage, **{stage: junk})), codes=(2,))
            self.assertRegex(line, r"cannot run /.*/waste-%s: Exec format error" % stage)
        self.right(self.run_it(program=waste.programs("junk-router", router=junk)))

    def test_a_stage_that_ends_at_once(self):
        for code, said, exit_code in ((2, "ended with exit code 2", 2), (3, "died 5 times at token position 0, last of exit code 3", 1)):
            program = waste.programs("exit-%d" % code, compute=waste.script("exits-%d" % code, "exit %d\n" % code))
            self.refused(self.run_it(program=program), "compute", said, codes=(exit_code,))

    # ---- the kernel says no ----

    @unittest.skipUnless(kernel.OPENAT == 257, "numbers of system calls are of x86-64")
    def test_calls_that_are_needed(self):
        for call, said in (("memfd_create", "control segment"), ("eventfd2", "eventfd"), ("pidfd_open", "cannot start reader: pidfd_open"),
                           ("fork", "cannot start reader: fork")):
            for error in (errno.ENOSYS, errno.EPERM):
                with self.subTest(call, error=error):
                    self.refused(self.run_it(kernel.refuse(CALLS[call], error)), said, os.strerror(error), codes=(1,))

    @unittest.skipUnless(kernel.OPENAT == 257, "numbers of system calls are of x86-64")
    def test_calls_one_can_do_without(self):
        for call in ("socket", "seccomp"):
            for error in (errno.ENOSYS, errno.EPERM):
                with self.subTest(call, error=error):
                    self.right(self.run_it(kernel.refuse(CALLS[call], error)))

    @unittest.skipUnless(kernel.OPENAT == 257, "numbers of system calls are of x86-64")
    def test_going_on_unconfined_is_said_in_the_log(self):
        if os.environ.get("WASTE_BUILT_WITH_SECCOMP") != "1":
            self.skipTest("built without seccomp filters (no libseccomp, or a sanitizer)")
        p = waste.start("chat", waste.DEMO, "-q", stdin=subprocess.PIPE, preexec_fn=kernel.refuse(CALLS["seccomp"], errno.EINVAL))
        try:
            def three():
                text = waste.ask("log", pid=p.pid).out.decode()
                return len(re.findall(r"the kernel takes no seccomp filter, going on without", text)) == 3
            waste.wait_for("a line of each stage", three)
        finally:
            p.stdin.close()
            p.wait(waste.LIMIT)
            p.stdout.close()
            p.stderr.close()

    # ---- limits ----

    def test_any_number_of_descriptors(self):
        """From the first at which the dynamic linker does its work: the answer, or one line."""
        worked = False
        for n in (5, 8, 12, 16, 19, 20, 21, 22, 23, 24, 25, 26, 28, 32, 40, 64):
            with self.subTest(n):
                r = self.run_it(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n)))
                if r.code == 0:
                    self.right(r)
                    worked = True
                else:
                    self.assertFalse(worked, "more descriptors, and it does not work any more")
                    self.refused(r, "Too many open files")
        self.assertTrue(worked)

    @unittest.skipIf(waste.SLOW > 1, "a sanitizer takes addresses of its own")
    def test_few_addresses(self):
        for mib in (16, 24, 32, 48, 4096):
            with self.subTest(mib):
                r = self.run_it(lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20)))
                self.right(r) if r.code == 0 else self.refused(r)

    def test_no_memory_may_be_locked(self):
        self.right(self.run_it(kernel.little_memlock(0)))
        self.refused(self.run_it(kernel.little_memlock(0), args=self.args + ["--mlock"]), "--mlock", "ulimit -l", codes=(1,))

    @unittest.skipUnless(os.geteuid() == 0, "not root")
    def test_no_process_may_be_started(self):
        nobody_else = 40000 + os.getpid() % 20000                # whose processes are not counted with ours

        def limit():
            resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
            os.setgid(65534)
            os.setuid(nobody_else)
        with waste.tempfile.TemporaryDirectory(dir="/tmp") as d:
            os.chmod(d, 0o755)
            program = waste.programs("few-processes")
            waste.shutil.copytree(os.path.dirname(program), os.path.join(d, "bin"))
            waste.shutil.copytree(waste.DEMO, os.path.join(d, "m"))
            r = self.run_it(limit, program=os.path.join(d, "bin", "waste-run"),
                            args=["run", os.path.join(d, "m"), *self.args[2:]])
            self.refused(r, "cannot start a thread", codes=(1,))

    # ---- file systems ----

    @unittest.skipIf(waste.SLOW > 1, "a sanitizer reads /proc")
    def test_without_proc(self):
        before = own_mounts("mount -t tmpfs none /proc")
        if not before:
            self.skipTest("no mount namespace to be had")
        self.refused(self.run_it(before=before), "/proc", "mounted?", codes=(1,))

    def test_without_dev_null(self):
        before = own_mounts("mount -t tmpfs none /dev")
        if not before:
            self.skipTest("no mount namespace to be had")
        self.refused(self.run_it(before=before), "/dev/null", codes=(1,))

    def test_where_nothing_can_be_written(self):
        before = own_mounts("mount --rbind /tmp /tmp && mount -o remount,ro,bind /tmp", "mount -t tmpfs -o ro none /run")
        if not before:
            self.skipTest("no mount namespace to be had")
        self.right(self.run_it(before=before))


if __name__ == "__main__":
    waste.main()
