"""A stage dies at every point of every protocol, once by each kind of death: the ids stay the same."""
import crash
import waste


LAST = ("request_over", "reply_written", "replied")


class Points(crash.Test):
    TOKENS = 60

    def rules_of(self, stage, chosen, turn):
        """One rule a life: the n-th process of the stage dies at the n-th of the points."""
        rules = []
        for life, point in enumerate(chosen, 1):
            often = point not in crash.EVERYWHERE and not point.startswith(("trunk", "request", "repl", "rebuild"))
            # a death in a prompt takes the chunks before it from those that are left for the next
            most = 2 if point in crash.ONLY_IN_PROMPTS else 4
            hit = self.random.randint(1, most) if often else 1
            action = crash.DEADLY[(turn + life) % len(crash.DEADLY)]
            rules.append("%s:%s:%s:%d:%d" % (stage, point, action, hit, life))
        return rules

    def usual(self, stage):
        """Points of a healthy life, in an order in which each can still be met: the trunk is loaded once."""
        seldom = crash.ONLY_ON_ERRORS + crash.ONLY_WHEN_TAKING_OVER + ("log_body",)
        usual = [p for p in crash.points()[stage] if p not in seldom]
        trunk = [p for p in usual if p.startswith("trunk")]
        rest = [p for p in usual if p not in trunk and p not in LAST]
        self.random.shuffle(rest)
        rest.sort(key=lambda p: p not in crash.ONLY_IN_PROMPTS)  # only the first lives see the prompt
        n = crash.TRIED_AGAIN
        return [trunk[i:i + n] for i in range(0, len(trunk), n)] + [rest[i:i + n] for i in range(0, len(rest), n)]

    def missed(self, rules, errors):
        """The points of these rules nobody died at."""
        met = {":".join(l.split()[1].split(":")[:2]) for l in errors if l.startswith("inject: ")}
        return {r.rsplit(":", 3)[0] for r in rules} - met

    def test_a_death_at_every_point(self):
        self.needs_points()
        groups = {stage: self.usual(stage) for stage in waste.STAGES}
        plan = self.plan(waste.DEMO, *crash.CHUNK, "--ctx", waste.Endless.CTX)
        small = plan["floor_bytes"] + 12 * plan["cache_bytes"] // plan["slots"]
        for turn in range(max(map(len, groups.values()))):
            chosen = {stage: groups[stage][turn] for stage in waste.STAGES if turn < len(groups[stage])}
            rules = [rule for stage in chosen for rule in self.rules_of(stage, chosen[stage], turn)]
            with self.subTest(rules=",".join(rules)):
                # small: there is always something to read, and slots change their experts
                run = waste.Endless(self, "--budget", small, asked=crash.CHUNK, env=crash.inject(*rules))
                try:
                    run.restarted(**{stage: len(points) for stage, points in chosen.items()})
                finally:
                    r = run.end()
                    self.assertEqual(self.missed(rules, r.error_lines()), set(), "points nobody died at")

    def test_a_death_at_the_end_of_a_request(self):
        self.needs_points()
        rules = self.rules_of("compute", LAST, 0)
        j = self.with_rules(*rules, tokens=self.TOKENS)
        # the end of a request ends the run: what dies then may not be started again
        self.assertEqual(self.missed(rules[:-1], j["deaths"]), set(), "points nobody died at")

    @property
    def small(self):
        plan = self.plan(waste.DEMO, *crash.CHUNK)
        return "--budget", plan["floor_bytes"] + 12 * plan["cache_bytes"] // plan["slots"]

    def test_every_kind_of_death_at_the_points_of_a_slot(self):
        self.needs_points()
        slot = [p for p in crash.points()["reader"] if p.startswith(("slot", "read_")) and p not in crash.ONLY_ON_ERRORS]
        for point in slot:
            with self.subTest(point):
                rules = ["reader:%s:%s:%d:%d" % (point, crash.DEADLY[i], self.random.randint(1, 40), i + 1) for i in range(4)]
                j = self.with_rules(*rules, tokens=self.TOKENS, options=self.small)
                self.assertEqual(j["restarts"]["reader"], 4)

    def test_a_death_while_taking_over(self):
        self.needs_points()
        for point in crash.ONLY_WHEN_TAKING_OVER + ("log_body", "start_repaired"):
            with self.subTest(point):
                j = self.with_rules("reader:read_submitted:kill:9:1", "reader:%s:kill:1:2" % point, tokens=self.TOKENS,
                                    options=self.small)
                self.assertEqual(len(j["deaths"]), 2, j["deaths"])

    def test_a_stage_that_dawdles_at_any_point(self):
        self.needs_points()
        for stage in waste.STAGES:
            with self.subTest(stage):
                rules = ["%s:%s:delay=30:%d" % (stage, point, self.random.randint(1, 10)) for point in crash.points()[stage]]
                j = self.with_rules(*rules, tokens=self.TOKENS, options=self.small)
                self.assertEqual(sum(j["restarts"].values()), 0)

    def test_what_is_counted_of_a_request_is_whole_however_late_the_reader_hears_of_it(self):
        """Of the last record: its experts are in memory, and compute waits for nobody."""
        self.needs_points()
        ids = waste.genesis()["ids"]
        info = self.ok(waste.waste_run("info", waste.DEMO, "--json")).json()
        records = info["moe_layers"] * (len(ids) + self.TOKENS - 1)
        r = self.ok(waste.waste_run("run", waste.DEMO, "--ids", ",".join(map(str, ids)), "-n", self.TOKENS, "--temp", 0,
                                    "--ignore-eos", "--chunk", 1, "--lookahead", 0, "--budget", "1G", "--json", "-q",
                                    env=crash.inject("reader:demand_taken:delay=300:%d" % records)))
        self.assertIn("inject: reader:demand_taken:delay", r.error_lines())
        experts = r.json()["experts"]
        self.assertEqual(experts["hits"] + experts["misses"], info["top_k"] * records)

    def test_a_death_of_waste_run_at_any_point_leaves_nothing(self):
        self.needs_points()
        for point in crash.points()["waste-run"]:
            with self.subTest(point):
                p = waste.start(*self.args, *self.small, env=dict(waste.os.environ, **crash.inject(
                    "reader:read_submitted:kill:9", "waste-run:%s:kill:%d" % (point, 4 if point == "run_started" else 1))))
                r = waste.finish(p)
                self.assertEqual(r.code, -9, str(r))
                waste.wait_for("no stage", lambda: not waste.stages_of(p.pid))


if __name__ == "__main__":
    crash.main()
