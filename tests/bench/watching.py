#!/usr/bin/env python3
"""watching.py MODEL [OPTIONS OF waste-run]: tokens a second while nobody looks, and while top and stats do, in turns.

The watchers are `top --interval 0.1` at a terminal and a Prometheus scrape a second, at low priority as another process of the
machine would be; what they cost is their own CPU time, and that is shown too.
"""
import os
import pty
import resource
import statistics
import subprocess
import sys
import threading
import time

import recovery

SECONDS, TURNS = 3, 4


def generated(p):
    out = subprocess.run([recovery.RUN, "stats", "--json", "--pid", str(p.pid)], stdout=subprocess.PIPE, check=True).stdout
    return recovery.json.loads(out)["counters"]["generated"]


def window(p):
    begin, before = time.monotonic(), generated(p)
    time.sleep(SECONDS)
    return (generated(p) - before) / (time.monotonic() - begin)


class Watchers:
    def __enter__(self):
        master, slave = pty.openpty()
        pid = str(self.pid)
        self.top = subprocess.Popen([recovery.RUN, "top", "--interval", "0.1", "--pid", pid], stdin=slave, stdout=slave,
                                    preexec_fn=lambda: os.nice(19))
        self.over = threading.Event()

        def drain():
            while not self.over.is_set():
                os.read(master, 65536)

        def scrape():
            while not self.over.wait(1):
                subprocess.run([recovery.RUN, "stats", "--prometheus", "--pid", pid], stdout=subprocess.DEVNULL, check=True,
                               preexec_fn=lambda: os.nice(19))
        self.threads = [threading.Thread(target=f, daemon=True) for f in (drain, scrape)]
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.top.terminate()
        self.top.wait()

    def __init__(self, p):
        self.pid = p.pid


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    p = recovery.start(sys.argv[1], sys.argv[2:])
    alone, watched = [], []
    try:
        recovery.wait_until_it_generates(p)
        begin = resource.getrusage(resource.RUSAGE_CHILDREN)
        for _ in range(TURNS):
            alone.append(window(p))
            with Watchers(p):
                watched.append(window(p))
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
    finally:
        p.terminate()
        p.wait()
    cpu = end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime
    print("alone %.2f tokens/s (%s), watched %.2f (%s), ratio %.3f; watchers took %.1f %% of a CPU" % (
        statistics.median(alone), " ".join("%.2f" % v for v in alone), statistics.median(watched),
        " ".join("%.2f" % v for v in watched), statistics.median(watched) / statistics.median(alone),
        100 * cpu / (TURNS * SECONDS)))


if __name__ == "__main__":
    main()
