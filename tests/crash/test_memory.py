"""Memory runs out: the kernel kills a stage, never waste-run, and it is survived as any death."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

import crash
import kernel
import waste

# Of the limit, FILL lies in no process, so that the one that takes the rest scores less than a stage does.
LIMIT, FILL = 300 << 20, 200 << 20
FILLER = """
import sys
with open(sys.argv[1], "wb") as f:
    for _ in range(int(sys.argv[2]) >> 20):
        f.write(b"x" * (1 << 20))
"""
# takes memory until the kernel has killed so many; prints how many it did
HOG = """
import sys
def kills():
    with open(sys.argv[1]) as f:
        return next(int(l.split()[1]) for l in f if l.split()[0] == "oom_kill")
before, taken = kills(), []
while kills() < before + int(sys.argv[2]):
    taken.append(b"x" * (1 << 20))
print(kills() - before)
"""


def oom_score(pid):
    with open("/proc/%d/oom_score_adj" % pid) as f:
        return int(f.read())


def in_a_group(test):
    for reason in (kernel.MemoryGroup.unavailable(), waste.SLOW > 1 and "a sanitizer takes memory of its own",
                   not os.access("/dev/shm", os.W_OK) and "no tmpfs"):
        test = unittest.skipIf(reason, reason)(test)
    return test


class Memory(crash.Test):
    TOKENS = 10

    def test_a_stage_goes_before_waste_run(self):
        chat = crash.Chat()
        chat.ask("Hello")
        for name, pid in waste.all_stages_of(chat.pid).items():
            # the most there is: in a small group nothing less makes up for the pages they share
            self.assertEqual(oom_score(pid), 1000, name)
        self.assertLess(oom_score(chat.pid), 1000)
        self.assertEqual(chat.close()[0], 0)

    def in_a_small_group(self, check):
        undisturbed = crash.Chat(tokens=400)
        want = undisturbed.ask("Tell me about Italy")
        undisturbed.close()
        with kernel.MemoryGroup(LIMIT) as group, tempfile.NamedTemporaryFile(dir="/dev/shm") as f:
            def in_group(*argv):
                return subprocess.run([sys.executable, "-c", *map(str, argv)], stdout=subprocess.PIPE, timeout=waste.LIMIT,
                                      preexec_fn=group.enter)
            chat = crash.Chat(tokens=400, limit=group.enter)
            try:
                chat.ask("Hello")
                chat.ask("/reset")
                before = crash.stats(chat.pid)["counters"]["generated"]
                self.assertEqual(in_group(FILLER, f.name, FILL).returncode, 0)
                chat.send("Tell me about Italy")
                waste.wait_for("some tokens", lambda: crash.stats(chat.pid)["counters"]["generated"] > before + 5)
                check(chat, lambda kills: in_group(HOG, group.oom_file, kills), want)
            finally:
                code, _, err = chat.close()
            self.assertEqual(code, 0, err)

    @in_a_group
    def test_a_stage_the_kernel_kills_for_want_of_memory(self):
        def check(chat, hog, want):
            self.assertGreater(int(hog(1).stdout), 0)
            self.assertEqual(chat.receive(), want)
            waste.all_stages_of(chat.pid)
            log = crash.log_of(chat.pid)
            self.assertGreater(sum(s["restarts"] for s in crash.stats(chat.pid)["stages"].values()), 0, log)
            self.assertRegex(log, r"\w+ \(pid \d+\) died of signal 9 \(Killed, when the kernel was out of memory\)")
            self.assertIn("memory is short", log)
        self.in_a_small_group(check)

    @in_a_group
    def test_all_stages_go_before_waste_run(self):
        """One that takes all there is is killed when nothing else is left to kill; the next request is answered."""
        def check(chat, hog, want):
            self.assertEqual(hog(1000).returncode, -9)
            chat.receive()                                       # the answer, or why not after five deaths
            chat.ask("/reset")
            self.assertEqual(chat.ask("Tell me about Italy"), want)
            self.assertTrue(all(s["restarts"] for s in crash.stats(chat.pid)["stages"].values()))
        self.in_a_small_group(check)

    def test_a_kill_is_not_taken_for_it(self):
        chat = crash.Chat()
        chat.ask("Hello")
        os.kill(waste.stages_of(chat.pid)["compute"], 9)
        chat.ask("Hello")
        log = crash.log_of(chat.pid)
        self.assertEqual(chat.close()[0], 0)
        self.assertEqual(re.findall(r"died of (signal 9 \([^)]*\))", log), ["signal 9 (Killed)"])


if __name__ == "__main__":
    crash.main()
