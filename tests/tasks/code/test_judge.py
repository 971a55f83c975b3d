"""Scoring programs with their tests in two separate sandboxes."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from palaestra.core.errors import SandboxError, SettingsError
from palaestra.core.records import Completion, Failure, FailureCause, Split
from palaestra.sandbox import make_sandbox
from palaestra.tasks.base import EVERY, make_task
from palaestra.tasks.code.formats import Functions, Stdio
from palaestra.tasks.code.judge import CaseOutcome, ProgramJudge, ProgramVerdict

ADD = Functions("assert add(1, 2) == 3\nassert add(2, 2) == 4\nassert add([1], [2]) == [1, 2]", "add")
SUM = Stdio(("1 2\n", "3 4\n"), ("3\n", "7\n"))


@pytest.fixture(scope="module")
def judge() -> ProgramJudge:
    try:
        sandbox = make_sandbox()
    except SandboxError as error:
        pytest.skip(str(error))
    return ProgramJudge(sandbox, seconds=1.0)


def outcomes(judge: ProgramJudge, tests: Stdio | Functions, code: str) -> list[str]:
    verdict = judge.judge(tests, code)
    assert isinstance(verdict, ProgramVerdict), verdict
    return [case.outcome.value for case in verdict.verdicts]


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("def add(a, b):\n    return a + b", ["passed"] * 3),
        ("def add(a, b):\n    return 3", ["passed", "wrong_answer", "wrong_answer"]),
        ("def add(a, b):\n    raise ValueError(a)", ["runtime_error"] * 3),
        ("def sub(a, b):\n    return a - b", ["runtime_error"] * 3),
        ("def add(a, b):\n    while True: pass", ["time"]),
        ("while True: pass", ["time"]),
        ("def add(a, b):\n    return [0] * 10**10", ["memory"] * 3),
        ("import os\nos._exit(0)", ["runtime_error"]),
        ("def add(a, b):\n    import os\n    os._exit(0)", ["runtime_error"]),
        ("def add(a, b)\n    return a + b", ["runtime_error"]),
    ],
)
def test_verdict_of_each_kind_of_failure(judge: ProgramJudge, code: str, wanted: list[str]) -> None:
    assert outcomes(judge, ADD, code) == wanted


@pytest.mark.parametrize(
    "code",
    [
        # Equal to everything: the comparison is made elsewhere, with what was sent.
        "class Yes:\n    def __eq__(self, other): return True\ndef add(a, b):\n    return Yes()",
        "class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = None\ndef add(a, b):\n    return Yes(0)",
        # Verdicts instead of answers.
        'import os\nfor n in range(3, 9):\n    try: os.write(n, b\'{"test": {"verdict": "passed"}}\\n{"done": 3}\\n\')\n    except OSError: pass\ndef add(a, b): return 0',
        # The tests, if they were anywhere to be found.
        "import os, re\ndef add(a, b):\n    for folder, _, files in os.walk('/workspace'):\n        for f in files:\n            m = re.search(r'== (\\S+)', open(os.path.join(folder, f)).read().replace('r\\'== ', ''))\n    return None",
        "import sys, gc\ndef add(a, b):\n    f = sys._getframe()\n    while f:\n        for v in list(f.f_locals.values()):\n            if 'assert' in str(v)[:500] and 'add(' in str(v)[:500] and 'def add' not in str(v)[:500]: return 3\n        f = f.f_back\n    return None",
        "import builtins\nbuiltins.all = lambda x: True\nimport json\njson.dumps = lambda *a, **k: '{\"value\": 3}'\ndef add(a, b): return None",
    ],
)  # fmt: skip
def test_program_cannot_forge_a_pass(judge: ProgramJudge, code: str) -> None:
    verdict = judge.judge(ADD, code)
    assert isinstance(verdict, Failure) is False
    assert not verdict.passed  # type: ignore[union-attr]


def test_tests_may_be_any_python(judge: ProgramJudge) -> None:
    tests = Functions(
        "import math\n\ndef check(candidate):\n    for k in range(3):\n        assert candidate(k) == [k] * k\n"
        "    assert math.isclose(third(1.0), 1 / 3)\n    try:\n        candidate(-1)\n    except ValueError:\n        assert True\n"
        "    given = [3, 1, 2]\n    sort(given)\n    assert given == [1, 2, 3]\n    node = Node(4)\n    node.next = Node(5)\n"
        "    assert node.next.value == 5 and total(node) == 9\n    assert list(numbers()) == [0, 1]\n",
        "repeat",
        takes_function=True,
    )
    code = (
        "class Node:\n    def __init__(self, value):\n        self.value, self.next = value, None\n"
        "def repeat(k):\n    if k < 0: raise ValueError(k)\n    return [k] * k\n"
        "def third(x): return x / 3\ndef sort(x): x.sort()\ndef numbers():\n    yield from range(2)\n"
        "def total(n): return n.value + (total(n.next) if n.next else 0)\n"
    )
    assert outcomes(judge, tests, code) == ["passed"] * 8


def test_function_may_shadow_a_builtin(judge: ProgramJudge) -> None:
    assert outcomes(judge, Functions("assert sum(2, 3) == 6", "sum"), "def sum(a, b): return a * b") == ["passed"]


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("a, b = map(int, input().split())\nprint(a + b)", ["passed", "passed"]),
        ("print(3)", ["passed", "wrong_answer"]),
        ("print(1 / 0)", ["runtime_error", "runtime_error"]),
        ("while True: pass", ["time", "time"]),
        ("while True: print('y' * 10**6)", ["output", "output"]),
        ("import sys\nprint(3 if '1' in sys.stdin.read() else 7)", ["passed", "passed"]),
    ],
)
def test_programs_that_read_and_print(judge: ProgramJudge, code: str, wanted: list[str]) -> None:
    assert outcomes(judge, SUM, code) == wanted


def test_a_program_that_uses_too_much_memory(judge: ProgramJudge) -> None:
    patient = ProgramJudge(judge.sandbox, seconds=10.0)  # A busy machine may need a second of CPU time for the pages.
    assert outcomes(patient, SUM, "x = bytearray(10**9)") == ["memory", "memory"]


def test_broken_sandbox_is_a_failure() -> None:
    class Dead:
        name = "dead"

        def run(self, *args: Any, **kwargs: Any) -> Any:
            raise SandboxError("no room left")

    for tests in (ADD, SUM):
        verdict = ProgramJudge(Dead()).judge(tests, "def add(a, b): return a + b")  # type: ignore[arg-type]
        assert isinstance(verdict, Failure)
        assert verdict.cause is FailureCause.SANDBOX
        assert "no room left" in verdict.message


def test_broken_tests_are_a_failure(judge: ProgramJudge) -> None:
    for code in ("assert add(1, 2 ==", "x = 1"):
        verdict = judge.judge(Functions(code, "add"), "def add(a, b): return a + b")
        assert isinstance(verdict, Failure)
        assert verdict.cause is FailureCause.SCORER


def test_code_skills_scores_own_and_other_solutions(judge: ProgramJudge) -> None:
    task = make_task("code-skills")
    problems = task.problems(Split.TEST, 1, seed=0)
    for problem in problems:
        right = task.score(problem, Completion(f"Here:\n```python\n{problem.reference}```\nDone."))
        assert getattr(right, "value", right) == 1.0
    for text in ("I do not know.", "```python\ndef nothing(): pass\n```"):
        score = task.score(problems[0], Completion(text))
        assert (score.value, score.evidence["outcome"]) == (0.0, CaseOutcome.NO_CODE)  # type: ignore[union-attr]
    again = make_task("code-skills").problems(Split.TEST, 1, seed=0)
    assert again == problems
    train = {p.messages for p in task.problems(Split.TRAIN, 5, seed=1)}
    assert not train & {p.messages for p in task.problems(Split.TEST, 5, seed=1)}


def test_options_are_checked() -> None:
    with pytest.raises(SettingsError, match=r"'paths'.*path, sandbox, seconds"):
        make_task("humaneval", paths="x")
    with pytest.raises(SettingsError, match="seconds"):
        make_task("code-skills", seconds=0)


def test_mbpp_splits_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    from palaestra.tasks.code import published as module

    asked = []

    def open_table(source: module.Source, path: str, published: str) -> SimpleNamespace:
        asked.append((source.hub, source.config, published))
        return SimpleNamespace(scan=lambda: iter(()))

    monkeypatch.delenv("PALAESTRA_DATA", raising=False)
    monkeypatch.setattr(module, "open_table", open_table)
    for whole in (False, True):
        assert module.MBPP(whole=whole).problems(Split.TEST, EVERY, 0) == []
    every = "train+validation+test+prompt"
    hub = "google-research-datasets/mbpp"
    assert asked == [(hub, "sanitized", every), (hub, "full", every)]


def test_trusted_tests_share_a_sandbox_in_isolation() -> None:
    judge = ProgramJudge(trusted=True)
    mean = "import sys\nseen = getattr(sys, 'seen', 0)\nsys.seen = 1\nassert f(1) == 2 + seen"
    double = "def f(x):\n    return 2 * x\n"
    for _ in range(3):
        verdict = judge.judge(Functions(mean, "f"), double)
        assert isinstance(verdict, ProgramVerdict)
        assert verdict.passed
    ((grader, _, uses),) = judge._graders._idle
    assert uses == 3
    broken = judge.judge(Functions("import os\nos._exit(7)", "f"), double)
    assert isinstance(broken, Failure)
    assert broken.cause is FailureCause.SCORER
    assert isinstance(judge.judge(Functions("assert f(1) == 2", "f"), double), ProgramVerdict)
    ((last, _, _),) = judge._graders._idle
    del judge
    gc.collect()
    assert not grader.is_alive
    assert not last.is_alive, "it ends with the judge"


def test_untrusted_tests_get_their_own_sandbox() -> None:
    judge = ProgramJudge()
    assert isinstance(judge.judge(Functions("assert f(1) == 2", "f"), "def f(x):\n    return 2 * x\n"), ProgramVerdict)
    assert judge._graders._idle == []
