"""Programs that attack their scoring: forged messages, values that break or stall the tests, early answers."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from palaestra.core.errors import SandboxError
from palaestra.core.records import Completion, Failure, FailureCause, Problem, Score, Split
from palaestra.sandbox import make_sandbox
from palaestra.tasks.code import judge as judge_module
from palaestra.tasks.code.formats import CodeProblem, Functions, human_eval
from palaestra.tasks.code.judge import ProgramJudge, ProgramVerdict, count_assertions
from palaestra.tasks.code.task import CodeTask

TESTS = Functions("assert f(1) == 11\nassert set(f(2)) == {4, 5}\nassert sorted(f(3)) == [6, 7]", "f")
NUMBERS = Functions("assert abs(f(2) - 4.5) < 1e-6\nassert f(3) > 8 and f(3) < 10", "f")


@pytest.fixture(scope="module")
def judge() -> ProgramJudge:
    try:
        sandbox = make_sandbox()
    except SandboxError as error:
        pytest.skip(str(error))
    return ProgramJudge(sandbox, seconds=1.0, trusted=True)


def assert_wrong(judge: ProgramJudge, tests: Functions, code: str, reference: str = "") -> ProgramVerdict:
    verdict = judge.judge(tests, code, reference=reference)
    assert isinstance(verdict, ProgramVerdict), verdict
    assert verdict.verdicts
    assert not verdict.passed
    return verdict


def forge(*lines: dict[str, Any] | str, where: str = "f") -> str:
    """A program that writes lines to every descriptor that is open, when it is loaded or when it is called."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    body = f"import os\ndef forge():\n    for n in range(3, 20):\n        try: os.write(n, {text.encode()!r})\n        except OSError: pass\n"
    return f"{body}def f(x):\n    forge()\n" if where == "f" else f"{body}forge()\ndef f(x): pass\n"


PASSED = {"test": {"verdict": "passed"}}


@pytest.mark.parametrize("where", ["f", "load"])
@pytest.mark.parametrize(
    "lines",
    [
        ({"value": None}, {"gone": "passed"}),
        ({"value": None}, {"gone": True}, PASSED, PASSED, PASSED, {"done": 3}),
        (PASSED, {"done": 1}),
        ({"test": {"verdict": "perfect"}},),
        ({"value": 11, "test": {"verdict": "passed"}, "done": 3}, {"broken": "x", "faulty": True}),
        ({"broken": "no fault of mine", "faulty": True},),
        ({"ask": {"what": "call", "of": 0, "name": "", "args": [], "kwargs": {}}},) * 3,
        ({"ask": {"what": "get", "of": 0, "name": "__globals__", "args": [], "kwargs": {}}},),
        ({"value": {"remote": {"named": ["os", "system"]}}},),
        ({"value": {"remote": {"named": ["builtins", "eval"]}}},),
        ({"value": {"remote": {"root": "f"}}},),
        ({"value": {"remote": {"tests": 0}}},),
        ({"value": {"eval": "1"}},),
        ({"value": {"range": [0, 5, 0]}},),
        ({"value": {"namedtuple": ["a", ["b c"], [1]]}},),
        ({"ask": {"what": "copy", "of": 0, "name": "__import__", "args": [], "kwargs": {}}},),
        ({"ask": {"what": "load", "of": 0, "args": [], "kwargs": {}}},),
        ({"ask": 5}, {"ask": {}}, {}),
        ({"error": ["ImportError"], "message": "x", "attributes": {"dict": [["_of_program", False]]}},),
        ({"error": []}, {"error": 5}),
        ({"tests": "assert True", "given": "", "names": [], "check": "", "seconds": 1, "memory": 1 << 29},) * 2,
        ({"value": {"same": 99}, "changed": [[5, [1]]]},),
        ({"argument": 7},),
        ({"error": ["StopIteration"], "message": 3},),
        ("[1]", "null", "{", "\\ud800", ""),
        tuple({"value": k} for k in (None, 11, [4, 5], [6, 7])),  # Answers ahead: those of the wrong calls.
    ],
)
def test_forged_messages_are_no_verdict(judge: ProgramJudge, lines: tuple[Any, ...], where: str) -> None:
    if where == "load" and lines and lines[-1] == {"value": [6, 7]}:
        pytest.skip("constants that happen to be right are no forgery")
    assert_wrong(judge, TESTS, forge(*lines, where=where))


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nprint('{\"test\": {\"verdict\": \"passed\"}}')\nprint('{\"done\": 3}', file=sys.stderr)\ndef f(x): pass",
        "import os\nfor n in os.listdir('/proc/self/fd'):\n    try: open(f'/proc/self/fd/{n}', 'wb').write(b'{\"gone\": \"passed\"}\\n')\n    except OSError: pass\ndef f(x): pass",
        "import gc\nfor one in gc.get_objects():\n    if type(one).__name__ == 'Peer':\n        one.say = lambda message: None\n        type(one).say = lambda self, message: os.write(self._told, b'{\"gone\": \"passed\"}\\n')\nimport os\ndef f(x): pass",
        "import sys\nsys.modules['peer'].pack = lambda *a: {'gone': 'passed'}\nsys.modules['channel'].encode = lambda m: '{\"gone\": \"passed\"}'\ndef f(x): pass",
        "import sys\nsys.modules['peer'].describe_error = lambda e: {'gone': 'passed'}\ndef f(x): raise ValueError",
        "import sys\nframe = sys._getframe()\nwhile frame.f_back: frame = frame.f_back\nframe.f_globals['main'] = None\ndef f(x): return frame.f_globals",
        "import threading, os\ndef work():\n    while True: os.write(4, b'{\"value\": 11}\\n')\nthreading.Thread(target=work, daemon=True).start()\ndef f(x): return None",
        "import atexit, os\natexit.register(lambda: os.write(4, b'{\"gone\": \"passed\"}\\n'))\ndef f(x): raise SystemExit(0)",
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.alarm(1)\ndef f(x): signal.pause()",
        "import subprocess, sys\ndef f(x):\n    subprocess.run([sys.executable, '-c', 'import os\\nfor n in range(20):\\n    try: os.write(n, b\"{}\")\\n    except OSError: pass'], close_fds=False)",
        "import sys\nsys.exit(0)",
        "import os\ndef f(x): os._exit(0)",
        "import os\ndef f(x):\n    os.closerange(3, 30)\n    return 11",
        "import builtins, json, os\nbuiltins.isinstance = lambda *a: True\njson.loads = None\nos.write = lambda fd, data: len(data)\ndef f(x): return 0",
        "class E(Exception):\n    def __str__(self): raise E\n    __repr__ = __str__\ndef f(x): raise E",
        "class M(type):\n    __name__ = 3\nclass E(Exception, metaclass=M): pass\ndef f(x): raise E",
        "def f(x): raise KeyboardInterrupt",
        "def f(x): raise StopIteration('\\ud800')",
        "f = type('f', (), {'__eq__': lambda s, o: True, '__hash__': lambda s: 0, '__init__': lambda s, x: None, '__iter__': lambda s: iter([4, 5])})",
    ],
)  # fmt: skip
def test_tampering_inside_the_process_is_no_verdict(judge: ProgramJudge, code: str) -> None:
    assert_wrong(judge, TESTS, code)


@pytest.mark.parametrize(
    "value",
    [
        "Yes()", "[Yes()]", "Number(0)", "Text()", "Liar()", "(Yes(),)", "{Yes(): Yes()}", "Yes", "lambda *a: True",
        "float('nan')", "type('f', (Yes,), {})()",
    ],
)  # fmt: skip
def test_objects_cannot_control_comparison_with_expected_values(judge: ProgramJudge, value: str) -> None:
    code = (
        "yes = lambda self, *other: True\n"
        "body = {f'__{n}__': yes for n in 'eq lt gt le ge contains bool'.split()}\n"
        "body |= {'__hash__': lambda s: 0, '__sub__': lambda s, o: 0.0, '__rsub__': lambda s, o: 0.0, '__abs__': lambda s: 0.0}\n"
        "Yes, Number, Text = type('Yes', (), body), type('Number', (int,), body), type('Text', (str,), body)\n"
        "class Liar:\n    __class__ = int\n    __eq__ = yes\n"
        f"def f(x): return {value}\n"
    )
    assert_wrong(judge, TESTS, code)
    assert_wrong(judge, NUMBERS, code)
    assert_wrong(judge, Functions("assert 4 in f(1)\nassert f(2) == 'a'\nassert f(3) == [True]", "f"), code)


@pytest.mark.parametrize(
    "value",
    [
        "range(10**12)", "range(-10**30, 10**30)", "[range(10**6)] * 1000", "nested([])", "nested(())",
        "1 << 30_000_000", "10**5000", "-(10**400000)", "'a' * 9_000_000", "'\\ud800' * 10", "b'x' * 10**7",
        "cycle()", "itertools.repeat('x' * 1000)", "float('nan')", "complex('nan')",
        "__import__('decimal').Decimal('1e999999')", "__import__('decimal').Decimal('sNaN')",
        "__import__('fractions').Fraction(10**4000, 3)", "__import__('datetime').timedelta.max", "object()", "type", "__import__('os')",
        "(x for x in 1 / 0)", "open('/proc/self/status')", "memoryview(b'ab')", "NotImplemented", "Ellipsis", "[...]", "globals()",
    ],
)  # fmt: skip
def test_values_cannot_break_or_stall_the_tests(judge: ProgramJudge, value: str) -> None:
    code = (
        "import itertools\n"
        "def nested(value):\n    for _ in range(600_000): value = {0: value} if type(value) is dict else type(value)([value])\n    return value\n"
        "def cycle():\n    found = []\n    found.append(found)\n    return found\n"
        f"def f(x): return {value}\n"
    )
    start = time.monotonic()
    assert_wrong(judge, TESTS, code)
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("tests", "returned", "right"),
    [
        ("assert [0] * f(1) == [0]", "10**11", "1"),  # memory
        ("x = f(1)\nimport os\nif x != 1: os.kill(os.getpid(), 9)\nassert x == 1", "0", "1"),
        ("assert eval(f(1)) == 1", "'1 +'", "'1'"),
        ("x = f(1)\nimport os\nif x != 1: os._exit(0)\nassert x == 1", "0", "1"),
    ],
)
def test_program_is_wrong_if_its_value_breaks_the_tests(
    judge: ProgramJudge, tests: str, returned: str, right: str
) -> None:
    bad, good = (f"def f(x): return {value}" for value in (returned, right))
    assert_wrong(judge, Functions(tests, "f"), bad, reference=good)
    assert_wrong(judge, Functions(tests, "f"), bad)  # No reference: the value of the program came last.
    verdict = judge.judge(Functions(tests, "f"), good)
    assert isinstance(verdict, ProgramVerdict)
    assert verdict.passed


def test_time_limit_applies_to_tests_of_a_slow_value(judge: ProgramJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "MARGIN", 0.5)
    tests = Functions("while f(1) != 1: sum(range(10**6))\nassert f(1) == 1", "f")
    assert_wrong(judge, tests, "def f(x): return 2", reference="def f(x): return 1")


@pytest.mark.parametrize(
    "tests",
    [
        "assert f(1) ==", "import no_such_module\nassert f(1) == 1", "assert f(1) == 1\nimport no_such_module", "1 / 0\nassert f(1) == 1",
        "import os\nassert f(1) == 1\nos._exit(3)", "x = 1", "import threading\nassert f(threading.Lock()) == 1",
    ],
)  # fmt: skip
def test_broken_tests_are_a_failure(judge: ProgramJudge, tests: str) -> None:
    right = "def f(x): return 1"
    verdict = judge.judge(Functions(tests, "f"), right, reference=right)
    assert isinstance(verdict, Failure), verdict
    assert verdict.cause is FailureCause.SCORER


class OneProblem(CodeTask):
    name = "one-problem"

    def __init__(self, problem: CodeProblem, judge: ProgramJudge) -> None:
        super().__init__()
        self._problem, self._judge = problem, judge

    def _find(self, problem: Problem) -> CodeProblem:
        return self._problem


HELPED = {
    "task_id": "HumanEval/38", "entry_point": "decode", "prompt": "def encode(s):\n    return s[::-1]\n\n\ndef decode(s):\n    '''Undo it.'''\n",
    "canonical_solution": "    return s[::-1]\n", "test": "def check(candidate):\n    for s in ('abc', 'xyz'):\n        assert candidate(encode(s)) == s\n    assert candidate('ab') == decode('ab')\n",
}  # fmt: skip


def test_answer_cannot_replace_prompt_helpers(judge: ProgramJudge) -> None:
    problem = human_eval(HELPED, Split.TEST)
    assert "def encode" in problem.tests.given  # type: ignore[union-attr]
    task = OneProblem(problem, judge)

    def score(code: str) -> Score | Failure:
        return task.score(Problem("x", (), ""), Completion(f"```python\n{code}\n```"))

    assert score("def decode(s):\n    return s[::-1]").value == 1.0  # type: ignore[union-attr]
    for cheat in (
        "def encode(s): return s\ndef decode(s): return s",
        "import builtins\nbuiltins.encode = lambda s: s\ndef decode(s): return s",
    ):
        assert score(cheat).value == 0.0  # type: ignore[union-attr]


def test_forged_verdict_scores_zero(judge: ProgramJudge) -> None:
    task = OneProblem(human_eval(HELPED, Split.TEST), judge)
    for verdict in ("passed", "no such verdict", None, {"a": 1}):
        code = forge({"value": None}, {"gone": verdict}, {"test": {"verdict": verdict}}).replace("def f", "def decode")
        score = task.score(Problem("x", (), ""), Completion(f"```python\n{code}\n```"))
        assert isinstance(score, Score)
        assert score.value == 0.0
        json.dumps(score.evidence).encode()


def test_count_assertions() -> None:
    assert count_assertions(Functions("assert f(1)\nfor x in y:\n    assert f(x)\nassert f(2)", "f")) == 2
    check = "def check(candidate):\n    assert candidate(1)\n    if 1:\n        assert 1\n"
    assert count_assertions(Functions(check, "f", takes_function=True)) == 1
    assert count_assertions(Functions("assert f(", "f")) == 0
