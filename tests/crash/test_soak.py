"""One conversation partner for half an hour (WASTE_MINUTES) while everything happens to it: stages are killed, stopped and
restarted, budgets change, replies are cancelled, experts are damaged on disk, people look, and all of it is killed and goes on
from its session. Prompts come in chunks of a random size, states are kept. Every reply is the one of a run
nobody disturbed, or a cancelled one's beginning, or an error that names the damaged record; nothing leaks.
"""
import collections
import os
import signal
import sys
import time

import crash
import waste

MINUTES = float(os.environ.get("WASTE_MINUTES", 30 if waste.LONG else 0.4))
TOKENS, ENDLESS = 120, 4000
MESSAGES = ("Hello", "What is the capital of Italy?", "Which countries border France?", "Tell me about Japan",
            "How many people live in Brazil?", "Goodbye",
            " ".join("The capital of Italy is Rome, and which is that of France?" for _ in range(12)))
CHUNKS = (1, 7, 64, 512)
SYSTEM = ("You are a helpful assistant that knows all the countries of the world and their capitals, and you answer at "
          "length and in whole sentences, please, and never in one word only.")
HANG_SECONDS = max(1, int(waste.SLOW))
CHECK_EVERY = 8        # turns
SLACK_KIB = 1024       # of a process's own memory; what grows by a KiB a turn is found in half an hour
SLACK_BYTES = 8 << 20  # of all together, beyond the budget
DAMAGED = "experts-L3.bin"
SANITIZED = os.environ.get("WASTE_BUILT_WITH_SANITIZER") == "1"  # that keeps what is freed, and finds leaks itself


def own_threads(pid):
    """Those the process made; the kernel lends io_uring some of its own (iou-wrk-PID), as many as it likes."""
    names = []
    for tid in os.listdir("/proc/%d/task" % pid):
        try:
            with open("/proc/%d/task/%s/comm" % (pid, tid)) as f:
                names.append(f.read())
        except OSError:
            pass  # it has ended
    return sum(not n.startswith("iou-") for n in names)


class Soak(crash.Test):
    def setUp(self):
        self.random = waste.seed()
        self.model = waste.copy_container(waste.DEMO, "soak")
        with open(os.path.join(waste.DEMO, DAMAGED), "rb") as f:
            self.bank = f.read()
        waste.replace(self.model, DAMAGED, self.bank)  # no link any more
        info = self.ok(waste.waste_run("info", self.model, "--json")).json()
        self.record = info["record_bytes"]
        self.chunk = self.random.choice(CHUNKS)
        self.file = os.path.join(waste.scratch(), "session")
        self.budgets = self.plan(self.model, "--chunk", self.chunk, "--session", self.file)
        self.count = collections.Counter()
        self.failures = self.failed_here = 0

    @classmethod
    def setUpClass(cls):
        pass  # the base's run is not needed

    def chat(self, *options, env=None):
        return crash.Chat("--hang-seconds", HANG_SECONDS, "--chunk", self.chunk, "--system", SYSTEM, *options, model=self.model,
                          tokens=TOKENS, lifetime=60 * MINUTES + 5 * waste.LIMIT, env=env)

    def durable(self):
        """A chat with a session and kept states."""
        return self.chat("--session", self.file, "--session-every", 8,
                         env={"WASTE_PREFIX_CACHE": "8M", "XDG_CACHE_HOME": os.path.join(waste.scratch(), "store")})

    def undisturbed(self):
        chat = self.chat()
        want = {}
        for message in MESSAGES:
            chat.ask("/reset")
            want[message] = chat.ask(message)
        chat.ask("/set n %d" % ENDLESS)
        chat.ask("/reset")
        endless = chat.ask(MESSAGES[0])
        self.assertEqual(chat.close()[0], 0)
        self.assertEqual(len(set(want.values())), len(MESSAGES), "replies that differ")
        return want, endless

    # ---- what happens during a reply; each returns what the reply may be, None: the whole one ----

    def nothing(self, chat):
        pass

    def kills(self, chat):
        for _ in range(self.random.randint(1, 3)):
            time.sleep(self.random.uniform(0, 0.15))
            stages = sorted(waste.stages_of(chat.pid).items())
            for _, pid in self.random.sample(stages, min(len(stages), self.random.choice((1, 1, 2, 3)))):
                try:
                    os.kill(pid, self.random.choice(crash.SIGNALS))
                    self.count["killed"] += 1
                except ProcessLookupError:
                    pass

    def hangs(self, chat):
        time.sleep(self.random.uniform(0, 0.2))
        stages = sorted(waste.stages_of(chat.pid).items())
        for _, pid in self.random.sample(stages, min(len(stages), self.random.choice((1, 1, 2)))):
            try:
                os.kill(pid, signal.SIGSTOP)
                self.count["stopped"] += 1
            except ProcessLookupError:
                continue
            waste.wait_for("the end of one that hangs", lambda: not waste.alive(pid))

    def restarts(self, chat):
        time.sleep(self.random.uniform(0, 0.2))
        self.ok(waste.waste_run("restart", self.random.choice((*waste.STAGES, "all")), "--pid", chat.pid))

    def budget(self, chat):
        floor, slot = self.budgets["floor_bytes"], self.budgets["cache_bytes"] // self.budgets["slots"]
        for _ in range(self.random.randint(1, 3)):
            time.sleep(self.random.uniform(0, 0.1))
            size = floor + self.random.choice((0, 4, 40, 200, 448)) * slot
            self.ok(waste.ask("budget", size, pid=chat.pid))

    def views(self, chat):
        for args in self.random.sample((["stats", "--json"], ["stats", "--prometheus"], ["stats"], ["log"], ["ps"],
                                        ["top", "--once", "--interval", "0.1"]), 3):
            self.ok(waste.ask(*args, pid=chat.pid))

    DISTURBANCES = (nothing, kills, kills, hangs, restarts, budget, views)

    # ---- turns of their own ----

    def cancelled(self, chat):
        """Ctrl-C ends a reply that would go on for long; what was said is its beginning."""
        chat.ask("/set n %d" % ENDLESS)
        before = crash.stats(chat.pid)["counters"]["generated"]
        chat.send(MESSAGES[0])
        waste.wait_for("some tokens", lambda: crash.stats(chat.pid)["counters"]["generated"] > before + 3)
        os.kill(chat.pid, signal.SIGINT)
        answer = chat.receive().rstrip()
        self.assertTrue(self.endless.startswith(answer), (answer, self.endless[:len(answer)]))
        chat.ask("/set n %d" % TOKENS)

    def write_bank(self, damaged):
        """In place, since the reader has the file open: a byte of every record."""
        with open(os.path.join(self.model, DAMAGED), "r+b", buffering=0) as f:
            for at in range(self.record // 2, len(self.bank), self.record):
                f.seek(at)
                f.write(bytes([self.bank[at] ^ (0xff if damaged else 0)]))
            os.fsync(f.fileno())

    def damaged(self, chat):
        """Records that are wrong on disk end the reply with a line, if they are read; whole ones again, and it goes on."""
        message, errors = self.random.choice(MESSAGES), len(chat.errors)
        self.ok(waste.ask("budget", self.budgets["floor_bytes"], pid=chat.pid))
        self.write_bank(True)
        chat.send(message)
        answer = chat.receive()
        self.write_bank(False)
        if answer != self.want[message]:
            waste.wait_for("the reason", lambda: len(chat.errors) > errors)
            said = b"".join(chat.errors[errors:]).decode()
            self.assertRegex(said, DAMAGED.replace(".", r"\.") + r": layer 3 expert \d+: checksum does not match")
            self.failures += 1
            self.failed_here += 1

    def everything(self, chat):
        """kill -9 of waste-run in a reply, and all is gone. What starts next gives the whole reply, if any of it was saved."""
        message = self.random.choice(MESSAGES)
        chat.send(message)
        time.sleep(self.random.uniform(0, 0.6))
        chat.kill()
        chat = self.durable()
        answer = chat.ask("").rstrip()
        self.assertTrue(not answer or answer.endswith(self.want[message].rstrip()), (answer, self.want[message]))
        self.count["gone on with"] += bool(answer)
        self.failed_here = 0
        return chat

    # ---- leaks ----

    def settled(self, chat):
        stats = self.all_run(chat.pid)
        rest = self.at_rest(chat.pid)
        return stats, rest, waste.stages_of(chat.pid)

    def measure(self, chat):
        chat.ask("/reset")
        self.assertEqual(chat.ask(MESSAGES[0]), self.want[MESSAGES[0]])  # its demand clears slots that FAILED before
        stats, rest, stages = self.settled(chat)
        pids = dict(stages, run=chat.pid)
        self.assertEqual(sorted(stages), sorted(waste.STAGES))
        self.assertEqual((rest["failed"], rest["pins"], rest["reading"]), (0, 0, 0))
        if not SANITIZED:
            self.assertLess(stats["pss"], stats["cache"]["budget_bytes"] + SLACK_BYTES, "more than the budget")
        return {"descriptors": {n: crash.descriptors(p) for n, p in pids.items()},
                "threads": {n: own_threads(p) for n, p in pids.items()},
                "memory": {n: crash.anonymous_kib(p) for n, p in pids.items()},
                "trunk": stats["counters"]["trunk_bytes_read"]}

    def compare(self, now, before):
        for what in ("descriptors", "trunk"):
            self.assertEqual(now[what], before[what], what)
        for name, threads in now["threads"].items():  # the reader has one more while it gets memory ahead
            self.assertLessEqual(threads, before["threads"][name] + (name == "reader"), "threads of " + name)
        for name, kib in now["memory"].items() if not SANITIZED else ():
            self.assertLess(kib, before["memory"][name] + SLACK_KIB, "memory of " + name)

    # ---- the whole ----

    def turn(self, chat):
        """The chat to go on with."""
        chat.ask("/reset")
        what = self.random.random()
        if what > 0.96:
            self.count["everything"] += 1
            return self.everything(chat)
        own = self.cancelled if what < 0.08 else self.damaged if what < 0.16 else None
        if own:
            self.count[own.__name__] += 1
            own(chat)
            return chat
        message, disturb = self.random.choice(MESSAGES), self.random.choice(self.DISTURBANCES)
        self.count[disturb.__name__] += 1
        chat.send(message)
        disturb(self, chat)
        self.assertEqual(chat.receive(), self.want[message], "%s during %r\n%s" % (disturb.__name__, message, crash.log_of(chat.pid)))
        return chat

    def warmed(self, chat):
        """What is allocated on first use is; a measure to compare with later."""
        for message in MESSAGES:
            chat.ask(message)
        for disturb in (self.restarts, self.budget, self.views):
            chat.ask("/reset")
            chat.send(MESSAGES[0])
            disturb(chat)
            chat.receive()
        self.ok(waste.ask("budget", self.budgets["total_bytes"], pid=chat.pid))
        return self.measure(chat)

    def test_half_an_hour(self):
        self.want, self.endless = self.undisturbed()
        chat = self.durable()
        before = self.warmed(chat)
        turns, slowest, end = 0, 0, time.monotonic() + 60 * MINUTES
        while time.monotonic() < end:
            begin = time.monotonic()
            chat, last = self.turn(chat), chat
            if chat is not last:
                before = self.warmed(chat)
            slowest, turns = max(slowest, time.monotonic() - begin), turns + 1
            if turns % CHECK_EVERY == 0:
                self.compare(self.measure(chat), before)
        self.compare(self.measure(chat), before)
        code, _, err = chat.close()
        print("--chunk %d: %d turns, the longest %.1f s, %d replies failed; %s" % (
            self.chunk, turns, slowest, self.failures, ", ".join("%s %d" % c for c in sorted(self.count.items()))), file=sys.stderr)
        self.assertEqual(code, 1 if self.failed_here else 0, err)
        if MINUTES >= 5:
            self.assertGreater(self.failures, 0, "no damaged record was ever read")
            self.assertGreater(self.count["gone on with"], 0, "no reply ever went on after kill -9")


if __name__ == "__main__":
    crash.main()
