"""Options from a file and from the environment; completion and the man page, made of the same tables."""
import json
import os
import shutil
import subprocess

import waste

IDS = "1283,265,279,61"
PROGRAMS = {"waste-run": waste.RUN, "waste-fetch": waste.FETCH}


def docs(program):
    return os.path.join(os.path.dirname(PROGRAMS[program]), "docs")


def commands_and_options(name="waste-run"):
    """What the program's help lists, and the help of each of its commands."""
    program = PROGRAMS[name]
    commands = waste.waste_run("--help", program=program).out.decode().partition("\ncommands:\n")[2].partition("\n\n")[0]
    commands = [l.split()[0] for l in commands.splitlines() if l.startswith("  ")]
    options = set()
    for c in commands:
        text = waste.waste_run(c, "--help", program=program).out.decode().partition("\noptions:\n")[2]
        options |= {l.split()[0] for l in text.splitlines() if l.startswith("  -")}
    return commands, sorted(options)


class Config(waste.Test):
    def write(self, text):
        base = os.path.join(waste.scratch(), "config-home")
        os.makedirs(os.path.join(base, "waste"), exist_ok=True)
        path = os.path.join(base, "waste", "config")
        with open(path, "wb") as f:
            f.write(text if isinstance(text, bytes) else text.encode())
        return {"XDG_CONFIG_HOME": base}

    def ctx(self, *options, env):
        return self.ok(waste.waste_run("plan", waste.DEMO, "--json", *options, env=env)).json()["ctx"]

    def test_file_environment_and_command_line_in_their_order(self):
        env = self.write("# mine\n\n  ctx = 100\r\nbudget\t1G\n")
        self.assertEqual(self.ctx(env=env), 100)
        env["WASTE_CTX"] = "200"
        self.assertEqual(self.ctx(env=env), 200)
        self.assertEqual(self.ctx("--ctx", 300, env=env), 300)
        env["WASTE_CTX"] = ""
        self.assertEqual(self.ctx(env=env), 100)
        plan = self.ok(waste.waste_run("plan", waste.DEMO, "--json", env=env)).json()
        self.assertEqual(plan["budget_bytes"], 1 << 30)

    def test_home_is_where_it_is_without_xdg(self):
        home = os.path.join(waste.scratch(), "home")
        os.makedirs(os.path.join(home, ".config", "waste"), exist_ok=True)
        with open(os.path.join(home, ".config", "waste", "config"), "w") as f:
            f.write("ctx = 77\n")
        self.assertEqual(self.ctx(env={"HOME": home, "XDG_CONFIG_HOME": ""}), 77)

    def test_short_names_and_flags(self):
        env = self.write("n = 2\nq = yes\n")
        r = self.ok(waste.waste_run("run", waste.DEMO, "What is the capital of Italy?", env=env))
        self.assertEqual(r.out, b"The capital\n")
        self.assertEqual(r.err, b"")
        env["WASTE_Q"] = "no"
        r = self.ok(waste.waste_run("run", waste.DEMO, "What is the capital of Italy?", env=env))
        self.assertNotEqual(r.err, b"")
        env["WASTE_THINK"] = "show"
        env["WASTE_N"] = "512"
        r = self.ok(waste.waste_run("run", waste.DEMO, "What is the capital of Italy?", env=env))
        self.assertIn(b"The user asks", r.out)

    def test_options_of_other_commands_do_no_harm(self):
        env = self.write("temp = 0.5\ntokens = 5\npid = 1\n")
        self.assertEqual(self.ctx(env=env), 4096)
        self.ok(waste.waste_run("info", waste.DEMO, env=dict(env, WASTE_TEMP="x")))

    def test_what_is_wrong_is_named_with_its_line(self):
        for text, words in (("ctx = 5\nbugdet = 1G\n", ("config:2", "--budget")), ("ctx = many\n", ("config:1", "--ctx", "many")),
                            ("ctx\n", ("config:1",)), ("= 5\n", ("config:1",)), ("no-verify = perhaps\n", ("config:1", "perhaps")),
                            ("x" * 70000, ("config",)), (b"ctx = 5\0\n", ("config",)), ("io = maybe", ("config:1", "uring"))):
            with self.subTest(text[:20]):
                self.refused(waste.waste_run("bench", waste.DEMO, env=self.write(text)), *words, codes=(2,))
        self.refused(waste.waste_run("plan", waste.DEMO, env=dict(self.write(""), WASTE_CTX="many")), "WASTE_CTX", codes=(2,))

    def test_a_broken_file_is_no_obstacle_to_help(self):
        self.ok(waste.waste_run("--help", env=self.write("nonsense")))

    def test_random_files_never_crash(self):
        random = waste.seed()
        for _ in range(60):
            data = bytes(random.choice(b"ctx=n \n\t#-12G\0\xff") for _ in range(random.randrange(60)))
            r = waste.waste_run("tokenize", waste.DEMO, "--raw", "a", env=self.write(data))
            if r.code:
                self.refused(r, codes=(2,))


class Docs(waste.Test):
    def setUp(self):
        if not os.path.isdir(docs("waste-run")):
            self.skipTest("this build has no documents: it cannot run its own programs")

    def read(self, program, name):
        with open(os.path.join(docs(program), name)) as f:
            return f.read()

    def complete(self, *words, program="waste-run"):
        """What bash offers for the last word."""
        script = ("source %s/%s; COMP_WORDS=(%s); COMP_CWORD=%d; _%s; printf '%%s\\n' \"${COMPREPLY[@]}\""
                  % (docs(program), program, " ".join("'%s'" % w for w in (program,) + words), len(words),
                     program.replace("-", "_")))
        r = subprocess.run(["bash", "-c", script], capture_output=True, timeout=waste.LIMIT, cwd=waste.DATA)
        self.assertEqual(r.stderr, b"")
        return [w for w in r.stdout.decode().split("\n") if w]

    def test_bash_offers_what_belongs(self):
        commands, _ = commands_and_options()
        self.assertLessEqual(set(commands), set(self.complete("")))
        self.assertEqual(self.complete("ren"), ["render"])
        self.assertIn("--perplexity", self.complete("eval", "m", "--"))
        self.assertNotIn("--temp", self.complete("eval", "m", "--"))
        self.assertEqual(self.complete("chat", "m", "--think", ""), ["show", "hide", "off"])
        self.assertEqual(self.complete("chat", "m", "--think", "h"), ["hide"])
        self.assertEqual(self.complete("restart", "r"), ["reader", "router"])
        self.assertEqual(self.complete("render", "xtml"), ["xtml_cases.json"])
        self.assertEqual(self.complete("render", "f", "--ids", "xtml"), ["xtml_cases.json"])
        self.assertEqual(self.complete("run", "m", "--ids", "xtml"), [])

    def test_bash_offers_what_belongs_to_waste_fetch(self):
        def complete(*words):
            return self.complete(*words, program="waste-fetch")
        commands, _ = commands_and_options("waste-fetch")
        self.assertEqual(set(complete("")), set(commands))
        self.assertEqual(complete("disk"), ["diskbench"])
        self.assertIn("--shape", complete("synth", "--"))
        self.assertNotIn("--shape", complete("diskbench", "--"))
        self.assertEqual(complete("synth", "--experts", "vq4"), ["vq4p"])

    def test_everything_is_in_the_man_page_and_in_zsh(self):
        for program, least in (("waste-run", (10, 30)), ("waste-fetch", (2, 10))):
            commands, options = commands_and_options(program)
            self.assertGreaterEqual(len(commands), least[0])
            self.assertGreaterEqual(len(options), least[1])
            man, zsh = self.read(program, program + ".1").replace("\\-", "-"), self.read(program, "_" + program)
            for c in commands:
                self.assertIn("\n.SS %s" % c, man)
                self.assertIn("'%s:" % c, zsh)
            for o in options:
                self.assertIn("\n.B %s" % o, man)
                self.assertRegex(zsh, r"'\*?%s\[" % o)

    def test_roff_has_no_complaint(self):
        if not shutil.which("groff"):
            self.skipTest("no groff")
        for program in PROGRAMS:
            r = subprocess.run(["groff", "-man", "-Tutf8", "-ww", os.path.join(docs(program), program + ".1")],
                               capture_output=True, timeout=waste.LIMIT)
            self.assertEqual((r.returncode, r.stderr), (0, b""))

    def test_zsh_takes_its_file(self):
        if not shutil.which("zsh"):
            self.skipTest("no zsh")
        for program in PROGRAMS:
            r = subprocess.run(["zsh", "-n", os.path.join(docs(program), "_" + program)], capture_output=True, timeout=waste.LIMIT)
            self.assertEqual((r.returncode, r.stderr), (0, b""))



if __name__ == "__main__":
    waste.main()
