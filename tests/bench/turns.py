#!/usr/bin/env python3
"""What a second turn, a shared system message and a saved session cost.

    python3 tests/bench/turns.py MODEL [--tokens N] [--saves N]

MODEL needs a tokenizer. Ratios of one run count: seconds are this machine's and this moment's. WASTE_BUILD: the build, else
build/.
"""
import argparse
import json
import os
import subprocess
import tempfile

from recovery import RUN

WORDS = "The capital of Italy is Rome. "


def waste_run(*args, stdin=""):
    r = subprocess.run([RUN, *map(str, args)], input=stdin, capture_output=True, text=True, check=True)
    return r.stdout


def prompt(model, tokens):
    """A text of about so many tokens."""
    each = len(json.loads(waste_run("tokenize", model, "--raw", "--json", WORDS * 16))["ids"]) / 16
    return (WORDS * int(tokens / each)).strip()


def chat(model, lines, *options):
    events = waste_run("chat", model, "--json", "-q", *options, stdin="".join(l + "\n" for l in lines))
    return [e for e in map(json.loads, events.splitlines()) if e["event"] in ("end", "stats")]


def show(what, turn, first):
    print("%-34s %6d tokens, %6d reused: first token after %8.3f s, %6.2f %% of the first turn's" %
          (what, turn["prompt_tokens"], turn["reused_tokens"], turn["prefill_seconds"],
           100 * turn["prefill_seconds"] / first["prefill_seconds"]))


def turns(model, text, ctx):
    first, second, again = chat(model, [text, "Thanks!", "/retry"], *ctx, "-n", 16, "--prefix-cache", "8G")
    show("first turn", first, first)
    show("second turn", second, first)
    show("the second once more (/retry)", again, first)
    for _ in range(2):
        shared, = chat(model, ["Hello!"], *ctx, "-n", 16, "--system", text, "--prefix-cache", "8G")
    show("a system message known already", shared, first)


def saves(model, text, ctx, count, file):
    options = [*ctx, "--ignore-eos", "-n", count]
    plain, = chat(model, [text], *options)
    for every in (64, 8, 1):
        saved, stats = chat(model, [text, "/stats"], *options, "--session", file, "--session-every", every)
        print("--session-every %-18d %6d saves of %.2f MB: decode at %6.2f %% of the rate without" %
              (every, stats["counters"]["session_saves"], os.path.getsize(file) / 1e6,
               100 * saved["tok_per_s"] / plain["tok_per_s"]))
        os.unlink(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=1000, help="of the first turn")
    parser.add_argument("--saves", type=int, default=400, help="tokens of the replies that are saved; 0: none are")
    a = parser.parse_args()
    text, ctx = prompt(a.model, a.tokens), ["--ctx", a.tokens * 2 + 1000]
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch
        turns(a.model, text, ctx)
        if a.saves:
            saves(a.model, text, ctx, a.saves, os.path.join(scratch, "s"))


if __name__ == "__main__":
    main()
