"""What the end to end tests share: running waste-run, finding its stages, containers, references.

Tests speak to the programs as a user does: command line, exit code, stdout, stderr, signals. Standard library only.
Nothing here may hang: every process has a time limit and is killed by its own id.
"""
import array
import base64
import ctypes
import functools
import json
import math
import mmap
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import kernel

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("WASTE_BUILD", os.path.join(ROOT, "build"))
RUN = os.path.join(BUILD, "cli", "waste-run")
FETCH = os.path.join(BUILD, "fetcher", "waste-fetch")
DEMO = os.path.join(ROOT, "models", "demo.waste")
DATA = os.path.join(ROOT, "tests", "data")
STAGES = ("reader", "compute", "router")
# sanitizers and emulators are slow; tests/e2e/meson.build says so
SLOW = float(os.environ.get("WASTE_SLOW", "1"))
LONG = os.environ.get("WASTE_LONG") == "1"
LIMIT = 120 * SLOW
PROGRESS = re.compile(r"[^:]+: .+ of .+, .+/s, .+ left")
# what one test's run learns must not change another's; test_usage.py asks for it
os.environ["WASTE_USAGE"] = "off"
os.environ["WASTE_PREFIX_CACHE"] = "0"  # nor what it keeps; test_prefix.py asks for it

_scratch = None


def scratch():
    """A directory on the same disk as the build (so that O_DIRECT is what is tested), gone at exit."""
    global _scratch
    if _scratch is None:
        _scratch = tempfile.TemporaryDirectory(prefix="e2e-", dir=BUILD)
    return _scratch.name


def seed():
    """The run's random seed: printed, and taken from WASTE_TEST_SEED to repeat a run."""
    s = int(os.environ.get("WASTE_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    print("seed: WASTE_TEST_SEED=%d" % s, file=sys.stderr, flush=True)
    return random.Random(s)


def expected():
    with open(os.path.join(DATA, "demo_expected.json")) as f:
        return json.load(f)


def is_raw(case):
    return case["question"].startswith("raw:")


def ids_of(case):
    return ",".join(map(str, case["ids"]))


def genesis():
    """The one case that goes on past end tokens: as long a generation as one likes."""
    return next(c for c in expected() if is_raw(c))


class Result:
    def __init__(self, argv, code, out, err):
        self.argv, self.code, self.out, self.err = argv, code, out, err

    def __str__(self):
        return "%s\nexit %s\nstdout: %s\nstderr: %s" % (
            ascii(" ".join(self.argv)), self.code, self.out[:2000].decode("utf-8", "replace"), self.err[:4000].decode("utf-8", "replace"))

    def json(self):
        return json.loads(self.out)

    def error_lines(self):
        """What stderr says but for progress, which comes when something happens to take more than two seconds."""
        return [l for l in self.err.decode("utf-8", "replace").splitlines() if l.strip() and not PROGRESS.fullmatch(l)]


class Process(subprocess.Popen):
    """One in the background; a test that fails says how it ended and what its stderr was (see Test.run)."""
    begun = []  # by the test at hand

    def __init__(self, argv, **kw):
        self.said, self.drained = b"", False  # drained: somebody reads stderr all the time
        super().__init__(argv, **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kw})
        self.begun.append(self)

    def communicate(self, *args, **kw):
        out, err = super().communicate(*args, **kw)
        self.said += err or b""
        return out, err

    def __str__(self):
        if self.poll() is not None and self.stderr and not self.stderr.closed and not self.drained:
            os.set_blocking(self.stderr.fileno(), False)  # what outlives it may have it, too
            self.said += self.stderr.read() or b""
        end = "runs" if self.poll() is None else "exit %d" % self.returncode
        argv = ascii(" ".join(os.fsdecode(a) for a in self.args))
        return "%s\npid %d, %s, stderr: %s" % (argv[:600], self.pid, end, self.said[-4000:].decode("utf-8", "replace"))


def waste_run(*args, limit=None, stdin=None, env=None, program=RUN):
    """Runs waste-run to its end. A process over its limit is killed and the test fails."""
    argv = [program] + [os.fsdecode(a) if isinstance(a, bytes) else str(a) for a in args]
    p = subprocess.Popen(argv, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ, **(env or {})))
    return finish(p, limit, stdin)


def start(*args, program=RUN, **kw):
    """Starts waste-run in the background; pair it with finish()."""
    return Process([program] + [str(a) for a in args], **kw)


def finish(p, limit=None, stdin=None):
    """Waits for its end. A process over its limit is killed and the test fails."""
    try:
        out, err = p.communicate(stdin, timeout=limit or LIMIT)
    except subprocess.TimeoutExpired:
        table = stages_of(p.pid)
        p.kill()
        out, err = p.communicate()
        raise AssertionError("no end after %g s, stages %s\n%s" % (limit or LIMIT, table, Result(p.args, "killed", out, err)))
    return Result(p.args, p.returncode, out, err)


def ask(command, *args, pid):
    """One of the commands that look at a running pipeline."""
    for _ in range(20):
        r = waste_run(command, *args, "--pid", pid)
        if b"does not answer" not in r.err:  # within some seconds: it had no CPU
            break
    return r


def stats(pid):
    """What `stats --json` says; None where no pipeline runs."""
    r = ask("stats", "--json", pid=pid)
    return r.json() if r.code == 0 else None


def children_of(pid):
    """{pid: what it is} of the living children of a process; one that has just been forked is what its parent is."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % entry) as f:
                text = f.read()
            with open("/proc/%s/cmdline" % entry, "rb") as f:
                name = os.path.basename(f.read().split(b"\0")[0].decode())
        except OSError:
            continue
        state, parent = text.rsplit(")", 1)[1].split()[:2]
        if int(parent) == pid and state not in "ZX":
            found[int(entry)] = name
    return found


def stages_of(pid):
    """{stage: pid} of the living stages of a waste-run."""
    names = {"waste-" + s: s for s in STAGES}
    return {names[name]: child for child, name in children_of(pid).items() if name in names}


def all_stages_of(pid):
    """The same, once there are three: nobody waits for the router."""
    return wait_for("all stages", lambda: (lambda found: len(found) == len(STAGES) and found)(stages_of(pid)))


def stage_of(p, name):
    """The pid of a living stage of a waste-run we started, once there is one; None if that has ended: it may be quick."""
    pid = wait_for("stage " + name, lambda: -1 if p.poll() is not None else stages_of(p.pid).get(name))
    return pid if pid > 0 else None


def wait_for(what, condition, limit=None):
    """Polls until condition() is true and returns its value."""
    end = time.monotonic() + (limit or LIMIT)
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("waited %g s in vain for: %s" % (limit or LIMIT, what))
        time.sleep(0.005)


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def kill9(pid):
    try:
        os.kill(pid, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False


def may_lock(nbytes):
    """Whether a process may have so much locked memory here."""
    with mmap.mmap(-1, nbytes) as room:
        at = (ctypes.c_char * nbytes).from_buffer(room)
        locked = ctypes.CDLL(None).mlock(at, nbytes) == 0
        del at
    return locked


@functools.lru_cache
def has_io_uring():
    """Whether the kernel gives rings here: it is asked, not waste-run. A ring counts as locked memory of its user until the
    kernel has taken it apart, and other tests have theirs; so there must be room.
    """
    if not may_lock(1 << 20):
        return False
    fd = ctypes.CDLL(None).syscall(kernel.IO_URING_SETUP, 4, ctypes.create_string_buffer(256))  # struct io_uring_params
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def io_modes():
    """What --io may be here."""
    return ("uring", "pread") if has_io_uring() else ("pread",)


def pss_bytes(pid):
    """Resident memory of a process, shared pages divided among those who map them."""
    with open("/proc/%d/smaps_rollup" % pid) as f:
        return 1024 * next(int(l.split()[1]) for l in f if l.startswith("Pss:"))


def floats(data):
    a = array.array("f")
    a.frombytes(data)
    if sys.byteorder != "little":
        a.byteswap()
    return a


def eval_logits(model, ids, *options, every=False):
    """The logits file of `eval --ids` as bytes."""
    handle, path = tempfile.mkstemp(suffix=".f32", dir=scratch())
    os.close(handle)
    try:
        r = waste_run("eval", model, "--ids", ids if isinstance(ids, str) else ",".join(map(str, ids)),
                      "--logits", path, "-q", *(["--all"] if every else []), *options)
        if r.code:
            raise AssertionError(str(r))
        with open(path, "rb") as f:
            return f.read()
    finally:
        os.unlink(path)


def distance(got, want):
    """Relative error, as the reference measures it: |got - want| / |want|."""
    if len(got) != len(want):
        return math.inf
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(got, want)) / sum(b * b for b in want))


def top(logits, n):
    """Ids of the n largest logits, the lowest id first among equals."""
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:n]


def shapes():
    """Names of the synthetic containers that have a reference."""
    return sorted(f[:-len(".json")] for f in os.listdir(os.path.join(DATA, "synth")))


def reference(shape):
    with open(os.path.join(DATA, "synth", shape + ".json")) as f:
        ref = json.load(f)
    ref["logits"] = floats(base64.b64decode(ref.pop("logits_f32_base64")))
    return ref


def synth(shape, *options, name=None):
    """The path of a synthetic container, made on first use."""
    path = os.path.join(scratch(), name or shape)
    if not os.path.exists(os.path.join(path, "manifest.json")):
        subprocess.run([FETCH, "synth", "-q", "--shape", shape, *options, path], check=True, timeout=LIMIT)
    return path


def synth_config(name, **changes):
    """The path of a synthetic container of Kimi-Linear's parts, small but for the changes; made on first use."""
    config = {"model_type": "kimi_linear", "first_k_dense_replace": 1, "num_shared_experts": 1, "moe_renormalize": True,
              "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "topk_group": 1,
              "routed_scaling_factor": 2.446, "q_lora_rank": None, "mla_use_nope": True, "rms_norm_eps": 1e-05,
              "tie_word_embeddings": False, "hidden_act": "silu", "num_nextn_predict_layers": 0, "hidden_size": 256,
              "num_hidden_layers": 6, "intermediate_size": 512, "moe_intermediate_size": 96, "num_experts": 24,
              "num_experts_per_token": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "qk_nope_head_dim": 32,
              "qk_rope_head_dim": 16, "v_head_dim": 32, "kv_lora_rank": 64, "vocab_size": 512,
              "linear_attn_config": {"head_dim": 32, "num_heads": 8, "short_conv_kernel_size": 4}}
    path = os.path.join(scratch(), name)
    if not os.path.exists(os.path.join(path, "manifest.json")):
        with open(path + ".json", "w") as f:
            json.dump(dict(config, **changes), f)
        subprocess.run([FETCH, "synth", "-q", "--shape", path + ".json", path], check=True, timeout=LIMIT)
    return path


def programs(name, **replaced):
    """The path of a waste-run that finds these in place of its stages (reader="/path/of/a/program", None: none at all)."""
    path = os.path.join(scratch(), name)
    if not os.path.exists(path):
        os.mkdir(path)
        for stage in ("run",) + STAGES:
            source = os.path.join(BUILD, "cli" if stage == "run" else stage, "waste-" + stage)
            source = replaced.get(stage, source)
            if source is not None:
                shutil.copy(source, os.path.join(path, "waste-" + stage))
    return os.path.join(path, "waste-run")


def script(name, text):
    """The path of a shell script."""
    path = os.path.join(scratch(), name)
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)
    return path


def copy_container(source, name):
    """A copy whose files are links, so that one of them can be replaced. Returns its path."""
    path = os.path.join(scratch(), name)
    base = os.path.join(scratch(), "base-" + os.path.basename(source))
    if not os.path.exists(base):
        shutil.copytree(source, base, copy_function=shutil.copyfile)
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path)
    for f in os.listdir(base):
        os.link(os.path.join(base, f), os.path.join(path, f))
    return path


def replace(container, name, data):
    """Puts other bytes (None: nothing) in place of a file of copy_container."""
    path = os.path.join(container, name)
    os.unlink(path)
    if data is not None:
        with open(path, "wb") as f:
            f.write(data)


class Endless:
    """A long generation, which cannot end before a test has done to it what it wants; end() stops it.

    asked: options on which the ids depend, other than those that are the same for all.
    """
    TOKENS, CTX = 30000, 32000
    ids = {}  # of runs nobody disturbed, by what they were asked

    def __init__(self, test, *options, asked=(), env=None):
        self.test = test
        self.asked = ("run", DEMO, "--ids", ids_of(genesis()), "--temp", "0.7", "--seed", "11", "--ignore-eos", "--json", "-q",
                      *map(str, asked))
        self.p = start(*self.asked, "-n", self.TOKENS, "--ctx", self.CTX, *options, env=dict(os.environ, **(env or {})))
        self.pid = self.p.pid
        test.addCleanup(self.kill)

    def kill(self):
        if self.p.poll() is None:
            self.p.kill()
            self.p.communicate()

    def stats(self):
        if self.p.poll() is not None:
            raise AssertionError("it ended early\n%s" % finish(self.p))
        return stats(self.pid)

    def when(self, what, condition):
        """Waits until condition(stats) is true; returns those stats."""
        return wait_for(what, lambda: (lambda s: s and condition(s) and s)(self.stats()))

    def generates(self, tokens=20):
        """Waits for so many tokens more; returns the stats."""
        first = self.when("stats", lambda s: True)["counters"]["generated"]
        return self.when("%d tokens" % tokens, lambda s: s["counters"]["generated"] >= first + tokens)

    def restarted(self, **restarts):
        """Waits until stages were started again so often, and run, and there are tokens; returns the stats."""
        self.when("restarts: %s" % restarts, lambda s: all(
            s["stages"][n]["restarts"] >= k and s["stages"][n]["state"] == "running" for n, k in restarts.items()))
        return self.generates(5)

    def end(self):
        """The Result; its ids are those of a run nobody disturbed."""
        self.p.terminate()
        r = self.test.ok(finish(self.p))
        ids = r.json()["ids"]
        if len(self.ids.get(self.asked, ())) < len(ids):
            self.ids[self.asked] = self.test.ok(waste_run(*self.asked, "-n", len(ids))).json()["ids"]
        self.test.assertEqual(ids, self.ids[self.asked][:len(ids)])
        return r


class Test(unittest.TestCase):
    longMessage = True
    maxDiff = 2000

    def run(self, result=None):
        """What fails may lie with a process that is gone: how each of them ended comes with it."""
        del Process.begun[:]
        result = super().run(result)
        failed = [getattr(test, "test_case", test) for test, _ in result.failures + result.errors] if result else []
        if self in failed:
            for p in Process.begun[-8:]:
                print("\nthe last of %s: %s" % (self.id(), p), file=sys.stderr, flush=True)
        for p in Process.begun:
            if p.poll() is None:  # in nobody's way
                p.kill()
        return result

    def ok(self, r):
        """It ended well; returns the result."""
        self.assertEqual(r.code, 0, str(r))
        return r

    def plan(self, model, *options):
        """What `plan --json` says; all sizes in bytes."""
        return self.ok(waste_run("plan", model, "--json", *options)).json()

    def refused(self, r, *words, codes=(1, 2)):
        """One clear line on stderr, a decent exit code, no signal; the line has these words."""
        self.assertIn(r.code, codes, str(r))
        lines = r.error_lines()
        self.assertEqual(len(lines), 1, "one line is wanted\n%s" % r)
        self.assertNotIn("Sanitizer", lines[0])
        for w in words:
            self.assertIn(w, lines[0], str(r))
        return lines[0]


def main(program=RUN):
    if not os.access(program, os.X_OK):
        print("skipped: no %s in this build" % os.path.basename(program))
        sys.exit(77)
    unittest.main(verbosity=2)
