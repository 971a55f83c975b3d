"""Tests and checkpoints of every round are optional and do not affect the teacher."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from chat_server import Call, Reply, Server
from scripted_student import SKILLS, ScriptedStudent, weights_of

from palaestra.core.errors import ModelError
from palaestra.envs.lesson.student import STUDENTS
from palaestra.integrations.dataenvgym import run_episode
from palaestra.models import registry as models
from palaestra.recipes.evaluate import recipe as evaluate
from palaestra.recipes.evaluate.compare import compare
from palaestra.recipes.teach import recipe as teach
from palaestra.report import write_report
from palaestra.runs.files import to_json
from palaestra.runs.run import Run
from palaestra.teachers.base import TEACHERS, make_teacher
from palaestra.teachers.simple import OpenEnded

SMALL: dict[str, Any] = {
    "skills": SKILLS, "rounds": 3, "lesson_size": 6, "validation": 10, "test": 10, "teacher": "no_state",
    "learning": "scripted", "threads": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _scripted_student(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STUDENTS._entries, "scripted", ScriptedStudent.following(0.2, 0.9, 0.4, 0.6, lesson=6))


def reply_sums(call: Call, times: int) -> Reply:
    """Reply with sums that depend on the call only."""
    wanted = int((re.search(r"rite (\d+) new", json.dumps(call.body["messages"])) or ["", "1"])[1])
    first = sum(json.dumps(call.body).encode()) % 700
    rows = [(100 + first + 7 * k, 11 + k) for k in range(wanted)]
    data = [{"question": f"What is {a}+{b}?", "reasoning": f"{a}+{b}={a + b}", "answer": str(a + b)} for a, b in rows]
    return Reply(json.dumps({"hypothesis": "", "data": data}))


def test_testing_every_round_changes_nothing_for_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[bytes] = []

    class Seeing(OpenEnded):
        def write(self, state: Any, size: int, generator: Any) -> Any:
            states.append(to_json(state).encode() + repr(state).encode())
            return super().write(state, size, generator)

    monkeypatch.setitem(TEACHERS._entries, "seeing", Seeing)
    prompts = tmp_path / "prompts" / "seeing"
    prompts.mkdir(parents=True)
    ours = Path(teach.__file__).parents[2] / "teachers" / "prompts" / "open_ended"
    for path in ours.iterdir():
        (prompts / path.name).write_text(path.read_text())
    seen = {}
    for every in (False, True):
        states.clear()
        with Server(reply_sums) as server:
            values = SMALL | {
                "teacher": "seeing", "writer": server.model, "cache": str(tmp_path / f"{every}.sqlite"), "checks": ("readable",),
                "prompts": str(tmp_path / "prompts"), "in_flight": 1, "test_every_round": every,
            }  # fmt: skip
            summary = teach.teach(out=tmp_path / str(every), **values).summary
            bodies = [json.dumps(call.body).encode() for call in server.calls]
        with Run.open(tmp_path / str(every), read_only=True) as run:
            lessons = [to_json(run.store.lesson(round_)) for round_ in run.store.lesson_rounds()]
            tested = [phase for phase in run.store.phases() if phase.endswith("test")]
        seen[every] = (list(states), bodies, lessons, summary["rewards"], summary["weights_sha256"])
        assert len(states) == 3
        assert len(bodies) >= 3
        assert tested == (["0/test", "1/test", "2/test", "3/test"] if every else ["0/test", "3/test"])
    assert seen[True] == seen[False]


@pytest.mark.parametrize("keep", ["last", "best"])
def test_every_round_has_a_test_score_and_a_checkpoint(keep: str, tmp_path: Path) -> None:
    plain = teach.teach(out=tmp_path / "plain", keep=keep, **SMALL).summary
    result = teach.teach(out=tmp_path / "run", keep=keep, test_every_round=True, checkpoints="all", **SMALL)
    rounds = result.summary.pop("test_rounds")
    costs = {"seconds", "prompt_tokens", "completion_tokens"}
    assert {k: v for k, v in result.summary.items() if k not in costs} == {
        k: v for k, v in plain.items() if k not in costs
    }
    assert [(row["round"], row["examples"], row["problems"]) for row in rounds] == [
        (0, 0, 20),
        (1, 6, 20),
        (2, 12, 20),
        (3, 18, 20),
    ]
    assert rounds[0]["accuracy"] == plain["before"]
    assert rounds[plain["kept_round"]]["accuracy"] == plain["after"]
    assert all(row["low"] <= row["accuracy"] <= row["high"] for row in rounds)
    folders = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert folders == ["round-1", "round-2", "round-3"]
    compared = compare(tmp_path / "plain", tmp_path / "run").comparison  # Of the student that is kept.
    assert (compared.gain.points, compared.gain.count, compared.first.accuracy) == (
        0.0,
        20,
        compared.second.accuracy,
    )
    assert 100 * (compared.second.accuracy or 0) == pytest.approx(plain["after"], abs=0.01)
    page = write_report(tmp_path / "run").read_text()
    assert 'id="test-rounds"' in page
    assert "Test accuracy as a table" in page
    assert 'id="test-rounds"' not in write_report(tmp_path / "plain").read_text()


def test_custom_episode_can_be_tested_after_every_round() -> None:
    from palaestra import LessonEnv

    student = ScriptedStudent.following(0.2, 0.9, 0.4, 0.6, lesson=6)()
    env = LessonEnv(student=student, skills=SKILLS, validation=10, test=10, rounds=3, budget=100, test_every_round=True)
    reports = run_episode(env, make_teacher("no_state", env.task, SKILLS), num_iterations=3, data_per_iteration=6)
    assert [sorted(result) for result in reports.values()] == [["test", "validation"]] * 4
    assert env.student.weights_sha256() == weights_of(18)


def test_adapter_of_earlier_round_answers_as_the_student_did(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "skills": ("geometry",), "rounds": 2, "lesson_size": 8, "validation": 1, "test": 4, "epochs": 1, "threads": 1,
        "teacher": "no_state", "learning": "supervised", "method": "lora", "answer_tokens": 24,
    }  # fmt: skip
    teach.teach(out=tmp_path / "run", test_every_round=True, checkpoints="all", **values)
    with Run.open(tmp_path / "run", read_only=True) as run:
        reported = [[a.completion.text for a in run.store.attempts(f"{r}/test")] for r in (1, 2)]  # type: ignore[union-attr]
        assert run.store.weights_sha256(1) != run.store.weights_sha256(2)
    model = str(tmp_path / "run" / "checkpoints" / "round-1")
    result = evaluate.evaluate(
        model=model, skills=("geometry",), problems=4, max_tokens=24, out=tmp_path / "evaluation"
    )
    with Run.open(result.folder, read_only=True) as run:
        assert [a.completion.text for a in run.store.attempts("0/test")] == reported[0]  # type: ignore[union-attr]
    hashes = json.loads((result.folder / "provenance.json").read_text())["started"]["models"][model]
    assert any(name.endswith(".safetensors") for name in hashes["files"])


def test_a_damaged_adapter_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"adapter_config.json .*base model"):
        models.load(str(tmp_path))
