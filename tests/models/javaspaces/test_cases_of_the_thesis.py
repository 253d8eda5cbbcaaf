"""Are all 54 cases of appendix B here, each once, and none of them skipped?"""

import re
from collections import Counter
from pathlib import Path

TABLES = {"S": 5, "J": 13, "E": 5, "T": 11, "N": 11, "L": 9}
CASES = [f"{table}.{n}" for table, count in TABLES.items() for n in range(1, count + 1)]
FILES = sorted(Path(__file__).parent.glob("test_appendix_b_*.py"))


def test_every_case_has_one_test():
    text = "".join(file.read_text("utf-8") for file in FILES)
    found = re.findall(r"^def test_appendix_b_([A-Z])_(\d+)_\w+\(", text, re.MULTILINE)
    assert len(CASES) == 54
    assert Counter(f"{table}.{n}" for table, n in found) == Counter(CASES)
    assert len(re.findall(r"^(?:async )?def test_", text, re.MULTILINE)) == 54, "and nothing else"


def test_no_case_is_skipped_or_expected_to_fail():
    text = "".join(file.read_text("utf-8") for file in FILES)
    assert not re.findall(r"skip|xfail|importorskip", text)
