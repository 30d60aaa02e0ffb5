"""Releases and containers read a second time, by the format's description alone: what the converter's tests compare with."""
import array
import base64
import hashlib
import json
import os
import shutil
import struct

import waste

SIZES = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1}


def digests(path):
    out = {}
    for name in os.listdir(path):
        with open(os.path.join(path, name), "rb") as f:
            out[name] = hashlib.sha256(f.read()).hexdigest()
    return out


def load_json(*path):
    with open(os.path.join(*path)) as f:
        return json.load(f)


def read_shard(path):
    """The header and the data of a safetensors file."""
    with open(path, "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        assert n % 8 == 0
        return json.loads(f.read(n)), f.read()


def write_shard(path, head, data):
    raw = json.dumps(head).encode() if isinstance(head, dict) else head
    raw += b" " * (-len(raw) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(raw)) + raw + data)


def release(path):
    """Tensors of a release: {name: (dtype, shape, bytes)}, every rule of the file format checked."""
    index = load_json(path, "model.safetensors.index.json")
    out, total = {}, 0
    for shard in sorted(set(index["weight_map"].values())):
        head, data = read_shard(os.path.join(path, shard))
        end = 0
        assert head.pop("__metadata__") == {"format": "pt"}
        for name, t in head.items():
            a, b = t["data_offsets"]
            size = SIZES[t["dtype"]]
            for side in t["shape"]:
                size *= side
            assert index["weight_map"][name] == shard and a == end and b - a == size, name
            out[name], end, total = (t["dtype"], t["shape"], data[a:b]), b, total + size
        assert end == len(data)
    assert set(out) == set(index["weight_map"]) and total == index["metadata"]["total_size"]
    return out


def write_release(path, tensors, config, shards=2):
    """The other way round: {name: (dtype, shape, bytes)} in so many shards, with the small files of a release.

    Tokens: the bytes, pairs of bytes, and 16 specials at the end."""
    os.makedirs(path)
    names = list(tensors)
    step = -(-len(names) // shards)
    weight_map, total = {}, 0
    for i in range(shards):
        name = "model-%05d-of-%05d.safetensors" % (i + 1, shards)
        head, data = {"__metadata__": {"format": "pt"}}, b""
        for n in names[i * step:(i + 1) * step]:
            dtype, shape, raw = tensors[n]
            head[n] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
            weight_map[n] = name
        total += len(data)
        write_shard(os.path.join(path, name), head, data)
    ranks = config.get("text_config", config)["vocab_size"] - 16
    added = {str(ranks + i): {"content": "<|special_%d|>" % i} for i in range(16)}
    for name, content in (("model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map}),
                          ("config.json", config), ("tokenizer_config.json", {"added_tokens_decoder": added})):
        with open(os.path.join(path, name), "w") as f:
            json.dump(content, f)
    with open(os.path.join(path, "tiktoken.model"), "wb") as f:
        for r in range(ranks):
            token = bytes([r]) if r < 256 else bytes([r >> 8, r & 255])
            f.write(base64.b64encode(token) + b" %d\n" % r)


def values(dtype, data):
    """The numbers of a tensor of a release."""
    if dtype == "BF16":
        return waste.floats(b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2)))
    if dtype == "F32":
        return waste.floats(data)
    return array.array("f", struct.unpack("<%de" % (len(data) // 2), data))


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def mxfp4(packed, scales):
    """32 values a scale: two a byte, low nibble first, times 2^(scale - 127)."""
    out = array.array("f")
    for g, e in enumerate(scales):
        s = 2.0 ** (e - 127)
        for b in packed[16 * g:16 * g + 16]:
            out.append(E2M1[b & 15] * s)
            out.append(E2M1[b >> 4] * s)
    return out


def weight(tensors, name):
    """A tensor of a release by the name it has in a container: (shape, values)."""
    if name in tensors:
        dtype, shape, data = tensors[name]
        return shape, values(dtype, data)
    _, shape, packed = tensors[name + "_packed"]
    return [*shape[:-1], shape[-1] * 2], mxfp4(packed, tensors[name + "_scale"][2])


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def quantised(values, rows, cols, bits):
    """The writer's rule in so many words: the payload and the scales of a matrix."""
    most, stored, payload, scales = {8: 127, 4: 7, 3: 3}[bits], {8: 0, 4: 8, 3: 4}[bits], bytearray(), bytearray()
    for r in range(rows):
        row, stream = values[r * cols:(r + 1) * cols], []
        for c in range(0, cols, 128):
            group = list(row[c:c + 128])
            scale = max(f32(max(map(abs, group)) / most), f32(1e-8))
            stream += [round(f32(v / scale)) + stored for v in group] + [stored] * (128 - len(group))
            scales += struct.pack("<e", scale)
        if bits == 8:
            payload += struct.pack("<%db" % len(stream), *stream)
        else:
            whole = 0
            for i, q in enumerate(stream):
                whole |= q << bits * i
            payload += whole.to_bytes(len(stream) * bits // 8, "little") + (b"\0" if bits == 3 else b"")
    return bytes(payload), bytes(scales)


class Container:
    """Expert matrices of a container, by FORMAT."""

    def __init__(self, path):
        self.path, self.manifest = path, load_json(path, "manifest.json")
        q = self.manifest["expert_quant"]
        self.stages, self.bits = q["stages"], q["index_bits"]
        with open(os.path.join(path, "codebooks.bin"), "rb") as f:
            raw = f.read()
        size = 16 + q["entries"] * 16
        self.books = []
        for i in range(len(raw) // size):
            magic, number, fmt, dim, entries, zero = struct.unpack_from("<IHBBII", raw, i * size)
            assert (magic, number, dim, entries, zero) == (0x4B424357, i, 8, q["entries"], 0)
            v = struct.unpack_from("<%de" % (entries * 8), raw, i * size + 16)
            self.books.append([v[j:j + 8] for j in range(0, len(v), 8)])

    def expert(self, layer, expert, shapes):
        """The three matrices of a record, each a list of rows; shapes: [(rows, cols)] of gate, up, down."""
        meta = self.manifest["layers"][str(layer)]
        stride = meta["bytes"] // meta["experts"]
        with open(os.path.join(self.path, meta["file"]), "rb") as f:
            f.seek(expert * stride)
            rec = f.read(stride)
        h = struct.unpack_from("<IHHBBHHHIIIIIIII", rec)
        assert h[:3] == (0x50584557, layer, expert) and h[8] * 4096 == stride
        out, at, size = [], h[12], 3 if self.bits == 6 else self.stages
        for kind, (rows, cols) in enumerate(shapes):
            books = self.books[h[5] + kind * self.stages:h[5] + (kind + 1) * self.stages]
            matrix = []
            for r in range(rows):
                scale, = struct.unpack_from("<e", rec, at + 2 * r)
                row = []
                for p in range(cols // 8):
                    i = h[9 + kind] + ((r // 64 * (cols // 8) + p) * 64 + r % 64) * size
                    code = list(rec[i:i + size])
                    if self.bits == 6:
                        b0, b1, b2 = code
                        code = [b0 & 63, b0 >> 6 | (b1 & 15) << 2, b1 >> 4 | (b2 & 3) << 4, b2 >> 2]
                    row += [scale * sum(v) for v in zip(*(b[c] for b, c in zip(books, code)))]
                matrix.append(row)
            out.append(matrix)
            at += 2 * rows
        return out


SMALL = {"tiny-k3": {"num_experts": 10}, "tiny-linear": {"num_experts": 6, "num_hidden_layers": 4, "moe_intermediate_size": 64},
         "tiny-odd-k3": {}, "tiny-odd": {"num_hidden_layers": 4}}


class Test(waste.Test):
    """Small releases, and converting them."""

    def convert(self, *args, **kw):
        return waste.waste_run("convert", *args, program=waste.FETCH, **kw)

    def out(self, name):
        path = os.path.join(waste.scratch(), name)
        shutil.rmtree(path, ignore_errors=True)
        return path

    def made(self, shape, *options):
        """A release of a small shape's parts with fewer and smaller experts, made on first use."""
        path = os.path.join(waste.scratch(), "-".join(("release", shape) + options))
        if not os.path.exists(path):
            config = dict(load_json(waste.synth(shape), "synth.json")["config"], **SMALL[shape])
            with open(path + ".json", "w") as f:
                json.dump(config, f)
            self.ok(waste.waste_run("synth", "-q", "--checkpoint", "--shape", path + ".json", *options, path, program=waste.FETCH))
        return path
