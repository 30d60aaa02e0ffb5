"""waste-fetch convert from a hub or a URL: shards are fetched, converted and dropped as it goes."""
import filecmp
import hashlib
import os
import shutil
import sys
import threading
import time

import faulty_server as fs
import waste

REPO = "some/model"
QUICK = ("--effort", "0", "--retry-wait", "0.01")


def files_of(path):
    found = {}
    for name in os.listdir(path):
        with open(os.path.join(path, name), "rb") as f:
            found[name] = f.read()
    return found


class Watch:
    """The most bytes of shards that lay in OUT/.staging at a time, and the most files."""

    def __init__(self, out):
        self.path, self.bytes, self.files, self.over = os.path.join(out, ".staging"), 0, 0, False

    def __enter__(self):
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.over = True
        self.thread.join()

    def run(self):
        while not self.over:
            sizes = []
            try:
                with os.scandir(self.path) as entries:
                    sizes = [e.stat().st_size for e in entries if ".safetensors" in e.name]
            except OSError:
                pass
            self.bytes, self.files = max(self.bytes, sum(sizes)), max(self.files, len(sizes))
            time.sleep(0.002)


class Remote(waste.Test):
    @classmethod
    def setUpClass(cls):
        cls.base = os.path.join(waste.scratch(), "remote")
        os.makedirs(cls.base, exist_ok=True)
        cls.release = os.path.join(cls.base, "release")
        if os.path.exists(cls.release):
            return
        cls.fetch("synth", "-q", "--checkpoint", "--shape", "tiny-odd-k3", "--layers", 4, "--shard-size", "250k", cls.release)
        cls.fetch("convert", "-q", *QUICK, cls.release, os.path.join(cls.base, "local"))

    @classmethod
    def fetch(cls, *args):
        r = waste.waste_run(*args, program=waste.FETCH)
        if r.code:
            raise AssertionError(str(r))
        return r

    def setUp(self):
        self.files = files_of(self.release)
        self.shards = sorted(n for n in self.files if n.endswith(".safetensors"))
        self.local = os.path.join(self.base, "local")
        self.out = os.path.join(self.base, self.id().rsplit(".", 1)[1])
        shutil.rmtree(self.out, ignore_errors=True)

    def environment(self, server):
        return dict(os.environ, HF_ENDPOINT=server.url, no_proxy="127.0.0.1")

    def convert(self, server, *options, source=REPO):
        return waste.waste_run("convert", "-q", *QUICK, *options, source, self.out, program=waste.FETCH,
                               env={"HF_ENDPOINT": server.url, "no_proxy": "127.0.0.1"})

    def start(self, server):
        return waste.Process([waste.FETCH, "convert", "-q", *QUICK, REPO, self.out], env=self.environment(server))

    def assert_same(self, want=None):
        want = want or self.local
        self.assertEqual(sorted(os.listdir(self.out)), sorted(os.listdir(want)))
        _, different, errors = filecmp.cmpfiles(want, self.out, os.listdir(want), shallow=False)
        self.assertEqual((different, errors), ([], []))

    def whole_fetches(self, server):
        """How often each shard was begun with, the looks at headers left out."""
        return {n: len([r for r in server.asked(".*" + n) if r.headers.get("range", "").startswith("bytes=0-") is False
                        and "range" not in r.headers]) for n in self.shards}

    def test_from_a_hub_it_is_the_same_container(self):
        self.assertGreater(len(self.shards), 12)
        with fs.hub(self.files) as s, Watch(self.out) as w:
            self.ok(self.convert(s))
        self.assert_same()
        self.assertEqual(set(self.whole_fetches(s).values()), {1})
        print("staged: at most %d of %d shards, %d of %d bytes"
              % (w.files, len(self.shards), w.bytes, sum(len(self.files[n]) for n in self.shards)), file=sys.stderr)
        self.assertGreater(w.files, 0)
        self.assertLess(w.bytes, 0.75 * sum(len(self.files[n]) for n in self.shards))

    def test_from_a_url_with_and_without_sums(self):
        sums = "".join("%s  %s\n" % (hashlib.sha256(d).hexdigest(), n) for n, d in self.files.items()).encode()
        for files in (self.files, dict(self.files, SHA256SUMS=sums)):
            with self.subTest(len(files)), fs.plain(files) as s:
                shutil.rmtree(self.out, ignore_errors=True)
                self.ok(self.convert(s, source=s.url + "/m"))
                self.assert_same()

    def test_a_server_without_sizes_and_ranges(self):
        with fs.plain(self.files) as s:
            s.fault(".*", method="HEAD", status=405)
            s.fault(".*", no_range=True)
            self.ok(self.convert(s, source=s.url + "/m"))
            self.assert_same()

    def test_bad_connections(self):
        with fs.hub(self.files) as s:
            for i, n in enumerate(self.shards):
                s.fault(".*" + n, 2, **[{"cut": 100000}, {"status": 503}, {"corrupt": len(self.files[n]) - 1},
                                                {"page": True}, {"length": 5}][i % 5])
            self.ok(self.convert(s))
            self.assert_same()

    def test_a_header_that_is_another_at_first(self):
        """The list was made of what came first, so it must be what comes whole. (A hub's sums would tell at once.)"""
        with fs.plain(self.files) as s:
            name = self.shards[2]
            at = self.files[name].index(b'"data_offsets"') + 2
            s.fault(".*" + name, 1, corrupt=at)
            self.refused(self.convert(s, source=s.url + "/m"), name, codes=(1,))
            s.faults.clear()
            shutil.rmtree(self.out, ignore_errors=True)
            self.ok(self.convert(s, source=s.url + "/m"))
            self.assert_same()

    def test_killed_anywhere(self):
        rng = waste.seed()
        kills, began, parts = (100 if waste.LONG else 8), 0, 0
        with fs.hub(self.files) as s:
            s.fault(".*safetensors", pace=0.003)
            begin = time.monotonic()
            self.ok(self.convert(s))
            whole = time.monotonic() - begin                   # what this machine takes just now
            shutil.rmtree(self.out)
            for _ in range(kills):
                p = self.start(s)
                time.sleep(rng.random() * whole * 0.8)
                over = p.poll() is not None
                p.kill()
                p.communicate()
                if over:
                    whole *= 0.7                               # it is quicker now
                    self.assert_same()
                    shutil.rmtree(self.out)
                    continue
                began += os.path.exists(os.path.join(self.out, "manifest.json"))
                parts += os.path.exists(os.path.join(self.out, ".staging"))
            self.ok(self.convert(s))
            self.assert_same()
        print("%d kills, %d with layers done, %d with shards staged" % (kills, began, parts), file=sys.stderr)
        self.assertGreater(began + parts, 0)

    def test_a_run_that_is_gone_on_with_fetches_no_more_than_it_must(self):
        with fs.hub(self.files) as s:
            last = self.shards[-3]
            s.fault(".*" + last, 1)                            # its header may be seen
            s.fault(".*" + last, status=404)
            self.refused(self.convert(s), last, codes=(1,))
            s.faults.clear()
            before = len(s.requests)
            self.ok(self.convert(s))
            self.assert_same()
            self.assertEqual({n: c for n, c in self.whole_fetches(s).items() if c not in (1, 2) and n != last}, {})
            again = [r.path.rsplit("/")[-1] for r in s.requests[before:] if r.path.endswith(".safetensors")]
            self.assertEqual(len(again), len(set(again)))      # headers were kept: one request a shard
            self.assertLess(len(again), len(self.shards))

    def test_the_commit_stays_while_the_branch_moves(self):
        with fs.hub(self.files) as s:
            s.fault(".*" + self.shards[5], 1)
            s.fault(".*" + self.shards[5], status=404)
            self.refused(self.convert(s), self.shards[5], codes=(1,))
            s.faults.clear()
            s.files["/api/models/some/model/revision/main?blobs=true"] = fs.hub_listing(self.files, commit="e" * 40)
            self.ok(self.convert(s))
            self.assert_same()

    def test_some_layers_need_some_shards(self):
        local = os.path.join(self.base, "part")
        shutil.rmtree(local, ignore_errors=True)
        self.fetch("convert", "-q", *QUICK, "--layers", "2-2", self.release, local)
        with fs.hub(self.files) as s:
            self.ok(self.convert(s, "--layers", "2-2"))
            os.unlink(os.path.join(self.out, "convert.source"))  # for another run, and the commit
            self.assertEqual(os.listdir(os.path.join(self.out, ".staging")), [".waste-fetch.json"])
            shutil.rmtree(os.path.join(self.out, ".staging"))
        self.assert_same(local)
        fetched = self.whole_fetches(s)
        self.assertLess(sum(fetched.values()), len(self.shards))
        self.assertGreater(sum(fetched.values()), 0)

    def test_what_is_wrong_is_said_before_anything_is_made(self):
        with fs.hub(self.files) as s:
            self.refused(self.convert(s, "--reclaim", "on"), "--reclaim", codes=(1, 2))
            self.refused(self.convert(s, "--revision", "../x"), codes=(1, 2))
            self.refused(self.convert(s, source="no/such"), "404", codes=(1,))
            self.assertFalse(os.path.exists(self.out))
        files = {n: d for n, d in self.files.items() if n != "config.json"}
        with fs.hub(files) as s:
            self.refused(self.convert(s), "config.json", codes=(1,))
        files = dict(self.files)
        files[self.shards[0]] = b"\xff" * 100
        with fs.hub(files) as s:
            self.refused(self.convert(s), self.shards[0], codes=(1,))
            self.assertFalse(os.path.exists(self.out))

    def test_dry_run_fetches_headers_only(self):
        with fs.hub(self.files) as s:
            self.ok(waste.waste_run("convert", "--dry-run", REPO, self.out, program=waste.FETCH, env={"HF_ENDPOINT": s.url}))
            self.assertFalse(os.path.exists(self.out))
            self.assertEqual(set(self.whole_fetches(s).values()), {0})


if __name__ == "__main__":
    waste.main(waste.FETCH)
