"""Whole runs whose written examples are verified, and the skills that fell beside a gain."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from chat_server import Call, Reply, Server

from palaestra.core.errors import BudgetSpentError, SettingsError, WriterError
from palaestra.core.records import Attempt, Completion, Problem, Score
from palaestra.core.statistics import measure_changes
from palaestra.recipes.teach import recipe as teach
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.recipes.teach.study import _find_fallen_skills
from palaestra.recipes.teach.summary import describe_changes, describe_lessons
from palaestra.report import write_report
from palaestra.runs.run import Run

SMALL: dict[str, Any] = {
    "skills": ("percent",), "rounds": 1, "lesson_size": 12, "validation": 2, "test": 2, "epochs": 1, "answer_tokens": 24,
    "threads": 1, "teacher": "no_state", "top_up": 0,
    "checks": ("skill", "scorer", "equations"),
}  # fmt: skip


def run_writer(server: Server, folder: Path, **values: Any) -> teach.TeachResult:
    settings = SMALL | {"writer": server.model, "cache": str(folder.parent / "calls.sqlite")} | values
    return teach.teach(out=folder, **settings)


def write_figs(call: Call, times: int) -> Reply:
    """Word problems without a solver, one plain sum, and answers to them; every second figure of figs is wrong."""
    wanted = re.search(r"rite (\d+) new", call.asked)
    if wanted is None:
        left, right = re.findall(r"\d+", call.asked)[:2]
        return Reply(f"Answer: {int(left) + int(right)}")
    start, data = int(call.body["seed"]) % 5000, []
    for k in range(int(wanted[1])):
        left, right = start + 1000 + 97 * k, start + 2011 + 89 * k
        answer = str(left + right + 7 * (k % 2))
        data.append(
            {
                "question": f"Ada picks {left} figs, then {right} figs more. How many figs has she?",
                "reasoning": f"She has both, {answer} in all",
                "answer": answer,
            }
        )
    data[-1] = {"question": f"What is {start}+40?", "reasoning": f"{start}+40={start + 40}", "answer": str(start + 40)}
    return Reply(json.dumps({"data": data}))


def test_agreement_is_paid_once_and_shown(tmp_path: Path) -> None:
    values: dict[str, Any] = {"verify": "agreement:2"}
    with Server(write_figs) as server:
        with pytest.raises(BudgetSpentError):
            run_writer(server, tmp_path / "run", max_calls=9, **values)
        with Run.open(tmp_path / "run") as run:
            result = teach.resume(run, max_calls=100)
            costs = run.store.costs()
        calls = len(server.calls)
    summary = result.summary
    assert calls == summary["calls"] == 4 + 2 * 8  # Four orders, and two samples for each question without a solver.
    assert costs["1/verification"].calls + costs["1/lesson"].calls == calls
    assert costs["1/verification"].prompt_tokens > 0
    verification = summary["verification"]
    assert verification["verified"] == {"agreement": summary["delivered"] - 4, "solved by the task": 4}
    assert (verification["unverified"], verification["wrong"]) == (
        0,
        summary["dropped"]["agreement: the verifier disagrees"],
    )
    with Run.open(tmp_path / "run", read_only=True) as run:
        lesson = run.store.lesson(1)
    assert lesson is not None
    assert "addition" in {example.skill for example in lesson.examples}  # The sum was ordered as `percent`.
    assert summary["skills_written"]["addition instead of percent"] == 4
    page = write_report(result.folder).read_text()
    assert "Verification of the taught examples" in page
    assert "addition instead of percent" in page


def test_unverified_answers_have_an_estimated_error_rate(tmp_path: Path) -> None:
    with Server(write_figs) as server:
        summary = run_writer(server, tmp_path / "run").summary
    verification = summary["verification"]
    assert verification["unverified"] > 0
    assert (verification["examined"], verification["error_rate"]) == (4, 0.0)
    assert verification["error_rate_high"] > 40
    assert any("not verified: " in line and "the 4 examined" in line for line in describe_lessons(summary))


def test_a_writer_off_the_topic_is_dropped_not_withheld(tmp_path: Path) -> None:
    capital = {"question": "What is the capital of France?", "reasoning": "It is known", "answer": "Paris"}
    with (
        Server(lambda call, times: Reply(json.dumps({"data": [capital]}))) as server,
        pytest.raises(WriterError, match="no answer") as caught,
    ):
        run_writer(server, tmp_path / "run")
    assert "failed to run" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"verify": "agreement"},
        {"verify": "agreement:0", "verifier": "nano"},
        {"verifier": "nano"},
        {"verify": "agreement:3"},
        {"verify": "agreement:3", "verifier": "nano", "quality": "off"},
    ],
)
def test_settings_of_a_verifier_that_cannot_work_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="'verif"):
        TeachSettings(**values)


def make_attempts(skill: str, count: int, correct: int) -> list[Attempt]:
    problems = [Problem(f"{skill}/{k}", (), "", skill) for k in range(count)]
    return [Attempt(problem, Completion(""), Score(float(k < correct))) for k, problem in enumerate(problems)]


def test_a_skill_that_fell_beyond_chance_is_named() -> None:
    skills = [f"skill {k}" for k in range(17)]
    before = [*make_attempts("multiplication", 25, 25), *(a for skill in skills for a in make_attempts(skill, 25, 12))]
    after = [*make_attempts("multiplication", 25, 12), *(a for skill in skills for a in make_attempts(skill, 25, 24))]
    changes = measure_changes(before, after)
    assert [change.skill for change in changes if change.fell] == ["multiplication"]
    assert changes[0].gain.points == -52
    within = measure_changes(before, [*make_attempts("multiplication", 25, 21), *after[25:]])
    assert (within[0].gain.points, within[0].fell) == (-16, False)


def make_summary(gain: float, adjusted: float) -> dict[str, Any]:
    rows = {"adding": 20.0, "multiplying": gain}
    return {
        "fell": ["multiplying"] if adjusted < 0.05 else [],
        "by_skill": {
            skill: {"gain": points, "gain_low": points - 9, "gain_high": points + 9, "adjusted": adjusted}
            for skill, points in rows.items()
        },
    }


def test_the_terminal_names_what_fell() -> None:
    assert describe_changes(make_summary(-40, 0.01)).startswith("fell: multiplying -40.0 [-49.0, -31.0]")
    assert describe_changes(make_summary(-8, 0.9)).endswith("lower, within chance: multiplying -8.0")
    assert describe_changes({"fell": [], "by_skill": {}}) == ""


def test_a_study_finds_small_falls_over_its_seeds() -> None:
    fallen = _find_fallen_skills([make_summary(gain, 1.0) for gain in (-8.0, -20.0, -12.0, -16.0, -12.0, -16.0)])
    assert list(fallen) == ["multiplying"]
    assert (fallen["multiplying"].value, fallen["multiplying"].count) == (-14.0, 6)
