"""A server of files over HTTP/1.1 that misbehaves as it is told, and notes what it was asked.

The whole protocol is written out here (no http.server), so that every lie is possible: a Fault changes one thing about
one or several answers. Threads; one connection each.
"""
import hashlib
import json
import re
import socket
import ssl
import threading
import time
import urllib.parse


class Fault:
    """What is wrong with the answers to paths that match; `times` of them, then all is well. Methods: GET unless said.

    cut=N            the connection ends after N bytes of body
    stall=N          nothing more comes after N bytes
    drip=N           N bytes a second
    pace=S           S seconds after every 64 KiB
    length=N         Content-Length says so, whatever is sent
    no_range=True    200 and the whole file, whatever was asked for
    range_shift=N    the part begins N bytes later than asked for, and says so
    range_total=N    Content-Range lies about the size
    if_range=False   the validator is not looked at
    status=N         an answer of that status; retry_after=S (or what makes one) beside it; body=TEXT
    chunked=True     no length, chunks
    close=True       no length, no chunks, HTTP/1.0
    encoding=NAME    Content-Encoding
    more=N           N bytes too many, in chunks
    page=True        a page of HTML with 200
    corrupt=N        the byte at N is another
    location=URL     a redirection
    headers={}       more headers
    endless=True     headers without end
    """

    def __init__(self, path, times=1 << 30, method="GET", **what):
        self.path, self.times, self.method, self.what = re.compile(path), times, method, what


class Request:
    def __init__(self, method, path, headers):
        self.method, self.path, self.headers = method, path, headers
        self.time = time.monotonic()

    def __repr__(self):
        return "%s %s" % (self.method, self.path)


class Server:
    """files: {path: bytes}; a path begins with /."""

    def __init__(self, files, tls=None, etags=True):
        self.files, self.faults, self.requests, self.etags = dict(files), [], [], etags
        self.etag_of = {}
        self.modified = False
        self.lock = threading.Lock()
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.socket.getsockname()[1]
        self.tls = tls
        self.running = True
        self.connections = set()
        self.most_at_once = 0
        self.acceptor = threading.Thread(target=self.accept, daemon=True)
        self.acceptor.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.running = False
        self.socket.shutdown(socket.SHUT_RDWR)  # close alone does not wake it, and its descriptor is the next server's
        self.acceptor.join()
        self.socket.close()
        with self.lock:
            for c in self.connections:
                try:
                    c.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    @property
    def url(self):
        return "http%s://127.0.0.1:%d" % ("s" if self.tls else "", self.port)

    def fault(self, path, *args, **what):
        self.faults.append(Fault(path, *args, **what))

    def asked(self, path=".*", method="GET"):
        with self.lock:
            return [r for r in self.requests if r.method == method and re.fullmatch(path, r.path)]

    def accept(self):
        while self.running:
            try:
                c, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(c,), daemon=True).start()

    def serve(self, c):
        with self.lock:
            self.connections.add(c)
        raw = c
        try:
            c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls:
                c = self.tls.wrap_socket(c, server_side=True)
            reader = c.makefile("rb")
            while self.running and self.one(c, reader):
                pass
        except (OSError, ssl.SSLError, ValueError):
            pass
        finally:
            with self.lock:
                self.connections.discard(raw)
            try:
                c.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            c.close()

    def one(self, c, reader):
        line = reader.readline().decode("latin-1").split()
        if len(line) < 3:
            return False
        headers = {}
        while True:
            h = reader.readline().decode("latin-1").strip()
            if not h:
                break
            name, _, value = h.partition(":")
            headers[name.strip().lower()] = value.strip()
        method, target = line[0], line[1]
        if "://" in target:                                    # asked as a proxy
            target = target.split("://", 1)[1]
            target = target[target.index("/"):] if "/" in target else "/"
        request = Request(method, target, headers)
        what = {}
        with self.lock:
            self.requests.append(request)
            for f in self.faults:
                if f.times > 0 and f.method == method and f.path.fullmatch(target):
                    f.times -= 1
                    what = f.what
                    break
        return self.answer(c, request, what)

    def content(self, request):
        path, _, query = request.path.partition("?")
        data = self.files.get(request.path, self.files.get(urllib.parse.unquote(path)))
        return data

    def etag(self, path, data):
        return self.etag_of.get(path.partition("?")[0], '"%s"' % hashlib.md5(data).hexdigest())

    def answer(self, c, request, what):
        if what.get("endless"):
            c.sendall(b"HTTP/1.1 200 OK\r\n")
            for _ in range(1 << 20):
                c.sendall(b"X-More: " + b"y" * 1000 + b"\r\n")
        head = dict(what.get("headers", {}))
        data = self.content(request)
        status = what.get("status", 200)
        if "location" in what:
            status, data = what.get("status", 302), b"moved"
            head["Location"] = what["location"]
        elif "status" in what:
            data = what.get("body", "no").encode()
            if "retry_after" in what:
                after = what["retry_after"]
                head["Retry-After"] = after() if callable(after) else after
        elif what.get("page"):
            data = b"<!DOCTYPE html><html>sign in</html>"
            head["Content-Type"] = "text/html; charset=utf-8"
        elif data is None:
            status, data = 404, b"not found"
        if status == 200:
            status, data = self.part(request, data, what, head)
        return self.send(c, request, status, head, data, what)

    def part(self, request, data, what, head):
        etag, whole = self.etag(request.path, data), data
        if self.etags and "page" not in what:
            head.setdefault("ETag", etag)
        if self.modified:
            head["Last-Modified"] = self.modified
        m = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
        if "corrupt" in what and what["corrupt"] < len(data):
            at = what["corrupt"]
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
        if not m or what.get("no_range") or what.get("page"):
            return 200, data
        condition = request.headers.get("if-range")
        if condition and what.get("if_range", True) and condition not in (etag, self.modified):
            return 200, data
        first = int(m.group(1)) + what.get("range_shift", 0)
        if first >= len(data):
            head["Content-Range"] = "bytes */%d" % len(data)
            return 416, b""
        head["Content-Range"] = "bytes %d-%d/%d" % (first, len(data) - 1, what.get("range_total", len(whole)))
        return 206, data[first:]

    def send(self, c, request, status, head, data, what):
        version = "HTTP/1.0" if what.get("close") else "HTTP/1.1"
        data += b"?" * what.get("more", 0)
        if "encoding" in what:
            head["Content-Encoding"] = what["encoding"]
        if what.get("chunked") or what.get("more"):
            head["Transfer-Encoding"] = "chunked"
        elif not what.get("close"):
            head["Content-Length"] = str(what.get("length", len(data)))
        text = "%s %d X\r\n" % (version, status) + "".join("%s: %s\r\n" % h for h in head.items()) + "\r\n"
        c.sendall(text.encode("latin-1"))
        if request.method == "HEAD":
            return True
        return self.send_body(c, data, what, "Transfer-Encoding" in head)

    def send_body(self, c, data, what, chunked):
        end = min(len(data), what.get("cut", len(data)), what.get("stall", len(data)))
        step = what["drip"] if "drip" in what else 65536
        for at in range(0, end, step):
            piece = data[at:min(at + step, end)]
            c.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            time.sleep(1 if "drip" in what else what.get("pace", 0))
        if "stall" in what:
            while self.running:
                time.sleep(0.05)
            return False
        if "cut" in what or what.get("close") or "length" in what:
            return False
        if chunked:
            c.sendall(b"0\r\n\r\n")
        return True


def git_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def hub_listing(files, large=".safetensors", commit=COMMIT, **changes):
    """The answer of a hub to ?blobs=true; files: {name: bytes}."""
    siblings = []
    for name, data in files.items():
        s = {"rfilename": name, "size": len(data), "blobId": git_id(data)}
        if name.endswith(large):
            s["blobId"] = "f" * 40
            s["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        siblings.append(s)
    return json.dumps(dict({"id": "some/model", "sha": commit, "siblings": siblings}, **changes)).encode()


def hub(files, repo="some/model", revision="main", commit=COMMIT, listing=None, **kw):
    """A server of one repository."""
    paths = {"/%s/resolve/%s/%s" % (repo, commit, name): data for name, data in files.items()}
    api = "/api/models/%s/revision/%s?blobs=true" % (repo, revision)
    paths[api] = listing if listing is not None else hub_listing(files, commit=commit)
    return Server(paths, **kw)


def plain(files, at="/m", **kw):
    """A server of one directory."""
    return Server({"%s/%s" % (at, name): data for name, data in files.items()}, **kw)


def safetensors(count, size, random):
    """A file of `count` tensors of `size` bytes each."""
    header = {"t%d" % i: {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]} for i in range(count)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + random.randbytes(count * size)


def checkpoint(random, shards=3, size=200000):
    """{name: bytes}: shards with their index, and small files."""
    names = ["model-%05d-of-%05d.safetensors" % (i + 1, shards) for i in range(shards)]
    files = {n: safetensors(2, size // 2, random) for n in names}
    index = {"metadata": {"total_size": shards * size}, "weight_map": {"%s.t%d" % (n, i): n for n in names for i in range(2)}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    files["config.json"] = b'{"model_type": "kimi_linear"}'
    files["tiktoken.model"] = random.randbytes(1000)
    return files
