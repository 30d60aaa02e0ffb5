#!/usr/bin/env python3
"""What a second turn, a shared system message and a saved session cost. usage: turns.py WASTE_RUN MODEL [TOKENS]

MODEL needs a tokenizer. Ratios of one run count: seconds are this machine's and this moment's.
"""
import json
import os
import subprocess
import sys
import tempfile

RUN, MODEL = sys.argv[1:3]
TOKENS = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
WORDS = "The capital of Italy is Rome. "


def waste_run(*args, stdin=""):
    r = subprocess.run([RUN, *map(str, args)], input=stdin, capture_output=True, text=True, check=True)
    return r.stdout


def prompt(tokens):
    """A text of about so many tokens."""
    each = len(json.loads(waste_run("tokenize", MODEL, "--raw", "--json", WORDS * 16))["ids"]) / 16
    return (WORDS * int(tokens / each)).strip()


def chat(lines, *options):
    events = waste_run("chat", MODEL, "--json", "-q", *options, stdin="".join(l + "\n" for l in lines))
    return [e for e in map(json.loads, events.splitlines()) if e["event"] in ("end", "stats")]


def show(what, turn, first):
    print("%-34s %6d tokens, %6d reused: first token after %8.3f s, %6.2f %% of the first turn's" %
          (what, turn["prompt_tokens"], turn["reused_tokens"], turn["prefill_seconds"],
           100 * turn["prefill_seconds"] / first["prefill_seconds"]))


def main():
    text = prompt(TOKENS)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch
        ctx = ["--ctx", TOKENS * 2 + 1000, "-n", 16]
        first, second, again = chat([text, "Thanks!", "/retry"], *ctx, "--prefix-cache", "8G")
        show("first turn", first, first)
        show("second turn", second, first)
        show("the second once more (/retry)", again, first)
        chat(["Hello!"], *ctx, "--system", text, "--prefix-cache", "8G")
        shared, = chat(["Hello!"], *ctx, "--system", text, "--prefix-cache", "8G")
        show("a system message known already", shared, first)
        file = os.path.join(scratch, "s")
        plain, = chat([text], *ctx, "--ignore-eos", "-n", 400)
        for every in (64, 8, 1):
            saved, stats = chat([text, "/stats"], *ctx, "--ignore-eos", "-n", 400, "--session", file, "--session-every", every)
            print("--session-every %-18d %6d saves of %.2f MB: decode at %6.2f %% of the rate without" %
                  (every, stats["counters"]["session_saves"], os.path.getsize(file) / 1e6,
                   100 * saved["tok_per_s"] / plain["tok_per_s"]))
            os.unlink(file)


main()
