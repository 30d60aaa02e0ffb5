"""What the crash tests share: the table of injection points, runs with kills in them, a look at what is left.

Builds on tests/e2e/waste.py. Seeds are printed; WASTE_TEST_SEED repeats a run.
"""
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
import waste  # noqa: E402

LOOK = os.path.join(waste.BUILD, "tests", "crash", "crash_look")
INJECT = os.environ.get("WASTE_BUILT_WITH_INJECT") == "1"
DEADLY = ("kill", "segv", "bus", "abort", "exit=1")
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGTERM)
TRIED_AGAIN = 4  # deaths at one token that are still no reason to give up

# who comes by: the sections of the table in shm/inject.h
EVERYWHERE = ("start_attached", "start_repaired", "start_ready", "start_running", "bell_seq", "log_body")
CHUNK = ("--chunk", "2")  # a prompt is several steps
ONLY_IN_PROMPTS = ("prompt_token", "prompt_chunk", "chunk_phase", "chunk_layer")
ONLY_ON_ERRORS = ("slot_reason", "slot_unlisted")
ONLY_WHEN_TAKING_OVER = ("rebuild_slot", "rebuild_directory")


def points():
    """{stage: [point]} from the table in shm/inject.h; its comments say whose they are."""
    table, stage = {s: [] for s in waste.STAGES + ("waste-run", "saving")}, None
    with open(os.path.join(waste.ROOT, "shm", "inject.h")) as f:
        for line in f:
            section = re.search(r"/\* (every stage|reader|compute|router|waste-run|saving): ", line)
            if section:
                stage = section.group(1)
            point = re.search(r'^    X\((\w+), "(\w+)"\)', line)
            if point:
                for s in waste.STAGES if stage == "every stage" else (stage,):
                    table[s].append(point.group(2))
    return table


def inject(*rules):
    return {"WASTE_INJECT": ",".join(rules)}


def look(pid):
    r = subprocess.run([LOOK, str(pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=waste.LIMIT)
    return json.loads(r.stdout) if r.returncode == 0 else None


stats = waste.stats


def log_of(pid):
    return waste.ask("log", pid=pid).out.decode("utf-8", "replace")


def descriptors(pid):
    """The least of some looks: a client that has just gone may still have its socket."""
    def look():
        time.sleep(0.05)
        return len(os.listdir("/proc/%d/fd" % pid))
    return min(look() for _ in range(6))


def anonymous_kib(pid):
    with open("/proc/%d/status" % pid) as f:
        return next(int(l.split()[1]) for l in f if l.startswith("RssAnon:"))


def segments_left(pids):
    """Descriptors of our segments among these processes; pids that are gone hold none."""
    found = []
    for pid in pids:
        try:
            for fd in os.listdir("/proc/%d/fd" % pid):
                target = os.readlink("/proc/%d/fd/%s" % (pid, fd))
                if target.startswith("/memfd:waste-"):
                    found.append((pid, target))
        except OSError:
            pass
    return found


def last_counter():
    """The row that ends what a chat's /stats says."""
    with open(os.path.join(waste.ROOT, "shm", "control.h")) as f:
        return re.findall(r'X\(\w+, "(\w+)", "\w+",', f.read())[-1].encode()


class Chat:
    """A waste-run chat that is asked one thing after the other; between answers the pipeline is at rest."""

    def __init__(self, *options, env=None, tokens=60, limit=None, model=waste.DEMO, lifetime=waste.LIMIT):
        self.p = waste.start("chat", model, "-n", tokens, "--ignore-eos", "--temp", "0.7", "--seed", "5", "-q", *options,
                             stdin=subprocess.PIPE, env=dict(os.environ, **(env or {})), preexec_fn=limit)
        self.pid, self.p.drained = self.p.pid, True
        self.errors, self.last = [], last_counter()
        self.drain = threading.Thread(target=self.read_errors, daemon=True)
        self.drain.start()
        self.watchdog = threading.Timer(lifetime, self.p.kill)
        self.watchdog.daemon = True
        self.watchdog.start()

    def read_errors(self):
        for line in self.p.stderr:
            self.errors.append(line)
            self.p.said += line

    def send(self, text):
        self.p.stdin.write((text + "\n/stats\n").encode())
        self.p.stdin.flush()

    def receive(self):
        """The answer: what comes before the statistics that were asked for behind it."""
        lines = []
        while True:
            line = self.p.stdout.readline()
            if not line:
                raise AssertionError("the chat ended: exit %s\n%s\n%s" % (self.p.wait(), b"".join(lines), b"".join(self.errors)))
            lines.append(line)
            if line.split()[:1] == [self.last]:
                text = b"".join(lines)
                return text[:text.rindex(b"\nturns ") + 1] if b"\nturns " in text else b""

    def ask(self, text):
        self.send(text)
        return self.receive()

    def kill(self):
        """Ends all of it at once."""
        self.p.kill()
        self.p.wait()
        self.watchdog.cancel()
        self.drain.join(timeout=waste.LIMIT)
        for pipe in (self.p.stdin, self.p.stdout, self.p.stderr):
            try:
                pipe.close()
            except BrokenPipeError:
                pass

    def close(self):
        """Ends the chat; its exit code."""
        self.p.stdin.close()
        rest = self.p.stdout.read()
        code = self.p.wait(timeout=waste.LIMIT)
        self.watchdog.cancel()
        self.drain.join(timeout=waste.LIMIT)
        self.p.stdout.close()
        self.p.stderr.close()
        return code, rest, b"".join(self.errors).decode("utf-8", "replace")


class Test(waste.Test):
    TOKENS = 400

    @classmethod
    def setUpClass(cls):
        cls.random = waste.seed()
        cls.args = cls.arguments(cls.TOKENS)
        begin = time.monotonic()
        r = waste.waste_run(*cls.args)
        cls.seconds = time.monotonic() - begin
        if r.code:
            raise AssertionError(str(r))
        cls.want = r.json()["ids"]

    @staticmethod
    def arguments(tokens):
        return ["run", waste.DEMO, "--ids", waste.ids_of(waste.genesis()), "-n", tokens, "--temp", "0.7", "--seed", "11",
                "--ignore-eos", *CHUNK, "--json", "-q"]

    def needs_points(self):
        if not INJECT:
            self.skipTest("built without injection points (-Dinject=true)")

    def with_rules(self, *rules, options=(), limit=None, tokens=TOKENS):
        """A run with these rules; the ids are those of the run nobody disturbed."""
        r = self.ok(waste.waste_run(*self.arguments(tokens), *options, env=inject(*rules), limit=limit))
        j = r.json()
        self.assertEqual(j["ids"], self.want[:tokens], "rules: %s" % ",".join(rules))
        j["deaths"] = [l for l in r.error_lines() if l.startswith("inject: ") and not l.endswith((":delay", ":open"))]
        return j

    def all_run(self, pid):
        """The stats, once all three stages run; the first answer may be there before the router."""
        def look():
            s = stats(pid)
            return s and all(v["state"] == "running" for v in s["stages"].values()) and s
        return waste.wait_for("all stages", look)

    def at_rest(self, pid):
        """Nothing is pinned, read or left in a mailbox once nobody works. Returns what it looks like then."""
        def quiet():
            s = look(pid)
            return s and s["reading"] == s["pins"] == s["demand"] == s["prefetch"] == s["hidden"] == 0 and s
        try:
            s = waste.wait_for("rest", quiet)
        except AssertionError:
            self.fail("not at rest: %s\n%s" % (look(pid), log_of(pid)))
        self.assertEqual((s["invalid"], s["unlisted"], s["astray"]), (0, 0, 0), s)
        return s


def main():
    waste.main()
