"""waste-fetch get against servers that cut, stall, lie and refuse; what is fetched is compared with what they have."""
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import time

import faulty_server as fs
import waste

REPO = "some/model"
INDEX = "model.safetensors.index.json"
SHARDS = ["model-%05d-of-00003.safetensors" % (i + 1) for i in range(3)]
CATALOG = ".waste-fetch.json"
FILES = fs.checkpoint(random.Random(7))


class Get(waste.Test):
    def setUp(self):
        self.dest = os.path.join(waste.scratch(), self.id().rsplit(".", 1)[1])
        shutil.rmtree(self.dest, ignore_errors=True)

    def environment(self, server, **more):
        env = dict(os.environ, HF_ENDPOINT=server.url if server else "http://127.0.0.1:9")
        env.update(more)
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
            if name not in more:
                env.pop(name, None)
        if "HF_TOKEN" not in more:
            env.pop("HF_TOKEN", None)
        return env

    def argv(self, source, *options, dest=None):
        return [waste.FETCH, "get", source, dest or self.dest, "--retry-wait", "0.01", *map(str, options)]

    def get(self, server, *options, source=None, dest=None, env={}, **kw):
        p = waste.Process(self.argv(source or REPO, *options, dest=dest), env=self.environment(server, **env), **kw)
        return waste.finish(p)

    def plain(self, server, *options, **kw):
        return self.get(server, *options, source=server.url + "/m", **kw)

    def here(self, dest=None):
        """{name: bytes} of what is in DEST, the catalog left out."""
        found = {}
        dest = dest or self.dest
        for base, _, names in os.walk(dest):
            for n in names:
                path = os.path.join(base, n)
                name = os.path.relpath(path, dest)
                if name != CATALOG:
                    with open(path, "rb") as f:
                        found[name] = f.read()
        return found

    def assert_files(self, files=FILES, dest=None):
        found = self.here(dest)
        self.assertEqual(sorted(found), sorted(files))
        for name in files:
            self.assertTrue(found[name] == files[name], name + " differs")

    def catalog(self):
        with open(os.path.join(self.dest, CATALOG)) as f:
            return json.load(f)

    def part(self, name, data, etag=None, done=()):
        """Puts a partial file beside a catalog that says so."""
        with open(os.path.join(self.dest, name + ".part"), "wb") as f:
            f.write(data)
        catalog = self.catalog()
        entry = catalog["files"][name]
        entry.pop("done", None)
        entry.pop("actual", None)
        if etag:
            entry["etag"] = etag
        with open(os.path.join(self.dest, CATALOG), "w") as f:
            json.dump(catalog, f)
        if os.path.exists(os.path.join(self.dest, name)):
            os.unlink(os.path.join(self.dest, name))


def half(name):
    return FILES[name][:len(FILES[name]) // 2]


def etag(data):
    return '"%s"' % hashlib.md5(data).hexdigest()


class Sources(Get):
    def test_a_repository_of_a_hub(self):
        with fs.hub(FILES) as s:
            self.ok(self.get(s))
            self.assert_files()
            self.assertEqual(self.catalog()["revision"], fs.COMMIT)

    def test_what_is_done_costs_no_request(self):
        with fs.hub(FILES) as s:
            self.ok(self.get(s))
            asked = len(s.requests)
            self.ok(self.get(s))
            self.assertEqual(len(s.requests), asked)
        r = self.ok(self.get(None, env={"HF_ENDPOINT": s.url}))   # nor a server
        self.assertIn(fs.COMMIT.encode(), r.out)

    def test_a_file_that_is_gone_is_fetched_alone(self):
        with fs.hub(FILES) as s:
            self.ok(self.get(s))
            asked = len(s.requests)
            os.unlink(os.path.join(self.dest, SHARDS[1]))
            self.ok(self.get(s))
            self.assert_files()
            self.assertEqual([r.path.rsplit("/")[-1] for r in s.requests[asked:]], [SHARDS[1]])

    def test_a_url_whose_index_names_the_shards(self):
        with fs.plain(FILES) as s:
            self.ok(self.plain(s))
            self.assert_files()

    def test_a_url_may_name_the_index_and_have_a_query(self):
        files = dict(FILES)
        with fs.Server({"/m/%s?sig=s3cret" % n: d for n, d in files.items()}) as s:
            r = self.ok(self.get(s, source=s.url + "/m/%s?sig=s3cret" % INDEX))
            self.assert_files()
            with open(os.path.join(self.dest, CATALOG)) as f:
                self.assertNotIn("s3cret", f.read() + (r.out + r.err).decode())

    def test_a_url_with_sums_has_a_listing(self):
        files = dict(FILES, **{"docs/deep/notes.txt": b"notes", "unusual.name": b"x"})
        sums = "".join("%s  %s\n" % (hashlib.sha256(d).hexdigest(), n) for n, d in files.items())
        with fs.plain(dict(files, SHA256SUMS=sums.encode())) as s:
            self.ok(self.plain(s))
            self.assert_files(files)
            s.fault(".*", status=500)
            self.ok(self.plain(s, "--check"))

    def test_one_file_without_an_index(self):
        files = {"model.safetensors": FILES[SHARDS[0]], "config.json": b"{}"}
        for server in (fs.plain(files), fs.hub(files)):
            with self.subTest(server.port), server as s:
                shutil.rmtree(self.dest, ignore_errors=True)
                self.ok(self.plain(s) if "/m/config.json" in s.files else self.get(s))
                self.assert_files(files)

    def test_nothing_of_the_kind(self):
        with fs.hub({"README.md": b"x"}) as s:
            self.refused(self.get(s), "neither", INDEX, codes=(1,))
        with fs.plain({"README.md": b"x"}) as s:
            self.refused(self.plain(s), "404", codes=(1,))
        with fs.hub(FILES) as s:
            self.refused(self.get(s, source="no/such"), "404", codes=(1,))

    def test_a_directory_for_nothing_does_not_stay(self):
        with fs.hub(FILES) as s:
            for run in (lambda dest: self.get(s, source="no/such", dest=dest), lambda dest: self.plain(s, dest=dest),
                        lambda dest: self.get(s, "--include", "none*", dest=dest)):
                dest = os.path.join(waste.scratch(), "for-nothing")
                self.refused(run(dest), codes=(1,))
                self.assertFalse(os.path.exists(dest))
                os.mkdir(dest)                                 # it is not ours to remove
                self.refused(run(dest), codes=(1,))
                self.assertEqual(os.listdir(dest), [])
                os.rmdir(dest)

    def test_a_place_that_will_not_do_is_wrong_use(self):
        path = os.path.join(waste.scratch(), "a-file")
        with open(path, "w") as f:
            f.write("mine")
        with fs.hub(FILES) as s:
            for dest in (path, os.path.join(path, "x"), os.path.join(waste.scratch(), "no", "parent")):
                self.refused(self.get(s, dest=dest), dest, codes=(2,))

    def test_a_shard_that_is_missing_is_named(self):
        files = {n: d for n, d in FILES.items() if n != SHARDS[1]}
        with fs.hub(files) as s:
            self.refused(self.get(s), SHARDS[1], codes=(1, 2))
        with fs.plain(files) as s:
            self.refused(self.plain(s), SHARDS[1], "404", codes=(1,))

    def test_hidden_files_and_other_weights_are_left_out_unless_included(self):
        files = dict(FILES, **{"pytorch_model.bin": b"0" * 99, ".gitattributes": b"x", "onnx/model.onnx": b"y",
                               "original.safetensors": FILES[SHARDS[0]]})
        with fs.hub(files) as s:
            self.ok(self.get(s))
            self.assert_files()
            self.ok(self.get(s, "--include", "onnx/*", "--include", "*.bin"))
            self.assert_files(dict(FILES, **{n: files[n] for n in ("onnx/model.onnx", "pytorch_model.bin")}))

    def test_include_and_exclude(self):
        with fs.hub(FILES) as s:
            self.ok(self.get(s, "--include", "*.json", "--exclude", "config*"))
            self.assertEqual(sorted(self.here()), [INDEX])
            self.refused(self.get(s, "--include", "none*"), "--include", codes=(1,))

    def test_a_branch_stays_at_the_commit_it_was_at(self):
        newer = dict(FILES, **{"config.json": b'{"other": 1}'})
        with fs.hub(FILES) as s:
            self.ok(self.get(s, "--exclude", SHARDS[2]))
            other = "f" * 40
            s.files["/api/models/some/model/revision/main?blobs=true"] = fs.hub_listing(newer, commit=other)
            s.files.update({"/some/model/resolve/%s/%s" % (other, n): d for n, d in newer.items()})
            self.ok(self.get(s))
            self.assert_files()

    def test_a_revision(self):
        with fs.hub(FILES, revision="feature%2Fx") as s:
            self.ok(self.get(s, "--revision", "feature/x"))
            self.assert_files()
            self.assertEqual((self.catalog()["revision_asked"], self.catalog()["revision"]), ("feature/x", fs.COMMIT))
            self.ok(self.get(s, "--revision", fs.COMMIT))
            self.refused(self.get(s, "--revision", "other"), fs.COMMIT, codes=(2,))
            for bad in ("", "../x", "a b", "x\n"):
                self.refused(self.get(s, "--revision", bad), codes=(2,))
            self.refused(self.plain(s, "--revision", "main"), "--revision", codes=(2,))

    def test_another_source_is_refused(self):
        with fs.hub(FILES) as s:
            self.ok(self.get(s))
            self.refused(self.get(s, source="other/model"), REPO, codes=(2,))
            self.assert_files()

    def test_names_are_escaped(self):
        files = dict(FILES, **{"a b#c?d%41.txt": b"1", "ünï/codé.txt": b"2"})
        with fs.hub(files) as s:
            self.ok(self.get(s))
            self.assert_files(files)

    def test_wrong_use(self):
        for source in ("ftp://host/x", "no-slash", "a/b/c", "http://", "file:///etc/passwd", "../x", "/etc", "a/.."):
            with self.subTest(source):
                self.refused(self.get(None, source=source), codes=(2,))
                self.assertFalse(os.path.exists(self.dest))
        self.refused(self.get(None, "--jobs", 0), "--jobs", codes=(2,))
        self.refused(self.get(None, "--check", "--dry-run"), codes=(2,))
        self.refused(self.get(None, env={"HF_ENDPOINT": "nonsense"}), "HF_ENDPOINT", codes=(2,))


class Transfers(Get):
    def test_a_cut_connection_is_gone_on_with(self):
        with fs.hub(FILES) as s:
            s.fault(".*" + SHARDS[0], 3, cut=30000)
            self.ok(self.get(s))
            self.assert_files()
            ranges = [r.headers.get("range") for r in s.asked(".*" + SHARDS[0])]
            self.assertEqual(ranges, [None, "bytes=30000-", "bytes=60000-", "bytes=90000-"])
            self.assertEqual({r.headers.get("if-range") for r in s.asked(".*" + SHARDS[0])[1:]}, {etag(FILES[SHARDS[0]])})

    def test_a_stalled_connection_is_given_up(self):
        with fs.hub(FILES) as s:
            s.fault(".*" + SHARDS[0], 1, stall=1000)
            s.fault(".*" + SHARDS[1], 1, drip=100)
            self.ok(self.get(s, "--stall", 3))
            self.assert_files()
            self.assertEqual(len(s.asked(".*" + SHARDS[0])), 2)
            self.assertEqual(len(s.asked(".*" + SHARDS[1])), 2)

    def test_a_server_that_only_stalls_is_an_error(self):
        with fs.hub(FILES) as s:
            s.fault(".*" + SHARDS[0], stall=0)
            self.refused(self.get(s, "--stall", 3, "--retries", 1), SHARDS[0], codes=(1,))
            self.assertEqual(len(s.asked(".*" + SHARDS[0])), 2)

    def test_a_server_without_ranges_starts_again(self):
        with fs.hub(FILES) as s:
            s.fault(".*" + SHARDS[0], 1, cut=50000)
            s.fault(".*" + SHARDS[0], no_range=True)
            self.ok(self.get(s))
            self.assert_files()

    def test_a_length_that_is_a_lie(self):
        size = len(FILES[SHARDS[0]])
        for length in (size + 5, size - 5, 0, "-1", "x", 1 << 62, str(1 << 70)):
            with self.subTest(length), fs.hub(FILES) as s:
                shutil.rmtree(self.dest, ignore_errors=True)
                s.fault(".*" + SHARDS[0], 1, length=length)
                self.ok(self.get(s))
                self.assert_files()
                if length != str(1 << 70):                     # as good as none, and the listing knows better
                    self.assertGreater(len(s.asked(".*" + SHARDS[0])), 1)

    def test_a_length_that_stays_a_lie_is_an_error(self):
        size = len(FILES[SHARDS[0]])
        with fs.hub(FILES) as s:
            s.fault(".*" + SHARDS[0], length=size - 5)
            self.refused(self.get(s, "--retries", 2), SHARDS[0], str(size), str(size - 5), codes=(1,))
            self.assertNotIn(SHARDS[0], self.here())

    def test_a_wrong_content_range(self):
        """Without a sum that would tell in the end."""
        for what in ({"range_shift": 7}, {"range_total": 5}, {"range_total": 1 << 40}, {"headers": {"Content-Range": "bytes x"}}):
            with self.subTest(str(what)), fs.plain(FILES) as s:
                shutil.rmtree(self.dest, ignore_errors=True)
                s.fault(".*" + SHARDS[0], 1, cut=50000)
                s.fault(".*" + SHARDS[0], 1, **what)
                self.ok(self.plain(s))
                self.assert_files()

    def test_a_part_that_nobody_asked_for(self):
        with fs.plain(FILES) as s:
            s.fault("/m/" + SHARDS[0], 1, status=206, body="x", headers={"Content-Range": "bytes 0-0/9"})
            self.ok(self.plain(s))
            self.assert_files()

    def test_content_that_changes_between_attempts(self):
        """Also with a server that heeds no If-Range: the entity tag of the part tells."""
        for heeds in (True, False):
            with self.subTest(heeds), fs.plain(FILES) as s:
                shutil.rmtree(self.dest, ignore_errors=True)
                path = "/m/" + SHARDS[0]
                self.ok(self.plain(s, "--exclude", SHARDS[0]))
                s.fault(path, 1, cut=50000)
                self.refused(self.plain(s, "--retries", 0), SHARDS[0], codes=(1,))
                self.assertEqual(len(self.here()[SHARDS[0] + ".part"]), 50000)
                s.files[path] = fs.safetensors(2, 100000, random.Random(1))
                self.assertEqual(len(s.files[path]), len(FILES[SHARDS[0]]))
                s.fault(path, if_range=heeds)
                self.ok(self.plain(s))
                self.assert_files(dict(FILES, **{SHARDS[0]: s.files[path]}))

    def test_a_date_will_do_as_a_validator_and_a_weak_tag_will_not(self):
        for weak in (False, True):
            with self.subTest(weak), fs.plain(FILES, etags=weak) as s:
                shutil.rmtree(self.dest, ignore_errors=True)
                s.modified = "Mon, 30 Nov 2026 00:00:00 GMT"
                s.etag_of["/m/" + SHARDS[0]] = 'W/"weak"'
                s.fault("/m/" + SHARDS[0], 1, cut=50000)
                self.ok(self.plain(s))
                self.assert_files()
                last = s.asked("/m/" + SHARDS[0])[-1].headers
                self.assertEqual(last.get("if-range"), None if weak else s.modified)
                self.assertEqual(last.get("range"), None if weak else "bytes=50000-")

    def test_busy_servers(self):
        for status in (429, 503, 500, 502, 504, 408):
            with self.subTest(status), fs.hub(FILES) as s:
                shutil.rmtree(self.dest, ignore_errors=True)
                s.fault("/api.*", 2, status=status)
                s.fault(".*" + SHARDS[0], 2, status=status)
                self.ok(self.get(s))
                self.assert_files()

    def test_retry_after_is_heeded(self):
        def date():
            return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 3))
        for value in ("2", date):
            with self.subTest(str(value)), fs.hub(FILES) as s:
                shutil.rmtree(self.dest, ignore_errors=True)
                s.fault(".*" + SHARDS[0], 1, status=429, retry_after=value)
                self.ok(self.get(s, "--jobs", 1))
                self.assert_files()
                first, second = s.asked(".*" + SHARDS[0])
                self.assertGreater(second.time - first.time, 0.9)
                # and nobody else came in the meantime
                self.assertEqual([r for r in s.requests if first.time < r.time < first.time + 0.9], [])

    def test_a_very_long_wait_is_not_waited(self):
        with fs.hub(FILES) as s:
            s.fault("/api.*", status=429, retry_after="99999999999")
            self.refused(self.get(s), "come back in", codes=(1,))

    def test_attempts_end(self):
        with fs.hub(FILES) as s:
            s.fault(".*" + SHARDS[0], status=503)
            self.refused(self.get(s, "--retries", 3), SHARDS[0], "503", codes=(1,))
            self.assertEqual(len(s.asked(".*" + SHARDS[0])), 4)

    def test_what_no_attempt_will_change_is_not_tried_again(self):
        for status in (400, 401, 403, 404, 410):
            with self.subTest(status), fs.hub(FILES) as s:
                shutil.rmtree(self.dest, ignore_errors=True)
                s.fault(".*" + SHARDS[0], status=status)
                self.refused(self.get(s), SHARDS[0], str(status), codes=(1,))
                self.assertEqual(len(s.asked(".*" + SHARDS[0])), 1)
                self.assertEqual(self.here()[SHARDS[1]], FILES[SHARDS[1]])  # the others are here

    def test_chunks_without_a_length(self):
        with fs.plain(FILES) as s:
            s.fault(".*", chunked=True)
            s.fault(".*", method="HEAD", status=405)
            self.ok(self.plain(s))
            self.assert_files()

    def test_chunks_that_are_cut(self):
        with fs.plain(FILES) as s:
            s.fault("/m/" + SHARDS[0], 2, chunked=True, cut=50000)
            s.fault(".*", method="HEAD", status=405)
            self.ok(self.plain(s))
            self.assert_files()

    def test_an_end_that_cannot_be_told(self):
        with fs.plain(FILES) as s:
            s.fault("/m/" + SHARDS[0], close=True)
            s.fault(".*", method="HEAD", status=405)
            self.refused(self.plain(s), SHARDS[0], "how long", codes=(1,))
        shutil.rmtree(self.dest)
        with fs.hub(FILES) as s:                               # the listing says how long
            s.fault(".*" + SHARDS[0], 1, close=True, cut=50000)
            s.fault(".*" + SHARDS[0], close=True)
            self.ok(self.get(s))
            self.assert_files()

    def test_an_encoding_that_nobody_asked_for(self):
        with fs.hub(FILES) as s:
            s.fault(".*config.json", encoding="gzip")
            self.refused(self.get(s), "config.json", "gzip", codes=(1,))
            self.assertEqual({r.headers.get("accept-encoding") for r in s.requests}, {"identity"})

    def test_too_much(self):
        with fs.hub(FILES) as s:
            s.fault(".*" + SHARDS[0], 1, more=100)
            self.ok(self.get(s))
            self.assert_files()
        shutil.rmtree(self.dest)
        with fs.hub(FILES) as s:
            s.fault(".*" + SHARDS[0], more=100)
            self.refused(self.get(s, "--retries", 2), SHARDS[0], "more than", codes=(1,))

    def test_a_page_in_place_of_a_file(self):
        with fs.plain(FILES) as s:
            s.fault("/m/" + SHARDS[0], 1, page=True)
            s.fault("/m/config.json", 1, page=True, headers={"Content-Type": "application/json"})
            self.ok(self.plain(s))
            self.assert_files()
        shutil.rmtree(self.dest)
        with fs.plain(FILES) as s:
            s.fault("/m/.*", page=True)
            self.refused(self.plain(s), codes=(1, 2))

    def test_headers_without_end(self):
        with fs.hub(FILES) as s:
            s.fault(".*" + SHARDS[0], 1, endless=True)
            self.ok(self.get(s))
            self.assert_files()

    def test_many_at_once_and_one_at_a_time(self):
        for jobs in (1, 16):
            with self.subTest(jobs), fs.hub(FILES) as s:
                shutil.rmtree(self.dest, ignore_errors=True)
                self.ok(self.get(s, "--jobs", jobs))
                self.assert_files()

    def test_an_unreachable_server(self):
        self.refused(self.get(None, "--retries", 1), REPO, "127.0.0.1", codes=(1,))


class Sums(Get):
    def test_a_wrong_byte_is_fetched_again(self):
        with fs.hub(FILES) as s:
            s.fault(".*" + SHARDS[0], 1, corrupt=100)
            s.fault(".*config.json", 1, corrupt=5)             # by its git id
            self.ok(self.get(s))
            self.assert_files()
            self.assertEqual(len(s.asked(".*" + SHARDS[0])), 2)
            self.assertEqual(len(s.asked(".*config.json")), 2)

    def test_wrong_twice_is_an_error_that_names_both_sums(self):
        data = bytearray(FILES[SHARDS[0]])
        data[100] ^= 1
        with fs.hub(FILES) as s:
            s.fault(".*" + SHARDS[0], corrupt=100)
            self.refused(self.get(s), SHARDS[0], hashlib.sha256(data).hexdigest(),
                         hashlib.sha256(FILES[SHARDS[0]]).hexdigest(), codes=(1,))
            self.assertEqual(len(s.asked(".*" + SHARDS[0])), 2)
            self.assertNotIn(SHARDS[0], self.here())
            s.faults.clear()
            self.ok(self.get(s))
            self.assert_files()

    def test_a_part_of_something_else(self):
        """A damaged part is completed, found wrong as a whole, and fetched again from the beginning."""
        with fs.hub(FILES) as s:
            self.ok(self.get(s))
            self.part(SHARDS[0], b"\0" * 70000, etag(FILES[SHARDS[0]]))
            self.ok(self.get(s))
            self.assert_files()
            self.assertEqual([r.headers.get("range") for r in s.asked(".*" + SHARDS[0])], [None, "bytes=70000-", None])

    def test_a_part_from_before_the_machine_was_started(self):
        """Without a sum to find out by, its bytes are not trusted."""
        with fs.plain(FILES) as s:
            self.ok(self.plain(s))
            self.part(SHARDS[0], FILES[SHARDS[0]][:5000] + b"\0" * 65000, etag(FILES[SHARDS[0]]))
            catalog = self.catalog()
            catalog["boot"] = "another"
            with open(os.path.join(self.dest, CATALOG), "w") as f:
                json.dump(catalog, f)
            self.ok(self.plain(s))
            self.assert_files()
            self.assertEqual(s.asked("/m/" + SHARDS[0])[-1].headers.get("range"), None)

    def test_a_part_that_is_whole_or_too_long(self):
        for data in (FILES[SHARDS[0]], FILES[SHARDS[0]] + b"x"):
            with self.subTest(len(data)), fs.hub(FILES) as s:
                shutil.rmtree(self.dest, ignore_errors=True)
                self.ok(self.get(s))
                self.part(SHARDS[0], data, etag(FILES[SHARDS[0]]))
                self.ok(self.get(s))
                self.assert_files()

    def test_files_that_are_there_already_are_taken(self):
        os.mkdir(self.dest)
        with open(os.path.join(self.dest, SHARDS[0]), "wb") as f:
            f.write(FILES[SHARDS[0]])
        with open(os.path.join(self.dest, SHARDS[1]), "wb") as f:
            f.write(b"?" * len(FILES[SHARDS[1]]))
        with fs.hub(FILES) as s:
            self.ok(self.get(s))
            self.assert_files()
            self.assertEqual((len(s.asked(".*" + SHARDS[0])), len(s.asked(".*" + SHARDS[1]))), (0, 1))

    def test_sums_in_the_headers_of_a_redirection(self):
        with fs.plain(FILES) as s:
            sha = '"%s"' % hashlib.sha256(FILES[SHARDS[0]]).hexdigest()
            s.files["/cdn/x"] = FILES[SHARDS[0]]
            s.fault("/m/" + SHARDS[0], location="/cdn/x", headers={"X-Linked-Etag": sha})
            s.fault("/cdn/x", 1, corrupt=1000)
            self.ok(self.plain(s))
            self.assert_files()
            self.assertEqual(len(s.asked("/cdn/x")), 2)

    def test_check(self):
        with fs.hub(FILES) as s:
            self.ok(self.get(s))
        env = {"HF_ENDPOINT": s.url}
        self.ok(self.get(None, "--check", env=env))
        path = os.path.join(self.dest, SHARDS[0])
        with open(path, "r+b") as f:
            f.seek(1000)
            f.write(b"\0\1\2\3")
        os.unlink(os.path.join(self.dest, "config.json"))
        r = self.get(None, "--check", env=env)
        self.refused(r, "2 of %d" % len(FILES), codes=(1,))
        self.assertIn(hashlib.sha256(FILES[SHARDS[0]]).hexdigest().encode(), r.out)
        self.assertIn(b"config.json", r.out)
        states = {f["name"]: f["state"] for f in self.get(None, "--check", "--json", env=env).json()["files"]}
        self.assertEqual((states[SHARDS[0]], states["config.json"], states[SHARDS[1]]), ("wrong", "missing", "right"))
        with fs.Server(s.files) as again:                      # the same repository on another port
            catalog = self.catalog()
            catalog["endpoint"] = again.url
            with open(os.path.join(self.dest, CATALOG), "w") as f:
                json.dump(catalog, f)
            self.ok(self.get(again))
            self.assert_files()
            self.assertEqual(len(again.requests), 2)

    def test_check_without_a_catalog_asks_the_server(self):
        with fs.hub(FILES) as s:
            self.ok(self.get(s))
            os.unlink(os.path.join(self.dest, CATALOG))
            self.ok(self.get(s, "--check"))
            self.assertEqual(len(s.asked(".*" + SHARDS[0])), 1)

    def test_a_file_without_a_sum_is_checked_by_what_came(self):
        with fs.plain(FILES) as s:
            self.ok(self.plain(s))
            self.ok(self.plain(s, "--check"))
            with open(os.path.join(self.dest, "tiktoken.model"), "r+b") as f:
                f.write(b"\0\0\0\0\0")
            self.refused(self.plain(s, "--check"), "1 of", codes=(1,))
            self.ok(self.plain(s))
            self.assert_files()


class Secrets(Get):
    TOKEN = "hf_verysecret"

    def bearers(self, server):
        return {r.headers.get("authorization") for r in server.requests}

    def test_the_token_goes_to_the_hub_and_nowhere_else(self):
        with fs.hub(FILES) as s, fs.Server({"/x": FILES[SHARDS[0]]}) as cdn:
            s.fault(".*" + SHARDS[0], location=cdn.url + "/x?signature=1")
            s.fault(".*" + SHARDS[1], 1, location="/some/model/resolve/%s/%s" % (fs.COMMIT, SHARDS[1]))
            r = self.ok(self.get(s, env={"HF_TOKEN": self.TOKEN}))
            self.assert_files()
            self.assertEqual(self.bearers(s), {"Bearer " + self.TOKEN})
            self.assertEqual(self.bearers(cdn), {None})
            self.assertNotIn(self.TOKEN, str(r))
            with open(os.path.join(self.dest, CATALOG)) as f:
                text = f.read()
            self.assertNotIn(self.TOKEN, text)
            self.assertNotIn("signature", text)

    def test_a_hub_that_sends_back_again(self):
        """There and back: the token does not come along to the other, and may come back to its own."""
        with fs.hub(FILES) as s, fs.Server({}) as other:
            path = "/some/model/resolve/%s/%s" % (fs.COMMIT, SHARDS[0])
            s.fault(path, 1, location=other.url + "/y")
            other.fault("/y", location=s.url + path)
            self.ok(self.get(s, env={"HF_TOKEN": self.TOKEN}))
            self.assert_files()
            self.assertEqual(self.bearers(other), {None})

    def test_a_url_elsewhere_gets_no_token(self):
        with fs.plain(FILES) as s, fs.Server({}) as hub:
            self.ok(self.plain(s, env={"HF_TOKEN": self.TOKEN, "HF_ENDPOINT": hub.url}))
            self.assertEqual(self.bearers(s), {None})
            self.assertEqual(hub.requests, [])

    def test_a_refusal_asks_for_the_token_and_does_not_say_it(self):
        with fs.hub(FILES) as s:
            s.fault("/api.*", status=401)
            line = self.refused(self.get(s, env={"HF_TOKEN": self.TOKEN}), "401", "HF_TOKEN", codes=(1,))
            self.assertNotIn(self.TOKEN, line)

    def test_a_token_that_would_be_a_header(self):
        with fs.hub(FILES) as s:
            r = self.get(s, env={"HF_TOKEN": "x\r\nX-Evil: 1"})
            self.refused(r, "HF_TOKEN", codes=(2,))
            self.assertEqual(s.requests, [])

    def test_redirections_without_end_and_to_nowhere(self):
        for location in ("/m/" + SHARDS[0], "ftp://127.0.0.1/x", "file:///etc/passwd", "gopher://x/", "http://"):
            with self.subTest(location), fs.plain(FILES) as s:
                shutil.rmtree(self.dest, ignore_errors=True)
                s.fault("/m/" + SHARDS[0], location=location)
                self.refused(self.plain(s, "--retries", 1), SHARDS[0], codes=(1,))
                self.assertLess(len(s.asked("/m/" + SHARDS[0])), 25)

    def test_a_proxy_of_the_environment(self):
        with fs.hub(FILES) as proxy:
            self.ok(self.get(None, env={"HF_ENDPOINT": "http://hub.invalid", "http_proxy": proxy.url, "HF_TOKEN": self.TOKEN}))
            self.assert_files()
            self.assertEqual(self.bearers(proxy), {None})      # a token is not sent in the clear
            self.assertEqual({r.headers["host"] for r in proxy.requests}, {"hub.invalid"})

    def test_certificates_are_verified(self):
        if not shutil.which("openssl"):
            self.skipTest("no openssl to make a certificate with")
        base = os.path.join(waste.scratch(), "tls")
        os.makedirs(base, exist_ok=True)
        cert, key = os.path.join(base, "cert.pem"), os.path.join(base, "key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True, capture_output=True)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(cert, key)
        with fs.hub(FILES, tls=tls) as s, fs.plain(FILES) as clear:
            self.refused(self.get(s, env={"HF_TOKEN": self.TOKEN}), "certificate", codes=(1,))
            self.assertEqual(s.requests, [])
            self.ok(self.get(s, env={"SSL_CERT_FILE": cert, "HF_TOKEN": self.TOKEN}))
            self.assert_files()
            self.assertEqual(self.bearers(s), {"Bearer " + self.TOKEN})
            os.unlink(os.path.join(self.dest, SHARDS[0]))
            s.fault(".*" + SHARDS[0], location=clear.url + "/m/" + SHARDS[0])
            self.refused(self.get(s, env={"SSL_CERT_FILE": cert}), SHARDS[0], "https", codes=(1,))
            self.assertEqual(clear.requests, [])


class Hostile(Get):
    BAD_NAMES = ["../x", "/etc/x", "a/../../x", "a\\b", "a\0b", "a\nb", "", ".", "..", "a//b", "a/", "./a", "x.part", CATALOG,
                 CATALOG + ".tmp", "n" * 5000, "a/" * 40 + "b"]

    def outside(self):
        return sorted(os.listdir(waste.scratch()))

    def test_names_in_a_listing(self):
        for name in self.BAD_NAMES:
            listing = fs.hub_listing(dict(FILES, **{name: b"evil"}))
            with self.subTest(name), fs.hub(FILES, listing=listing) as s:
                shutil.rmtree(self.dest, ignore_errors=True)
                before = self.outside()
                self.refused(self.get(s), codes=(1, 2))
                self.assertEqual([n for n in self.outside() if n not in before and n != os.path.basename(self.dest)], [])
                self.assertEqual(self.here() if os.path.exists(self.dest) else {}, {})

    def test_names_in_an_index(self):
        for name in self.BAD_NAMES:
            name += ".safetensors" if not name.endswith("safetensors") else ""
            if name in ("x.part.safetensors", ".safetensors", "..safetensors", "...safetensors", "a/.safetensors"):
                continue                                       # those are names
            index = json.dumps({"weight_map": {"a": SHARDS[0], "b": name}}).encode()
            with self.subTest(name), fs.plain(dict(FILES, **{INDEX: index})) as s:
                shutil.rmtree(self.dest, ignore_errors=True)
                self.refused(self.plain(s), codes=(1, 2))
                self.assertEqual(len(s.asked("/m/" + SHARDS[0])), 0)

    def test_names_in_sums(self):
        for name in self.BAD_NAMES[:-2] + ["a/" * 40 + "b"]:
            if name in ("./a", "a\nb"):
                continue                                       # as sha256sum writes it; two lines
            sums = "%s  %s\n" % (hashlib.sha256(b"x").hexdigest(), name)
            with self.subTest(name), fs.plain(dict(FILES, SHA256SUMS=sums.encode())) as s:
                self.refused(self.plain(s), codes=(1, 2))

    def test_names_that_are_not_one_file_each(self):
        siblings = json.loads(fs.hub_listing(FILES))["siblings"]
        for more in ([siblings[0]], [dict(siblings[0], rfilename="d"), dict(siblings[0], rfilename="d/e")],
                     [dict(siblings[0], rfilename="d/e"), dict(siblings[0], rfilename="d-"), dict(siblings[0], rfilename="d")]):
            listing = json.dumps({"sha": fs.COMMIT, "siblings": siblings + more}).encode()
            with self.subTest(str(more)[:60]), fs.hub(FILES, listing=listing) as s:
                self.refused(self.get(s), "listing", codes=(1, 2))

    def test_listings_that_are_none(self):
        good = json.loads(fs.hub_listing(FILES))
        bad = [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b"<html>",
               json.dumps(dict(good, sha="main")).encode(), json.dumps(dict(good, sha=5)).encode(),
               json.dumps(dict(good, siblings={})).encode(), json.dumps(dict(good, siblings=[])).encode(),
               json.dumps(dict(good, siblings=[1, 2])).encode(), json.dumps(dict(good, siblings=[{}])).encode(),
               json.dumps(dict(good, siblings=[{"rfilename": 5}])).encode(),
               json.dumps(dict(good, siblings=[{"rfilename": "a", "size": -1}])).encode(),
               json.dumps(dict(good, siblings=[{"rfilename": "a", "size": "9"}])).encode(),
               json.dumps(dict(good, siblings=[{"rfilename": "a", "size": 1e300}])).encode(),
               json.dumps(dict(good, siblings=[{"rfilename": "a", "lfs": {"sha256": "xyz"}}])).encode(),
               b'{"sha":"%s","sha":"%s"}' % (b"a" * 40, b"b" * 40)]
        for listing in bad:
            with self.subTest(listing[:60]), fs.hub(FILES, listing=listing) as s:
                self.refused(self.get(s), codes=(1, 2))

    def test_indexes_that_are_none(self):
        bad = [b"", b"[]", b"{}", b'{"weight_map": []}', b'{"weight_map": {}}', b'{"weight_map": {"a": 5}}',
               b'{"weight_map": {"a": null}}', b'{"weight_map": {"a": ["x"]}}', b"[" * 100000,
               b'{"weight_map": {"a": "config.json"}}', b'{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}']
        for index in bad:
            with self.subTest(index[:60]), fs.plain(dict(FILES, **{INDEX: index})) as s:
                self.refused(self.plain(s), INDEX, codes=(1, 2))

    def test_a_listing_of_too_many_bytes(self):
        with fs.hub(FILES) as s:
            s.fault("/api.*", length=1 << 40)
            self.refused(self.get(s), "too many", codes=(1,))
        with fs.hub(FILES, listing=b" " * (65 << 20)) as s:
            s.fault("/api.*", chunked=True)
            self.refused(self.get(s), "too many", codes=(1,))

    def test_a_catalog_that_is_none(self):
        with fs.hub(FILES) as s:
            self.ok(self.get(s))
            good = json.dumps(self.catalog())
            for text in ("", "{", "[]", '{"source": 5}', good.replace(SHARDS[0], "../evil"), good.replace('"size": ', '"size": -'),
                         good.replace('"sha256": "', '"sha256": "zz')):
                with self.subTest(text[:40]):
                    with open(os.path.join(self.dest, CATALOG), "w") as f:
                        f.write(text)
                    self.refused(self.get(s), CATALOG, codes=(1, 2))
            os.unlink(os.path.join(self.dest, CATALOG))
            asked = len(s.requests)
            self.ok(self.get(s))                               # what is there is taken, by its sums
            self.assertEqual(len(s.requests) - asked, 2)       # the listing, the index in it
            self.assert_files()

    def test_links_in_the_way(self):
        os.mkdir(self.dest)
        victim = os.path.join(waste.scratch(), "victim")
        with open(victim, "w") as f:
            f.write("mine")
        os.symlink(victim, os.path.join(self.dest, SHARDS[0] + ".part"))
        with fs.hub(FILES) as s:
            self.refused(self.get(s), SHARDS[0], codes=(1,))
        with open(victim) as f:
            self.assertEqual(f.read(), "mine")


class Running(Get):
    def start(self, server, *options, source=None, dest=None, **kw):
        return waste.Process(self.argv(source or REPO, *options, dest=dest), env=self.environment(server), **kw)

    def test_killed_anywhere(self):
        rng = waste.seed()
        files = fs.checkpoint(rng, shards=4, size=3000000)
        kills = 60 if waste.LONG else 12
        for kind in ("hub", "plain"):
            with (fs.hub if kind == "hub" else fs.plain)(files) as s:
                source = REPO if kind == "hub" else s.url + "/m"
                shutil.rmtree(self.dest, ignore_errors=True)
                s.fault(".*safetensors", pace=0.004)
                begin = time.monotonic()
                self.ok(self.get(s, source=source))
                whole = time.monotonic() - begin               # what this machine takes just now
                shutil.rmtree(self.dest)
                parts = 0
                for _ in range(kills):
                    p = self.start(s, source=source)
                    time.sleep(rng.random() * whole)
                    finished = p.poll() is not None
                    p.kill()
                    p.communicate()
                    if finished:                               # begin again, so that every kill hits something
                        whole *= 0.7                           # it is quicker now
                        self.assert_files(files)
                        shutil.rmtree(self.dest)
                        continue
                    parts += any(n.endswith(".part") for n in os.listdir(self.dest)) if os.path.exists(self.dest) else 0
                self.ok(self.get(s, source=source))
                self.assert_files(files)
                self.ok(self.get(s, "--check", source=source))
                resumed = sum("range" in r.headers for r in s.requests)
                print("%s: %d kills, %d with parts, %d resumed" % (kind, kills, parts, resumed), file=sys.stderr)
                self.assertGreater(parts, 0)
                self.assertGreater(resumed, 0)

    def test_interrupted(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number), fs.hub(FILES) as s:
                shutil.rmtree(self.dest, ignore_errors=True)
                s.fault(".*" + SHARDS[0], 1, stall=100000)
                p = self.start(s)
                part = os.path.join(self.dest, SHARDS[0] + ".part")
                waste.wait_for("a part", lambda: os.path.exists(part) and os.path.getsize(part) == 100000)
                p.send_signal(number)
                self.refused(waste.finish(p), "stopped", "goes on", codes=(1,))
                self.ok(self.get(s))
                self.assert_files()
                self.assertEqual(s.asked(".*" + SHARDS[0])[-1].headers["range"], "bytes=100000-")

    def test_one_at_a_time_in_a_directory(self):
        with fs.hub(FILES) as s:
            s.fault(".*" + SHARDS[0], 1, stall=1000)
            p = self.start(s)
            waste.wait_for("a request", lambda: s.asked(".*" + SHARDS[0]))
            self.refused(self.get(s), "another waste-fetch", self.dest, codes=(1,))
            p.send_signal(signal.SIGINT)
            waste.finish(p)
            self.ok(self.get(s))
            self.assert_files()

    def test_no_room(self):
        """RLIMIT_FSIZE stands for a disk that is full: one error, and it goes on when there is room."""
        with fs.hub(FILES) as s:
            r = self.get(s, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (150000, 150000)))
            self.refused(r, self.dest, "cannot be written", codes=(1,))
            self.ok(self.get(s))
            self.assert_files()

    def test_a_full_file_system(self):
        if os.geteuid() != 0:
            self.skipTest("only root may mount a small file system")
        mount = os.path.join(waste.scratch(), "small")
        os.makedirs(mount, exist_ok=True)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=18m", "none", mount], capture_output=True).returncode:
            self.skipTest("no small file system can be mounted")
        try:
            dest = os.path.join(mount, "d")
            with fs.hub(FILES) as s:
                with open(os.path.join(mount, "ballast"), "wb") as f:
                    f.write(b"\0" * (4 << 20))
                self.refused(self.get(s, dest=dest), dest, "needs", "free", codes=(1,))
                self.assertIn(b"too little room", self.ok(self.get(s, "--dry-run", dest=dest)).out)
                told = self.ok(self.get(s, "--dry-run", "--json", dest=dest)).json()
                self.assertEqual((told["fits"], told["free_bytes"] < told["bytes_left"] + (16 << 20)), (False, True))
                self.assertEqual(s.asked(".*" + SHARDS[0]), [])
                os.unlink(os.path.join(mount, "ballast"))
                self.assertNotIn(b"too little", self.ok(self.get(s, "--dry-run", dest=dest)).out)
                self.assertTrue(self.ok(self.get(s, "--dry-run", "--json", dest=dest)).json()["fits"])
                s.fault(".*" + SHARDS[0], 1, pace=1)
                p = self.start(s, dest=dest)
                waste.wait_for("the others", lambda: os.path.exists(os.path.join(dest, SHARDS[2])))
                with open(os.path.join(mount, "ballast"), "wb", buffering=0) as f:
                    try:
                        while True:
                            f.write(b"\0" * 4096)
                    except OSError:
                        pass
                self.refused(waste.finish(p), dest, "No space left", codes=(1,))
                os.unlink(os.path.join(mount, "ballast"))
                self.assertNotIn(b"too little", self.ok(self.get(s, "--dry-run", dest=dest)).out)
                self.assertTrue(self.ok(self.get(s, "--dry-run", "--json", dest=dest)).json()["fits"])
                self.ok(self.get(s, dest=dest))
                self.assert_files(dest=dest)
        finally:
            subprocess.run(["umount", mount], check=True)

    def test_dry_run_changes_nothing(self):
        with fs.hub(FILES) as s:
            r = self.ok(self.get(s, "--dry-run", "--json"))
            self.assertFalse(os.path.exists(self.dest))
            j = r.json()
            self.assertEqual(j["bytes"], sum(map(len, FILES.values())))
            self.assertEqual(j["bytes_left"], j["bytes"])
            self.assertEqual({f["name"]: f["bytes"] for f in j["files"]}, {n: len(d) for n, d in FILES.items()})
            self.assertEqual(s.asked(".*" + SHARDS[0]), [])
            s.fault(".*" + SHARDS[0], cut=60000)
            self.get(s, "--retries", 0)
            before = self.here(), self.catalog()
            j = self.ok(self.get(s, "--dry-run", "--json")).json()
            self.assertEqual(j["bytes_left"], len(FILES[SHARDS[0]]) - 60000)
            self.assertEqual({f["state"] for f in j["files"] if f["name"] == SHARDS[0]}, {"partial"})
            self.assertIn(b"1 of %d files to fetch" % len(FILES), self.ok(self.get(s, "--dry-run")).out)
            self.assertEqual((self.here(), self.catalog()), before)

    def test_json_of_a_run(self):
        with fs.hub(FILES) as s:
            j = self.ok(self.get(s, "--json")).json()
            self.assertEqual((j["source"], j["revision"], j["bytes_left"]), (REPO, fs.COMMIT, 0))
            self.assertEqual(j["bytes_received"], sum(map(len, FILES.values())))
            self.assertEqual({f["state"] for f in j["files"]}, {"done"})
            self.assertEqual({f["name"]: f["sha256"] for f in j["files"]}[SHARDS[0]], hashlib.sha256(FILES[SHARDS[0]]).hexdigest())

    def test_progress_has_a_rate_and_the_time_left(self):
        with fs.hub(FILES) as s:
            s.fault(".*" + SHARDS[0], drip=30000)
            r = self.ok(self.get(s))
            self.assertRegex(r.err.decode(), r"get: [\d.]+ KiB of [\d.]+ KiB, [\d.]+ KiB/s, \d+ s left")
            self.assertEqual(self.ok(self.get(s, "-q")).err, b"")


if __name__ == "__main__":
    waste.main(waste.FETCH)
