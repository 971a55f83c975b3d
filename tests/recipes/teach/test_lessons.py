"""Whole runs with lessons of a language model behind a real server."""

import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from chat_server import Call, Reply, Server, error

from palaestra.core.errors import BudgetSpentError, SettingsError
from palaestra.core.records import Event
from palaestra.engines.openai_endpoint import RETRY
from palaestra.recipes.teach import recipe as teach
from palaestra.report import write_report
from palaestra.runs.run import Run
from palaestra.teachers.quality.base import Inspection

SMALL: dict[str, Any] = {
    "skills": ("addition", "geometry"), "rounds": 1, "lesson_size": 12, "validation": 3, "test": 3, "epochs": 1, "answer_tokens": 24,
    "threads": 1, "teacher": "open_ended",
}  # fmt: skip


def reply_sums(call: Call, times: int) -> Reply:
    """Reply with the requested number of sums, different in every call. The last one is wrong."""
    wanted = int((re.search(r"rite (\d+) new", call.asked) or ["", "1"])[1])
    start = 100 + zlib.crc32(call.asked.encode()) % 50 + int(call.body.get("seed", 0)) % 400
    data = []
    for k in range(wanted):
        total = start + 2 * k + 3 + (k == wanted - 1)
        data.append(
            {
                "question": f"What is {start + k}+{k + 3}?",
                "reasoning": f"{start + k}+{k + 3}={total}",
                "answer": str(total),
            }
        )
    return Reply(json.dumps({"hypothesis": "It does not carry.", "data": data}))


def run_writer(server: Server, folder: Path, **values: Any) -> teach.TeachResult:
    settings = SMALL | {"writer": server.model, "cache": str(folder.parent / "calls.sqlite")} | values
    return teach.teach(out=folder, **settings)


def test_model_writes_checks_filter_and_rerun_makes_no_call(tmp_path: Path) -> None:
    with Server(reply_sums) as server:
        first = run_writer(server, tmp_path / "first")
        calls = len(server.calls)
        again = run_writer(server, tmp_path / "again")
        assert len(server.calls) == calls > 0
    assert (first.summary["calls"], again.summary["calls"]) == (calls, 0)
    different = {"seconds", "calls", "prompt_tokens", "completion_tokens"}
    assert {k: v for k, v in first.summary.items() if k not in different} == {
        k: v for k, v in again.summary.items() if k not in different
    }
    with Run.open(tmp_path / "first", read_only=True) as run, Run.open(tmp_path / "again", read_only=True) as second:
        lesson, (inspection,) = run.store.lesson(1), run.store.inspections(Inspection).values()
        assert second.store.lesson(1) == lesson
        assert second.store.inspections(Inspection) == {1: inspection}
        assert second.store.curves() == run.store.curves()
        for phase in run.store.phases():
            assert second.store.attempts(phase) == run.store.attempts(phase)
    assert lesson is not None
    assert lesson.examples == inspection.kept
    assert 0 < len(lesson.examples) < 12
    assert (first.summary["ordered"], first.summary["delivered"]) == (12, len(lesson.examples))
    assert "scorer: wrong answer" in first.summary["dropped"]
    assert all(example.metadata["hypothesis"] == "It does not carry." for example in lesson.examples)
    assert any(decision.action == "checked" for decision in lesson.decisions)
    page = write_report(tmp_path / "first").read_text()
    assert "Quality checks" in page


def test_spent_budget_stops_and_a_larger_one_resumes(tmp_path: Path) -> None:
    with Server(reply_sums) as server:
        whole = run_writer(server, tmp_path / "whole", cache=str(tmp_path / "other.sqlite"))
        calls = len(server.calls)
        assert calls >= 3
        with pytest.raises(BudgetSpentError, match="--max-calls"):
            run_writer(server, tmp_path / "run", max_calls=2)
        assert len(server.calls) == calls + 2
        with Run.open(tmp_path / "run") as run:
            assert run.store.lesson(1) is None
            result = teach.resume(run, max_calls=100)
            assert run.settings["max_calls"] == 100
        assert len(server.calls) == 2 * calls  # What was answered before is not asked again.
    assert result.summary["weights_sha256"] == whole.summary["weights_sha256"]


def test_several_teacher_calls_make_one_lesson(tmp_path: Path) -> None:
    reported: list[Event] = []
    with Server(
        lambda call, times: reply_sums(call, times) if len(server.calls) > 1 else error(503, "later")
    ) as server:
        result = run_writer(
            server, tmp_path / "run", accumulate=2, state="off", quality="off", listener=reported.append
        )
        asked = "\n".join(call.asked for call in server.calls)
    assert ["later" in event.data["reason"] for event in reported if event.phase == RETRY] == [True]
    assert result.summary["examples"] == 12
    assert "It answered" not in asked
    assert (result.summary["delivered"], result.summary["dropped"]) == (12, {})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"writer": "openai:gpt-4o-mini"}, "OPENAI_API_KEY"),
        ({"checks": ("scorr",)}, "'scorer'"),
        ({"teacher_kwargs": {"cup": 1}}, "'cup'"),
        ({"prompts": "/no/such/folder"}, "/no/such/folder"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    values: dict[str, Any], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(Exception, match=expected) as caught:
        teach.teach(out=tmp_path / "run", **(SMALL | values))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    with pytest.raises(SettingsError, match="'accumulate'"):
        teach.teach(out=tmp_path / "run", accumulate=0)
