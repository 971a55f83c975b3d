"""Comparison of outputs, pass@k, values between processes, and published formats."""

from __future__ import annotations

import base64
import collections
import datetime
import decimal
import fractions
import json
import pickle
import zlib
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.core.errors import TaskError
from palaestra.core.records import Split
from palaestra.sandbox.inside.channel import encode
from palaestra.tasks.code import formats
from palaestra.tasks.code.comparison import first_difference, read_statement_examples, same_output, why_undecided
from palaestra.tasks.code.family import FAMILY
from palaestra.tasks.code.formats import Functions, Stdio, code_contests, human_eval, live_code_bench, mbpp
from palaestra.tasks.code.inside.peer import Seen, pack, unpack
from palaestra.tasks.code.judge import CaseOutcome, CaseVerdict, ProgramVerdict
from palaestra.tasks.code.published import CodeContests


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("5\n", "5", True), (" 5  6\n\n", "5 6", True), ("5\n6", "5 6", True), ("a\tb\r\n", "a b", True),
        ("0.30000000000000004", "0.3", True), ("1e-7", "0.0", True), ("1.0", "1", True), ("3.14159", "3.14160", False),
        ("12", "1 2", False), ("5", "6", False), ("10000000000000001", "10000000000000000", False), ("yes", "YES", False),
        ("", "0", False), ("nan", "nan", True), ("nan", "1.0", False), ("inf", "1e400", False), ("1 2", "1 2 3", False),
        ("-0.0", "0.0", True), ("0x10", "16", False), ("1_000", "1000", False), ("1000000900.0", "1000000000", False),
        ("1000000000.0", "1000000000", True), ("1e9", "1000000000", True), ("3.0000001", "3", False), ("2.9999999999", "3", False),
        ("1000000000", "1000000000.0", True), ("1000900000", "1000000000.0", False), ("-0.0", "0", True), ("1e400", "1", False),
        ("9" * 5000, "9" * 5000 + ".0", True), ("9" * 5000 + ".0", "9" * 5000, True), ("9" * 20000 + ".0", "9" * 20000, False),
        ("1e999999999", "1", False), ("٣.0", "3", False), ("1e-999999", "0.0", True),
    ],
)  # fmt: skip
def test_same_output(printed: str, expected: str, same: bool) -> None:
    assert same_output(printed, expected) is same
    if not same:
        assert "expected" in first_difference(printed, expected)


@given(st.lists(st.integers() | st.sampled_from(["yes", "a,b"]), max_size=8), st.randoms())
def test_whitespace_is_ignored(words: list[Any], random: Any) -> None:
    spaced = "".join(f"{word}{random.choice([' ', '  ', chr(10), chr(9)])}" for word in words)
    assert same_output(spaced, " ".join(map(str, words)))


def test_case_is_ignored_with_any_case() -> None:
    assert same_output("Yes 1.0", "YES 1.0000001", any_case=True)
    assert not same_output("Yes", "NO", any_case=True)


def test_verdict_is_the_first_failure() -> None:
    good, bad = CaseVerdict(CaseOutcome.PASSED), CaseVerdict(CaseOutcome.TIME, "wall_time")
    assert ProgramVerdict((good, good)).passed
    assert not ProgramVerdict(()).passed
    mixed = ProgramVerdict((good, bad, CaseVerdict(CaseOutcome.WRONG_ANSWER)))
    assert (mixed.outcome, mixed.detail) == (CaseOutcome.TIME, "wall_time")


def fail_if_called(value: Any) -> Any:
    pytest.fail(f"{value!r} stayed")


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.fractions()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.datetimes()
    | st.timedeltas(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner, max_size=3)
        | st.sets(st.integers(), max_size=3)
        | st.frozensets(st.text(), max_size=3)
    ),
    max_leaves=8,
)


@given(plain)
def test_values_round_trip(value: Any) -> None:
    line = encode({"value": pack(value, fail_if_called, Seen())})
    assert "\n" not in line
    back = unpack(json.loads(line)["value"], fail_if_called, Seen())
    assert back == value
    assert type(back) is type(value)


def test_other_values_are_sent_by_content() -> None:
    Point = collections.namedtuple("Point", "x y")
    pairs = [
        (Point(1, 2), (1, 2)), ({"a": 1}.keys(), ["a"]), (collections.Counter("aab"), collections.Counter("aab")),
        (collections.defaultdict(list, {1: [2]}), {1: [2]}), (range(1, 9, 2), range(1, 9, 2)), (2**80, 2**80),
        (collections.deque([1, 2]), collections.deque([1, 2])), (float("inf"), float("inf")),
        (datetime.time(1, 2), datetime.time(1, 2)), (decimal.Decimal("1.50"), decimal.Decimal("1.50")),
        (fractions.Fraction(1, 3), fractions.Fraction(1, 3)),
    ]  # fmt: skip
    for value, wanted in pairs:
        assert unpack(pack(value, fail_if_called, Seen()), fail_if_called, Seen()) == wanted
    assert list(unpack(pack((x for x in "ab"), fail_if_called, Seen()), fail_if_called, Seen())) == ["a", "b"]
    assert unpack(pack(nan, fail_if_called, Seen()), fail_if_called, Seen()) != nan
    thing = object()
    assert unpack(pack([thing], lambda x: 7 if x is thing else 0, Seen()), lambda n: n, Seen()) == [7]
    with pytest.raises(KeyError):
        unpack({"__import__": "os"}, fail_if_called, Seen())


def test_human_eval_and_mbpp_rows() -> None:
    row = {"task_id": "HumanEval/0", "prompt": "def f(x):\n", "entry_point": "f", "canonical_solution": "    return x\n", "test": "def check(candidate):\n    assert candidate(1) == 1\n"}  # fmt: skip
    problem = human_eval(row, Split.TEST)
    assert isinstance(problem.tests, Functions)
    assert (problem.wanted, problem.tests.takes_function, problem.solution) == ("f", True, "def f(x):\n    return x\n")
    whole = {"task_id": 601, "text": "Twice.", "code": "def helper(x):\r\n  return x\r\ndef twice(x):\r\n  return 2*x", "test_list": ["assert set([twice(2)]) == {4}"], "test_setup_code": "", "challenge_test_list": ["assert twice(0) == 0"]}  # fmt: skip
    problem = mbpp(whole, Split.TEST)
    assert isinstance(problem.tests, Functions)
    assert (problem.wanted, problem.split, problem.tests.code.count("assert")) == ("twice", Split.TRAIN, 2)
    assert "assert set([twice(2)]) == {4}" in problem.question
    assert "twice(0)" not in problem.question
    with pytest.raises(TaskError, match="test_list"):
        mbpp({"task_id": 1}, Split.TEST)
    with pytest.raises(TaskError, match="entry_point"):
        human_eval({"task_id": "x", "prompt": "y"}, Split.TEST)


def test_code_contests_rows() -> None:
    text = "Add.\n\nTime Limit: {'seconds': 2, 'nanos': 500000000}\nMemory Limit: 256000000 Bytes\n"
    problem = code_contests({"problem": text, "tests": {"inputs": ["1 2\n"], "outputs": ["3\n"]}}, Split.TEST)
    assert problem.tests == Stdio(("1 2\n",), ("3\n",))
    assert (problem.seconds, problem.memory) == (2.5, 256_000_000)
    published = {
        "name": "1_A", "description": "Add.", "public_tests": {"input": ["1"], "output": ["1"]}, "private_tests": {"input": ["2"], "output": ["2"]},
        "generated_tests": {"input": [], "output": []}, "time_limit": {"seconds": 1, "nanos": 0}, "memory_limit_bytes": 5, "cf_rating": 1500,
        "solutions": {"language": [2, 3], "solution": ["int main", "print(1)"]},
    }  # fmt: skip
    problem = code_contests(published, Split.TRAIN)
    assert (problem.id, problem.subskill, problem.solution) == ("code-contests/1_A", "rating 1200", "print(1)")
    assert problem.tests == Stdio(("1", "2"), ("1", "2"))
    with pytest.raises(TaskError, match=r"outputs .*inputs"):
        code_contests({"problem": "x", "tests": {"inputs": ["1"], "outputs": []}}, Split.TEST)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("If there are several possible answers, you may print any of them.", "several answers"),
        ("If there are multiple solutions, output any.", "several answers"),
        ("Print the edges. You can print them in any order.", "several answers"),
        ("Otherwise, print any suitable value of d.", "several answers"),
        ("If there are several correct answers, you may choose any of them.", "several answers"),
        ("This is an interactive problem. Ask at most 10 questions.", "interactive"),
        ("After each question, flush the output.", "interactive"),
        ("If there are several identical minima, he can choose any of them. Print the sum.", ""),
        ("You can print each letter in any case (upper or lower).", ""),
        ("Each test contains multiple test cases. Print any number? No: print the sum.", ""),
    ],
)
def test_undecided_statements(statement: str, why: str) -> None:
    reason = why_undecided(f"{statement}\n\nExamples\n\nInput\n\n1 2\n\nOutput\n\n3\n", ("1 2\n",), ("3\n",))
    assert (why in reason) if why else reason == ""


def test_contradicting_example_marks_a_problem_undecided() -> None:
    text = "Find it.\n\nExamples\n\nInput\n\n1 2\n\nOutput\n\n&lt; 3\n\nInput\n\n5\n\nOutput\n\n6\n\nNote\n\nNo.\n"
    assert read_statement_examples(text) == [("1 2\n", "< 3\n"), ("5\n", "6\n")]
    assert why_undecided(text, ("1 2",), ("< 3",)) == ""
    assert "example" in why_undecided(text, ("5",), ("7",))
    problem = code_contests({"problem": text, "tests": {"inputs": ["5"], "outputs": ["7"]}}, Split.TEST)
    assert "example" in problem.undecided


def test_undecided_problems_are_optional(tmp_path: Path) -> None:
    rows = [
        {"problem": f"Task {k}. {end}", "tests": {"inputs": ["1"], "outputs": ["1"]}}
        for k, end in enumerate(
            ("Print it.", "If there are several answers, print any of them.", "Print yes in any case.")
        )
    ]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for undecided, count in ((False, 2), (True, 3)):
        task = CodeContests(str(tmp_path), undecided=undecided, parts="published")
        assert len(task.problems(Split.TEST, count, seed=0)) == count
    cases = {problem.tests.any_case for problem in task.read_all()}  # type: ignore[union-attr]
    assert cases == {False, True}


def test_statements_define_ties() -> None:
    rng = np.random.default_rng(0)
    for draw in FAMILY["lists"].values():
        drafts = [draw(rng) for _ in range(200)]
        near = [draft for draft in drafts if "abs(x - " in draft.solution]
        assert near
        assert all("of two equally near the smaller first" in draft.question for draft in near)
        assert not any("equally near" in draft.question for draft in drafts if draft not in near)


def hidden(cases: list[dict[str, str]]) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


def test_live_code_bench_rows_and_pickles() -> None:
    stdin = [{"input": "1\n", "output": "2\n", "testtype": "stdin"}]
    row = {"question_id": "a1", "question_content": "Add one.", "public_test_cases": json.dumps(stdin), "private_test_cases": hidden(stdin), "difficulty": "easy", "platform": "atcoder"}  # fmt: skip
    problem = live_code_bench(row, Split.TEST)
    assert problem.tests == Stdio(("1\n", "1\n"), ("2\n", "2\n"))
    assert (problem.skill, problem.subskill) == ("atcoder", "easy")
    call = [{"input": '[1, 2]\n"x"', "output": "true", "testtype": "functional"}]
    row |= {
        "public_test_cases": json.dumps(call),
        "private_test_cases": "",
        "metadata": '{"func_name": "has"}',
        "starter_code": "class Solution:\n",
    }
    problem = live_code_bench(row, Split.TEST)
    assert isinstance(problem.tests, Functions)
    assert problem.tests.code == "assert Solution().has([1, 2], 'x') == True"
    evil = base64.b64encode(zlib.compress(pickle.dumps(print))).decode()
    with pytest.raises(TaskError, match="only text"):
        live_code_bench(row | {"private_test_cases": evil}, Split.TEST)
    with pytest.raises(TaskError, match="no test cases"):
        live_code_bench(row | {"public_test_cases": "[]"}, Split.TEST)


def compress(pickled: bytes) -> str:
    return base64.b64encode(zlib.compress(pickled)).decode()


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (hidden([{"input": "1" * (2 << 20), "output": "", "testtype": "stdin"}]), "more than 1 MiB"),
        (compress(pickle.dumps("[" * 100_000)), "recursion"),
        (compress(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f."), "bytes"),
        (compress(b"\x80\x04\x96\xff\xff\xff\xff\x7f\x00\x00\x00."), "bytes"),
        (compress(pickle.dumps(["[]"])), "only text"),
        (compress(pickle.dumps("[]"))[:-8], ""),
        ("%%%", ""),
        (hidden({}), "list of test cases"),  # type: ignore[arg-type]
    ],
)
def test_size_of_hidden_tests_is_limited(monkeypatch: pytest.MonkeyPatch, packed: str, why: str) -> None:
    monkeypatch.setattr(formats, "MAX_TESTS", 1 << 20)
    row = {"question_id": "a1", "question_content": "Add one.", "private_test_cases": packed}
    with pytest.raises(TaskError, match=f"problem a1.*{why}"):
        live_code_bench(row, Split.TEST)
