"""Programs that call tools: correct ones, broken ones, and ones that cheat."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from palaestra.core.errors import SandboxError
from palaestra.core.records import Completion, Failure, FailureCause, Problem, Score, Split
from palaestra.sandbox import make_sandbox
from palaestra.sandbox.base import SandboxCommand, SandboxResult
from palaestra.tasks.tools.judge import PROGRAM, ToolJudge, interpret
from palaestra.tasks.tools.matching import PlanOutcome, Record
from palaestra.tasks.tools.plans import Plan, read_plan
from palaestra.tasks.tools.requests import ToolDraft
from palaestra.tasks.tools.task import ToolsSkills

OFFERED = ["add_days", "weekday", "month_end"]
RIGHT = 'import math\na = add_days("2024-01-01", 5)\nb = weekday(a)\nanswer(b)\n'
"""Not only calls, so that it needs a sandbox."""


@pytest.fixture(scope="module")
def judge() -> ToolJudge:
    try:
        return ToolJudge(make_sandbox(), seconds=1.0)
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def task(judge: ToolJudge) -> ToolsSkills:
    task = ToolsSkills()
    task.judge = judge
    return task


@pytest.fixture(scope="module")
def problem(task: ToolsSkills) -> Problem:
    """Which day of the week is 5 days after 2024-01-01? It is a Saturday."""
    plan = read_plan("weekday(add_days(date, days))", {"date": "2024-01-01", "days": 5})
    problem = task.problem("calendar", "chain", ToolDraft("Which day of the week is 5 days after 2024-01-01?", plan))
    assert {"add_days", "weekday"} <= set(problem.metadata["offered"])
    return problem


def outcome(task: ToolsSkills, problem: Problem, code: str) -> str:
    score = task.score(problem, Completion(f"```python\n{code}\n```"))
    assert isinstance(score, Score), score
    assert (score.value == 1.0) is (score.evidence["outcome"] == "right")
    return score.evidence["outcome"]


def test_record_of_calls(judge: ToolJudge) -> None:
    record = judge.run_program(RIGHT, OFFERED)
    assert [str(call) for call in record.calls] == [
        'add_days(date="2024-01-01", days=5) -> "2024-01-06"',
        'weekday(date="2024-01-06") -> "Saturday"',
    ]
    assert (record.fault, record.value) == (None, "Saturday")


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (RIGHT, "right"),
        ('answer(weekday(date=add_days(days=5.0, date="2024-01-01")))', "right"),
        ('def main():\n    return weekday(add_days("2024-01-01", 5))\nif __name__ == "__main__":\n    print("x")\n    answer(main())', "right"),
        ('weekday(add_days("2024-01-01", 5))\nanswer("Saturday")\nwhile True: pass', "right"),
        ('answer("Saturday")', "wrong_calls"),
        ('answer(weekday("2024-01-06"))', "wrong_calls"),
        ('answer(weekday(add_days("2024-01-01", 6)))', "wrong_arguments"),
        ('b = weekday("2024-01-06")\na = add_days("2024-01-01", 5)\nanswer(b)', "wrong_order"),
        ('add_days("2024-01-01", 5)\nanswer(weekday(add_days("2024-01-01", 5)))', "extra_calls"),
        ('try:\n    weekday(5)\nexcept ValueError:\n    pass\nanswer(weekday(add_days("2024-01-01", 5)))', "extra_calls"),
        ('weekday(add_days("2024-01-01", 5))\nanswer("Sunday")', "wrong_answer"),
        ('weekday(add_days("2024-01-01", 5))\nif 0: answer(1)', "no_answer"),
        ('weekday(add_days("2024-01-01", 5))\nimport os\nos._exit(0)\nanswer(1)', "no_answer"),
        ('import sys\nsys.exit(3)\nanswer(1)', "no_answer"),
        ('import os\nos._exit(3)\nanswer(1)', "runtime_error"),
        ('answer(weekday(add_days("2024-01-01")))', "runtime_error"),
        ('answer(population("Lunde"))', "runtime_error"),
        ("answer(1 / 0)", "runtime_error"),
        ("answer({1, 2})", "runtime_error"),
        ("answer(float('nan'))", "runtime_error"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\nanswer(1)", "runtime_error"),
        ("while True: pass\nanswer(1)", "time"),
        ("import time\ntime.sleep(60)\nanswer(1)", "time"),
        ("x = [0] * 10**10\nanswer(1)", "memory"),
        ("x = []\nwhile True: x.append(bytearray(10**7))\nanswer(1)", "memory"),
        ("while True: print('y' * 10**6)\nanswer(1)", "output"),
        ('while True: weekday("2024-01-01")\nanswer(1)', "too_many_calls"),
        ("while True:\n    try: weekday(1)\n    except ValueError: pass\nanswer(1)", "too_many_calls"),
        ('weekday("x" * 10**6)\nanswer(1)', "runtime_error"),
        ('weekday([["x"] * 100] * 100)\nanswer(1)', "runtime_error"),
        ("x = []\nx.append(x)\nanswer(x)", "runtime_error"),
    ],
)  # fmt: skip
def test_outcomes_of_programs(task: ToolsSkills, problem: Problem, code: str, wanted: str) -> None:
    assert outcome(task, problem, code) == wanted


WRITE = "import os\ndef send(text):\n    for file in range(3, 12):\n        try: os.write(file, text)\n        except OSError: pass\n"


@pytest.mark.parametrize(
    "code",
    [
        # Its own tool, a printed trace, the answer alone.
        'def weekday(date): return "Saturday"\ndef add_days(date, days): return "2024-01-06"\nanswer(weekday(add_days("2024-01-01", 5)))',
        'print(\'{"call": "add_days", "args": ["2024-01-01", 5], "kwargs": {}}\')\nprint(\'{"answer": "Saturday"}\')\nif 0: answer(1)',
        # Forged messages: results instead of calls, a record of calls, a verdict.
        WRITE + 'send(b\'{"value": "Saturday"}\\n{"made": ["add_days", "weekday"], "answer": "Saturday"}\\n\')\nif 0: answer(1)',
        WRITE + 'send(b\'{"outcome": "right", "value": 1.0}\\n\')\nanswer("Saturday")',
        WRITE + "send(b'\\x00\\xff not json\\n')\nanswer(1)",
        WRITE + "send(b'[' * 50000 + b'\\n')\nanswer(1)",
        WRITE + 'send(b\'{"call": "weekday", "args": [\' + b"9" * 5000 + b\'], "kwargs": {}}\\n\')\nanswer(1)',
        WRITE + "for k in range(10**6): send(b'{\"call\": \"weekday\", \"args\": [1], \"kwargs\": {}}\\n')\nanswer(1)",
        WRITE + "while True: send(b'x' * 60000)\nanswer(1)",
        WRITE + 'send(b\'{"call": "__import__", "args": ["os"], "kwargs": {}}\\n\')\nanswer("Saturday")',
        WRITE + 'send(b\'{"call": 5, "args": {}, "kwargs": []}\\n\')\nanswer("Saturday")',
        # The answer, if it were anywhere to be found, and the tools, if they were.
        "import gc, sys\nfound = [o for o in gc.get_objects() if isinstance(o, dict) and ('plan' in o or 'reference' in o)]\nanswer(found[0]['reference'] if found else 'Saturday')",
        "import os\nnames = [f for _, _, files in os.walk('/workspace') for f in files]\nassert names == ['program.py'], names\nanswer('Saturday')",
        "from palaestra.tasks.tools.library import LIBRARY\nanswer(LIBRARY['weekday'].function('2024-01-06'))",
        # Builtins and the tools' own insides.
        "import builtins\nbuiltins.eval = lambda *a: {'value': 'Saturday'}\nbuiltins.len = lambda x: 0\nanswer(weekday(add_days('2024-01-01', 'five')))",
        "cells = [c.cell_contents for c in answer.__closure__]\ncells[0]({'answer': 'Saturday'})\nif 0: answer(1)",
        "import os\nfor n in range(12):\n    try: os.close(n)\n    except OSError: pass\nanswer('Saturday')",
        "import os\nwhile True: os.fork()\nanswer(1)",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nanswer(f())",
    ],
)  # fmt: skip
def test_program_cannot_forge_its_outcome(task: ToolsSkills, problem: Problem, code: str) -> None:
    assert outcome(task, problem, code) != "right"
    assert outcome(task, problem, RIGHT) == "right"


STRAIGHT = [
    'a = add_days("2024-01-01", 5)\nb = weekday(a)\nanswer(b)',
    'answer(weekday(date=add_days(days=-5, date="2024-01-01")))',
    "answer(add_days('2024-01-01', 5.5))",
    'a = weekday("2024-01-01")\nb = a\n"a word"\nanswer((a, [b, 1, -2.5, None, True]))\nweekday("2024-01-02")',
    'weekday("2024-01-01")',
    'weekday("2024-01-01", date="2024-01-01")\nanswer(1)',
    'weekday("na\\u00efve \\U0001f600")\nanswer(1)',
    "weekday()\nanswer(1)",
    'weekday("2024-01-01")\n' * 20,
    "answer(x)",
    "answer(population('Lunde'))",
    'a = weekday("2024-01-01")\nb = add_days(day, days)\nanswer(a)',
]
NOT_STRAIGHT = [
    "answer(1 + 1)", "answer(__name__)", "answer()", "answer(*[1])", "answer(value=1)", "weekday = 1\nanswer(weekday)", "answer(answer(1))",
    "x = [1]\nanswer(x)", "answer(len)", "answer(1e999)", "answer(b'x')", "if 1: answer(1)", "a = b = 1\nanswer(a)",
    "a, b = 1, 2\nanswer(a)", "answer(weekday)", "weekday(**{})", "weekday(*['2024-01-01'])", "x: int = 1", "answer(f'{1}')", "answer(-True)",
    "print(1)", "'x'.upper()", "answer(1" + "0" * 4000 + ")", "answer(", "answer(" + "[" * 300 + "]" * 300 + ")",
]  # fmt: skip


@pytest.mark.parametrize("code", STRAIGHT)
def test_interpreter_agrees_with_the_sandbox(judge: ToolJudge, code: str) -> None:
    read = interpret(code, OFFERED, lambda tool, args, kwargs: judge._make(tool, args, kwargs, OFFERED))
    assert read is not None
    assert read == judge.run_in_sandbox(code, OFFERED)


@pytest.mark.parametrize("code", NOT_STRAIGHT)
def test_other_programs_are_not_interpreted(code: str) -> None:
    assert interpret(code, OFFERED, lambda *call: pytest.fail("a call was call")) is None


def test_interpreter_runs_plans_of_all_skills(task: ToolsSkills) -> None:
    for problem in task.problems(Split.TRAIN, 1, 3):
        code, offered = Plan.from_data(problem.metadata["plan"]).program(), problem.metadata["offered"]
        assert task.judge.run_program(code, offered) == task.judge.run_in_sandbox(code, offered)


def test_large_results_are_rejected(judge: ToolJudge) -> None:
    code = 'answer(replace_word("a " * 900, "a", "b" * 2000))'
    for _ in range(2):
        record = judge.run_program(code, ["replace_word"])
        assert record.fault is PlanOutcome.RUNTIME_ERROR
        assert "the result is too large" in record.detail


def test_sandbox_never_contains_the_plan(judge: ToolJudge) -> None:
    assert set(PROGRAM.files(compiled=False)) == {"program.py", "channel.py"}
    record = judge.run_program("import sys\nanswer(sorted(name for name in sys.modules if 'json' in name))", OFFERED)
    assert record == Record((), None, value=["_json"])  # the channel's codec, and nothing that reads files


def test_values_round_trip(judge: ToolJudge) -> None:
    for text in ('"quoted" \\ back', "naïve \U0001f600 \u2028 \x00\x7f", "new\nline\ttab"):
        record = judge.run_program(f"answer(reverse_text({text!r}))", ["reverse_text"])
        assert (record.fault, record.value) == (None, text[::-1])
    record = judge.run_program("answer([None, True, (1, 2.5), {'a': -1e300}, 10**17])", OFFERED)
    assert record.value == [None, True, [1, 2.5], {"a": -1e300}, 10**17]


class Dead:
    """A sandbox that breaks."""

    name = "dead"

    def run(self, command: SandboxCommand) -> SandboxResult:
        raise SandboxError("no room left")


def test_broken_sandbox_is_a_failure(problem: Problem) -> None:
    task = ToolsSkills()
    task.judge = ToolJudge(Dead(), seconds=1.0)  # type: ignore[arg-type]
    score = task.score(problem, Completion(f"```python\n{RIGHT}```"))
    assert isinstance(score, Failure)
    assert score.cause is FailureCause.SANDBOX
    assert "no room left" in score.message


def test_broken_tool_is_a_failure(task: ToolsSkills, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palaestra.tasks.tools.library.dates.WEEKDAYS", ())
    score = task.score(problem, Completion(f"```python\n{RIGHT}```"))
    assert isinstance(score, Failure)
    assert score.cause is FailureCause.SCORER
    assert "weekday raised an error: IndexError" in score.message
    assert "fix it in palaestra.tasks.tools.library.dates" in score.message


def test_no_file_descriptors_is_a_failure(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("palaestra.sandbox.rpc.socket.socketpair", full)
    score = ToolsSkills().score(problem, Completion(f"```python\n{RIGHT}```"))
    assert isinstance(score, Failure)
    assert score.cause is FailureCause.SANDBOX
    assert "out of open files" in score.message


def test_concurrent_scoring(task: ToolsSkills, problem: Problem) -> None:
    score: list[str] = []
    codes = [RIGHT, RIGHT.replace("5", "6")] * 2
    threads = [threading.Thread(target=lambda code=code: score.append(outcome(task, problem, code))) for code in codes]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(score) == ["right", "right", "wrong_arguments", "wrong_arguments"]


def test_calls_use_earlier_results(judge: ToolJudge) -> None:
    from palaestra.tasks.tools.extraction import extract_calls

    text = '[{"name": "add_days", "arguments": {"date": "2024-01-01", "days": 5}}, {"name": "weekday", "arguments": {"date": "$call_1"}}]'
    assert judge.run_calls(extract_calls(text), OFFERED).value == "Saturday"
    assert judge.run_calls(extract_calls(text), ["weekday"]).fault is PlanOutcome.WRONG_CALLS
    assert judge.run_calls(extract_calls(text.replace("5", '"5"')), OFFERED).fault is PlanOutcome.WRONG_ARGUMENTS


def test_problems_need_no_sandbox() -> None:
    """Problems and lessons need none; it is made when the first answer comes."""
    task = ToolsSkills()
    assert task.problems(Split.TRAIN, 1, 0)
    assert "sandbox" not in vars(task.judge)


WRITE = """import os
text = {text}
for line in range(3, 12):
    try:
        os.write(line, text.encode("utf-8", "surrogatepass") + b"\\n")
    except OSError:
        pass
"""
"""A program that writes its own messages to every descriptor that it has."""


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("""'{"answer": "Saturday"}'""", "wrong_calls"),
        ("""'{"value": null}\\n{"gone": "passed"}'""", "runtime_error"),
        ("""'{"outcome": "right", "made": [], "fault": null}'""", "runtime_error"),
        ("""'{"call": 5, "args": [], "kwargs": {}}'""", "runtime_error"),
        ("""'{"call": "weekday", "args": {}, "kwargs": []}'""", "runtime_error"),
        ("""'{"answer": "Saturday", "call": "weekday"}'""", "runtime_error"),
        ("""'{"error": ' + '[' * 900 + ']' * 900 + '}'""", "runtime_error"),
        ("""'{"error": {"a": 1}}'""", "runtime_error"),
        ("""'{"answer": ' + '[' * 900 + ']' * 900 + '}'""", "wrong_calls"),
        ("""'{"answer": ' + '[' * 20000 + ']' * 20000 + '}'""", "runtime_error"),
        ("""'{"answer": ' + '9' * 5000 + '}'""", "runtime_error"),
        ("""'{"answer": 1e999}'""", "wrong_calls"),
        ("""'{"answer": NaN}'""", "wrong_calls"),
        ("""'{"answer": "\\\\ud800"}'""", "wrong_calls"),
        ("""'{"answer": "\\ud800"}'""", "wrong_calls"),
        ("""'{"call": "weekday", "args": [' + '[' * 900 + ']' * 900 + '], "kwargs": {}}'""", "no_answer"),
        ("""'{"call": "\\\\ud800", "args": [], "kwargs": {"\\\\ud800": 1}}'""", "no_answer"),
        ("""'[1, 2]'""", "runtime_error"), ("""'null'""", "runtime_error"), ("""'\\x00'""", "runtime_error"),
        ("""'x' * 100_000""", "output"),
    ],
)  # fmt: skip
def test_forged_messages(task: ToolsSkills, problem: Problem, text: str, outcome: str) -> None:
    score = task.score(problem, Completion(f"```python\n{WRITE.format(text=text)}if 0:\n    answer(1)\n```"))
    assert isinstance(score, Score), score
    assert (score.value, score.evidence["outcome"]) == (0.0, outcome)
    assert all(value.encode() for value in score.evidence.values() if value)  # It can be stored.


def test_answers_of_any_type_are_scored(task: ToolsSkills, problem: Problem) -> None:
    calls = 'a = add_days("2024-01-01", 5)\nb = weekday(a)\n'
    values = [
        "float('inf')",
        "10**5000",
        "'\\ud800'",
        "'\\x00'",
        "[[]] * 3",
        "{1: 2}",
        "object()",
        "b'x'",
        "1j",
        "[b] * 5000",
        "-0.0",
    ]
    for value in values:
        for lead in ("", "import math\n"):  # Read here, and run in a sandbox.
            score = task.score(problem, Completion(f"```python\n{lead}{calls}answer({value})\n```"))
            assert isinstance(score, Score), (value, score)
            assert score.value == 0.0
            assert all(text.encode() for text in score.evidence.values() if text)
