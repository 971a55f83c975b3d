"""Server faults, each with a real server: the result is a failure or a one-line error, never a score, and all tokens count."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, Server, error
from number_task import number_task

from palaestra.core.errors import EngineError
from palaestra.core.records import Event
from palaestra.recipes.evaluate.recipe import evaluate, resume
from palaestra.recipes.research.recipe import run_research
from palaestra.runs.run import Run

USAGE = {"prompt_tokens": 11, "completion_tokens": 7}


def make_completion(**fields: Any) -> Reply:
    """Make a chat completion with some of its fields replaced."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}
    data = {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice], "usage": USAGE}
    return Reply(raw=json.dumps(data | fields).encode())


def make_message(**fields: Any) -> Reply:
    return make_completion(
        choices=[{"message": {"role": "assistant", "content": "4", **fields}, "finish_reason": "stop"}]
    )


FAULTS: dict[str, tuple[Reply, str, bool | None]] = {
    # What the server does, the cause of the failure or a part of the error, and whether its usage is known (None: no bill).
    "401": (error(401, "bad key"), "accept the key", None),
    "403": (error(403, "not you"), "accept the key", None),
    "404": (error(404, "no such model"), "no model", None),
    "no credit": (error(429, "pay", code="insufficient_quota"), "no credit", None),
    "429": (error(429, "slow down"), "unavailable", None),
    "500": (error(500, "broken"), "unavailable", None),
    "503": (error(503, "overloaded"), "unavailable", None),
    "400": (error(400, "malformed request"), "invalid_request", None),
    "content filter": (error(400, "no", code="content_filter"), "refused", None),
    "a redirect": (Reply(status=302, raw=b"", headers={"location": "/login"}), "unavailable", None),
    "silent": (Reply(delay=30), "no answer within 1 s", False),
    "half an answer": (Reply(stall=20), "unavailable", False),
    "closed before the answer": (Reply(cut=0), "unavailable", False),
    "closed in the middle": (Reply(cut=20), "unavailable", False),
    "HTML": (Reply(raw=b"<html>502 Bad Gateway</html>", headers={"content-type": "text/html"}), "unavailable", False),
    "empty body": (Reply(raw=b""), "unavailable", False),
    "broken JSON": (Reply(raw=b'{"choices": [{'), "unavailable", False),
    "JSON of something else": (Reply(raw=b'["a"]'), "unavailable", False),
    "enormous body": (Reply("x" * 4_100_000), "malformed", False),
    "endless body": (Reply(endless=True), "malformed", False),
    "empty choices": (make_completion(choices=[]), "unavailable", True),
    "no choices": (make_completion(choices=None), "unavailable", True),
    "choices of another type": (make_completion(choices="4"), "unavailable", True),
    "content of another type": (make_message(content=4), "unavailable", True),
    "null content": (make_message(content=None), "malformed", True),
    "a refusal": (make_message(content=None, refusal="I will not."), "refused", True),
    "negative usage": (make_completion(usage={"prompt_tokens": -5, "completion_tokens": 3}), "malformed", False),
    "usage in words": (make_completion(usage={"prompt_tokens": "many", "completion_tokens": 3}), "malformed", False),
    "usage that is a list": (make_completion(usage=[1, 2]), "malformed", False),
    "infinite usage": (make_completion(usage={"prompt_tokens": float("inf"), "completion_tokens": 3}), "malformed", False),
    "usage of more than there can be": (make_completion(usage={"prompt_tokens": 10**30}), "malformed", False),
}  # fmt: skip
ONCE = ("malformed", "refused", "invalid_request")
"""Causes of which another call would be of no use."""


def check_costs(summary: dict[str, Any], server: Server, known: bool | None) -> None:
    """Every call is in the ledger, with its tokens or as one whose tokens are not known."""
    calls = len(server.calls)
    assert summary["calls"] == calls >= 1 if known is not None else summary["calls"] >= 1
    tokens = (calls * USAGE["prompt_tokens"], calls * USAGE["completion_tokens"]) if known else (0, 0)
    assert (summary["prompt_tokens"], summary["completion_tokens"]) == tokens
    assert (summary["unmeasured_calls"] > 0) is (known is False)


@pytest.mark.parametrize("fault", FAULTS)
def test_an_evaluation_ends_with_the_cause_and_without_a_score(fault: str, tmp_path: Path) -> None:
    reply, expected, known = FAULTS[fault]
    with Server(lambda call, before: reply) as server:
        settings: dict[str, Any] = {"model": server.model, "limit": 2, "call_timeout": 1.0, "out": tmp_path / "run"}
        if " " in expected:
            with pytest.raises(EngineError, match=expected) as raised:
                evaluate(**settings)
            assert "\n" not in str(raised.value)
            assert not (tmp_path / "run" / "summary.json").exists()
            return
        result = evaluate(**settings)
    assert dict(result.report.failures) == {expected: 2}
    assert (result.report.count, result.report.accuracy) == (0, None)
    if expected in ONCE:
        assert len(server.calls) == 2
    check_costs(result.summary, server, known)


@pytest.fixture(scope="module")
def number(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return number_task(tmp_path_factory.mktemp("task"))


@pytest.mark.parametrize("fault", ["404", "silent", "closed in the middle", "empty choices", "negative usage"])
def test_a_research_run_ends_with_the_cause_and_without_a_score(fault: str, number: Path, tmp_path: Path) -> None:
    reply, expected, known = FAULTS[fault]
    with Server(lambda call, before: reply) as server:
        settings: dict[str, Any] = {"agent": "model", "model": server.model, "cache": str(tmp_path / "calls.sqlite")}
        settings |= {"task": str(number), "call_timeout": 1.0, "out": tmp_path / "run"}
        if " " in expected:
            with pytest.raises(EngineError, match=expected):
                run_research(**settings)
            return
        summary = run_research(**settings).summary
    assert (summary["stop_reason"], summary["best_submission"], summary["reward"]) == ("failed", None, None)
    assert (summary["failure"]["cause"], summary["failures"]) == (expected, {expected: 1})
    check_costs(summary, server, known)


def test_nobody_at_the_address_is_one_line(number: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        model = f"http://127.0.0.1:{taken.getsockname()[1]}/v1#m"
    cache = str(tmp_path / "calls.sqlite")
    with pytest.raises(EngineError, match="no server answers"):
        evaluate(model=model, limit=2, call_timeout=1.0, out=tmp_path / "evaluate")
    with pytest.raises(EngineError, match="no server answers"):
        run_research(
            agent="model", model=model, task=str(number), cache=cache, call_timeout=1.0, out=tmp_path / "research"
        )


def test_a_fault_that_passes_costs_a_second_call_and_no_score(tmp_path: Path) -> None:
    def script(call: Any, before: int) -> Reply:
        return make_completion(choices=[]) if before == 0 else make_completion()

    with Server(script) as server:
        summary = evaluate(model=server.model, limit=2, out=tmp_path / "run").summary
    assert (summary["failures"], summary["calls"], summary["calls_again"]) == ({}, 4, 2)
    assert (summary["prompt_tokens"], summary["completion_tokens"]) == (44, 28)


@pytest.mark.parametrize("within", [False, True])
def test_an_evaluation_goes_on_after_its_server_was_down(
    within: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palaestra.tasks.evaluate.CHUNK", 4)

    def answer(call: Any, before: int) -> Reply:
        if within and len(server.calls) == 7:  # in the middle of the second chunk
            threading.Thread(target=server.__exit__).start()
            server.over.wait()
        answered.append(call.asked)
        return Reply(str(len(call.asked) % 7), headers={"Connection": "close"})

    def stop(event: Event) -> None:
        if not within and event.done == 4 and event.phase == "0/test" and not server.over.is_set():
            server.__exit__()

    answered: list[str] = []
    settings: dict[str, Any] = {"limit": 12, "call_timeout": 1.0}
    server = Server(answer).__enter__()
    with pytest.raises(EngineError, match="no server answers") as raised:
        evaluate(model=server.model, out=tmp_path / "run", listener=stop, **settings)
    assert "\n" not in str(raised.value)
    with Server(answer, server.server_port) as again:
        with Run.open(tmp_path / "run") as run:
            resume(run)
        assert len(answered) == len(set(answered)) == 12  # No answer is asked for twice.
        evaluate(model=again.model, out=tmp_path / "whole", **settings)
    attempts = []
    for name in ("run", "whole"):
        with Run.open(tmp_path / name, read_only=True) as run:
            attempts.append(run.store.attempts("0/test"))
    assert attempts[0] == attempts[1]
    assert len(attempts[0]) == 12
