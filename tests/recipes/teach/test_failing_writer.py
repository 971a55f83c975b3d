"""A failing writer fails the run with its cause, never with a gain of 0."""

import json
import re
from pathlib import Path
from typing import Any

import processes
import pytest
from chat_server import Call, Reply, Server, error

from palaestra.core.errors import WriterError
from palaestra.recipes.teach import recipe as teach
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.recipes.teach.study import study
from palaestra.report import write_report
from palaestra.runs.browse import CallFilter, find_calls
from palaestra.runs.run import Run

SMALL: dict[str, Any] = {
    "skills": ("addition",), "rounds": 1, "lesson_size": 12, "validation": 2, "test": 2, "epochs": 1,
    "threads": 1, "teacher": "no_state", "answer_tokens": 24,
}  # fmt: skip


def make_sum(left: int, right: int) -> dict[str, str]:
    result = str(left + right)
    return {"question": f"What is {left}+{right}?", "reasoning": f"{left}+{right}={result}", "answer": result}


def reply_sums(call: Call, lost: int = 0) -> Reply:
    """Reply with `lost` sums fewer than requested, different in every call."""
    wanted = int((re.search(r"rite (\d+) new", call.asked) or ["", "1"])[1])
    start = 1000 + int(call.body["seed"]) % 8000
    return Reply(json.dumps({"data": [make_sum(start + 7 * k, 111 + k) for k in range(max(1, wanted - lost))]}))


def make_settings(server: Server, folder: Path, **values: Any) -> dict[str, Any]:
    return SMALL | {"writer": server.model, "cache": str(folder / "calls.sqlite")} | values


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (error(400, "not today"), "invalid_request"),
        (error(403, "not for you"), "not for you"),
        (Reply("I would rather not.", usage=False), "malformed"),
    ],
)
def test_empty_lesson_ends_run_with_its_cause_and_no_gain(reply: Reply, cause: str, tmp_path: Path) -> None:
    with Server(lambda call, times: reply) as server:
        with pytest.raises(Exception, match=re.escape(cause)) as caught:
            teach.teach(out=tmp_path / "run", **make_settings(server, tmp_path))
        calls = len(server.calls)
    assert "\n" not in str(caught.value)
    with Run.open(tmp_path / "run", read_only=True) as run:
        summary = run.summary or {}
        assert run.store.lesson(1) is None
    assert (summary["gain"], summary["gain_low"], summary["after"]) == (None, None, None)
    assert (summary["failed"], summary["error"]) == ("the writer failed", str(caught.value))
    assert (summary["ordered"], summary["delivered"]) == (12, 0)
    assert summary["calls"] == calls > 0
    assert summary["unmeasured_calls"] == (0 if reply.usage else calls)
    assert sum(summary["writer_failures"].values()) > 0
    page = write_report(tmp_path / "run").read_text()
    assert "none: the run failed" in page
    assert "has not ended" not in page
    assert (f"{calls} unmeasured calls" in page) == (not reply.usage)


@pytest.mark.backends
def test_command_reports_failed_writer_and_run_resumes_later(tmp_path: Path) -> None:
    options = [f"--skill={name}" for name in SMALL["skills"]] + [
        f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items() if name != "skills"
    ]
    with Server(lambda call, times: error(400, "not today") if times == 0 else reply_sums(call)) as server:
        model = server.model.replace("127.0.0.1", "0.0.0.0")  # Known servers of this machine cost nothing.
        own = [f"--writer={model}", f"--cache={tmp_path / 'calls.sqlite'}", f"--out={tmp_path / 'run'}"]
        result = processes.run_command("teach", *options, *own)
        assert result.returncode == 2, result
        assert result.stderr.startswith(f"error: writer '{model}' delivered none of 12 examples in round 1: ")
        assert "invalid_request" in result.stderr
        assert f"palaestra resume {tmp_path / 'run'}" in result.stderr
        assert "gain" not in result.stdout
        result = processes.run_command("resume", tmp_path / "run")
        assert result.returncode == 0, result.stderr
        sent = len(server.calls)
    with Run.open(tmp_path / "run", read_only=True) as run:
        stored = dict(find_calls(run.store, CallFilter(), 100))
        # The calls before the resume failed; the same requests were answered after it.
        assert all(call.failure is None and call.answer for call in stored.values())
        assert sum(call.spent.calls for call in stored.values()) == sent > len(stored)
        assert (
            sum(call.spent.usage.prompt_tokens for call in stored.values()) == run.store.total("1/lesson").prompt_tokens
        )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "error" not in summary
    assert (summary["ordered"], summary["delivered"], summary["writer_failures"]) == (12, 12, {})
    assert summary["gain"] is not None
    assert summary["unpriced"] == [model]
    assert f"calls: {summary['calls']}, unpriced ({model})" in result.stdout
    assert "unpriced" in (tmp_path / "run" / "report.html").read_text()
    assert "$0.00 and" not in (tmp_path / "run" / "report.html").read_text()


def test_short_lesson_is_topped_up_and_rerun_makes_no_call(tmp_path: Path) -> None:
    """The first answers lack one example of four, and hold one that cannot be used and one that a check drops."""

    def script(call: Call, times: int) -> Reply:
        if "rite 4 new" in call.asked:
            text = json.loads(reply_sums(call, lost=1).text or "")
            text["data"][0]["answer"] = "1\n2"
            text["data"][1]["reasoning"] = "1+1=3"
            return Reply(json.dumps(text))
        return reply_sums(call)

    with Server(script) as server:
        first = teach.teach(out=tmp_path / "first", **make_settings(server, tmp_path))
        calls = len(server.calls)
        again = teach.teach(out=tmp_path / "again", **make_settings(server, tmp_path))
        assert len(server.calls) == calls
        short = teach.teach(out=tmp_path / "short", **make_settings(server, tmp_path, top_up=0))
    summary = first.summary
    assert (summary["ordered"], summary["delivered"], summary["examples"]) == (12, 12, 12)
    assert (summary["ordered_again"], summary["writer_failures"]) == (1, {"malformed": 3})
    assert sum(summary["dropped"].values()) == 3
    assert again.summary["weights_sha256"] == summary["weights_sha256"]
    with Run.open(tmp_path / "first", read_only=True) as run, Run.open(tmp_path / "again", read_only=True) as second:
        lesson = run.store.lesson(1)
        assert lesson == second.store.lesson(1)
        assert lesson is not None
        assert any(d.action == "ordered again" for d in lesson.decisions)
        # Each call is stored with its prompt; those of the second run came from the cache.
        asked = [call for _, call in find_calls(run.store, CallFilter(), 100)]
        assert sorted(call.messages[-1].text for call in asked) == sorted(call.asked for call in server.calls[:calls])
        cached = [call for _, call in find_calls(second.store, CallFilter(), 100)]
        assert [(call.key, call.answer) for call in cached] == [(call.key, call.answer) for call in asked]
        assert {call.is_cached for call in cached} == {True}
        assert {call.is_cached for call in asked} == {False}
    assert (short.summary["ordered"], short.summary["delivered"]) == (12, 3)


def test_study_shows_no_gain_for_an_arm_with_failed_writer(tmp_path: Path) -> None:
    with (
        Server(lambda call, times: error(400, "not today")) as dead,
        Server(lambda c, t: reply_sums(c, lost=1)) as weak,
    ):
        values = SMALL | {"cache": str(tmp_path / "calls.sqlite"), "top_up": 0}
        grid = {"writer": ["task", dead.model, weak.model]}
        result = study(TeachSettings(**values), grid, 1, out=tmp_path / "study")
        own, failed, short = result.rows
        assert (own.gain.count, failed.gain.count, short.gain.count) == (1, 0, 1)
        assert failed.without_gain == {"the writer failed": 1}
        assert result.failed == 1
        notes = "\n".join(result.notes)
        assert f"{failed.name}: no gain: the writer failed (1 of 1 runs)" in notes
        assert f"the arms were taught on unequal data: task 12, {short.name} 9 examples" in notes
        summary = json.loads((tmp_path / "study" / "summary.json").read_text())
        assert summary["rows"][1]["gain"] is None
        assert summary["rows"][1]["writer_failures"] == {"invalid_request": 3}
        assert (summary["rows"][2]["ordered"], summary["rows"][2]["delivered"]) == (12, 9)
        assert summary["rows"][2]["unpriced"] == []
        assert summary["notes"] == result.notes
        page = write_report(tmp_path / "study").read_text()
        assert "no gain: the writer failed (1 of 1 runs)" in page
        assert "unequal data" in page
        calls = len(weak.calls)
        study(TeachSettings(**values), grid, 1, out=tmp_path / "study")  # Tries the failed run again, and only that.
        assert len(weak.calls) == calls


def test_writer_that_fails_in_a_later_round_ends_the_run(tmp_path: Path) -> None:
    with (
        Server(lambda call, times: reply_sums(call) if len(server.calls) <= 3 else error(400, "not today")) as server,
        pytest.raises(WriterError, match="in round 2"),
    ):
        teach.teach(out=tmp_path / "run", **make_settings(server, tmp_path, rounds=2))
    with Run.open(tmp_path / "run", read_only=True) as run:
        assert (run.summary or {})["gain"] is None
        assert ((run.summary or {})["delivered"], (run.summary or {})["rounds"]) == (12, 1)
        assert run.store.lesson_rounds() == [1]
