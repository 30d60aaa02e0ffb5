"""Synthetic containers of many shapes: the engine has the logits the PyTorch reference has for them
(tests/data/make_references.py)."""
import sys

import waste

# The bar is 3e-4 for random weights; the reference's own single precision is within 5e-6 of its double precision.
LOGITS = 3e-5


class Synth(waste.Test):
    def test_logits_are_those_of_the_reference(self):
        for shape in waste.shapes():
            with self.subTest(shape):
                ref = waste.reference(shape)
                got = waste.floats(waste.eval_logits(waste.synth(shape), ref["ids"]))
                d = waste.distance(got, ref["logits"])
                print("%s: relative error %.1e" % (shape, d), file=sys.stderr)
                self.assertLessEqual(d, LOGITS)
                self.assertEqual(waste.top(got, 1), [ref["argmax"]])
                self.assertEqual(waste.top(got, 10), ref["top10"])

    def test_decoding_is_the_prompt_taken_one_by_one(self):
        for shape in ("tiny-k3", "tiny-odd"):
            with self.subTest(shape):
                path, ids = waste.synth(shape), waste.reference(shape)["ids"]
                r = self.ok(waste.waste_run("run", path, "--ids", ",".join(map(str, ids)), "-n", 12, "--temp", "0",
                                            "--ignore-eos", "--json"))
                generated = r.json()["ids"]
                self.assertEqual(len(generated), 12)
                every = waste.floats(waste.eval_logits(path, ids + generated, every=True))
                vocab = waste.reference(shape)["vocab"]
                for i, token in enumerate(generated):
                    at = (len(ids) - 1 + i) * vocab
                    row = every[at:at + vocab]
                    self.assertLessEqual(max(row) - row[token], 1e-3, "position %d" % i)


if __name__ == "__main__":
    waste.main()
