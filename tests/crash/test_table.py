"""The fault table of README.md: every row names tests that exist."""
import os
import re
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
FILES = {"P": "tests/crash/test_points.py", "D": "tests/crash/test_deaths.py", "R": "tests/crash/test_random.py",
         "L": "tests/crash/test_late.py", "M": "tests/crash/test_memory.py", "S": "tests/crash/test_soak.py",
         "C": "tests/e2e/test_control.py", "T": "tests/e2e/test_start.py", "W": "tests/e2e/test_watch.py",
         "V": "tests/crash/test_session.py", "E": "tests/e2e/test_session.py"}


def rows():
    """[(fault, what names its tests)]"""
    with open(os.path.join(HERE, "README.md")) as f:
        text = f.read()
    table = text[text.index("## The fault table"):]
    table = re.search(r"\| fault \|.*?\n\|---.*?\n((?:\|.*\n)+)", table).group(1)
    return [(cells[1].strip(), cells[-2]) for cells in (line.split("|") for line in table.splitlines())]


def tests_of(path):
    with open(os.path.join(ROOT, path)) as f:
        return re.findall(r"def test_(\w+)\(", f.read())


class Table(unittest.TestCase):
    def names(self, cell):
        """[(letter or None, name)]: a letter goes for the names behind it, up to the next."""
        letter = None
        for m in re.finditer(r"\b([PDRLMSCTWUVE]) (?=`)|`([^`]+)`", cell):
            if m.group(1):
                letter = m.group(1)
            else:
                yield letter, m.group(2)

    def test_every_row_names_tests_that_exist(self):
        found = 0
        for fault, cell in rows():
            with self.subTest(fault):
                names = list(self.names(cell))
                self.assertTrue(names, "no test")
                for letter, name in names:
                    if "/" in name or name.endswith((".c", ".py")):
                        places = [name, os.path.join("tests/unit", name)]
                        self.assertTrue(any(os.path.exists(os.path.join(ROOT, p)) for p in places), name)
                        continue
                    files = [FILES[letter]] if letter else re.findall(r"tests/\w+/test_\w+\.py", cell)
                    self.assertTrue(any(name in tests_of(f) for f in files), "%s of %s" % (name, files))
                    found += 1
        self.assertGreater(found, 20)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
