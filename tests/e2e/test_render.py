"""waste-run render: conversations in chat markup, and what it refuses."""
import json
import os

import waste

MODEL = waste.DEMO


def cases():
    with open(os.path.join(waste.DATA, "xtml_cases.json")) as f:
        return json.load(f)


def render(conversation, *options):
    data = conversation if isinstance(conversation, bytes) else json.dumps(conversation).encode()
    return waste.waste_run("render", "-", *options, stdin=data)


class Render(waste.Test):
    def test_every_case_gives_its_segments(self):
        for name, case in cases().items():
            with self.subTest(name):
                self.assertEqual(self.ok(render(case["input"], "--segments")).json(), case["segments"])

    def test_text_is_the_segments_joined(self):
        case = cases()["tool_calls_parallel"]
        text = self.ok(render(case["input"])).out.decode()
        self.assertEqual(text, "".join(s[0] for s in case["segments"]) + "\n")

    def test_json_has_all_three(self):
        case = cases()["tool_calls_parallel"]
        got = self.ok(render(case["input"], "--json")).json()
        self.assertEqual(got, {"text": "".join(s[0] for s in case["segments"]), "segments": case["segments"]})
        ids = self.ok(render(case["input"], MODEL, "--ids")).out.decode()
        got = self.ok(render(case["input"], MODEL, "--json")).json()
        self.assertEqual(got["ids"], [int(i) for i in ids.split(",")])
        self.refused(render(case["input"], MODEL, "--json", "--ids"), "--json", codes=(2,))

    def test_ids_are_the_segments_each_by_itself(self):
        for name in ("tool_call_and_result", "content_carries_markup", "content_parts"):
            case = cases()[name]
            want = []
            for text, markup in case["segments"]:
                r = self.ok(waste.waste_run("tokenize", "--model", MODEL, "-", *(["--markup"] if markup else []), stdin=text.encode()))
                want += [int(i) for i in r.out.decode().split(",")]
            got = self.ok(render(case["input"], MODEL, "--ids")).out.decode()
            self.assertEqual([int(i) for i in got.split(",")], want, name)

    def test_the_demos_references_are_its_conversations(self):
        for case in waste.expected():
            if not waste.is_raw(case):
                got = self.ok(render({"messages": [{"role": "user", "content": case["question"]}],
                                      "thinking": case["thinking"]}, MODEL, "--ids"))
                self.assertEqual(got.out.decode().strip(), waste.ids_of(case))

    def test_a_file_of_its_own_format(self):
        model = waste.copy_container(MODEL, "own-chat")
        waste.replace(model, "chat.json", json.dumps(
            {"system": ["S(", ")"], "user": ["U<|open|>(", ")"], "assistant": ["A(", ")[EOS]"], "open": "A("}).encode())
        talk = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "[EOS]u"},
                             {"role": "assistant", "content": "a"}]}
        got = self.ok(render(talk, model, "--segments")).json()
        self.assertEqual(got, [["S(", True], ["s", False], [")", True], ["U<|open|>(", True], ["[EOS]u", False],
                               [")", True], ["A(", True], ["a", False], [")[EOS]", True], ["A(", True]])
        talk["messages"].append({"role": "tool", "tool": "f", "content": "x"})
        self.refused(render(talk, model), "tools")

    def test_hostile_json_gets_one_line(self):
        deep = b'{"messages":' + b"[" * 100000
        for data, word in ((b"", "line 1"), (b"{", "line 1"), (b"\xff\xfe", "line 1"), (deep, "depth"),
                           (b'{"messages":[{"role":"x\\ny"}]}', "messages[0].role"),
                           (b'{"messages":[{"role":"user","content":"a","\\u001b[31m\\n":1}]}', "messages[0]"),
                           (b'{"messages":[{"role":"user","content":"\\ud83d"}]}', "line 1"),
                           (b"null", "expected"), (b"[]", "object")):
            with self.subTest(data[:40]):
                self.refused(render(data), word)
        self.refused(waste.waste_run("render", "/nonexistent.json"), "/nonexistent.json", codes=(2,))
        self.refused(waste.waste_run("render", "-", "--ids", stdin=b"{}"), "MODEL", codes=(2,))
        self.refused(waste.waste_run("render", "-", "--ids", "--segments", MODEL, stdin=b"{}"), codes=(2,))

    def test_random_damage_never_crashes(self):
        random = waste.seed()
        texts = [json.dumps(c["input"]).encode() for c in cases().values()]
        for _ in range(150):
            data = bytearray(random.choice(texts))
            for _ in range(random.randrange(1, 6)):
                at = random.randrange(len(data))
                data[at:at + random.randrange(3)] = random.choice(
                    [b"", b"null", b"[", b"{}", b"\x00", b'"', b"\\", b"5", b"\xff", b"true"])
            r = render(bytes(data), "--segments")
            if r.code == 0:
                r.json()
            else:
                self.refused(r)

    def test_many_calls_and_results_take_no_time(self):
        n = 20000
        talk = {"messages": [{"role": "assistant", "tool_calls": [
            {"id": "c%d" % i, "function": {"name": "f", "arguments": "{}"}} for i in range(1000)]}] +
            [{"role": "tool", "tool_call_id": "c%d" % (i % 1000), "content": "x"} for i in range(n)]}
        self.ok(waste.waste_run("render", "-", stdin=json.dumps(talk).encode(), limit=10 * waste.SLOW))

    def test_thinking_is_chosen_on_the_command_line(self):
        case = next(c for c in waste.expected() if c["thinking"])
        shown = self.ok(waste.waste_run(MODEL, case["question"], "--think", "show", "-q")).out.decode()
        hidden = self.ok(waste.waste_run(MODEL, case["question"], "--think", "hide", "-q")).out.decode()
        off = self.ok(waste.waste_run(MODEL, case["question"], "--think", "off", "-q")).out.decode()
        thought, answer = case["text"].split("<|close|>think<|sep|><|open|>response<|sep|>")
        answer = answer.split("<|close|>")[0]
        self.assertEqual(hidden, answer + "\n")
        self.assertIn(thought, shown)
        self.assertIn(answer, shown)
        self.assertNotIn("The user asks", off)
        self.refused(waste.waste_run(MODEL, "x", "--think", "maybe"), "--think", codes=(2,))


if __name__ == "__main__":
    waste.main()
