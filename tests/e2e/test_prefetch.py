"""Prefetching changes no token and reads hardly more than without it, at any cache size."""
import unittest

import waste

WORKING_SET = 28  # of the demo: 7 layers, 4 experts each
COMMON = ("--threads", "2", "--ctx", "512")


def plan(budget, lookahead):
    r = waste.waste_run("plan", waste.DEMO, "--json", "--budget", budget, "--lookahead", lookahead, *COMMON)
    return r.json()["slots"] if r.code == 0 else 0


def budget_for(slots, lookahead):
    """The smallest budget that holds so many slots, to 2 KB."""
    low, high = 1 << 20, 1 << 28
    while high - low > 2048:
        middle = (low + high) // 2
        if plan(middle, lookahead) >= slots:
            high = middle
        else:
            low = middle
    return high


def until(enough, what):
    """What what() gives once enough(it): the router, which nobody waits for, may come when all is over."""
    for _ in range(20):
        got = what()
        if enough(got):
            break
    return got


class Prefetch(unittest.TestCase):
    def run_it(self, slots, lookahead):
        r = waste.waste_run("run", waste.DEMO, "--ids", waste.ids_of(waste.genesis()), "-n", "100", "--temp", "0",
                            "--ignore-eos", "--json", "--lookahead", lookahead,
                            "--budget", budget_for(slots, lookahead), *COMMON)
        self.assertEqual(r.code, 0, r)
        return r.json()

    def test_same_tokens_and_hardly_more_bytes(self):
        for size in (0.5, 1, 2):
            slots = int(size * WORKING_SET)
            off = self.run_it(slots, 0)
            self.assertEqual(off["experts"]["prefetched"], 0)
            for lookahead in (4, 12):
                on = until(lambda j: j["experts"]["prefetch_used"] > 0, lambda: self.like(off, self.run_it(slots, lookahead)))
                print(size, lookahead, off["experts"], on["experts"])
                self.assertGreater(on["experts"]["prefetch_used"], 0)

    def like(self, off, on):
        self.assertEqual(on["text"], off["text"])
        self.assertEqual(on["tokens"], off["tokens"])
        self.assertLessEqual(on["experts"]["bytes_read"], 1.05 * off["experts"]["bytes_read"])
        return on

    def layer(self):
        """The timeline of a layer that had something to read itself: all events, the layer's own, {event: its times}."""
        budget = budget_for(WORKING_SET, 4)
        for _ in range(30):
            r = waste.waste_run("bench", waste.DEMO, "--tokens", "12", "--timeline", "--json", "--budget", budget,
                                "--lookahead", 4, *COMMON)
            events = r.json()["timeline"]
            own = [e for e in events if e["layer"] == events[0]["layer"]]
            at = {}
            for e in own:
                at.setdefault(e["event"], []).append(e["us"])
            if {"TAKEN", "READ"} <= set(at) and max(at["READ"]) > at["TAKEN"][0]:
                return events, own, at
        self.fail("nothing was ever read: %s" % events)

    def test_the_timeline_of_a_layer(self):
        events, own, at = self.layer()
        print(events)
        self.assertEqual([e["us"] for e in events], sorted(e["us"] for e in events))
        self.assertEqual((events[0]["event"], events[-1]["event"]), ("ATTENTION", "DONE"))
        for first, second in (("ATTENTION", "FFN"), ("FFN", "DEMAND"), ("DEMAND", "TAKEN"), ("DEMAND", "BATCH")):
            self.assertLess(at[first][0], at[second][0])
        # every expert was computed, and what was read was there before
        self.assertEqual(sum(e["number"] for e in own if e["event"] == "BATCH"), 4)
        here = {e["number"]: e["us"] for e in own if e["event"] == "READY"}
        for e in own:
            if e["event"] == "READ" and e["us"] > at["TAKEN"][0]:  # what was predicted before may be wrong, and come later
                self.assertLess(e["us"], here[e["number"]])
                self.assertLess(here[e["number"]], at["BATCH"][-1])
        text = waste.waste_run("bench", waste.DEMO, "--tokens", "4", "--timeline").out.decode()
        self.assertIn("compute  attention begins", text)
        self.assertIn("compute  layer done", text)

    def test_the_routers_precision_is_shown(self):
        precision = until(lambda p: p["before_moe"], lambda: waste.waste_run(
            "bench", waste.DEMO, "--tokens", "120", "--lookahead", "8", "--json").json()["router_precision"])
        self.assertEqual(set(precision), {"before_moe", "after_moe"})
        # a drive that is fast enough gets no second prediction
        self.assertIn(len(precision["after_moe"]), (0, 8))
        self.assertEqual(len(precision["before_moe"]), 8)
        for shares in precision.values():  # of the second there may be a handful, so no order among its ranks
            self.assertTrue(all(0 <= s <= 1 for s in shares))
        # the likeliest are right more often, and four of 64 are chosen
        first = precision["before_moe"]
        self.assertGreater(first[0], 0.5)  # by chance 0.06; a router that has to wait for a CPU makes few
        self.assertGreater(first[0], first[7])
        self.assertLessEqual(sum(first), 4)
        line = "router   right in percent, by rank, before the MoE: "
        text = until(lambda t: line in t, lambda: waste.waste_run(
            "bench", waste.DEMO, "--tokens", "40", "--lookahead", "8").out.decode())
        self.assertIn(line, text)
        r = waste.waste_run("bench", waste.DEMO, "--tokens", "4", "--lookahead", "0", "--json")
        self.assertEqual(r.json()["router_precision"], {"before_moe": [], "after_moe": []})


if __name__ == "__main__":
    unittest.main()
