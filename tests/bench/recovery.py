#!/usr/bin/env python3
"""recovery.py MODEL [--kills N] [--json] [OPTIONS OF waste-run]: kill -9 of compute and of the reader to the next token.

Starts MODEL, kills each of the two N times at random moments of a step, and shows the medians and the slowest, and where
the time went: until waste-run has reaped and repaired, has started a successor, until that has attached, serves, and the
next token is there. The last part holds the step that is done again (compute) or goes on (reader). `pause` is the kill to
the next token; `lost` is how much later than without the kill that token came, the step done twice left out.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

BUILD = os.environ.get("WASTE_BUILD") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build")
RUN = os.path.join(BUILD, "cli", "waste-run")
PARTS = ("reaped", "started", "attached", "running", "token")


def start(model, options):
    prompt = ",".join(map(str, range(10, 18)))
    return subprocess.Popen(
        [RUN, "run", model, "--ids", prompt, "-n", "100000", "--ctx", "16384",
         "--ignore-eos", "--json", "-q", *options], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def wait_until_it_generates(p):
    while True:
        r = subprocess.run([RUN, "stats", "--json", "--pid", str(p.pid)],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if r.returncode == 0 and json.loads(r.stdout)["counters"]["generated"] > 4:
            return
        if p.poll() is not None:
            sys.exit("recovery: waste-run ended with %d" % p.returncode)
        time.sleep(0.1)


def measure(p, stage, kills):
    r = subprocess.run([os.path.join(BUILD, "tests", "bench", "recovery"), str(p.pid), stage, str(kills)],
                       stdout=subprocess.PIPE, check=True)
    return json.loads(r.stdout)["kills"]


def summary(stage, found):
    """Milliseconds."""
    redone = stage == "compute"
    out = {"step": statistics.median(k["step"] for k in found) / 1e6}
    pause = [k["token"] / 1e6 for k in found]
    lost = [(k["token"] + (0 if redone else k["into"]) - k["step"]) / 1e6 for k in found]
    for name, values in (("pause", pause), ("lost", lost)):
        out[name + "_median"], out[name + "_slowest"] = statistics.median(values), max(values)
    for before, part in zip((None,) + PARTS, PARTS):
        out[part] = statistics.median(k[part] - (k[before] if before else 0) for k in found) / 1e6
    out["kills"] = len(found)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one object in place of the table")
    args, options = parser.parse_known_args()
    p = start(args.model, options)
    try:
        wait_until_it_generates(p)
        out = {stage: summary(stage, measure(p, stage, args.kills)) for stage in ("compute", "reader")}
    finally:
        p.terminate()
        p.wait()
    if args.json:
        print(json.dumps(out))
        return
    print("milliseconds" + "".join(" %8s" % n for n in (*PARTS, "step")) + " | median (slowest)")
    for stage, s in out.items():
        print("%-12s" % stage + "".join(" %8.1f" % s[n] for n in (*PARTS, "step")) + " | pause %.0f (%.0f), lost %.0f (%.0f)" % (
            s["pause_median"], s["pause_slowest"], s["lost_median"], s["lost_slowest"]))


if __name__ == "__main__":
    main()
