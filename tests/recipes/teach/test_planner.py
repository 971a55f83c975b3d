"""Whole runs with a language model as the planner only, behind a real server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import Call, Reply, Server
from scripted_student import SKILLS, ScriptedStudent

from palaestra.core.errors import BudgetSpentError, SettingsError, UnknownNameError
from palaestra.envs.lesson.student import STUDENTS
from palaestra.recipes.teach import recipe as teach
from palaestra.runs.run import Run

SMALL: dict[str, Any] = {
    "skills": SKILLS, "rounds": 2, "lesson_size": 6, "validation": 4, "test": 4, "threads": 1, "answer_tokens": 24, "learning": "scripted",
    "teacher": "skill_tree", "teacher_kwargs": {"policy": "model", "cap": 1.0},
}  # fmt: skip


@pytest.fixture(autouse=True)
def scripted_student(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(STUDENTS._entries, "scripted", ScriptedStudent.following(0.2, 0.4, 0.6, lesson=6))
    return


def reply_plan(call: Call, times: int) -> Reply:
    """Reply with a plan that gives the whole lesson to one subskill; its reason names the round."""
    round_ = "next" if "; rewards" in call.asked else "first"
    action = {
        "skill": "geometry", "action": "explore", "reason": f"the {round_} round belongs to areas",
        "allocation": [{"subskill": "area", "examples": 6}],
    }  # fmt: skip
    return Reply(json.dumps({"actions": [action]}))


def reply_data_or_plan(call: Call, times: int) -> Reply:
    if "Plan the next one" in call.asked:
        return reply_plan(call, times)
    start = len(call.asked)
    data = [
        {"question": f"What is {start}+{k}?", "reasoning": f"{start}+{k}={start + k}", "answer": str(start + k)}
        for k in range(6)
    ]
    return Reply(json.dumps({"hypothesis": "", "data": data}))


def run_planner(server: Server, folder: Path, **values: Any) -> teach.TeachResult:
    settings = SMALL | {"planner": server.model, "cache": str(folder.parent / "calls.sqlite")} | values
    return teach.teach(out=folder, **settings)


def test_planner_directs_generators_and_rerun_makes_no_call(
    tmp_path: Path,
) -> None:
    with Server(reply_plan) as server:
        first = run_planner(server, tmp_path / "first")
        assert len(server.calls) == 2
        again = run_planner(server, tmp_path / "again")
        assert len(server.calls) == 2
        assert "rewards" in server.calls[1].asked
        used = server.prompt_tokens, server.completion_tokens
    assert (first.summary["calls"], again.summary["calls"]) == (2, 0)
    assert first.summary["weights_sha256"] == again.summary["weights_sha256"]
    with Run.open(tmp_path / "first", read_only=True) as run:
        lessons = [run.store.lesson(round_) for round_ in (1, 2)]
        costs = [run.store.costs()[f"{round_}/lesson"] for round_ in (1, 2)]
    for lesson, round_ in zip(lessons, ("first", "next"), strict=True):
        assert lesson is not None
        assert {(example.skill, example.subskill) for example in lesson.examples} == {("geometry", "area")}
        assert f"the {round_} round belongs to areas" in lesson.decisions[0].reason
    assert [cost.calls for cost in costs] == [1, 1]
    assert (sum(c.prompt_tokens for c in costs), sum(c.completion_tokens for c in costs)) == used


def test_planner_calls_count_against_the_budget(tmp_path: Path) -> None:
    with Server(reply_plan) as server:
        with pytest.raises(BudgetSpentError, match="--max-calls"):
            run_planner(server, tmp_path / "run", max_calls=1)
        assert len(server.calls) == 1
        with Run.open(tmp_path / "run") as run:
            assert run.store.lesson_rounds() == [1]
            summary = teach.resume(run, max_calls=2).summary
    assert (summary["calls"], len(server.calls), summary["examples"]) == (2, 2, 12)


def test_writer_and_planner_share_the_budget(tmp_path: Path) -> None:
    values: dict[str, Any] = {"quality": "off", "rounds": 1}
    with Server(reply_plan) as planner, Server(reply_data_or_plan) as writer:
        result = run_planner(planner, tmp_path / "run", writer=writer.model, **values)
        assert (len(planner.calls), len(writer.calls), result.summary["calls"]) == (1, 1, 2)
        with Run.open(tmp_path / "run", read_only=True) as run:
            assert run.store.costs()["1/lesson"].prompt_tokens == planner.prompt_tokens + writer.prompt_tokens
        with pytest.raises(BudgetSpentError):
            run_planner(
                planner, tmp_path / "less", writer=writer.model, max_calls=1, cache=str(tmp_path / "2"), **values
            )
        assert (len(planner.calls), len(writer.calls)) == (2, 1)


@pytest.mark.parametrize("own", [False, True])
def test_the_writer_is_asked_both_where_no_other_is_to_plan(own: bool, tmp_path: Path) -> None:
    with Server(reply_data_or_plan) as writer:
        planner = writer.model if own else ""
        result = run_planner(writer, tmp_path / "run", writer=writer.model, planner=planner, quality="off", rounds=1)
        assert (len(writer.calls), result.summary["calls"]) == (2, 2)
        with Run.open(tmp_path / "run", read_only=True) as run:
            assert run.store.costs()["1/lesson"].prompt_tokens == writer.prompt_tokens


@pytest.mark.parametrize(
    ("values", "error", "expected"),
    [
        ({"planner": ""}, SettingsError, "'model' .*'planner' or 'writer'"),
        ({"teacher": "open_ended", "teacher_kwargs": {}}, SettingsError, "'open_ended' uses no planner"),
        ({"teacher_kwargs": {"policy": "ucb"}}, SettingsError, "not use the planner 'nano'"),
        ({"teacher_kwargs": {"policy": "model", "engine": "gpt"}}, SettingsError, "'engine': .*not its name"),
        ({"planner": "nanoo"}, UnknownNameError, "'nano'"),
        ({"planner": "openai:gpt-4o-mini"}, Exception, "OPENAI_API_KEY"),
    ],
)  # fmt: skip
def test_invalid_planner_is_refused_before_writing(
    values: dict[str, Any], error: type[Exception], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(error, match=expected) as caught:
        teach.teach(out=tmp_path / "run", **(SMALL | {"planner": "nano"} | values))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_teacher_options_are_checked_if_a_model_writes(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="'cup'"):
        teach.teach(out=tmp_path / "run", **(SMALL | {"writer": "nano", "teacher_kwargs": {"cup": 1}}))
    assert not (tmp_path / "run").exists()
