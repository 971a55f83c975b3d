"""Answers that try to stall or break the scorer are wrong, without a failure, an exception or a delay."""

import time
from collections.abc import Iterator

import pytest

from palaestra.core.records import Completion, Problem, Score, Split
from palaestra.tasks.base import make_task
from palaestra.tasks.math.base import AnswerKind, equal, extract
from palaestra.tasks.math.equivalence.compare import AnswerVerdict, compare_answers, compare_numbers

N = 300_000
HOSTILE = {
    "backslashes": "\\" * N,
    "backslashes in a box": "\\boxed{" + "\\" * N + "}",
    "5,000 digits": "7" * 5000,
    "many digits": "9" * N,
    "5,000 digits in a box": "\\boxed{" + "7" * 5000 + "}",
    "1,900 digits in a box": "\\boxed{" + "7" * 1900 + "}",
    "open braces": "{" * N,
    "nested braces": "{" * N + "}" * N,
    "nested parentheses": "(" * 450 + "1" + ")" * 450,
    "nested sets": "\\{" * 300 + "1" + "\\}" * 300,
    "nested text": "\\text{" * 50_000,
    "nested roots": "\\sqrt" * 190 + "2",
    "fractions without arguments": "\\frac" * 100_000,
    "tower of powers": "9^" * 300 + "9",
    "tower of powers in braces": "9^{" * 20 + "9" + "}" * 20,
    "huge power": "2^{99999999}",
    "power of a power": "(2^{19999})^{2}",
    "many powers": "/".join(["2^{9999}", "3^{9999}"] * 40),
    "huge exponent": "1e9999999999",
    "factorials of factorials": "9" + "!" * 500,
    "huge factorial": "99999!",
    "sum of factorials": "+".join(["2004!"] * 150),
    "commas": "1," * N,
    "words that join": "1 and " * 50_000,
    "colons": "1:" * N,
    "signs": "x<" * 450,
    "equations": "x=" * 480 + "1",
    "assignments": "x=1," * 240,
    "minus signs": "-" * 901 + "5",
    "spaces": " " * N,
    "full stops": "." * N,
    "quotes": "'\"" * N,
    "dollars": "$" * N,
    "primes": "E" + "'" * N,
    "lone surrogates": "\ud800" * 1000,
    "a lone surrogate in a formula": "\\boxed{\\sqrt{2}+\ud800}",
    "NUL": "\\sqrt{2}\0+1",
    "circled digits": "①②③",
    "unions": "(1,2)\\cup" * 100,
    "large matrix": "\\begin{pmatrix}" + "&".join("1" * 200) + "\\end{pmatrix}",
    "power of a matrix": "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}^{99999}",
    "long time": "9" * 500 + " pm",
    "ratio of many": ":".join("1" * 400),
    "boxes": "\\boxed{1} and " * 20_000,
    "marks": "answer " * 50_000,
    "mark and spaces": "answer" + " " * N,
}


@pytest.fixture(scope="module", autouse=True)
def _start_server() -> None:
    pytest.importorskip("math_verify", reason="algebra needs palaestra[math]")
    compare_answers(r"\sqrt{2}", r"\sqrt{3}", limit=30)


@pytest.fixture(params=HOSTILE.values(), ids=HOSTILE)
def hostile_answer(request: pytest.FixtureRequest) -> Iterator[str]:
    start = time.perf_counter()
    yield request.param
    assert time.perf_counter() - start < 8  # A busy machine takes its time; what is quadratic takes minutes.


def test_the_comparison_is_wrong_in_time(hostile_answer: str) -> None:
    for reference in ("5", r"\sqrt{7}", "x<1", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"):
        verdict = compare_answers(hostile_answer, reference, limit=0.4)
        assert isinstance(verdict, AnswerVerdict), reference
        assert not verdict.equal, reference
    assert not compare_numbers(hostile_answer, "8").equal  # type: ignore[union-attr]


def test_the_tasks_score_it_zero(hostile_answer: str) -> None:
    for task, reference in (("gsm8k", "8"), ("math", r"\sqrt{7}")):
        score = make_task(task).score(Problem("a", (), reference), Completion(hostile_answer))
        assert isinstance(score, Score)
        assert score.value == 0.0


@pytest.mark.parametrize("kind", list(AnswerKind))
def test_the_answers_of_math_skills_are_bounded(hostile_answer: str, kind: AnswerKind) -> None:
    expected = {AnswerKind.NUMBER: "12345", AnswerKind.CLOCK: "11:59", AnswerKind.LIST: "12, 34"}[kind]
    for text in (hostile_answer, f"Answer: {hostile_answer}"):
        extracted = extract(text, kind)
        assert extracted is None or not equal(extracted, expected, kind)


def test_a_number_of_5000_digits_is_wrong_in_math_skills() -> None:
    task = make_task("math-skills")
    problem = task.problems(Split.TRAIN, 1, 0, ["addition"])[0]
    score = task.score(problem, Completion("Answer: " + "7" * 5000))
    assert isinstance(score, Score)
    assert score.value == 0.0
    assert task.score(problem, Completion(f"Answer: {problem.reference}{' .' * 5000}")).value == 1.0  # type: ignore[union-attr]


def test_a_hostile_reference_takes_no_longer_than_its_limit() -> None:
    for reference in ("\\" * N, "7" * 5000, "{" * N):
        start = time.perf_counter()
        compare_answers("5", reference, limit=0.5)
        assert time.perf_counter() - start < 2
