"""The result does not depend on how it was computed: bit for bit, for every budget, path and thread count."""
import itertools

import waste


class Invariants(waste.Test):
    def setUp(self):
        self.case = waste.genesis()
        self.ids = waste.ids_of(self.case)

    def generated(self, model, ids, *options, n=24):
        r = self.ok(waste.waste_run("run", model, "--ids", ids, "-n", n, "--temp", "0", "--ignore-eos", "--json", *options))
        return r.json()

    def same(self, model, ids, variants, n=24):
        logits = waste.eval_logits(model, ids)
        plain = self.generated(model, ids, n=n)
        for options in variants:
            with self.subTest(" ".join(map(str, options))):
                self.assertEqual(waste.eval_logits(model, ids, *options), logits)
                self.assertEqual(self.generated(model, ids, *options, n=n)["ids"], plain["ids"])

    def budgets(self, model):
        """From the floor up to more than everything."""
        plan = self.plan(model)
        floor, slot = plan["floor_bytes"], plan["cache_bytes"] // plan["slots"]
        return [floor, floor + slot, floor + 3 * slot, floor + 17 * slot, floor + 100 * slot, floor + (1 << 30)]

    def test_budget(self):
        self.same(waste.DEMO, self.ids, [("--budget", b) for b in self.budgets(waste.DEMO)])

    def test_a_budget_under_the_floor_is_refused_with_the_number_that_would_do(self):
        floor = self.plan(waste.DEMO)["floor_bytes"]
        for command in (["plan", waste.DEMO], ["run", waste.DEMO, "hello"]):
            line = self.refused(waste.waste_run(*command, "--budget", floor - 1), "floor", codes=(2,))
            self.assertRegex(line, r"[0-9.]+ ?[KMG]i?B?|%d" % floor)

    def test_lookahead(self):
        self.same(waste.DEMO, self.ids, [("--lookahead", n) for n in (0, 1, 4, 16)])

    def test_lookahead_with_the_smallest_cache(self):
        self.same(waste.DEMO, self.ids, [
            ("--lookahead", n, "--budget", self.plan(waste.DEMO, "--lookahead", n)["floor_bytes"]) for n in (0, 16)])

    def test_io(self):
        self.same(waste.DEMO, self.ids, [("--io", io) for io in waste.io_modes()])

    def test_threads(self):
        self.same(waste.DEMO, self.ids, [("--threads", n) for n in (1, 2, 5)])

    def test_verify(self):
        self.same(waste.DEMO, self.ids, [("--verify",), ("--no-verify",)])

    def test_everything_at_once_on_odd_shapes(self):
        for shape in ("tiny-odd-k3", "tiny-all", "tiny-few", "tiny-unshared-k3", "tiny-odd-vq2r"):
            model = waste.synth(shape)
            ids = ",".join(map(str, waste.reference(shape)["ids"]))
            variants = []
            for (t, io), look in zip(itertools.product((1, 5), waste.io_modes()), (0, 3, 2, 0)):
                size = ("--threads", t, "--lookahead", look)
                variants.append((*size, "--io", io, "--budget", self.plan(model, *size)["floor_bytes"]))
            with self.subTest(shape):
                self.same(model, ids, variants, n=8)


if __name__ == "__main__":
    waste.main()
