"""A disk that misbehaves (tests/unit/fault_io.h) changes no output, or ends the request with one line."""
import os
import unittest

import waste

MENDED = ["short=4096", "short=5000", "short=300", "eintr=2", "eagain=3", "badcrc=5", "nodirect=1", "latedirect=1", "full=2", "uring=1", "uring=38",
          "short=5000,eintr=3,eagain=5,full=7"]
MENDED += ["eio=%d" % k for k in (range(1, 201) if waste.LONG else (1, 2, 57, 200))]


PRELOAD = os.path.join(waste.BUILD, "tests", "e2e", "lying_pread.so")


class Faults(waste.Test):
    @classmethod
    def setUpClass(cls):
        cls.program = waste.programs("faulty", reader=os.path.join(waste.BUILD, "tests", "unit", "waste-reader-fault"))
        cls.case = next(c for c in waste.expected() if not waste.is_raw(c))
        cls.args = ["run", waste.DEMO, "--ids", waste.ids_of(cls.case), "-n", 24, "--temp", 0, "--ignore-eos", "--json",
                    "-q"]
        r = waste.waste_run(*cls.args)
        if r.code:
            raise AssertionError(str(r))
        cls.want = r.json()["ids"]

    def run_with(self, fault, io):
        return waste.waste_run(*self.args, "--io", io, env={"WASTE_FAULT": fault},
                               program=self.program)

    def test_what_can_be_mended_changes_nothing(self):
        for fault in MENDED:
            for io in ("auto", "pread"):
                with self.subTest(fault=fault, io=io):
                    r = self.ok(self.run_with(fault, io))
                    self.assertEqual(r.json()["ids"], self.want)

    def test_records_that_are_read_in_pieces(self):
        """Records of more than a megabyte are several reads; one of them may fail."""
        model = waste.synth_config("big-records", hidden_size=512, moe_intermediate_size=2048, num_hidden_layers=4,
                                   num_experts=8, num_experts_per_token=2)
        record = self.ok(waste.waste_run("info", model, "--json")).json()["record_bytes"]
        self.assertGreater(record, 2 << 19)
        args = ["run", model, "--ids", "5,17,400,23", "--raw", "-n", 12, "--ignore-eos", "--temp", 0, "--json", "-q"]
        floor = self.plan(model)["floor_bytes"] // 1024 + 1
        want = self.ok(waste.waste_run(*args)).json()["ids"]
        faults = ["short=100000", "short=524287", "eintr=3", "eagain=2", "badcrc=4", "nodirect=1", "latedirect=1", "full=3",
                  "short=300000,eintr=5,full=7"]
        for fault in faults + ["eio=%d" % k for k in (range(1, 61) if waste.LONG else (1, 2, 3, 11))]:
            for io in ("auto", "pread"):
                with self.subTest(fault=fault, io=io):
                    r = waste.waste_run(*args, "--io", io, "--budget", "%dK" % floor, env={"WASTE_FAULT": fault},
                                        program=self.program)
                    self.assertEqual(self.ok(r).json()["ids"], want)

    @unittest.skipIf(os.environ.get("WASTE_BUILT_WITH_SANITIZER") == "1", "a sanitizer wants to come first")
    def test_every_read_of_every_process(self):
        """Not only of experts: the container's files, the trunk, the embedding, by waste-run too."""
        for fault in ["short", "eintr", "eagain"] + ["eio=%d" % k for k in (range(1, 201) if waste.LONG else (1, 2, 5, 30, 80, 150))]:
            for io in ("auto", "pread"):
                with self.subTest(fault=fault, io=io):
                    r = waste.waste_run(*self.args, "--io", io, env={"LD_PRELOAD": PRELOAD, "WASTE_TEST_PREAD": fault})
                    self.assertEqual(self.ok(r).json()["ids"], self.want)

    def test_a_dead_disk_is_one_line_that_names_file_layer_and_expert(self):
        for io in ("auto", "pread"):
            line = self.refused(self.run_with("eioall=1", io), codes=(1,))
            self.assertRegex(line, r"experts-L1\.bin: layer 1 expert \d+: read failed: Input/output error")

    def test_a_disk_that_is_busy_for_ever_is_one_line(self):
        for fault, text in (("eagain=1", "temporarily unavailable"), ("eintr=1", "Interrupted")):
            for io in ("auto", "pread"):
                with self.subTest(fault=fault, io=io):
                    self.refused(self.run_with(fault, io), "experts-L1.bin: layer 1 expert", text, codes=(1,))

    def setUp(self):
        try:
            os.close(os.open(os.path.join(waste.DEMO, "experts-L1.bin"), os.O_RDONLY | os.O_DIRECT))
            self.direct = True
        except OSError:
            self.direct = False  # a file system that does not know it

    def test_o_direct_that_is_forced_and_goes_away_is_an_error(self):
        for io in (io + "+direct" for io in waste.io_modes()):
            self.refused(self.run_with("nodirect=1", io), "is not available", codes=(2,))
            if self.direct:  # granted at the first read, refused later: not a silent change either
                self.refused(self.run_with("latedirect=1", io), "Invalid argument", codes=(1,))

    def test_io_uring_that_is_forced_and_refused_is_an_error(self):
        self.refused(self.run_with("uring=1", "uring"), "io_uring is not available", codes=(2,))


if __name__ == "__main__":
    waste.main(os.path.join(waste.BUILD, "tests", "unit", "waste-reader-fault"))
