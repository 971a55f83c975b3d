"""The tasks `tune_ppo` and `write_lessons`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import pytest
from research_judges import judge_submission, load_judge, load_part

from palaestra.core.records import Example, Message, Problem, Split
from palaestra.core.seeding import Seeds
from palaestra.research.judge.evaluation import read_only_mounts, sandbox_environment
from palaestra.research.tasks.task import Grade, InvalidSubmission, load_task
from palaestra.sandbox.base import Limits, SandboxCommand
from palaestra.tasks.base import make_task
from palaestra.tasks.leakage import HeldOut

LESSON = {"question": "What is 2 + 2?", "response": "2+2=4. Answer: 4"}
SETTINGS: dict[str, Any] = json.loads((load_task("tune_ppo").folder / "starter" / "settings.json").read_text())


def lessons(*several: Any) -> str:
    return "\n".join(item if isinstance(item, str) else json.dumps(item) for item in several)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1 to 160 examples"),
        (lessons(*[LESSON] * 161), "got 161"),
        (lessons(LESSON, "{"), "line 2: expected a JSON"),
        (lessons("[" * 100_000), "line 1: expected a JSON"),
        (lessons([LESSON]), "got list"),
        (lessons({**LESSON, "accuracy": 1.0}), 'fields "question" and "response"'),
        (lessons({"question": "What is 2 + 2?"}), 'fields "question" and "response"'),
        (lessons({**LESSON, "response": 4}), "response must be a text"),
        (lessons({**LESSON, "response": "  "}), "response must be a text of 1 to 600"),
        (lessons({**LESSON, "question": "a" * 601}), "question must be a text of 1 to 600"),
        (lessons({**LESSON, "response": "%$&" * 200}), "nano cannot be trained"),
    ],
)
def test_lessons_of_another_form_are_unusable(text: str, expected: str) -> None:
    outcome = judge_submission("write_lessons", text)
    assert isinstance(outcome, InvalidSubmission)
    assert expected in outcome.reason


def hidden_problems(examples: list[Example]) -> list[Problem]:
    """The problems that the judge with seed 0 draws for these lessons."""
    content = hashlib.blake2b("\n".join(map(repr, examples)).encode(), digest_size=16).hexdigest()
    seeds, constants = (
        Seeds(0).derive("write_lessons", content),
        load_part("write_lessons", "_read_lessons").__globals__,
    )
    return [
        problem
        for split in (Split.VALIDATION, Split.TEST)
        for problem in make_task("math-skills").problems(
            split, constants["PROBLEMS"], seeds.derive(split, "problems").integer(), constants["SKILLS"]
        )
    ]


def test_hidden_problems_are_drawn_anew_for_other_lessons() -> None:
    draws = [hidden_problems([Example((Message("user", text),), "4")]) for text in ("2 + 2?", "2+2?")]
    ids = [{problem.id for problem in draw} for draw in draws]
    assert len(ids[0] & ids[1]) < 0.6 * len(ids[0])


def test_lessons_that_cover_a_pool_in_other_words_are_dropped() -> None:
    """Enumerating the test problems of a skill leaves nothing to train on, whatever stands before them."""
    several = make_task("math-skills").problems(Split.TEST, 60, 3, ["percent"])
    rows = [
        {"question": f"Dear nano (page {k}), {problem.messages[-1].text}", "response": problem.metadata["worked"]}
        for k, problem in enumerate(several)
    ]
    read = load_part("write_lessons", "_read_lessons")
    examples = read(lessons(*rows))
    leaks = HeldOut({Split.TEST: hidden_problems(examples)}).find(examples)
    assert sum(leak is not None for leak in leaks) > 40
    # No problem that was drawn is taught.
    drawn = {problem.metadata["content"] for problem in hidden_problems(examples)}
    assert all(
        problem.metadata["content"] not in drawn for problem, leak in zip(several, leaks, strict=True) if not leak
    )


def test_an_error_does_not_tell_whether_an_example_was_dropped() -> None:
    for question in ("What is 10% of 200?", "Why?"):
        outcome = judge_submission("write_lessons", lessons({"question": question, "response": "%$&" * 190}), "test")
        assert isinstance(outcome, InvalidSubmission)
        assert "nano cannot be trained" in outcome.reason
        assert not outcome.exposed


def import_in_workspace(name: str, modules: Sequence[str]) -> list[str]:
    """Those of the modules that an agent of a task can import."""
    judge = load_judge(name)
    code = f"""
import importlib
for name in {tuple(modules)}:
    try:
        importlib.import_module("palaestra." + name)
        print(name)
    except ModuleNotFoundError:
        pass
"""
    command = SandboxCommand(
        ("python3", "-c", code),
        limits=Limits(wall_seconds=120, cpu_seconds=120, memory=2 << 30),
        env=sandbox_environment(judge.task),
        read_only=read_only_mounts(judge.task, judge.data),
    )
    result = judge.sandbox.run(command)
    assert result.ok, result.error_text
    return result.text.split()


@pytest.mark.parametrize("name", ["tune_ppo", "write_lessons", "write_teacher", "nano_post_train"])
def test_a_workspace_cannot_import_problem_generators(name: str) -> None:
    modules = (
        "core.records",
        "tasks.math.task",
        "tasks.math.corpus",
        "tasks.tools.task",
        "tasks.code.task",
        "tasks.vision.task",
    )
    assert import_in_workspace(name, [*modules, "research.tasks.task"]) == ["core.records"]


def test_a_workspace_can_import_students_and_environments() -> None:
    modules = [
        "students.student",
        "students.stacked",
        "envs.token",
        "envs.lesson.flat",
        "rl.ppo",
        "engines.transformers",
    ]
    assert import_in_workspace("tune_ppo", modules) == modules


def test_nano_learns_from_a_single_example(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(load_judge("write_lessons")._evaluate.__globals__, "PROBLEMS", 4)
    outcome = judge_submission("write_lessons", lessons(LESSON), "test")
    assert isinstance(outcome, Grade)
    assert outcome.scores["examples"] == 1
    assert outcome.scores["dropped"] == 0
    assert 0.0 <= outcome.score < 0.7


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"learning_rate": 1.0}, "learning_rate must be a number from 1e-06 to 0.03"),
        ({"learning_rate": float("nan")}, "learning_rate must be a number"),
        ({"learning_rate": "fast"}, "learning_rate must be a number"),
        ({"temperature": True}, "temperature must be a number"),
        ({"gamma": 10**400}, "gamma must be a number"),
        ({"n_epochs": 4.0}, "n_epochs must be a whole number"),
        ({"episodes": 100_000}, "episodes must be a whole number from 16 to 512"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"lr_schedule": 1}, "lr_schedule must be constant, linear or cosine"),
        ({"n_epochs": 16, "batch_size": 8}, "4096 optimiser steps"),
        ({"reward": 1.0}, "accepts the settings"),
        ({"seed": 3}, "accepts the settings"),
    ],
)
def test_settings_beyond_their_bounds_are_unusable(change: dict[str, Any], expected: str) -> None:
    outcome = judge_submission("tune_ppo", json.dumps({**SETTINGS, **change}))
    assert isinstance(outcome, InvalidSubmission)
    assert expected in outcome.reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "one JSON object"),
        ("[]", "got list"),
        ("{}", "missing: batch_size"),
        ("[" * 100_000, "one JSON object"),
    ],
)
def test_settings_of_another_form_are_unusable(text: str, expected: str) -> None:
    outcome = judge_submission("tune_ppo", text)
    assert isinstance(outcome, InvalidSubmission)
    assert expected in outcome.reason


def test_judge_trains_with_its_own_practice_script() -> None:
    """What an agent does to its `practice.py` changes nothing: the file is no part of what is handed in."""
    task = load_task("tune_ppo")
    assert task.submission.files == ("settings.json",)
    assert not task.submission.optional
    train = load_part("tune_ppo", "train", "starter/practice.py")
    assert train.__globals__["EPISODES"] == load_part("tune_ppo", "evaluate").__globals__["EPISODES"]


def test_training_is_reproducible() -> None:
    train = load_part("tune_ppo", "train", "starter/practice.py")
    train.__globals__["EPISODES"] = 128
    settings = {**SETTINGS, "n_epochs": 1}
    item, again, other = train(settings, 5), train(settings, 5), train(settings, 6)
    assert item == again
    assert item != other
    reward = train.__globals__["reward"]

    class Prompt:
        ids = (3, 4, 5, 2)

    output = [5, 4, 3, 1]
    assert [reward(Prompt(), output[: k + 1]) for k in range(4)] == [0.25] * 4
    assert reward(Prompt(), [5, 4, 4]) == 0.0
    assert reward(Prompt(), [*output, 1]) == 0.0
