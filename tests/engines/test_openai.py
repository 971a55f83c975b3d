"""The OpenAI engine against a local HTTP server with many kinds of faults."""

import asyncio
import base64
import email.utils
import itertools
import json
import logging
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_server import Call, Reply, Server, error
from rich.console import Console

from palaestra.core.errors import BudgetSpentError, EngineError, MissingExtraError, SettingsError
from palaestra.core.records import (
    Answer,
    Completion,
    Engine,
    Event,
    Failure,
    FailureCause,
    ImagePart,
    Message,
    Request,
    Sampling,
    StopReason,
    TextPart,
    Usage,
)
from palaestra.engines import openai_endpoint
from palaestra.engines.base import ENGINES, MonitoredEngine, Slot, require_exact
from palaestra.engines.budget import Budget
from palaestra.engines.cached import CachedEngine
from palaestra.engines.openai import OpenAIEngine
from palaestra.engines.openai_endpoint import RETRY, WAITING, RetryPolicy
from palaestra.engines.openai_format import BrokenAnswerError, parse_response, read_usage
from palaestra.recipes.progress import RunProgress
from palaestra.runs.cache import Cache

QUICK = RetryPolicy(first=0.01, longest=0.05, total=20.0, tries=4)
MARKED = (3, 7)
"""Which of the twelve questions of a batch meet the fault."""


def engine(server: Server, **settings: Any) -> OpenAIEngine:
    limits = {"stall": 0.5, "max_bytes": 500_000}
    limits |= {name: settings.pop(name) for name in ("stall", "notice") if name in settings}
    opened = OpenAIEngine(server.model, **{"retry_policy": QUICK, "timeout": 30.0} | settings)
    for name, value in limits.items():
        setattr(opened, name, value)
    return opened


def ask(text: str, **sampling: Any) -> Request:
    return Request((Message("user", text),), Sampling(**sampling))


def echo(call: Call, before: int) -> Reply:
    return Reply(f"said {call.asked}")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with Cache(tmp_path / "calls.sqlite") as subject:
        yield subject


def http_date(seconds: float) -> str:
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


# By name: what the server does with a marked question, by how often it was asked; the calls that takes;
# what the slot gets in the end; how many of the calls are of unknown cost.
Fault = tuple[Callable[[Call, int], Reply], int, FailureCause | str, int]
FAULTS: dict[str, Fault] = {
    "429 once, with Retry-After": (lambda c, n: echo(c, n) if n else error(429, retry_after="0.1"), 2, "said", 0),
    "429 once, in milliseconds": (lambda c, n: echo(c, n) if n else error(429, retry_after_ms="100"), 2, "said", 0),
    "429 once, without": (lambda c, n: echo(c, n) if n else error(429), 2, "said", 0),
    "429 for ever": (lambda c, n: error(429), 4, FailureCause.UNAVAILABLE, 0),
    "a wish beyond all patience": (lambda c, n: error(429, retry_after="3600"), 1, FailureCause.UNAVAILABLE, 0),
    "500 twice": (lambda c, n: echo(c, n) if n > 1 else error(500), 3, "said", 0),
    "503 that is no JSON": (lambda c, n: echo(c, n) if n else Reply(status=503, raw=b"<html>busy"), 2, "said", 0),
    "408 and 409": (lambda c, n: echo(c, n) if n > 1 else error(408 + n), 3, "said", 0),
    "dropped before an answer": (lambda c, n: echo(c, n) if n else Reply(cut=0), 2, "said", 1),
    "dropped within an answer": (lambda c, n: echo(c, n) if n else Reply("x" * 500, cut=200), 2, "said", 1),
    "dropped for ever": (lambda c, n: Reply(cut=0), 4, FailureCause.UNAVAILABLE, 4),
    "stalled": (lambda c, n: echo(c, n) if n else Reply("x" * 500, stall=200), 2, "said", 1),
    "truncated JSON": (lambda c, n: echo(c, n) if n else Reply(raw=b'{"choices": [{"mess'), 2, "said", 1),
    "no choices": (lambda c, n: echo(c, n) if n else Reply(raw=b'{"choices": []}'), 2, "said", 1),
    "something else": (lambda c, n: echo(c, n) if n else Reply(raw=b'[1, {"a": NaN}]'), 2, "said", 1),
    "content that is a number": (lambda c, n: echo(c, n) if n else Reply(message={"content": 5}), 2, "said", 0),
    "refusal": (lambda c, n: Reply(None, message={"refusal": "I will not."}), 1, FailureCause.REFUSED, 0),
    "filtered answer": (lambda c, n: Reply("half", finish="content_filter"), 1, FailureCause.REFUSED, 0),
    "filtered prompt": (lambda c, n: error(400, "filtered", "content_filter"), 1, FailureCause.REFUSED, 0),
    "too long, by code": (lambda c, n: error(400, "x", "context_length_exceeded"), 1, FailureCause.CONTEXT_LENGTH, 0),
    "too long, in words": (
        lambda c, n: error(400, "This model's maximum context length is 256 tokens"), 1, FailureCause.CONTEXT_LENGTH, 0
    ),
    "invalid request": (lambda c, n: error(422, "messages must alternate"), 1, FailureCause.INVALID_REQUEST, 0),
    "empty": (lambda c, n: Reply(""), 1, "", 0),
    "nothing": (lambda c, n: Reply(None), 1, FailureCause.MALFORMED, 0),
    "nothing at the limit": (lambda c, n: Reply(None, finish="length"), 1, "", 0),
    "nothing but a reasoning": (lambda c, n: Reply(None, message={"reasoning_content": "Hm."}), 1, "", 0),
    "10 MB": (lambda c, n: Reply("x" * 10_000_000), 1, FailureCause.MALFORMED, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_order_and_costs_are_right_after_every_fault(name: str, cache: Cache) -> None:
    fault, calls, expected, unmeasured = FAULTS[name]
    marked = {f"question {k}" for k in MARKED}
    with Server(lambda call, n: fault(call, n) if call.asked in marked else echo(call, n)) as server:
        budget = Budget(max_calls=40)
        asked = CachedEngine(engine(server, in_flight=4), cache, budget=budget, owner="run", phase="1/lesson")
        answers = [several[0] for several in asked.generate([ask(f"question {k}") for k in range(12)])]
        for k, answer in enumerate(answers):
            if k not in MARKED:
                assert isinstance(answer, Completion)
                assert answer.text == f"said question {k}"
            elif isinstance(expected, FailureCause):
                assert isinstance(answer, Failure)
                assert answer.cause is expected
                assert answer.message
                assert "\n" not in answer.message
            else:
                assert isinstance(answer, Completion)
                assert answer.text == (f"said question {k}" if expected else "")
        spent = asked.spent()
        assert spent.calls == len(server.calls) == 10 + 2 * calls == budget.calls
        assert spent.unmeasured == 2 * unmeasured
        if not unmeasured:  # To the token: what the server has billed, for refusals too.
            assert spent.usage == Usage(server.prompt_tokens, server.completion_tokens)
        assert server.most_under_way <= 4
        # What is of the moment is asked again; everything else never.
        asked.generate([ask(f"question {k}") for k in range(12)])
        lasting = expected not in (FailureCause.UNAVAILABLE, FailureCause.INVALID_REQUEST)
        assert len(server.calls) == 10 + 2 * calls * (1 if lasting else 2)
        assert asked.spent().hits == (12 if lasting else 10)


@pytest.mark.parametrize("wish", [{"retry_after": "0.3"}, {"retry_after_ms": "300"}])
def test_the_servers_wish_is_honoured_by_all_calls(wish: dict[str, str]) -> None:
    """Only the first call is turned away; nobody asks again before the time that the server named."""
    with Server(lambda c, n: echo(c, n) if len(server.calls) > 1 else error(429, **wish)) as server:
        engine(server, in_flight=1).generate([ask(f"q{k}") for k in range(3)])
        first, *rest = [call.at for call in server.calls]
        assert len(rest) == 3
        assert min(rest) - first >= 0.29


def test_a_wish_that_is_a_date_is_honoured() -> None:
    with Server(lambda c, n: echo(c, n) if n else error(429, retry_after=http_date(1.9))) as server:
        engine(server).generate([ask("q")])
        assert server.calls[1].at - server.calls[0].at > 0.5  # A date has whole seconds.


def test_many_calls_are_in_flight_and_no_more_than_wanted() -> None:
    with Server(lambda c, n: Reply(c.asked, delay=0.2 if c.asked.endswith("0") else 0.1)) as server:
        answers = engine(server, in_flight=8).generate([ask(f"q{k}") for k in range(40)])
        assert [several[0].text for several in answers] == [f"q{k}" for k in range(40)]  # type: ignore[union-attr]
        assert server.most_under_way == 8


def test_each_completion_is_a_call_with_its_own_seed() -> None:
    with Server(lambda c, n: Reply(str(c.body["seed"]))) as server:
        batch, same = (engine(server).generate([ask("q", temperature=1.0, count=3)])[0] for _ in range(2))
        assert batch == same
        assert len({answer.text for answer in batch}) == 3  # type: ignore[union-attr]
        alone = engine(server).generate([ask("q", temperature=1.0)])[0]
        assert alone == batch[:1]


def test_the_call_says_what_was_asked_for_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"picture")
    picture = (TextPart("what?"), ImagePart(str(tmp_path / "a.png")), ImagePart("https://x/y.jpg"))
    messages = (Message("system", "be brief"), Message("user", picture))
    with Server(echo) as server:
        sampling = Sampling(50, 0.5, top_p=0.9, top_k=7, stop=("END",))
        engine(server, extra={"reasoning_effort": "low"}).generate([Request(messages, sampling), ask("plain")])
        full, plain = sorted((call.body for call in server.calls), key=len, reverse=True)
    seed = full.pop("seed")
    assert 0 <= seed < 2**31
    data = "data:image/png;base64," + base64.b64encode(b"picture").decode()
    assert full == {
        "model": "scripted",
        "messages": [
            {"role": "system", "content": "be brief"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what?"},
                    {"type": "image_url", "image_url": {"url": data}},
                    {"type": "image_url", "image_url": {"url": "https://x/y.jpg"}},
                ],
            },
        ],
        "max_tokens": 50,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "stop": ["END"],
        "reasoning_effort": "low",
    }
    assert set(plain) == {"model", "messages", "max_tokens", "temperature", "reasoning_effort"}


def test_missing_image_fails_without_a_call() -> None:
    with Server(echo) as server:
        lost = Request((Message("user", (ImagePart("/nowhere.png"),)),))
        answers = engine(server).generate([lost, ask("q")])
        assert isinstance(answers[0][0], Failure)
        assert answers[0][0].cause is FailureCause.INVALID_REQUEST
        assert isinstance(answers[1][0], Completion)
        assert len(server.calls) == 1


@pytest.mark.parametrize(
    ("reply", "text", "reason"),
    [
        (Reply("a b", finish="length"), "a b", StopReason.LENGTH),
        (Reply("a b"), "a b", StopReason.END),
        (Reply("a", choice={"stop_reason": "END"}), "a", StopReason.STOP),
        (Reply("a END b"), "a ", StopReason.STOP),
        (Reply(message={"content": [{"type": "text", "text": "a"}, {"text": "b"}]}), "ab", StopReason.END),
    ],
)
def test_stop_reason_of_a_completion(reply: Reply, text: str, reason: StopReason) -> None:
    with Server(lambda c, n: reply) as server:
        answer = engine(server).generate([ask("q", stop=("END",))])[0][0]
    assert isinstance(answer, Completion)
    assert (answer.text, answer.stop_reason) == (text, reason)


def test_token_ids_and_log_probs_are_read_if_sent() -> None:
    exact = {
        "token_ids": [5, 6],
        "logprobs": {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1}]},
    }
    with Server(lambda c, n: Reply("ab", choice=exact)) as server:
        answer = engine(server, exact=True).generate([ask("q")])[0][0]
        assert server.calls[0].body["return_token_ids"] is True
        assert server.calls[0].body["logprobs"] is True
    assert isinstance(answer, Completion)
    assert (answer.token_ids, answer.logprobs) == ((5, 6), (-0.5, -1.0))


def test_rejected_options_are_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """As OpenAI's reasoning models do: another name for the limit, and no temperature."""

    def reject_options(call: Call, before: int) -> Reply:
        if "max_tokens" in call.body:
            return error(400, "Unsupported parameter: 'max_tokens' is not supported", param="max_tokens")
        if "temperature" in call.body:
            return error(400, "Unsupported value: 'temperature' does not support 0", param="temperature")
        if "stop" in call.body:
            return error(400, "Unrecognized request argument supplied: stop")
        return Reply("one END two")

    with Server(reject_options) as server, caplog.at_level(logging.WARNING):
        working = engine(server, in_flight=1)
        answers = working.generate([ask(f"q{k}", stop=("END",)) for k in range(5)])
        assert [several[0].text for several in answers] == ["one "] * 5  # type: ignore[union-attr]
        assert len(server.calls) == 3 + 5
        assert server.calls[-1].body["max_completion_tokens"] == 64
    assert [record.getMessage() for record in caplog.records if "left out" in record.getMessage()] == [
        f"{working.name} does not accept 'temperature'; the option is left out and has no effect"
    ]


def test_rejected_token_limit_is_a_failure_without_a_loop() -> None:
    def strict(call: Call, before: int) -> Reply:
        return error(
            400, "max_tokens is too large: this model supports at most 8 completion tokens", param="max_tokens"
        )

    with Server(strict) as server:
        answer = engine(server).generate([ask("q")])[0][0]
        assert isinstance(answer, Failure)
        assert answer.cause is FailureCause.INVALID_REQUEST
        assert len(server.calls) == 2


def test_a_server_without_schemas_is_told_the_schema_in_words() -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "title": "An answer"})

    def plain(call: Call, before: int) -> Reply:
        if "response_format" in call.body:
            assert call.body["response_format"]["json_schema"]["strict"] is True
            assert call.body["response_format"]["json_schema"]["name"] == "An_answer"
            return error(400, "'response_format' of type 'json_schema' is not supported with this model")
        return Reply("told" if schema in call.asked else "not told")

    with Server(plain) as server:
        answer = engine(server).generate([Request((Message("user", "q"),), schema=schema)])[0][0]
    assert isinstance(answer, Completion)
    assert answer.text == "told"


@pytest.mark.parametrize(
    ("reply", "match"),
    [
        (error(401, "Incorrect API key"), "PALAESTRA_API_KEY .*401"),
        (error(403, "no access"), "the key .*403"),
        (error(404, "no such model"), "model 'scripted'"),
        (error(429, "You exceeded your quota", "insufficient_quota"), "credit"),
    ],
)
def test_error_common_to_all_calls_ends_run_in_one_line(reply: Reply, match: str) -> None:
    with Server(lambda c, n: reply) as server, pytest.raises(EngineError, match=match) as caught:
        engine(server, in_flight=2).generate([ask(f"q{k}") for k in range(50)])
    assert "\n" not in str(caught.value)
    assert len(server.calls) <= 2


def test_answers_that_are_paid_for_are_kept_when_the_run_ends(cache: Cache) -> None:
    """The key is withdrawn while others are still being answered."""
    with Server(lambda c, n: error(401) if c.asked == "q1" else Reply("late", delay=0.1)) as server:
        asked = CachedEngine(engine(server, in_flight=4), cache)
        with pytest.raises(EngineError):
            asked.generate([ask(f"q{k}") for k in range(20)])
        calls, server.script = len(server.calls), echo
        answers = asked.generate([ask(f"q{k}") for k in range(20)])
        assert [several[0].text for several in answers].count("late") == calls - 1 == 3  # type: ignore[union-attr]
        assert len(server.calls) == calls + 17


def test_unreachable_server_raises_one_error() -> None:
    with Server(echo) as server:
        gone = server.model
    with pytest.raises(EngineError, match="http://127"):
        OpenAIEngine(gone, retry_policy=QUICK).generate([ask(f"q{k}") for k in range(100)])


def test_reached_servers_are_retried_longer() -> None:
    retry_policy = RetryPolicy(first=0.05, longest=0.05, total=1.0, tries=1000, unreached=0.2)
    with Server(echo) as server:
        asked = OpenAIEngine(server.model, retry_policy=retry_policy)
        asked.generate([ask("q")])

    def measure_retry_time(engine: OpenAIEngine) -> float:
        start = time.monotonic()
        with pytest.raises(EngineError, match="http://127"):
            engine.generate([ask("r")])
        return time.monotonic() - start

    assert 0.15 < measure_retry_time(OpenAIEngine(server.model, retry_policy=retry_policy)) < 0.7
    assert measure_retry_time(asked) > 0.7


@pytest.mark.parametrize(
    ("name", "variable"), [("openai:gpt-4o-mini", "OPENAI_API_KEY"), ("azure:mine", "AZURE_OPENAI_ENDPOINT")]
)
def test_a_missing_key_is_one_line_that_names_the_variable(name: str, variable: str) -> None:
    with pytest.raises(EngineError, match=variable):
        OpenAIEngine(name)


def test_azure_without_a_key_names_that_variable_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://x.openai.azure.com")
    with pytest.raises(EngineError, match="AZURE_OPENAI_API_KEY"):
        OpenAIEngine("azure:mine")


def test_each_kind_of_endpoint_gets_its_own_key_and_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "key-of-azure")
    with Server(echo) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.url.removesuffix("/v1"))
        for name in ("openai:gpt-4o", "azure:mine", server.model):
            assert isinstance(OpenAIEngine(name, retry_policy=QUICK).generate([ask("q")])[0][0], Completion)
        openai, azure, own = server.calls
    assert openai.headers["authorization"] == "Bearer key-of-openai"
    assert "max_completion_tokens" in openai.body
    assert azure.path.startswith("/openai/deployments/mine/chat/completions?api-version=")
    assert azure.headers["api-key"] == "key-of-azure"
    assert "key-of" not in str(own.headers)  # OpenAI's key is nobody else's business.
    assert own.body["model"] == "scripted"


def test_certificates_are_checked() -> None:
    assert openai_endpoint.load_certificates().verify_mode is ssl.CERT_REQUIRED
    assert openai_endpoint.load_certificates().check_hostname


@pytest.mark.parametrize("name", ["gpt-4o", "openai:", "http://localhost:8000/v1", "ftp://x#y"])
def test_a_name_of_no_known_form_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="openai:MODEL"):
        OpenAIEngine(name)


def test_without_the_package_the_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_endpoint, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"palaestra\[openai\]"):
        OpenAIEngine("http://localhost:1/v1#m")


def test_it_is_registered_and_keeps_the_protocols() -> None:
    assert ENGINES.get("openai") is OpenAIEngine
    subject = OpenAIEngine("http://localhost:1/v1#m")
    assert isinstance(subject, Engine)
    assert isinstance(subject, MonitoredEngine)


def test_it_works_inside_a_running_loop_as_in_a_notebook() -> None:
    async def cell(server: Server) -> list[list[Answer]]:
        return engine(server).generate([ask("q")])

    with Server(echo) as server:
        assert isinstance(asyncio.run(cell(server))[0][0], Completion)


def test_monitor_errors_end_the_batch_after_running_calls() -> None:
    class Three:
        """Lets three calls pass."""

        begun, ended = 0, 0

        def before(self, slot: Slot) -> bool:
            if self.begun == 3:
                raise BudgetSpentError("enough")
            self.begun += 1
            return True

        def after(self, slot: Slot, usage: Usage | None, seconds: float, answer: Answer | None) -> None:
            assert usage is not None
            assert seconds >= 0.05
            self.ended += 1

    watch = Three()
    with Server(lambda c, n: Reply(delay=0.05)) as server, pytest.raises(BudgetSpentError, match="enough"):
        engine(server, in_flight=8).generate_monitored([ask(f"q{k}") for k in range(20)], watch)
    assert len(server.calls) == watch.begun == watch.ended == 3


def test_silent_server_sends_events_and_then_fails() -> None:
    notices: list[Event] = []
    screen = Console(record=True, width=200)

    def listener(event: Event) -> None:
        notices.append(event)
        with RunProgress(screen) as progress:
            progress(event)

    with Server(lambda call, before: Reply(delay=30)) as server:
        asked = engine(server, notice=0.1, timeout=0.6, retry_policy=RetryPolicy(total=0.6), listener=listener)
        with pytest.raises(EngineError, match=rf"{server.url}.* 0\.6 s"):
            asked.generate([ask("a"), ask("b")])
        assert len(server.calls) == 2
    assert [event.phase for event in notices] == [WAITING] * 3
    assert all(later.data["seconds"] >= 2 * event.data["seconds"] for event, later in itertools.pairwise(notices))
    assert notices[0].data["seconds"] < 0.3
    assert "no answer to 2 calls for 0 s; still waiting, at most 0.6 s" in screen.export_text()


def test_stalled_answers_send_events_and_quick_ones_none() -> None:
    notices: list[Event] = []
    with Server(lambda call, before: echo(call, before) if before else Reply("x" * 500, stall=200)) as server:
        asked = engine(server, notice=0.1, stall=0.3, listener=notices.append)
        assert isinstance(asked.generate([ask("a")])[0][0], Completion)
        assert {event.phase for event in notices} == {WAITING, RETRY}
        notices.clear()
        asked.generate([ask("a")])
    assert notices == []


def test_defaults_of_notice_and_timeout() -> None:
    asked = OpenAIEngine("http://127.0.0.1:9/v1#m")
    assert (asked.notice, asked.timeout) == (15.0, 600.0)
    with pytest.raises(SettingsError, match="timeout"):
        OpenAIEngine("http://127.0.0.1:9/v1#m", timeout=0)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [(None, None), ({}, None), ({"prompt_tokens": None}, None), ({"prompt_tokens": 3}, Usage(3, 0)),
     ({"prompt_tokens": 3.0, "completion_tokens": 4}, Usage(3, 4))],
)  # fmt: skip
def test_usage_is_read_if_it_is_reported(usage: Any, expected: Usage | None) -> None:
    assert read_usage(usage) == expected


@pytest.mark.parametrize("count", [-1, 2.5, "7", True, [], float("nan"), float("inf"), 10**10])
def test_usage_that_cannot_be_is_refused(count: Any) -> None:
    for name in ("prompt_tokens", "completion_tokens"):
        with pytest.raises(ValueError, match="token count"):
            read_usage({"prompt_tokens": 1, "completion_tokens": 1, name: count})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "no choices"),
        ({"choices": None}, "no choices"),
        ({"error": {"message": "out of memory"}}, "no choices; .*: out of memory"),
        ({"choices": [], "error": "out of memory"}, "no choices; .*: out of memory"),
    ],
)
def test_response_without_choices_names_the_servers_error(data: Any, message: str) -> None:
    with pytest.raises(BrokenAnswerError, match=f"{message}$"):
        parse_response(data)


def test_training_requires_token_ids_and_log_probs() -> None:
    complete = Completion("7", (5, 2), (-0.1, -0.2), prompt_ids=(1,))
    assert require_exact(complete, "m") is complete
    for partial in (Completion("7"), replace(complete, logprobs=(-0.1,)), replace(complete, prompt_ids=())):
        with pytest.raises(EngineError, match=r"^m .*log-probs"):
            require_exact(partial, "m")


def test_failed_adapter_load_keeps_the_model(tmp_path: Path) -> None:
    with Server(lambda c, n: error(404)) as server:
        opened = engine(server)
        with pytest.raises(EngineError, match=r"^load_lora_adapter .*--enable-lora, VLLM_ALLOW") as raised:
            opened.load_adapter(tmp_path)
        assert "\n" not in str(raised.value)
        assert opened.endpoint.model == "scripted"
