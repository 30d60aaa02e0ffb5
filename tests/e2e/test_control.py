"""From another terminal: restart, stop, log; and how waste-run ends when it is told to."""
import calendar
import ctypes
import json
import os
import re
import signal
import socket
import struct
import subprocess
import time

import waste

SOCKETS = [os.path.join(os.environ.get("XDG_RUNTIME_DIR", "/nowhere"), "waste"), "/tmp/waste-%d" % os.geteuid()]
IN_MOVED_TO, IN_CREATE = 0x80, 0x100


def inotify(directory):
    """A descriptor that tells of files that come into this directory."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0 or libc.inotify_add_watch(fd, os.fsencode(directory), IN_MOVED_TO | IN_CREATE) < 0:
        raise OSError(ctypes.get_errno(), "inotify")
    return fd


def events(fd):
    """[(mask, name)] since; closes it."""
    found, data = [], b""
    try:
        while True:
            data += os.read(fd, 65536)
    except BlockingIOError:
        os.close(fd)
    while data:
        _, mask, _, length = struct.unpack_from("iIII", data)
        found.append((mask, data[16:16 + length].rstrip(b"\0").decode()))
        data = data[16 + length:]
    return found


class Control(waste.Test):
    def setUp(self):
        self.p = self.start()

    def tearDown(self):
        self.p.kill()
        self.p.communicate()

    def start(self, *options):
        p = waste.start("run", waste.DEMO, "--ids", waste.ids_of(waste.genesis()), "-n", 20000, "--temp", "0.7", "--seed", 11,
                        "--ignore-eos", "-q", *options)

        def generates():
            self.assertIsNone(p.poll(), "it ended early")
            s = waste.stats(p.pid)
            return s and s["counters"]["generated"] > 0
        waste.wait_for("tokens", generates)
        waste.wait_for("all stages", lambda: len(waste.stages_of(p.pid)) == 3 or "--lookahead" in options)
        return p

    def says(self, pattern):
        """Waits until the log has it; the match."""
        return waste.wait_for(pattern, lambda: re.search(pattern, self.control("log").out.decode()))

    def control(self, *args):
        return self.ok(waste.ask(*args, pid=self.p.pid))

    def socket(self):
        return [d for d in SOCKETS if os.path.exists(os.path.join(d, "%d.sock" % self.p.pid))]

    def test_a_socket_is_there_only_when_somebody_listens(self):
        """Who finds one that refuses removes it; so it may not be seen between bind and listen."""
        directory = self.socket()[0]
        watch = inotify(directory)
        p = self.start()
        p.kill()
        p.communicate()
        seen = [(mask, name) for mask, name in events(watch) if name == "%d.sock" % p.pid]
        self.assertEqual(seen[:1], [(IN_MOVED_TO, "%d.sock" % p.pid)])

    def test_the_socket_of_another_with_the_same_number_stays_its_own(self):
        """Two pid namespaces may have one directory."""
        begin = waste.script("when-told", 'read x; exec %s run %s --ids 1 -n 2\n' % (waste.RUN, waste.DEMO))
        directory = os.path.dirname(os.path.join(self.socket()[0], "x"))
        for listens in (True, False):
            p = waste.start(program=begin, stdin=subprocess.PIPE)
            path = os.path.join(directory, "%d.sock" % p.pid)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
                other.bind(path)
                if listens:
                    other.listen()
                ours = os.stat(path).st_ino
                r = self.ok(waste.finish(p, stdin=b"go\n"))
                self.assertEqual(["no control socket" in l for l in r.error_lines() if "warning" in l], [True] if listens else [])
                self.assertEqual(os.path.exists(path) and os.stat(path).st_ino == ours, listens)
            if listens:
                os.unlink(path)

    # ---- restart ----

    def test_restart_says_which_process_came_for_which(self):
        before = waste.stages_of(self.p.pid)
        text = self.control("restart", "compute").out.decode()
        after = waste.stages_of(self.p.pid)
        m = re.fullmatch(r"restarted compute \((\d+) -> (\d+)\) in \d+\.\d\d s\n", text)
        self.assertTrue(m, text)
        self.assertEqual((int(m.group(1)), int(m.group(2))), (before["compute"], after["compute"]))
        self.assertEqual({n: before[n] for n in ("reader", "router")}, {n: after[n] for n in ("reader", "router")})

    def test_restart_all_is_one_line_too(self):
        before = waste.stages_of(self.p.pid)
        j = self.control("restart", "all", "--json").json()
        after = waste.stages_of(self.p.pid)
        self.assertEqual(j["restarted"], {n: {"from": before[n], "to": after[n]} for n in waste.STAGES})
        self.assertGreaterEqual(j["seconds"], 0)
        self.assertEqual(len(self.control("restart", "all").out.splitlines()), 1)
        self.assertEqual(self.control("restart", "all", "-q").out, b"")

    def test_a_stage_that_does_not_run_is_said(self):
        self.p.kill()
        self.p.communicate()
        self.p = self.start("--lookahead", 0)
        self.refused(waste.waste_run("restart", "router", "--pid", self.p.pid), "router does not run here", codes=(1,))
        self.assertEqual(sorted(self.control("restart", "all", "--json").json()["restarted"]), ["compute", "reader"])

    # ---- stop ----

    def test_stop_returns_when_it_has_ended(self):
        stages = waste.stages_of(self.p.pid)
        r = self.control("stop")
        self.assertRegex(r.out.decode(), r"^waste-run %d has ended after \d+\.\d\d s\n$" % self.p.pid)
        for pid in stages.values():
            self.assertFalse(waste.alive(pid), "a stage is still there")
        self.assertFalse(waste.alive(self.p.pid))
        self.assertEqual(self.socket(), [])
        self.assertEqual(self.ok(waste.finish(self.p)).code, 0)

    def test_stop_in_other_words(self):
        self.assertEqual(self.control("stop", "--json").json()["stopped"], self.p.pid)
        self.p.communicate()
        self.p = self.start()
        self.assertEqual(self.control("stop", "-q").out, b"")

    # ---- log ----

    def test_log_follows_to_the_end_and_says_what_came_last(self):
        log = waste.start("log", "-f", "--json", "--pid", self.p.pid)
        begin = time.time()
        for name in ("router", "compute"):
            waste.kill9(waste.stages_of(self.p.pid)[name])
            self.says(r"%s \(pid \d+\) runs again" % name)
        self.control("stop")
        out, err = log.communicate(timeout=waste.LIMIT)
        self.assertEqual((log.returncode, err), (0, b""))
        lines = [json.loads(l) for l in out.splitlines()]
        deaths = [l for l in lines if " died of signal 9 (Killed) at token position " in l["text"]]
        self.assertEqual([l["text"].split()[0] for l in deaths], ["router", "compute"])
        for l in deaths:
            self.assertEqual((l["stage"], l["level"]), ("waste-run", "warning"))
            stamp = calendar.timegm(time.strptime(l["time"].split(".")[0], "%Y-%m-%dT%H:%M:%S"))
            self.assertLess(abs(stamp - begin), waste.LIMIT)
        self.assertRegex(lines[-1]["text"], r"^compute \(pid \d+\) runs again after \d+\.\d\d s$")
        self.assertEqual([l["time"] for l in lines], sorted(l["time"] for l in lines))

    def test_log_at_once_is_what_is_there(self):
        waste.kill9(waste.stages_of(self.p.pid)["router"])
        self.says(r"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} waste-run warning router \(pid \d+\) died of signal 9")

    # ---- signals ----

    def test_the_first_signal_prints_what_there_is(self):
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(sig.name):
                self.p.send_signal(sig)
                r = self.ok(waste.finish(self.p))
                self.assertGreater(len(r.out), 0)
                self.assertEqual(self.socket(), [])
                self.p = self.start()

    def pending(self):
        """Signals on their way: two of a kind at once would be one."""
        with open("/proc/%d/status" % self.p.pid) as f:
            return int(next(l.split()[1] for l in f if l.startswith("ShdPnd:")), 16)

    def test_the_second_ends_at_once(self):
        """Also when the first cannot be answered: compute is stopped in the middle of a step."""
        for first, second, code in ((signal.SIGINT, signal.SIGINT, 130), (signal.SIGTERM, signal.SIGTERM, 143),
                                    (signal.SIGINT, signal.SIGHUP, 129)):
            with self.subTest(second.name):
                stages = waste.stages_of(self.p.pid)
                os.kill(stages["compute"], signal.SIGSTOP)
                self.p.send_signal(first)
                waste.wait_for("its arrival", lambda: not self.pending())
                time.sleep(0.2)
                self.assertIsNone(self.p.poll(), "it waits for the step at hand")
                self.p.send_signal(second)
                self.p.communicate(timeout=waste.LIMIT)
                self.assertEqual(self.p.returncode, code)
                self.assertEqual(self.socket(), [])
                for pid in stages.values():
                    waste.wait_for("the end of the stages", lambda: not waste.alive(pid))
                self.p = self.start()

    def test_signals_that_end_a_program_leave_no_socket(self):
        for sig in (signal.SIGQUIT, signal.SIGABRT, signal.SIGUSR1, signal.SIGALRM, signal.SIGXCPU):
            with self.subTest(sig.name):
                self.assertNotEqual(self.socket(), [])
                stages = waste.stages_of(self.p.pid)
                self.p.send_signal(sig)
                self.p.communicate(timeout=waste.LIMIT)
                self.assertEqual(self.p.returncode, -sig, "the signal's own end")
                self.assertEqual(self.socket(), [])
                for pid in stages.values():
                    waste.wait_for("the end of the stages", lambda: not waste.alive(pid))
                self.p = self.start()

    def test_before_it_is_ready_it_is_a_failure(self):
        program = waste.programs("sleepy", reader=waste.script("sleepy-reader", "exec sleep 1000\n"))
        for sig in (signal.SIGINT, signal.SIGTERM):
            p = subprocess.Popen([program, "run", waste.DEMO, "--ids", "1", "-q"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            waste.wait_for("a stage", lambda: "compute" in waste.stages_of(p.pid))
            p.send_signal(sig)
            self.refused(waste.finish(p), "ended before the pipeline was ready", codes=(1,))


if __name__ == "__main__":
    waste.main()
