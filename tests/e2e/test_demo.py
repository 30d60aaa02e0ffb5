"""The demo model says what the PyTorch reference says."""
import unittest

import waste

LOGITS = 1e-5


def shown(case):
    """What a terminal shows of a case's text: the response without its markup."""
    text = case["text"]
    if case["thinking"]:
        text = text.split("<|open|>response<|sep|>")[1]
    return text.split("<|close|>")[0]


class Demo(waste.Test):
    def generate(self, case, *options):
        args = ["--ids", waste.ids_of(case), "--temp", "0", "--json"]
        args += ["--ignore-eos"] if waste.is_raw(case) else []
        return self.ok(waste.waste_run("run", waste.DEMO, *args, *options)).json()

    def test_every_prompt_gives_the_ids_of_the_reference(self):
        for case in waste.expected():
            with self.subTest(case["question"]):
                got = self.generate(case, "-n", 48)
                self.assertEqual(got["ids"], case["greedy"][:48])
                self.assertEqual(got["prompt_tokens"], len(case["ids"]))
                self.assertEqual(got["tokens"], len(got["ids"]))
                if not waste.is_raw(case):
                    self.assertEqual(got["text"], shown(case))
                    self.assertIn(case["answer"], got["text"])

    def test_a_long_generation_past_the_end_token_follows_the_reference(self):
        case = waste.genesis()
        got = self.generate(case, "-n", len(case["greedy"]))
        self.assertEqual(got["ids"], case["greedy"])
        self.assertEqual(got["text"], case["text"])

    def test_the_questions_as_text_give_the_same(self):
        for case in waste.expected():
            if waste.is_raw(case) or case["thinking"]:
                continue
            with self.subTest(case["question"]):
                r = self.ok(waste.waste_run("tokenize", waste.DEMO, case["question"], "--json"))
                self.assertEqual(r.json()["ids"], case["ids"])
                r = self.ok(waste.waste_run("run", waste.DEMO, case["question"], "-n", 48, "--temp", "0", "--json"))
                self.assertEqual(r.json()["prompt_tokens"], len(case["ids"]))
                self.assertEqual(r.json()["ids"], case["greedy"])
        r = self.ok(waste.waste_run(waste.DEMO, "What is the capital of Italy?", "-q"))
        self.assertEqual(r.out.decode(), "The capital of Italy is Rome.\n")

    def test_logits_are_those_of_the_reference(self):
        for case in waste.expected():
            if "logits" not in case:
                continue
            with self.subTest(case["question"]):
                got = waste.floats(waste.eval_logits(waste.DEMO, case["ids"]))
                self.assertLessEqual(waste.distance(got, case["logits"]), LOGITS)
                self.assertEqual(waste.top(got, 10), waste.top(case["logits"], 10))

    def test_every_position_ends_with_the_last_one(self):
        case = waste.expected()[0]
        for chunk, most in (((), LOGITS), (("--chunk", "1"), 0)):
            one = waste.eval_logits(waste.DEMO, case["ids"], *chunk)
            every = waste.eval_logits(waste.DEMO, case["ids"], *chunk, every=True)
            self.assertEqual(len(every), len(one) * len(case["ids"]))
            self.assertLessEqual(waste.distance(waste.floats(every[-len(one):]), waste.floats(one)), most)

    def test_a_prefix_sees_nothing_of_what_follows(self):
        case = waste.expected()[0]
        every = waste.eval_logits(waste.DEMO, case["ids"], every=True)
        row = len(every) // len(case["ids"])
        prefix = waste.eval_logits(waste.DEMO, case["ids"][:9])
        self.assertLessEqual(waste.distance(waste.floats(prefix), waste.floats(every[8 * row:9 * row])), LOGITS)


if __name__ == "__main__":
    waste.main()
