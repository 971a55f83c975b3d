"""Type checks of a user's task, teacher and scorer and of their return values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from registries import isolate_registries

from palaestra.core.errors import LessonError, SettingsError, TaskError
from palaestra.core.records import Decision, Example, Failure, FailureCause, Lesson, Message, Problem, Split
from palaestra.envs.lesson.state import check_lesson
from palaestra.tasks.base import HOOKS, TASKS, get_hooks, make_task
from palaestra.tasks.evaluate import draw_problems, measures, write_examples
from palaestra.teachers.base import TEACHERS, make_teacher


class Sums:
    """A task without a mistake; each test puts one in."""

    name = "sums"
    message: Any = Message("user", "1 + 1 = ?")
    example: Any = Example((Message("user", "1 + 1 = ?"),), "2", "sums")

    def skills(self) -> Any:
        return {"sums": ()}

    def problems(self, split: Any, per_skill: int, seed: int, skills: Any = ()) -> Any:
        return [Problem("a", (self.message,), "2", "sums")][:per_skill]

    def score(self, problem: Any, completion: Any) -> Any: ...

    def write_examples(self, skill: str, subskill: str, count: int, generator: Any) -> Any:
        return self.example


def broken(**parts: Any) -> Any:
    return type("Broken", (Sums,), parts)


def register(monkeypatch: pytest.MonkeyPatch, registry: Any, target: Any) -> None:
    isolate_registries(monkeypatch, registry)
    registry.register("own", target)


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        (Sums(), TaskError, "register its class"),
        (lambda: None, TaskError, "NoneType .*'name'"),
        (type("NoScore", (), {"name": "own", "skills": Sums.skills, "problems": Sums.problems}), TaskError, "NoScore .*'score'"),
        (broken(skills=lambda self: None), TaskError, r"Broken\.skills returned None \(test_checks\.py, line \d+\)"),
        (broken(skills=lambda self: ["sums"]), TaskError, r"skills returned \['sums'\]"),
        (broken(skills=lambda self: {"sums": "all"}), TaskError, r"skills returned {'sums': 'all'}"),
        (broken(skills=lambda self: {}), TaskError, r"skills returned {}"),
        (broken(__init__=lambda self, path: None), SettingsError, "option: .*'path'"),
    ],
)  # fmt: skip
def test_invalid_tasks_are_rejected(
    monkeypatch: pytest.MonkeyPatch, target: Any, error: type[Exception], message: str
) -> None:
    register(monkeypatch, TASKS, target)
    with pytest.raises(error, match=message):
        make_task("own")


@pytest.mark.parametrize(
    ("target", "message"), [(object(), "register its class"), (lambda task, skills: None, "'write'")]
)
def test_invalid_teachers_are_rejected(monkeypatch: pytest.MonkeyPatch, target: Any, message: str) -> None:
    register(monkeypatch, TEACHERS, target)
    with pytest.raises(LessonError, match=message):
        make_teacher("own", Sums())


@pytest.mark.parametrize(
    ("message", "returned"),
    [
        (Message("usr", "1 + 1 = ?"), r"'usr' as the messages\.0\.role"),  # type: ignore[arg-type]
        (Message("user", None), r"None as the messages\.0\.content"),  # type: ignore[arg-type]
        (Message("user", ["1 + 1 = ?"]), r"\['1 \+ 1 = \?'\] as the messages\.0\.content"),  # type: ignore[arg-type]
    ],
)
def test_messages_of_problems_are_checked(message: Message, returned: str) -> None:
    with pytest.raises(TaskError, match=returned):
        draw_problems(broken(message=message)(), Split.TEST, 1, 0)


def test_a_task_without_problems_is_refused() -> None:
    with pytest.raises(TaskError, match=r"'sums' .*no test problems"):
        draw_problems(Sums(), Split.TEST, 0, 0)


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (None, "None"), (3, "3"), ("abc", "'abc'"), ({"a": 1}, "{'a': 1}"), ([("q", "a")], r"\[\('q', 'a'\)\]"),
        ([Sums.example] * 3, "3 examples"),
    ],
)  # fmt: skip
def test_examples_that_a_task_writes_are_checked(returned: Any, what: str) -> None:
    task, generator = broken(example=returned)(), np.random.default_rng(0)
    with pytest.raises(TaskError, match=rf"write_examples returned {what} .* 2 "):
        write_examples(task, "sums", "", 2, generator)
    assert write_examples(broken(example=[Sums.example])(), "sums", "", 2, generator) == (Sums.example,)


@pytest.mark.parametrize("figures", [None, "abc", {"depth": 1.0}])
def test_metrics_of_a_task_are_checked(figures: Any) -> None:
    with pytest.raises(TaskError, match=r"metrics returned .*Mean"):
        measures(broken(metrics=lambda self, attempts: figures)(), [], 1)


def test_a_failure_has_a_known_cause_and_a_text() -> None:
    assert Failure("malformed", "no JSON").cause is FailureCause.MALFORMED  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weird"):
        Failure("weird", "no JSON")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="None"):
        Failure(FailureCause.MALFORMED, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "decision", [Decision("sums", "drill", None, {}), Decision("sums", "drill", "weak", {"all": "1"})]  # type: ignore[arg-type]
)  # fmt: skip
def test_decisions_of_a_lesson_are_checked(decision: Decision) -> None:
    with pytest.raises(LessonError, match=r"decisions\.1\.(reason|allocation\.all): "):
        check_lesson(Lesson((Sums.example,), (decision,)), ["sums"])


def test_hooks_of_a_task_that_inherits_none() -> None:
    class Plain:
        name, max_tokens = "plain", 7

        def get_shots(self, skill: str, count: int) -> list[Example]:
            return []

    hooks = get_hooks(Plain())
    assert (hooks.max_tokens, hooks.is_procedural, hooks.metrics([])) == (7, False, {})
    assert [name for name in HOOKS if hooks.overrides(name)] == ["max_tokens", "get_shots"]
