"""Prefetch on against off, the same routing: alternating pairs of decoding the same ids.

    python3 tests/bench/prefetch.py MODEL [--sets 0.5,1,2] [--pairs 9] [--tokens N] [--lookahead N]

For each cache size in working sets: the median over the pairs of the step time, off over on, how many pairs were
faster, and the bytes read, on over off. (That the tokens are the same and the bytes within 5 %: tests/e2e/test_prefetch.py.)
On a busy machine runs of less than a second differ more than what is compared. WASTE_BUILD: the build, else build/.
"""
import argparse
import statistics

import overlap


def once(model, slots, tokens, lookahead):
    steps = overlap.decode(model, slots, tokens, lookahead)["steps"][tokens // 8:]
    return sum(s["seconds"] for s in steps), sum(s["bytes_read"] for s in steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--sets", default="0.5,1,2")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--lookahead", type=int)
    a = parser.parse_args()
    layers, top_k, _ = overlap.model_shape(a.model)
    lookahead = a.lookahead or top_k
    for sets in map(float, a.sets.split(",")):
        slots, faster, more = int(sets * layers * top_k), [], []
        for n in range(a.pairs):
            order = (0, lookahead) if n % 2 else (lookahead, 0)
            got = {la: once(a.model, slots, a.tokens, la) for la in order}
            faster.append(got[0][0] / got[lookahead][0])
            more.append(got[lookahead][1] / got[0][1])
            print("  pair %d: %.2f times as fast, %+.1f %% bytes" % (n + 1, faster[-1], 100 * (more[-1] - 1)), flush=True)
        print("%g working sets: %.2f times as fast (median of %d pairs, %d faster), %+.1f %% bytes" %
              (sets, statistics.median(faster), a.pairs, sum(f > 1 for f in faster),
               100 * (statistics.median(more) - 1)), flush=True)


if __name__ == "__main__":
    main()
