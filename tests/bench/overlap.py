"""How well computing and reading overlap, against the two alone, in one run on one machine.

    python3 tests/bench/overlap.py MODEL [--resident A B] [--sets F] [--tokens N] [--rounds N] [--lookahead N]

Each round: what the drive gives (waste-fetch diskbench at the size of MODEL's records, the best depth), then MODEL's
decode of given ids with a cache of F working sets. Once: the decode of two containers all of whose experts fit into memory
(--resident: the same shape with fewer layers, as waste-fetch synth --layers makes it; without them what was not waiting
counts as computing). Shown a token, medians over rounds:

    compute alone   of --resident, steps that missed nothing, by a line through their MoE layers
    disk alone      bytes read / what the drive gives
    together        the step, as a share of the longer of the two
    while waiting   bytes read while compute waited for experts, a second, as a share of what the drive gives

Judge by the shares: on a drive that others use too, absolute figures mean little. WASTE_BUILD: the build, else build/.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("WASTE_BUILD", os.path.join(ROOT, "build"))
RUN = os.path.join(BUILD, "cli", "waste-run")
FETCH = os.path.join(BUILD, "fetcher", "waste-fetch")


def output(*argv):
    return json.loads(subprocess.run([str(a) for a in argv], check=True, stdout=subprocess.PIPE).stdout)


def plan(model, budget, *options):
    r = subprocess.run([RUN, "plan", model, "--json", "--budget", str(budget), *map(str, options)],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return json.loads(r.stdout) if r.returncode == 0 else None


def budget_for(model, slots, *options):
    """The smallest budget that pays for so many slots, to 2 KB."""
    low, high = 1 << 20, 1 << 40
    while high - low > 2048:
        middle = (low + high) // 2
        p = plan(model, middle, *options)
        low, high = (low, middle) if p and p["slots"] >= slots else (middle, high)
    return high


def model_shape(model):
    info = output(RUN, "info", model, "--json")
    return info["moe_layers"], info["top_k"], info["experts"]


def decode(model, slots, tokens, lookahead):
    options = ("--ctx", max(256, tokens + 1), "--lookahead", lookahead)
    with tempfile.NamedTemporaryFile("w") as ids:
        ids.write(",".join(str(1 + i * 37 % 200) for i in range(tokens)))
        ids.flush()
        return output(RUN, "bench", model, "--step", "--ids-file", ids.name, "--json", "-q",
                      "--budget", budget_for(model, slots, *options), *options)


def drive(model, seconds):
    r = output(FETCH, "diskbench", model, "--json", "--seconds", seconds)
    return max(d["gb_per_s"] for d in r["depths"]) * 1e9


def compute_alone(models, tokens, layers, lookahead):
    points = []
    for model in models:
        moe, _, experts = model_shape(model)
        steps = decode(model, moe * experts, tokens, lookahead)["steps"]
        served = [s["seconds"] for s in steps if s["misses"] == 0] or [s["seconds"] - s["wait_seconds"] for s in steps]
        points.append((moe, statistics.median(served)))
    if points[0][0] == points[1][0]:
        raise SystemExit("--resident wants two different numbers of MoE layers")
    (fewer, least), (more, most) = sorted(points)  # lm_head and dense layers are in both
    return least + (most - least) / (more - fewer) * (layers - fewer)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--resident", nargs=2, metavar=("A", "B"))
    parser.add_argument("--sets", type=float, default=1)
    parser.add_argument("--tokens", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lookahead", type=int)
    parser.add_argument("--seconds", type=float, default=0.2, help="of diskbench, a depth")
    a = parser.parse_args()
    layers, top_k, _ = model_shape(a.model)
    lookahead = top_k if a.lookahead is None else a.lookahead
    alone = compute_alone(a.resident, a.tokens * 6, layers, lookahead) if a.resident else None
    rows = []
    before = drive(a.model, a.seconds)
    for n in range(a.rounds):
        steps = decode(a.model, int(a.sets * layers * top_k), a.tokens, lookahead)["steps"][a.tokens // 4:]
        after = drive(a.model, a.seconds)
        rate, before = (before + after) / 2, after
        step = statistics.mean(s["seconds"] for s in steps)
        wait = statistics.mean(s["wait_seconds"] for s in steps)
        compute = alone if alone else step - wait
        disk = statistics.mean(s["bytes_read"] for s in steps) / rate
        waiting = sum(s["wait_bytes_read"] for s in steps) / max(1e-9, sum(s["wait_seconds"] for s in steps))
        rows.append((compute, disk, step, step / max(compute, disk), waiting / rate))
        print("round %d: drive %.2f GB/s, compute %.1f ms, disk %.1f ms, together %.1f ms = %.2f of the longer, waited "
              "%.1f ms at %.2f of the drive" % (n + 1, rate / 1e9, compute * 1e3, disk * 1e3, step * 1e3, rows[-1][3],
                                              wait * 1e3, rows[-1][4]), flush=True)
    m = [statistics.median(column) for column in zip(*rows)]
    print("median: compute alone %.1f ms, disk alone %.1f ms, together %.1f ms, %.2f of the longer; while waiting %.2f "
          "of the drive" % (m[0] * 1e3, m[1] * 1e3, m[2] * 1e3, m[3], m[4]))


if __name__ == "__main__":
    main()
