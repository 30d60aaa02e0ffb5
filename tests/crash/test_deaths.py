"""The rules of a death, one test each: what is repaired, what stays, what the user sees. README.md has the table."""
import os
import re
import signal
import sys
import time

import crash
import waste

HANG_SECONDS = max(2, int(waste.SLOW))  # a busy machine keeps a process waiting, too


class Deaths(crash.Test):
    TOKENS = 100

    def endless(self, *options):
        """One that has begun to generate."""
        run = waste.Endless(self, *options, asked=crash.CHUNK)
        run.generates()
        return run

    # ---- several at once ----

    def test_two_stages_and_all_three_die_at_once(self):
        for names in (("reader", "compute"), ("reader", "router"), ("compute", "router"), waste.STAGES):
            with self.subTest("+".join(names)):
                run = self.endless()
                stages = waste.all_stages_of(run.pid)
                for name in names:
                    os.kill(stages[name], signal.SIGKILL)
                run.restarted(**{name: 1 for name in names})
                self.assertEqual(run.end().json()["restarts"], {s: int(s in names) for s in waste.STAGES})

    def test_a_stage_dies_while_another_is_repaired(self):
        self.needs_points()
        for first, second in (("reader:read_done", "compute:expert_pinned"), ("compute:phase", "reader:read_submitted")):
            with self.subTest(first):
                j = self.with_rules("%s:kill:40" % first, "%s:kill:60" % second, "waste-run:run_reaped:delay=300:*",
                                    tokens=100, options=("--hang-seconds", 5))
                self.assertEqual(len(j["deaths"]), 2, j["deaths"])

    def test_a_restart_is_counted_however_late_waste_run_gets_on_with_it(self):
        """The successor may have answered before waste-run, which started it, has a CPU again."""
        self.needs_points()
        j = self.with_rules("compute:sampled:kill:20", "waste-run:run_started:delay=2000:4", tokens=60)
        self.assertEqual(j["restarts"], {s: int(s == "compute") for s in waste.STAGES})

    def test_the_reader_dies_while_it_recovers_and_compute_meanwhile(self):
        self.needs_points()
        j = self.with_rules("reader:read_submitted:kill:20:1", "reader:rebuild_directory:kill:1:2", "reader:start_ready:segv:1:3",
                            "compute:demand_posted:bus:90:1", "compute:start_repaired:abort:1:2", tokens=100)
        self.assertEqual(len(j["deaths"]), 5, j["deaths"])

    # ---- again and again ----

    def dies_at_one_step(self, *rules):
        chat = crash.Chat(env=crash.inject(*rules))
        first = chat.ask("Hello")
        second = chat.ask("How are you?")
        self.at_rest(chat.pid)
        code, _, err = chat.close()
        return first, second, code, err

    def test_a_stage_that_dies_at_one_step_again_and_again_costs_a_request(self):
        self.needs_points()
        # in the long suite it takes two seconds each time to get there, so five deaths are more than 10 s apart
        delay = 2500 if waste.LONG else 0
        for stage, point in (("compute", "sampled"), ("reader", "embed_read")):
            with self.subTest(stage):
                first, second, code, err = self.dies_at_one_step("%s:%s:delay=%d:1:1-5" % (stage, point, delay),
                                                                 "%s:%s:segv:1:1-5" % (stage, point))
                self.assertRegex(err, r"%s died 5 times at token position \d+, last of signal 11" % stage)
                self.assertEqual(first.strip(), b"")
                self.assertGreater(len(second), 10, "the next request is served")
                self.assertEqual(code, 1, "a reply failed: " + err)

    def test_a_router_that_dies_again_and_again_costs_nothing(self):
        self.needs_points()
        run = waste.Endless(self, asked=crash.CHUNK, env=crash.inject("router:predict_written:segv:1:*"))
        run.when("five deaths", lambda s: s["stages"]["router"]["restarts"] >= 4)
        run.generates()
        run.end()

    def test_a_router_that_dies_while_it_writes_leaves_a_whole_ring(self):
        self.needs_points()
        for point in ("predict_written", "predict_posted", "hidden_taken", "hidden_released"):
            with self.subTest(point):
                self.with_rules(*("router:%s:kill:%d:%d" % (point, 1 + 3 * life, life) for life in range(1, 5)), tokens=100)

    def test_a_stage_that_cannot_start_ends_the_run_with_its_reason(self):
        self.needs_points()
        for stage in ("reader", "compute"):
            with self.subTest(stage):
                r = waste.waste_run(*self.args, env=crash.inject("%s:start_ready:abort:1:*" % stage))
                self.assertEqual(r.code, 1, str(r))
                self.assertIn("%s died 5 times" % stage, r.error_lines()[-1])

    # ---- what is left ----

    def test_nothing_leaks(self):
        chat = crash.Chat("--budget", self.small_budget())
        chat.ask("Hello")
        self.all_run(chat.pid)
        self.at_rest(chat.pid)
        stages = waste.stages_of(chat.pid)
        before = {pid: crash.descriptors(pid) for pid in [chat.pid, *stages.values()]}
        trunk = crash.stats(chat.pid)["counters"]["trunk_bytes_read"]
        memory = crash.anonymous_kib(chat.pid)
        own = {name: crash.anonymous_kib(pid) for name, pid in stages.items()}
        dead = set()  # a process that takes its time to die may be hit twice
        for turn in range(12 if waste.LONG else 4):
            chat.send("Tell me more")
            for _ in range(3):
                time.sleep(self.random.uniform(0, 0.1))
                stages = waste.stages_of(chat.pid)
                victim = self.random.choice(sorted(stages)) if stages else None
                if victim:
                    try:
                        os.kill(stages[victim], self.random.choice(crash.SIGNALS))
                        dead.add(stages[victim])
                    except ProcessLookupError:
                        pass
            chat.receive()
            now = self.at_rest(chat.pid)
            self.assertEqual(now["failed"], 0)
        stats = self.all_run(chat.pid)
        stages = waste.stages_of(chat.pid)
        self.assertEqual(stats["counters"]["trunk_bytes_read"], trunk, "the trunk was read again")
        self.assertEqual(sum(s["restarts"] for s in stats["stages"].values()), len(dead))
        old = sorted(before.values())
        self.assertEqual(sorted(crash.descriptors(pid) for pid in [chat.pid, *stages.values()]), old, "descriptors")
        if os.environ.get("WASTE_BUILT_WITH_SANITIZER") != "1":  # that keeps what is freed, and finds leaks itself
            self.assertLess(crash.anonymous_kib(chat.pid), memory + 512)
            for name, pid in stages.items():
                self.assertLess(crash.anonymous_kib(pid), own[name] + 512, name)
        self.assertEqual(chat.close()[0], 0)

    def small_budget(self):
        plan = self.plan(waste.DEMO)
        return plan["floor_bytes"] + 12 * plan["cache_bytes"] // plan["slots"]

    def test_the_trunk_is_read_once_whatever_dies_while_it_is_loaded(self):
        self.needs_points()
        want = None
        for rules in ((), ("reader:trunk_tensors:kill", "reader:trunk_codebooks:segv:1:2"),
                      ("reader:trunk_sealed:kill", "reader:trunk_announced:bus:1:2", "compute:start_repaired:kill")):
            chat = crash.Chat(env=crash.inject(*rules))
            chat.ask("Hello")
            read = crash.stats(chat.pid)["counters"]["trunk_bytes_read"]
            self.assertEqual(chat.close()[0], 0)
            want = want or read
            # the codebooks are no tensor: a death right behind the tensors reads them again
            again = read - want
            self.assertLessEqual(again, want // 10, rules)
            if rules and "codebooks" not in "".join(rules):
                self.assertEqual(again, 0, rules)

    def test_segments_are_sealed_and_in_no_core_file(self):
        chat = crash.Chat()
        chat.ask("Hello")
        self.all_run(chat.pid)
        seen = {}
        for name, pid in waste.stages_of(chat.pid).items():
            with open("/proc/%d/smaps" % pid) as f:
                text = f.read()
            for m in re.finditer(r"^[0-9a-f]+-[0-9a-f]+ (\S+) .*memfd:waste-(\w+).*\n(?:\w+:.*\n)*?VmFlags:(.*)$", text, re.M):
                seen[name, m.group(2)] = m.group(1), m.group(3).split()
        self.assertEqual(chat.close()[0], 0)
        for (stage, segment), (mode, flags) in seen.items():
            if segment != "control":
                self.assertIn("dd", flags, "%s would dump %s" % (stage, segment))
            writers = {"control": waste.STAGES, "trunk": (), "cache": ("reader",), "session": ("compute",)}[segment]
            self.assertEqual("w" in mode, stage in writers, "%s has %s as %s" % (stage, segment, mode))
        self.assertTrue({("compute", "trunk"), ("router", "trunk"), ("compute", "cache"), ("reader", "cache")} <= set(seen))
        self.assertNotIn(("router", "session"), seen)

    # ---- waste-run itself ----

    def test_kill_of_waste_run_leaves_no_process_no_segment_no_socket(self):
        for _ in range(8 if waste.LONG else 3):
            p = waste.start(*self.args)
            time.sleep(self.random.uniform(0.02, self.seconds))
            pids = list(waste.children_of(p.pid))
            p.kill()
            waste.finish(p)
            for pid in pids:
                waste.wait_for("the end of %d" % pid, lambda: not waste.alive(pid))
            self.assertEqual(crash.segments_left([p.pid] + pids), [])
            waste.waste_run("ps")
            left = [d for d in (os.path.join(os.environ.get("XDG_RUNTIME_DIR", "/nowhere"), "waste"), "/tmp/waste-%d" % os.geteuid())
                    if os.path.exists(os.path.join(d, "%d.sock" % p.pid))]
            self.assertEqual(left, [], "a socket nobody listens at")

    def test_a_stopped_waste_run_kills_nobody_when_it_goes_on(self):
        limit = 3 * HANG_SECONDS  # long enough for this test to be kept from the CPU in the half second below
        run = self.endless("--hang-seconds", limit)
        before = waste.all_stages_of(run.pid)
        for pid in [run.pid, *before.values()]:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(limit + 2)
        os.kill(run.pid, signal.SIGCONT)
        time.sleep(0.5)  # it looks ten times a second
        for pid in before.values():
            os.kill(pid, signal.SIGCONT)
        run.generates()
        self.assertEqual(waste.stages_of(run.pid), before)
        run.end()

    # ---- hangs ----

    def test_a_stage_stopped_at_any_point_is_replaced_and_the_log_says_where_it_was(self):
        self.needs_points()
        for rule, words in (("compute:expert_pinned:stop:50", "compute .* computing|waiting"),
                            ("reader:read_done:stop:30", "reader"), ("router:predict_written:stop:5", "router .* predicting")):
            with self.subTest(rule):
                stage = rule.split(":")[0]
                chat = crash.Chat("--hang-seconds", HANG_SECONDS, env=crash.inject(rule))
                chat.send("Hello")
                def healed():
                    s = crash.stats(chat.pid)
                    return s and s["stages"][stage]["restarts"] and s["stages"][stage]["state"] == "running"
                waste.wait_for("a successor", healed)
                self.assertGreater(len(chat.receive()), 10)
                log = crash.log_of(chat.pid)
                self.assertEqual(chat.close()[0], 0)
                self.assertRegex(log, r"%s \(pid \d+\) gave no sign of life for %d s, killed: .*step \d+, layer \d+; process stopped" % (
                    stage, HANG_SECONDS))
                self.assertRegex(log, words)

    def test_a_stage_that_hangs_at_one_step_again_and_again_costs_a_request(self):
        self.needs_points()
        # all five together take about as long as the 10 s within which five deaths count that come at rest
        chat = crash.Chat("--hang-seconds", HANG_SECONDS, env=crash.inject("compute:sampled:stop:1:1-5"))
        self.assertEqual(chat.ask("Hello").strip(), b"")
        self.assertGreater(len(chat.ask("How are you?")), 10)
        code, _, err = chat.close()
        self.assertEqual(code, 1, "a reply failed: " + err)
        self.assertIn("compute died 5 times", err)

    # ---- the disk ----

    def faulty(self, fault, *rules):
        """A run whose reader has the lying backend of tests/unit/fault_io.h."""
        program = waste.programs("faulty", reader=os.path.join(waste.BUILD, "tests", "unit", "waste-reader-fault"))
        return waste.waste_run(*self.arguments(40), env=dict(crash.inject(*rules), WASTE_FAULT=fault),
                               program=program)

    def test_a_death_on_the_way_to_a_failed_slot(self):
        self.needs_points()
        if not os.path.exists(os.path.join(waste.BUILD, "tests", "unit", "waste-reader-fault")):
            self.skipTest("no waste-reader-fault in this build")
        r = self.faulty("eioall=1", "reader:slot_reason:kill:1:1", "reader:slot_unlisted:segv:1:2")
        self.assertEqual(r.code, 1, str(r))
        self.assertRegex(r.error_lines()[-1], r"experts-L\d+\.bin: layer \d+ expert \d+: read failed: Input/output error")
        self.assertIn("inject: reader:slot_reason:kill", r.error_lines())

    # ---- containment ----

    def test_a_stage_that_tries_to_open_a_file_is_refused(self):
        self.needs_points()
        if os.environ.get("WASTE_BUILT_WITH_SECCOMP") != "1":
            self.skipTest("built without seccomp filters (no libseccomp, or a sanitizer)")
        chat = crash.Chat(env=crash.inject("compute:committed:open:2", "reader:demand_taken:open:5", "router:hidden_taken:open:2"))
        answer = chat.ask("Hello")
        while "router    info    inject: execve" not in crash.log_of(chat.pid):
            chat.ask("Hello")  # nobody waits for the router
        log = crash.log_of(chat.pid)
        stages = waste.stages_of(chat.pid)
        for pid in stages.values():
            with open("/proc/%d/status" % pid) as f:
                status = f.read()
            self.assertIn("NoNewPrivs:\t1", status)
            self.assertRegex(status, r"Seccomp:\t2")
        self.assertEqual(chat.close()[0], 0)
        for stage in waste.STAGES:
            for what in ("open", "create", "socket", "kill", "fork", "execve"):
                self.assertRegex(log, r"%s +info +inject: %s: Operation not permitted" % (stage, what))
            self.assertEqual(len(re.findall(r"%s: system call \d+ \(openat\) is not one a stage needs" % stage, log)), 1, log)
        undisturbed = crash.Chat()
        self.assertEqual(undisturbed.ask("Hello"), answer, "and it goes on")
        undisturbed.close()


if __name__ == "__main__":
    crash.main()
