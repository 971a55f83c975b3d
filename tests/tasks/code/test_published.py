"""Published code sets: splits, memory, and their own lessons."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.core.errors import SandboxError, SettingsError, TaskError, TooFewProblemsError, UnknownNameError
from palaestra.core.records import Completion, Problem, Score, Split
from palaestra.recipes.evaluate import recipe as evaluate
from palaestra.recipes.evaluate.settings import EvaluateSettings
from palaestra.sandbox import make_sandbox
from palaestra.tasks.base import EVERY, GenerativeTask, WritableTask, make_task, part_by_hash
from palaestra.tasks.code.family import make_tests
from palaestra.tasks.code.published import CodeContests, HumanEval, LiveCodeBench, PublishedCode

DATA = Path(os.environ.get("PALAESTRA_DATA") or Path(__file__).parents[4] / "shared" / "data")


def skip_without(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not (DATA / name).is_dir(), reason=f"{name} is not there; PALAESTRA_DATA names its folder"
    )


def contest_row(number: int, day: str = "", kind: str = "stdin", **fields: Any) -> dict[str, Any]:
    case = {"input": f"{number}\n", "output": f"{number + 1}\n", "testtype": "stdin"}
    if kind == "functional":
        case = {"input": f"{number}", "output": f"{number + 1}", "testtype": "functional"}
    row = {
        "question_id": f"q{number}", "question_content": f"Add one to a number. Version {number}.", "platform": "atcoder",
        "difficulty": "easy", "public_test_cases": json.dumps([case]), "private_test_cases": json.dumps([case] * 2),
        "starter_code": "class Solution:\n    def up(self, n):" if kind == "functional" else "",
        "metadata": json.dumps({"func_name": "up"} if kind == "functional" else {}),
    }  # fmt: skip
    return row | ({"contest_date": day} if day else {}) | fields


def write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def ids(task: PublishedCode, split: Split, seed: int = 0) -> list[str]:
    return sorted(problem.id for problem in task.problems(split, EVERY, seed))


@skip_without("humaneval")
@skip_without("code_contests_test")
@pytest.mark.parametrize(
    ("kind", "folder", "counts", "published"),
    [(HumanEval, "humaneval", (35, 31, 98), 164), (CodeContests, "code_contests_test", (34, 26, 63), 123)],
)
def test_parts_by_hash_are_disjoint(
    kind: type[HumanEval | CodeContests], folder: str, counts: tuple[int, ...], published: int
) -> None:
    task = kind(str(DATA / folder))
    parts = [ids(task, split) for split in Split]
    assert tuple(map(len, parts)) == counts
    assert parts == [ids(task, split, seed=7) for split in Split]
    assert len({identity for part in parts for identity in part}) == sum(counts)
    assert all(part_by_hash(identity) is split for split, part in zip(Split, parts, strict=True) for identity in part)
    whole = kind(str(DATA / folder), parts="published")
    assert len(ids(whole, Split.TEST)) == published == sum(counts)
    assert ids(whole, Split.TRAIN) == ids(whole, Split.VALIDATION) == []


def test_live_code_bench_parts_by_date(tmp_path: Path) -> None:
    days = ["2023-05-07T00:00:00", "2023-08-31T23:59:00", "2023-09-01T00:00:00", "2023-12-31", "2024-01-01T00:00:00"]
    write_lines(tmp_path / "test.jsonl", [contest_row(k, day) for k, day in enumerate(days)])
    write_lines(tmp_path / "test2.jsonl", [contest_row(5, "2024-05-01T00:00:00")])
    write_lines(tmp_path / "test10.jsonl", [contest_row(6, "2025-05-01T00:00:00", "functional", platform="leetcode")])
    task = LiveCodeBench(str(tmp_path))
    name = "livecodebench/q{}".format
    assert [ids(task, split) for split in Split] == [
        [name(0), name(1)],
        [name(2), name(3)],
        [name(4), name(5), name(6)],
    ]
    (method,) = task.problems(Split.TEST, 1, 0, ["methods"])
    assert (method.subskill, method.metadata) == ("easy", {"level": "easy", "type": "leetcode"})
    moved = LiveCodeBench(str(tmp_path), validation_from="2024-01-01", test_from="2025-01-01")
    assert [len(ids(moved, split)) for split in Split] == [4, 2, 1]
    assert len(ids(LiveCodeBench(str(tmp_path), parts="published"), Split.TEST)) == 7
    with pytest.raises(TooFewProblemsError, match="'methods' of livecodebench"):
        task.problems(Split.VALIDATION, 1, 0)


def test_problems_without_a_date_are_divided_by_hash(tmp_path: Path) -> None:
    write_lines(tmp_path / "test.jsonl", [contest_row(k) for k in range(40)])
    task = LiveCodeBench(str(tmp_path))
    parts = {identity: split for split in Split for identity in ids(task, split)}
    assert parts == {f"livecodebench/q{k}": part_by_hash(f"livecodebench/q{k}") for k in range(40)}
    assert set(parts.values()) == set(Split)


def published_row(name: str, answer: str = "1") -> dict[str, Any]:
    tests = {"input": ["0", "2"], "output": [answer, "3"]}
    return {
        "name": name, "description": f"Print one more. {name}", "public_tests": tests, "private_tests": {}, "generated_tests": {},
        "solutions": {"language": [3], "solution": ["print(int(input()) + 1)"]},
    }  # fmt: skip


@pytest.mark.parametrize("valid", ["valid", "validation"])
def test_code_contests_keeps_published_parts(tmp_path: Path, valid: str) -> None:
    for part, count in (("train", 3), (valid, 2), ("test", 4)):
        write_lines(tmp_path / f"{part}.jsonl", [published_row(f"{part}_{k}") for k in range(count)])
    task = CodeContests(str(tmp_path))
    assert [len(ids(task, split)) for split in Split] == [3, 2, 4]
    assert all(identity.startswith("code-contests/test_") for identity in ids(task, Split.TEST))


def test_only_the_requested_part_is_read(tmp_path: Path) -> None:
    write_lines(tmp_path / "test.jsonl", [published_row("a")])
    write_lines(tmp_path / "valid.jsonl", [published_row("b")])
    (tmp_path / "train.jsonl").write_text(json.dumps(published_row("c")) + "\nno JSON\n")
    task = CodeContests(str(tmp_path))
    assert ids(task, Split.TEST) == ["code-contests/a"]
    assert [example.response for example in task.get_shots("competition", 1)] == [
        "```python\nprint(int(input()) + 1)\n```"
    ]  # Of the train part, only as much as is shown.
    with pytest.raises(TaskError, match=r"train\.jsonl, row 2"):
        task.problems(Split.TRAIN, EVERY, 0)


def test_hidden_tests_are_read_on_scoring(tmp_path: Path) -> None:
    try:
        make_sandbox()
    except SandboxError as error:
        pytest.skip(str(error))
    write_lines(tmp_path / "test.jsonl", [contest_row(k, "2024-01-01") for k in range(3)])
    task = LiveCodeBench(str(tmp_path))
    problems = task.problems(Split.TEST, EVERY, 0)
    assert all(entry.problem.tests.inputs == () for entry in task._load(Split.TEST).values())  # type: ignore[union-attr]
    for code, value in (("print(int(input()) + 1)", 1.0), ("print(1)", 0.0)):
        score = task.score(next(p for p in problems if p.id.endswith("q1")), Completion(f"```python\n{code}\n```"))
        assert isinstance(score, Score)
        assert (score.value, score.evidence["passed"][-4:]) == (value, "of 3")
    with pytest.raises(TaskError, match="livecodebench/other"):
        task.score(Problem("livecodebench/other", (), ""), Completion("x"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"contest_date": "yesterday"}, "2024-01-31"),
        ({"public_test_cases": "[]", "private_test_cases": ""}, "no test cases"),
        ({"public_test_cases": "[3]"}, "row of livecodebench"),
        ({"question_content": None}, "'question_content'"),
        ({"metadata": "{"}, "row of livecodebench"),
    ],
)
def test_invalid_row_is_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    write_lines(tmp_path / "test.jsonl", [contest_row(0, "2024-01-01"), contest_row(1) | fields])
    with pytest.raises(TaskError) as caught:
        LiveCodeBench(str(tmp_path)).problems(Split.TEST, EVERY, 0)
    assert str(caught.value).startswith(f"{tmp_path / 'test.jsonl'}, row 2: ")
    assert message in str(caught.value)


def test_invalid_options() -> None:
    with pytest.raises(SettingsError, match=r"'parts' of humaneval.*'all'"):
        make_task("humaneval", parts="all")
    with pytest.raises(SettingsError, match="'test_from' of livecodebench"):
        make_task("livecodebench", test_from="soon")
    with pytest.raises(SettingsError, match="'validation_from'"):
        make_task("livecodebench", validation_from="2025-01-01")


def test_lessons_have_the_form_of_the_data_set() -> None:
    for name in ("humaneval", "mbpp", "code-contests", "livecodebench"):
        task = make_task(name)
        assert isinstance(task, GenerativeTask)
        assert isinstance(task, WritableTask)
        for skill, parts in task.skills().items():
            subskill = parts[0] if parts else ""
            examples = task.write_examples(skill, subskill, 12, np.random.default_rng(3))
            assert examples == task.write_examples(skill, subskill, 12, np.random.default_rng(3))
            assert {(entry.skill, entry.subskill) for entry in examples} == {(skill, subskill)}
            for example in examples:
                code = example.response.removeprefix("```python\n").removesuffix("```")
                kinds = {type(node) for node in ast.parse(code).body}
                reads = "input()" in code or "sys.stdin" in code
                assert reads is (skill in ("competition", "programs"))
                assert (ast.ClassDef in kinds) is (skill == "methods")
                assert ("Write a Python class `Solution`" in example.messages[0].text) is (skill == "methods")
        with pytest.raises(UnknownNameError):
            task.write_examples(next(iter(task.skills())), "nothing", 1, np.random.default_rng(0))


def test_method_equals_function() -> None:
    from palaestra.tasks.code.family import FAMILY, ask_as_method

    rng = np.random.default_rng(0)
    for skill in ("lists", "numbers", "strings", "dictionaries", "integers", "grids"):
        for draw in FAMILY[skill].values():
            draft = draw(rng)
            scope: dict[str, Any] = {}
            exec(ask_as_method(draft)[1], scope)
            tests = make_tests(draft.solution, draft.name, draft.inputs)
            assert tests.code.count("assert ") >= 2  # type: ignore[union-attr]
            exec(tests.code.replace(f"{draft.name}(", f"Solution().{draft.name}("), scope)  # type: ignore[union-attr]


@skip_without("humaneval")
def test_evaluation_uses_published_parts() -> None:
    def count_problems(split: str = "test", **kwargs: str) -> int:
        task_kwargs = {"path": str(DATA / "humaneval"), **kwargs}
        _, problems = evaluate.check(
            EvaluateSettings(task="humaneval", model="nano", task_kwargs=task_kwargs, split=split)
        )
        return len(problems)

    assert (count_problems(), count_problems(parts="auto"), count_problems(split="train")) == (164, 98, 35)
