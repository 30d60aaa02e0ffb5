"""What a running pipeline shows: stats, Prometheus' format, top on a terminal; and that looking costs it nothing it could feel."""
import collections
import ctypes
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time

import waste


# ---- Prometheus' text format 0.0.4, read strictly ----

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(.*)\})? (\S+)\Z")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|\Z)')


def labels_of(text):
    labels, at = {}, 0
    while at < len(text):
        m = LABEL.match(text, at)
        if not m or m.group(1) in labels:
            raise AssertionError("labels: " + text)
        labels[m.group(1)] = re.sub(r"\\(.)", lambda c: "\n" if c.group(1) == "n" else c.group(1), m.group(2))
        at = m.end()
    return labels


def parse(data):
    """{family: {"type", "help", "samples": {(name, labels as sorted pairs): value}}}; AssertionError where the format is not kept."""
    text = data.decode("utf-8")
    assert text.endswith("\n"), "the last line has no newline"
    families, current = {}, None
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, help_text = line[len("# HELP "):].split(" ", 1)
            assert NAME.match(name) and name not in families and help_text, line
            current = name
            families[name] = {"help": help_text, "type": None, "samples": {}}
        elif line.startswith("# TYPE "):
            name, kind = line[len("# TYPE "):].split(" ")
            assert name == current and families[name]["type"] is None and not families[name]["samples"], line
            assert kind in ("counter", "gauge", "histogram"), line
            families[name]["type"] = kind
        else:
            m = SAMPLE.match(line)
            assert m, "no sample: %r" % line
            f = families[current]
            allowed = [current + end for end in ("_bucket", "_sum", "_count")] if f["type"] == "histogram" else [current]
            assert m.group(1) in allowed, "%s among the samples of %s" % (m.group(1), current)
            key = m.group(1), tuple(sorted(labels_of(m.group(3) or "").items()))
            assert key not in f["samples"], "twice: " + line
            f["samples"][key] = float(m.group(4))
    return families


def check_family(name, f):
    """What promtool would complain about, and what a histogram must hold."""
    assert f["type"], name + " has no TYPE"
    assert (f["type"] == "counter") == name.endswith("_total"), "%s is a %s" % (name, f["type"])
    assert not re.search(r"_(ms|us|ns|milliseconds|nanoseconds|kib|mib|kilobytes|percent)(_|\Z)", name), name
    assert all(v >= 0 for v in f["samples"].values()), name
    if f["type"] != "histogram":
        return
    series = {}
    for (sample, labels), value in f["samples"].items():
        rest = tuple(l for l in labels if l[0] != "le")
        series.setdefault(rest, {}).setdefault(sample[len(name):], []).append((dict(labels).get("le"), value))
    for s in series.values():
        bounds = [float(le) for le, _ in s["_bucket"]]
        counts = [v for _, v in s["_bucket"]]
        assert bounds == sorted(set(bounds)) and bounds[-1] == float("inf"), bounds
        assert counts == sorted(counts), counts
        assert s["_count"] == [(None, counts[-1])] and len(s["_sum"]) == 1


class Watch(waste.Test):
    def start(self, *options, n=30000, model=waste.DEMO, **kw):
        self.p = waste.start("run", model, "--ids", waste.ids_of(waste.genesis()), "-n", n, "--temp", "0.7", "--seed", 11,
                             "--ignore-eos", "-q", *options, **kw)
        drain = threading.Thread(target=lambda: collections.deque(self.p.stdout, 0), daemon=True)
        drain.start()
        self.addCleanup(self.end)

        def begun():
            self.assertIsNone(self.p.poll(), "it ended early")
            s = waste.stats(self.p.pid)
            return s and s["counters"]["generated"] > 20 and all(v["state"] == "running" for v in s["stages"].values())
        waste.wait_for("all stages, and tokens", begun)

    def end(self):
        self.p.kill()
        self.p.wait()
        self.p.stderr.close()

    def run_small(self):
        """Something is always read."""
        plan = self.plan(waste.DEMO, "--ctx", 32000)
        small = plan["floor_bytes"] + 12 * plan["cache_bytes"] // plan["slots"]
        self.start("--ctx", 32000, "--budget", small)

    def look(self, *args):
        return self.ok(waste.ask(*args, pid=self.p.pid))

    # ---- stats ----

    def test_whether_the_trunk_has_huge_pages(self):
        def note():
            counters = self.look("stats", "--json").json()["counters"]
            line = next(l for l in self.look("stats").out.decode().splitlines() if l.startswith("  huge pages"))
            return counters["trunk_huge_bytes"], line
        self.assertGreater(self.plan(waste.DEMO)["trunk_bytes"], 8 << 20)
        self.start()
        huge, line = note()
        self.assertEqual(huge == 0, "none" in line, line)
        self.end()
        self.start(preexec_fn=lambda: ctypes.CDLL(None).prctl(41, 1, 0, 0, 0))  # PR_SET_THP_DISABLE
        huge, line = note()
        self.assertEqual(huge, 0)
        self.assertIn("none", line)

    def test_prometheus_keeps_the_format_and_says_what_stats_says(self):
        self.run_small()
        os.kill(waste.stages_of(self.p.pid)["router"], signal.SIGKILL)
        waste.wait_for("a router", lambda: self.look("stats", "--json").json()["stages"]["router"]["restarts"] == 1)
        before = self.look("stats", "--json").json()
        families = parse(self.look("stats", "--prometheus").out)
        after = self.look("stats", "--json").json()
        for name, f in families.items():
            self.assertTrue(name.startswith("waste_"), name)
            check_family(name, f)

        def value(name, **labels):
            return families["waste_" + name]["samples"]["waste_" + name, tuple(sorted(labels.items()))]
        for counter, metric, unit in (("tokens", "tokens_total", 1), ("hits", "expert_hits_total", 1),
                                      ("bytes_read", "expert_read_bytes_total", 1), ("step_ns", "step_seconds_total", 1e9),
                                      ("trunk_loaded_bytes", "trunk_loaded_bytes", 1)):
            self.assertLessEqual(before["counters"][counter] / unit, value(metric) * (1 + 1e-8), metric)
            self.assertGreaterEqual(after["counters"][counter] / unit, value(metric) * (1 - 1e-8), metric)
        self.assertEqual(value("stage_restarts_total", stage="router"), 1)
        self.assertEqual(value("stage_state", stage="compute", state="running"), 1)
        self.assertEqual(value("stage_state", stage="compute", state="off"), 0)
        self.assertEqual(len(families["waste_layer_seconds_total"]["samples"]), len(after["layers"]))
        drive = after["drives"][0]["name"]
        count = families["waste_read_duration_seconds"]["samples"]["waste_read_duration_seconds_count", (("drive", drive),)]
        self.assertLessEqual(before["drives"][0]["reads"], count)
        self.assertGreaterEqual(after["drives"][0]["reads"], count)

    def test_a_model_whose_path_is_no_text_is_shown(self):
        link = os.path.join(os.fsencode(waste.scratch()), b'a "quoted\\ name"\nwith \xff')
        if not os.path.islink(link):
            os.symlink(waste.DEMO, link)
        self.start(n=20000, model=os.fsdecode(link))
        info = parse(self.look("stats", "--prometheus").out)["waste_info"]["samples"]
        (_, labels), = info
        self.assertEqual(dict(labels)["model"], link.decode("utf-8", "replace"))
        self.assertEqual(self.look("ps", "--json").json()["pipelines"][0]["model"], link.decode("utf-8", "replace"))
        self.assertEqual(self.look("top", "--json", "--interval", "0.1").json()["model"], link.decode("utf-8", "replace"))

    def test_meters_add_up(self):
        """At the end of a request: what drives gave is what the reader counted; every layer was computed for every token."""
        plan = self.plan(waste.DEMO)
        small = plan["floor_bytes"] + 12 * plan["cache_bytes"] // plan["slots"]
        chat = waste.start("chat", waste.DEMO, "-n", "40", "--ignore-eos", "-q", "--budget", small, stdin=subprocess.PIPE)
        try:
            self.p = chat
            chat.stdin.write(b"What is the capital of Italy?\n/stats\n")
            chat.stdin.flush()
            self.assertTrue(any(b"predictions" in line for line in chat.stdout), "it ended early")

            def rest():
                """Two looks that show the same: nothing is read any more, and no count is on its way."""
                one, two = (self.look("stats", "--json").json() for _ in range(2))
                same = [(s["counters"], s["layers"], [(d["reads"], d["bytes_read"], d["in_flight"]) for d in s["drives"]])
                        for s in (one, two)]
                return same[0] == same[1] and sum(d["in_flight"] for d in two["drives"]) == 0 and two
            s = waste.wait_for("no read in flight", rest)
        finally:
            chat.stdin.close()
            chat.stdin = None
            waste.finish(chat)
        drives, counters = s["drives"], s["counters"]
        self.assertEqual(sum(d["bytes_read"] for d in drives), counters["bytes_read"])
        self.assertGreater(counters["bytes_read"], 0)
        for d in drives:
            self.assertEqual(sum(b["count"] for b in d["latency"]), d["reads"])
            bounds = [b["le"] for b in d["latency"]]
            self.assertEqual(bounds, [16384e-9 * 2 ** k for k in range(16)] + [None])
        self.assertEqual([l["layer"] for l in s["layers"]], list(range(len(s["layers"]))))
        for l in s["layers"]:
            self.assertEqual(l["tokens"], counters["tokens"], l)
            self.assertLessEqual(l["wait_seconds"], l["seconds"])
        whole = sum(l["seconds"] for l in s["layers"])
        self.assertLessEqual(whole, counters["step_ns"] / 1e9)
        self.assertGreater(whole, 0.01 * counters["step_ns"] / 1e9)  # the same unit
        self.assertAlmostEqual(sum(l["wait_seconds"] for l in s["layers"]), counters["expert_wait_ns"] / 1e9, delta=1e-3)

    def test_what_was_not_measured_is_null(self):
        self.start()
        s = self.look("stats", "--json").json()   # the demo is too small for both
        self.assertEqual((s["memory_bytes_per_s"], s["memory_share"], s["disk_share"]), (None, None, None))

    # ---- looking ----

    def test_who_looks_cannot_write(self):
        self.start()
        top = waste.start("top", "--once", "--interval", "30", "--pid", self.p.pid)
        try:
            def maps():
                with open("/proc/%d/maps" % top.pid) as f:
                    return [l.split() for l in f if "memfd:waste-" in l]
            found = waste.wait_for("its mapping", maps)
            self.assertEqual([(l[1], l[5]) for l in found], [("r--s", "/memfd:waste-control")])
        finally:
            top.kill()
            top.communicate()

    # ---- top ----

    def test_top_where_there_is_no_terminal_is_one_look(self):
        self.run_small()
        text = waste.wait_for("a look in which something was read and computed", lambda: (
            lambda t: re.search(r"(?m)^<= +\d+(\.\d+)? (us|ms) +\d+(\.\d)? % #+", t) and
            re.search(r"(?m) 7 +\d+(\.\d+)? [um]s +\d+(\.\d+)? [um]s #", t) and t)(
                self.look("top", "--interval", "0.3").out.decode()))
        self.assertNotIn("\033", text)
        lines = text.splitlines()
        self.assertRegex(lines[0], r"^waste-run %d  .*over \d+\.\d s$" % self.p.pid)
        for name in ("waste-run",) + waste.STAGES:
            self.assertEqual(len([l for l in lines if l.startswith(name + " ") and " running " in l]), 1, text)
        for word in ("tokens ", "time ", "experts ", "prefetch ", "cache ", "limits ", "reads by time"):
            self.assertEqual(len([l for l in lines if l.startswith(word)]), 1, text)

        def rates():
            j = self.look("top", "--once", "--json", "--interval", "0.3").json()["rates"]
            return j["tok_per_s"] > 0 and j["bytes_per_s"] > 0 and j["cpu_share"]["compute"] > 0
        waste.wait_for("rates; a busy machine may give us nothing for a while", rates)

    def terminal(self, columns, rows, *options):
        """top on a pseudo-terminal of this size. Returns its pid, the master, and the terminal's modes before."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        modes = termios.tcgetattr(slave)
        top = subprocess.Popen([waste.RUN, "top", "--interval", "0.2", "--pid", str(self.p.pid), *options], stdin=slave,
                               stdout=slave, stderr=slave, start_new_session=True,
                               preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.addCleanup(lambda: (top.kill(), top.wait(), os.close(master), os.close(slave)))
        return top, master, slave, modes

    def read(self, master, enough, limit=None):
        """Bytes from the terminal until enough(bytes) is true."""
        seen, end = b"", time.monotonic() + (limit or waste.LIMIT)
        while not enough(seen):
            self.assertLess(time.monotonic(), end, seen[-3000:])
            if select.select([master], [], [], 0.1)[0]:
                seen += os.read(master, 65536)
        return seen

    def frames(self, data):
        """Each as its lines, without colours."""
        parts = data.split(b"\033[H")[1:]
        return [re.sub(rb"\033\[[0-9;?]*[a-zA-Z]", b"", p).decode().replace("\r", "").split("\n") for p in parts]

    def test_top_fits_and_restores_the_terminal(self):
        self.run_small()
        for columns, rows in ((80, 24), (160, 50), (30, 5)):
            with self.subTest(columns=columns, rows=rows):
                top, master, slave, modes = self.terminal(columns, rows)
                seen = self.read(master, lambda d: d.count(b"\033[H") >= 4)
                self.assertTrue(seen.startswith(b"\033[?1049h\033[?25l"), seen[:40])
                self.assertNotIn(b"\033[2J", seen, "it would flicker")
                for lines in self.frames(seen)[:3]:
                    self.assertLessEqual(len(lines), rows)
                    self.assertEqual({len(l) for l in lines if l}, {columns})
                self.assertNotEqual(termios.tcgetattr(slave)[3] & termios.ICANON, modes[3] & termios.ICANON)
                os.write(master, b"q")
                self.assertEqual(top.wait(waste.LIMIT), 0)
                rest = self.read(master, lambda d: b"\033[?1049l" in d)
                self.assertIn(b"\033[?25h", rest)
                self.assertEqual(termios.tcgetattr(slave), modes)

    def test_top_follows_the_terminals_size(self):
        self.run_small()
        top, master, slave, _ = self.terminal(80, 24)
        self.read(master, lambda d: d.count(b"\033[H") >= 3)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 132, 0, 0))  # the kernel sends SIGWINCH
        self.read(master, lambda d: any({len(l) for l in f if l} == {132} for f in self.frames(d)[:-1]))
        top.send_signal(signal.SIGINT)
        self.assertEqual(top.wait(waste.LIMIT), 0)

    def test_top_ends_with_every_signal_and_ctrl_c(self):
        self.run_small()
        for how in (b"\x03", b"\x1c", signal.SIGTERM, signal.SIGHUP):
            with self.subTest(how=how):
                top, master, slave, modes = self.terminal(80, 24)
                self.read(master, lambda d: d.count(b"\033[H") >= 2)
                os.write(master, how) if isinstance(how, bytes) else top.send_signal(how)
                self.assertEqual(top.wait(waste.LIMIT), 0)
                self.read(master, lambda d: b"\033[?1049l" in d)
                self.assertEqual(termios.tcgetattr(slave), modes)

    def test_top_may_be_put_aside(self):
        self.run_small()
        top, master, slave, modes = self.terminal(80, 24)
        self.read(master, lambda d: d.count(b"\033[H") >= 2)
        os.kill(top.pid, signal.SIGTSTP)
        self.read(master, lambda d: b"\033[?1049l" in d)
        waste.wait_for("it stopped", lambda: open("/proc/%d/stat" % top.pid).read().rsplit(")", 1)[1].split()[0] == "T")
        self.assertEqual(termios.tcgetattr(slave), modes)
        os.kill(top.pid, signal.SIGCONT)
        self.read(master, lambda d: b"\033[?1049h" in d and d.count(b"\033[H") >= 2)
        os.write(master, b"q")
        self.assertEqual(top.wait(waste.LIMIT), 0)

    def test_top_ends_with_its_pipeline(self):
        self.run_small()
        top, master, slave, modes = self.terminal(80, 24)
        self.read(master, lambda d: d.count(b"\033[H") >= 2)
        self.p.kill()
        seen = self.read(master, lambda d: b"has ended" in d)
        self.assertIn(b"\033[?1049l", seen.split(b"the pipeline of waste-run")[0])
        self.assertEqual(top.wait(waste.LIMIT), 0)
        self.assertEqual(termios.tcgetattr(slave), modes)


if __name__ == "__main__":
    waste.main()
