"""Properties of every skill of the generated tasks."""

import json
import re
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest

from palaestra.core.errors import TaskError, TooFewProblemsError
from palaestra.core.records import Attempt, Completion, Score, Split
from palaestra.core.statistics import get_cluster, report_on, wilson_interval
from palaestra.tasks.base import make_task

DRAWS = {"math-skills": 3000, "code-skills": 600, "tools-skills": 600, "vision-skills": 150}
TASKS = {name: make_task(name) for name in DRAWS}
SKILLS = [(name, skill) for name, task in TASKS.items() for skill in task.skills()]


def identify(name: str, draft: Any) -> Hashable:
    """What a student could know a problem by, whatever its words: calls from what is asked, not from the draft's key."""
    if name == "math-skills":
        return tuple(sorted(re.findall(r"\d+", draft.question))), draft.answer
    if name == "code-skills":
        return draft.solution.replace(draft.name or "\0", "f")
    if name == "tools-skills":  # The calls are what is scored: the same tools with the same values.
        calls = draft.plan.execute()
        return tuple(sorted((call.tool, json.dumps(call.arguments, sort_keys=True)) for call in calls)), str(
            calls[-1].value
        )
    items = sorted((i.shape, i.colour, i.size, i.x // 16, i.y // 16) for i in draft.scene.items)
    return tuple(items), str(draft.scene.chart)


@pytest.mark.parametrize(("name", "skill"), SKILLS)
def test_no_two_splits_share_numbers_and_answer(name: str, skill: str) -> None:
    task: Any = TASKS[name]
    rng = np.random.default_rng(11)
    splits: dict[Hashable, set[Split]] = {}
    drawers = list(task.family[skill].values())
    for k in range(DRAWS[name]):
        draft = drawers[k % len(drawers)](rng)
        if (split := task.get_split(skill, draft)) is not None:
            splits.setdefault(identify(name, draft), set()).add(split)
    assert [seen for seen in splits.items() if len(seen[1]) > 1] == []
    assert {split for seen in splits.values() for split in seen} == set(Split)


@pytest.mark.parametrize("skill", ["groups", "clock", "units", "change", "percent", "missing_number", "geometry"])
def test_lessons_hold_no_numbers_and_answer_of_a_test_problem(skill: str) -> None:
    task: Any = TASKS["math-skills"]
    try:
        asked = task.problems(Split.TEST, 500, 0, [skill])
    except TooFewProblemsError as error:
        asked = task.problems(Split.TEST, error.available, 0, [skill])
    taught = task.write_examples(skill, "", 2000, np.random.default_rng(0))

    def read_numbers(text: str, answer: str) -> Hashable:
        return tuple(sorted(re.findall(r"\d+", text))), answer

    held_out = {read_numbers(p.messages[0].text, p.reference) for p in asked}
    assert not held_out & {read_numbers(e.messages[0].text, e.reference) for e in taught}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_error_states_the_available_problems(seed: int) -> None:
    task = TASKS["math-skills"]
    with pytest.raises(TooFewProblemsError) as caught:
        task.problems(Split.TEST, 5000, seed, ["percent"])
    assert caught.value.available == 72
    assert len(task.problems(Split.TEST, 72, seed, ["percent"])) == 72
    with pytest.raises(TooFewProblemsError):
        task.problems(Split.TEST, 73, seed, ["percent"])


def test_procedural_tasks_cannot_give_every_problem() -> None:
    with pytest.raises(TaskError) as caught:
        TASKS["math-skills"].problems(Split.TEST, 0, 0)
    assert "end" not in str(caught.value)


def test_problems_that_differ_only_in_wording_have_one_content() -> None:
    task = TASKS["math-skills"]
    problems = task.problems(Split.TEST, 72, 0, ["percent"])
    contents: dict[str, set[tuple[Hashable, str]]] = {}
    for problem in problems:
        numbers = tuple(sorted(re.findall(r"\d+", problem.messages[0].text)))
        contents.setdefault(get_cluster(problem), set()).add((numbers, problem.reference))
    assert all(len(problems) == 1 for problems in contents.values())
    assert len({tuple(problems) for problems in contents.values()}) == len(contents) < 40
    others = task.problems(Split.TEST, 5, 0, ["division"])
    assert not {get_cluster(p) for p in others} & set(contents)


def test_the_interval_counts_rewordings_as_one_problem() -> None:
    problems = TASKS["math-skills"].problems(Split.TEST, 72, 0, ["percent"])
    clusters = sorted({get_cluster(p) for p in problems})
    solved = set(clusters[::2])
    attempts = [Attempt(p, Completion(""), Score(float(get_cluster(p) in solved))) for p in problems]
    report = report_on(attempts)
    assert report.count == 72
    rate = report.correct / report.count
    low, high = wilson_interval(rate * len(clusters), len(clusters))
    plain_low, plain_high = wilson_interval(report.correct, report.count)
    assert report.high - report.low > plain_high - plain_low
    assert report.high - report.low == pytest.approx(high - low, rel=0.25)
