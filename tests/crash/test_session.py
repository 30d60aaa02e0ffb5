"""Deaths at the points of a save and of a restore: the conversation is whole, and goes on with the same ids."""
import os

import crash
import waste


class Session(crash.Test):
    TOKENS = 400

    @classmethod
    def file(cls, name):
        path = os.path.join(waste.scratch(), name)
        for end in ("", ".old", ".new", ".lock"):
            if os.path.exists(path + end):
                os.unlink(path + end)
        return path

    def run_with(self, file, *rules):
        return waste.waste_run(*self.args, "--session", file, "--session-every", 8, env=crash.inject(*rules))

    def killed(self, file, point, hit):
        """waste-run dies at the hit-th save. Where saves take long, tokens must, else the reply is over before."""
        for delay in (0, 20, 400):
            r = self.run_with(self.file(os.path.basename(file)), "waste-run:%s:kill:%d" % (point, hit),
                              *(["compute:committed:delay=%d:*" % delay] if delay else []))
            if r.code:
                break
        self.assertEqual(r.code, -9, str(r))

    def test_waste_run_dies_at_every_point_of_a_save(self):
        self.needs_points()
        for point in crash.points()["saving"]:
            for hit in (1, 2, 3):
                with self.subTest(point, hit=hit):
                    file = self.file("save")
                    self.killed(file, point, hit)
                    r = self.ok(self.run_with(file))
                    self.assertEqual(r.json()["ids"], self.want)
                    self.assertEqual(r.error_lines(), [])
                    # what a save that was cut off has left is gone
                    self.assertFalse(os.path.exists(file + ".new"))
                    if hit > 1:
                        self.assertGreater(r.json()["reused_tokens"], 0)

    def test_compute_dies_while_a_conversation_is_put_back(self):
        self.needs_points()
        for points in (["request_taken"], ["request_reset"], ["request_taken", "request_reset", "request_taken", "request_reset"]):
            with self.subTest(points):
                file = self.file("restore")
                self.killed(file, "save_renamed", 3)
                rules = ["compute:%s:kill:1:%d" % (point, life) for life, point in enumerate(points, 1)]
                r = self.ok(self.run_with(file, *rules)).json()
                self.assertEqual(r["ids"], self.want)
                self.assertGreater(r["reused_tokens"], 0)
                self.assertEqual(r["restarts"]["compute"], len(points))


if __name__ == "__main__":
    crash.main()
