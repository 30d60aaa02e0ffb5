#!/usr/bin/python3
"""Make tests/data/synth/*.json: reference logits of the synthetic containers.

  make_references.py --oracle DIR --fetch build/fetcher/waste-fetch [SHAPE ...]

DIR holds the PyTorch reference (container.py, k3.py). The values are computed in double precision and must agree
with the same reference in single precision; what is committed never comes from the engine. Needs python3-torch and
python3-numpy, so the test suite only reads the result.
"""
import argparse
import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
Q3G = 7
LIMIT = 1e-3     # the reference against itself in single precision: more means a badly scaled container


def q3g(blob, e):
    """3-bit trunk tensors, which the reference does not read: LSB first, stored +4, one guard byte a row."""
    rows, n, g = int(np.prod(e["shape"][:-1])), e["shape"][-1], e["group"]
    groups = -(-n // g)
    row = groups * g * 3 // 8 + 1
    b = np.frombuffer(blob, np.uint8, rows * row, e["off"]).reshape(rows, row)[:, :-1]
    bits = np.unpackbits(b, axis=1, bitorder="little").reshape(rows, groups * g, 3).astype(np.int32)
    q = (bits @ np.array([1, 2, 4]) - 4).astype(np.float32).reshape(rows, groups, g)
    scale = np.frombuffer(blob, "<f2", rows * groups, e["scale_off"]).astype(np.float32).reshape(rows, groups, 1)
    return torch.from_numpy((q * scale).reshape(rows, -1)[:, :n].copy()).view(*e["shape"])


def load_oracle(path):
    sys.path.insert(0, path)
    import container
    plain = container.trunk_tensor
    container.trunk_tensor = lambda blob, e: q3g(blob, e) if e["fmt"] == Q3G else plain(blob, e)
    return container.Container


def unshared(container):
    """Without shared experts the reference has matrices of no rows and no columns, which no file holds."""
    c = container.cfg
    if not c["num_shared_experts"]:
        container.man["trunk"] += [
            dict(name="%smodel.layers.%d.block_sparse_moe.shared_experts.%s_proj.weight" % (container.prefix, l, m),
                 fmt=0, off=0, shape=[c["hidden_size"], 0] if m == "down" else [0, c["hidden_size"]])
            for l in range(c["num_hidden_layers"]) for m in ("gate", "up", "down")]
    return container


def logits(oracle, path, ids, dtype):
    torch.set_default_dtype(dtype)
    model = unshared(oracle(path)).model().to(dtype)
    out = model(torch.tensor([ids]))[0][0, -1].double().numpy()
    torch.set_default_dtype(torch.float32)
    return out


def digests(path):
    out = {}
    for name in sorted(os.listdir(path)):
        with open(os.path.join(path, name), "rb") as f:
            out[name] = hashlib.sha256(f.read()).hexdigest()
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--oracle", required=True)
    ap.add_argument("--fetch", required=True)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("shapes", nargs="*")
    a = ap.parse_args()
    oracle = load_oracle(a.oracle)
    shapes = a.shapes or [l.split()[0] for l in subprocess.run([a.fetch, "synth", "--list"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout.splitlines() if l.startswith("tiny-")]
    for shape in shapes:
        with tempfile.TemporaryDirectory() as tmp:
            path = os.path.join(tmp, shape)
            subprocess.run([a.fetch, "synth", "-q", "--shape", shape, "--seed", str(a.seed), path], check=True)
            vocab = json.load(open(os.path.join(path, "manifest.json")))["config"]["vocab_size"]
            ids = [(i * i * 31 + i * 7 + 3) % (vocab - 16) for i in range(37)]
            exact, single = (logits(oracle, path, ids, t) for t in (torch.float64, torch.float32))
            distance = float(np.linalg.norm(single - exact) / np.linalg.norm(exact))
            order = np.argsort(-exact, kind="stable")[:11]
            assert distance < LIMIT and np.isfinite(exact).all(), (shape, distance)
            ref = dict(shape=shape, seed=a.seed, ids=ids, vocab=vocab, argmax=int(order[0]),
                       top10=[int(i) for i in order[:10]],
                       gap10=float(exact[order[9]] - exact[order[10]]),
                       single_precision_distance=float("%.2g" % distance),
                       logits_f32_base64=base64.b64encode(exact.astype("<f4").tobytes()).decode(),
                       sha256=digests(path))
            with open(os.path.join(HERE, "synth", shape + ".json"), "w") as f:
                json.dump(ref, f, indent=1)
                f.write("\n")
            print("%-16s f32 %.1e  top gap %.4f  10/11 gap %.4f" % (
                shape, distance, exact[order[0]] - exact[order[1]], ref["gap10"]), flush=True)


main()
