"""Exit codes: the one table that both programs show, over all commands of both. Paths are the test's own only."""
import os
import re
import subprocess

import waste

README = os.path.join(waste.ROOT, "README.md")
PROGRAMS = (waste.RUN, waste.FETCH)
ATTACHED = ("ps", "stats", "top", "restart", "budget", "stop", "log")


def run(program, *args, **kw):
    return waste.waste_run(*args, program=program, **kw)


def commands(program):
    text = run(program, "--help").out.decode()
    return [l.split()[0] for l in text.split("commands:\n")[1].split("\n\n")[0].splitlines()]


class Exit(waste.Test):
    @classmethod
    def setUpClass(cls):
        cls.none = os.path.join(waste.scratch(), "none")
        cls.below = os.path.join(cls.none, "x")
        cls.file = os.path.join(waste.scratch(), "file")
        cls.empty = os.path.join(waste.scratch(), "empty")
        with open(cls.file, "w") as f:
            f.write("neither JSON nor a model\n")
        os.mkdir(cls.empty)
        # what each command is given to do, but for the path that will not do
        none, file, below, empty, demo = cls.none, cls.file, cls.below, cls.empty, waste.DEMO
        cls.wrong = {
            waste.RUN: {
                "run": [[none, "x"], [file, "x"], [empty, "x"], [demo, "x", "--session", below], [demo, "x", "--session", empty]],
                "chat": [[none], [file], [empty], [demo, "--session", below]],
                "eval": [[none, "x"], [file, "x"], [empty, "x"], [demo, "--perplexity", none], [demo, "--perplexity", empty],
                         [demo, "x", "--logits", below], [demo, "x", "--logits", empty]],
                "tokenize": [[none, "x"], [file, "x"], [empty, "x"], ["--tokenizer", none, "x"], ["--tokenizer", empty, "x"],
                             ["--model", none, "x"]],
                "detokenize": [[none, "1"], [file, "1"], [empty, "1"], ["--tokenizer", none, "1"]],
                "render": [[none], [file], [empty], [none, demo], [file, none]],
                "bench": [[none], [file], [empty], [demo, "--ids-file", none], [demo, "--ids-file", empty],
                          [demo, "--ids-file", file]],
                "plan": [[none], [file], [empty]],
                "info": [[none], [file], [empty]],
                "ps": [["x"]], "stats": [["x"]], "top": [["x"]], "log": [["x"]], "stop": [["x"]],
                "restart": [["x"], []], "budget": [["x"], []],
            },
            waste.FETCH: {
                "get": [["http://127.0.0.1:1/", below], ["http://127.0.0.1:1/", file], ["nonsense", none],
                        ["--dry-run", "--check", "a/b", none]],
                "convert": [[none, none], [file, none], [empty + "/x", none]],
                "merge": [[none, none + "2"], [none, file]],
                "synth": [["--shape", "tiny-k3", below], ["--shape", "tiny-k3", file], ["--shape", none, none], ["--shape", file, none],
                          ["--shape", "no-such-shape", none], [none], ["--shape", "tiny-k3"]],
                "verify": [[none], [file], [demo, "--against", none], [demo, "--against", file], [demo, "--layers", "9-5"]],
                "seal": [[none], [file]],
                "diskbench": [[none], [file], [empty, "--model", none], [empty, "--model", empty], [empty, "--size", "4097"]],
            },
        }

    def test_the_table_names_every_command(self):
        for program in PROGRAMS:
            self.assertEqual(sorted(self.wrong[program]), sorted(commands(program)))

    def test_a_path_or_an_argument_that_will_not_do_is_2(self):
        for program in PROGRAMS:
            for command, cases in self.wrong[program].items():
                for args in cases:
                    with self.subTest(" ".join([command] + args)):
                        self.refused(run(program, command, *args), codes=(2,))
                        self.assertFalse(os.path.exists(self.none))
        with open(self.file) as f:
            self.assertEqual(f.read(), "neither JSON nor a model\n")
        self.assertEqual(os.listdir(self.empty), [])

    def test_wrong_options_are_2_everywhere(self):
        for program in PROGRAMS:
            for command in [[]] + [[c] for c in commands(program)]:
                with self.subTest(command=command):
                    self.refused(run(program, *command, "--no-such-option"), "--no-such-option", codes=(2,))
                    self.assertEqual(run(program, *command, "--help").code, 0)
                    self.assertEqual(run(program, *command, "--version").code, 0)

    def test_what_fails_is_1(self):
        broken = waste.copy_container(waste.DEMO, "exit-broken")
        with open(os.path.join(waste.DEMO, "experts-L1.bin"), "rb") as f:
            data = bytearray(f.read())
        data[100] ^= 1
        waste.replace(broken, "experts-L1.bin", bytes(data))
        for args in (["verify", broken], ["seal", broken], ["verify", self.empty], ["convert", self.empty, self.none],
                     ["merge", self.none, self.empty], ["get", "http://127.0.0.1:1/", self.none, "--retries", "0"],
                     ["synth", "--shape", "kimi-k3", self.none]):
            with self.subTest(" ".join(args)):
                r = run(waste.FETCH, *args)
                self.assertEqual(r.code, 1, str(r))
                self.assertFalse(os.path.exists(self.none))
        for command in ATTACHED:
            with self.subTest(command):
                args = {"restart": ["all"], "budget": ["1G"]}.get(command, [])
                self.refused(run(waste.RUN, command, *args, "--pid", os.getpid()), str(os.getpid()), codes=(1,))

    def test_a_full_stdout_is_1(self):
        for program, args in ((waste.RUN, ["info", waste.DEMO]), (waste.RUN, ["plan", waste.DEMO, "--json"]), (waste.RUN, ["--help"]),
                              (waste.RUN, ["tokenize", waste.DEMO, "x"]), (waste.RUN, ["run", waste.DEMO, "hello", "-q"]),
                              (waste.RUN, ["eval", waste.DEMO, "hello", "--json", "-q"]),
                              (waste.FETCH, ["--help"]), (waste.FETCH, ["synth", "--list"]), (waste.FETCH, ["synth", "--list", "--json"]),
                              (waste.FETCH, ["verify", waste.DEMO, "--json"]), (waste.FETCH, ["verify", waste.DEMO])):
            with self.subTest(" ".join(args)), open("/dev/full", "wb") as full:
                p = subprocess.run([program] + args, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, timeout=waste.LIMIT)
                self.assertEqual(p.returncode, 1, p.stderr)
                self.assertIn(b"stdout", p.stderr)

    def test_one_table_in_help_and_readme(self):
        tables = []
        for program in PROGRAMS:
            text = self.ok(run(program, "--help")).out.decode().split("exit codes:\n")[1].split("\n\n")[0]
            rows = re.findall(r"^  (\S+) +(.*(?:\n {10}.*)*)", text, re.M)
            tables.append([(code, " ".join(rest.split())) for code, rest in rows])
        self.assertEqual(tables[0], tables[1])
        self.assertEqual([code for code, _ in tables[0]], ["0", "1", "2", "3", "128+N"])
        with open(README) as f:
            rows = re.findall(r"^\| `([0-9N+]+)` \| (.*) \|$", f.read(), re.M)
        self.assertEqual(rows, tables[0])


class Unsaved(waste.Test):
    """--session where nothing can be written: the answer is there, and exit code 3 says that it was not saved."""

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("only root may mount a small file system")
        self.mount = os.path.join(waste.scratch(), "unsaved")
        os.makedirs(self.mount, exist_ok=True)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", self.mount], capture_output=True).returncode:
            self.skipTest("no small file system can be mounted")
        self.addCleanup(subprocess.run, ["umount", self.mount])
        self.path = os.path.join(self.mount, "talk")
        self.ballast(True)

    def ballast(self, full):
        path = os.path.join(self.mount, "ballast")
        if full:
            with open(path, "wb", buffering=0) as f:
                try:
                    while True:
                        f.write(b"\0" * 4096)
                except OSError:
                    pass
        else:
            os.unlink(path)

    QUESTION = "What is the capital of Italy?"

    def test_run(self):
        want = self.ok(run(waste.RUN, "run", waste.DEMO, self.QUESTION, "-q")).out
        r = run(waste.RUN, "run", waste.DEMO, self.QUESTION, "-q", "--session", self.path)
        self.assertEqual((r.code, r.out), (3, want), str(r))
        self.assertEqual(len(r.error_lines()), 1)
        self.assertIn(self.path, r.error_lines()[0])
        r = run(waste.RUN, "run", waste.DEMO, self.QUESTION, "--json", "--session", self.path)
        self.assertEqual((r.code, r.json()["session_saved"]), (3, False), str(r))
        self.assertEqual(r.json()["text"] + "\n", want.decode())
        self.ballast(False)
        got = self.ok(run(waste.RUN, "run", waste.DEMO, self.QUESTION, "--json", "--session", self.path)).json()
        self.assertTrue(got["session_saved"])
        self.assertTrue(os.path.exists(self.path))
        self.assertNotIn("session_saved", self.ok(run(waste.RUN, "run", waste.DEMO, self.QUESTION, "--json")).json())

    def test_chat(self):
        want = self.ok(run(waste.RUN, "chat", waste.DEMO, "-q", stdin=self.QUESTION.encode() + b"\n")).out
        r = run(waste.RUN, "chat", waste.DEMO, "-q", "--session", self.path, stdin=self.QUESTION.encode() + b"\n")
        self.assertEqual((r.code, r.out), (3, want), str(r))
        self.assertIn(self.path, r.err.decode())
        self.ballast(False)
        self.assertEqual(run(waste.RUN, "chat", waste.DEMO, "-q", "--session", self.path, stdin=self.QUESTION.encode() + b"\n").code, 0)


if __name__ == "__main__":
    waste.main(waste.FETCH)
