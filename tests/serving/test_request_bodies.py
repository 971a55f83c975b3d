"""What clients may send to our servers: nothing is an error of the server, and limits hold before any work."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from asgi import JSON, call
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.core.access import list_host_names
from palaestra.core.records import Completion, Request, StopReason, Usage
from palaestra.envs.turn.games import CalculatorEnv
from palaestra.envs.turn.player import TurnEpisodePlayer
from palaestra.models.registry import LoadedModel
from palaestra.serving.server import OpenAIServer
from palaestra.serving.session_server import SessionServer

CHAT = {"messages": [{"role": "user", "content": "What is 3 + 4?"}]}
CALLS = "".join(f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}}}}}\n</tool_call>\n' for a in (1, 2))
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
PATHS = [
    "/v1/chat/completions", "/v1/completions", "/sessions", "/sessions/a/v1/chat/completions", "/sessions/a/env",
    "/sessions/a/end", "/sessions/../v1/chat/completions", "/sessions/a b/env", f"/sessions/{'x' * 129}/env",
]  # fmt: skip


class EchoEngine:
    """Answers with a fixed text as exact tokens."""

    name, context = "echo", 256

    def __init__(self, nano: LoadedModel, text: str = "3+4=7. Answer: 7") -> None:
        self.tokenizer, self.text = nano.tokenizer, text
        self.ids = tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def generate(self, requests: list[Request]) -> list[list[Completion]]:
        logprobs = (-0.5,) * len(self.ids)
        answer = Completion(self.text, self.ids, logprobs, StopReason.LENGTH, Usage(1, len(self.ids)), (1,))
        return [[answer] * request.sampling.count for request in requests]


@pytest.fixture(scope="module")
def server(nano: LoadedModel) -> Iterator[SessionServer]:
    def make_player(seed: int) -> TurnEpisodePlayer:
        return TurnEpisodePlayer(CalculatorEnv(tools=True), seed)

    server = SessionServer(EchoEngine(nano), max_wait=0.0, make_player=make_player)
    yield server
    server.close()


def send(server: OpenAIServer, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    status, text = asyncio.run(call(server.make_app(), "POST", path, body, headers))
    return status, json.loads(text) if text.startswith("{") else text


words = st.sampled_from(["", "a", "user", "tool", "auto", "text", "function", "é", "\0", "data:,x", "sk-1", "x" * 300])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "function", "name", "arguments", "parameters", "properties"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)
messages = values | st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": values},
    optional={"tool_calls": values, "tool_call_id": values},
)
names = st.sampled_from(
    [
        "model",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "n",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "return_token_ids",
        "user",
        "store",
        "logprobs",
        "echo",
        "logit_bias",
        "response_format",
        "tool_choice",
        "parallel_tool_calls",
        "best_of",
        "name",
        "reward",
        "message",
        "metadata",
        "anything",
    ]
)
tools = st.lists(st.fixed_dictionaries({"type": st.just("function"), "function": values}) | values, max_size=2)
bodies = st.builds(
    lambda given, rest: given | rest,
    st.fixed_dictionaries({}, optional={"messages": st.lists(messages, max_size=2), "prompt": values, "tools": tools}),
    st.dictionaries(names, values, max_size=2),
)


@settings(max_examples=100, deadline=None)
@given(path=st.sampled_from(PATHS), body=values | bodies | st.binary(max_size=20))
def test_no_body_is_an_error_of_the_server(server: SessionServer, path: str, body: Any) -> None:
    if isinstance(body, dict) and isinstance(body.get("n"), int):
        body["n"] = min(body["n"], 3)
    status, answer = send(server, path, body)
    assert status == 200 or 400 <= status < 500, answer
    if status >= 400:
        assert set(answer["error"]) == {"message", "type", "code", "param"}


@pytest.mark.parametrize(
    ("path", "change", "reason"),
    [
        ("/v1/completions", {"prompt": [1, 10**6]}, "token ids from 0"),
        ("/v1/completions", {"prompt": [-1]}, "token ids from 0"),
        ("/v1/completions", {"prompt": [[1], []]}, "empty"),
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {"prompt": [True]}, "prompt"),
        ("/v1/completions", {"prompt": "3", "echo": True}, "echo"),
        ("/v1/completions", {"prompt": "3", "suffix": "4"}, "suffix: "),
        ("/v1/chat/completions", {**CHAT, "n": "2"}, "n: "),
        ("/v1/chat/completions", {**CHAT, "stop": [""]}, "stop"),
        ("/v1/chat/completions", {**CHAT, "seed": 10**30}, "seed"),
        ("/v1/chat/completions", {**CHAT, "store": True}, "store"),
        ("/v1/chat/completions", {**CHAT, "metadata": {"a": "b"}}, "metadata"),
        ("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}}, "stream_options"),
        ("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"other": 1}}, "stream_options.other"),
        ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function", "function": {}}]}, "tools: function.name"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "3 " * 900}], "stream": True}, "tokens"),
    ],
)
def test_wrong_parameters_are_named(server: SessionServer, path: str, change: dict[str, Any], reason: str) -> None:
    status, answer = send(server, path, change)
    assert status == 400
    assert reason in answer["error"]["message"]


@pytest.mark.parametrize(
    ("limit", "path", "body", "status", "code"),
    [
        ({"max_body": 100}, "/v1/chat/completions", {**CHAT, "user": "x" * 100}, 413, "too_large"),
        ({"max_characters": 9}, "/v1/chat/completions", CHAT, 400, "string_above_max_length"),
        ({"max_characters": 9}, "/v1/completions", {"prompt": ["abcde", "fghij"]}, 400, "string_above_max_length"),
        ({"max_characters": 9}, "/sessions/a/v1/chat/completions", CHAT, 400, "string_above_max_length"),
        ({"max_prompts": 3}, "/v1/completions", {"prompt": ["a", "b"], "n": 2}, 400, "array_above_max_length"),
        ({"max_prompts": 3}, "/v1/chat/completions", {**CHAT, "n": 4}, 400, "array_above_max_length"),
        ({"max_requests": 0}, "/v1/chat/completions", CHAT, 429, "rate_limit_exceeded"),
        ({"max_sessions": 0}, "/sessions", {}, 429, "rate_limit_exceeded"),
        ({"max_sessions": 0}, "/sessions/new/v1/chat/completions", CHAT, 429, "rate_limit_exceeded"),
    ],
)
def test_limits_hold_before_any_work(
    nano: LoadedModel, limit: dict[str, int], path: str, body: Any, status: int, code: str
) -> None:
    engine = EchoEngine(nano)
    server = SessionServer(engine, **limit)
    server.tokenizer = engine.generate = object()  # type: ignore[assignment, method-assign]
    try:
        answer = send(server, path, body)
    finally:
        server.close()
    assert (answer[0], answer[1]["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({**JSON}, 200),
        ({"content-type": "Application/JSON; charset=utf-8", "origin": "http://127.0.0.1"}, 200),
        ({**JSON, "host": "localhost:8000", "origin": "http://localhost:8000"}, 200),
        ({**JSON, "host": "evil.example"}, 403),
        ({**JSON, "host": "[::1"}, 403),
        ({**JSON, "host": ""}, 403),
        ({**JSON, "origin": "http://evil.example"}, 403),
        ({**JSON, "origin": "http://127.0.0.1:81"}, 403),
        ({**JSON, "origin": "null"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({}, 415),
    ],
)
def test_pages_of_other_sites_cannot_call_the_server(
    server: SessionServer, headers: dict[str, str], status: int
) -> None:
    app = server.make_app(list_host_names("127.0.0.1"))
    assert asyncio.run(call(app, "POST", "/v1/chat/completions", CHAT, headers))[0] == status


@pytest.mark.parametrize("name", ["..", ".", "a b", "é", "a\n", "x" * 129, "a%2fb", "a\\b", ""])
def test_names_of_sessions_are_checked_on_every_way_in(server: SessionServer, name: str) -> None:
    before = set(server.sessions)
    if name:
        assert send(server, "/sessions", {"name": name})[0] == 400
        for path in ("v1/chat/completions", "env", "end"):
            assert send(server, f"/sessions/{name}/{path}", CHAT if path != "end" else {})[0] == 400
    assert send(server, f"/sessions/{name}/x/../../a/env", {"message": "1"})[0] in (400, 404)
    assert set(server.sessions) == before


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/sessions/calls/v1/chat/completions"])
def test_without_parallel_tool_calls_a_reply_has_one(nano: LoadedModel, path: str) -> None:
    server = SessionServer(EchoEngine(nano, CALLS))
    counts = {}
    for parallel in (None, True, False):
        for stream in (False, True):
            body = {**CHAT, "tools": [ADD], "stream": stream}
            status, answer = send(server, path, body | ({} if parallel is None else {"parallel_tool_calls": parallel}))
            assert status == 200
            counts[parallel, stream] = json.dumps(answer).replace("\\", "").count('"name": "add"')
    server.close()
    assert counts == {(p, s): 1 if p is False else 2 for p in (None, True, False) for s in (False, True)}


@pytest.mark.parametrize("text", ["3+4=7. Answer: 7", "né 😀 ok"])
def test_text_offsets_are_the_places_of_the_tokens(nano: LoadedModel, text: str) -> None:
    engine = EchoEngine(nano, text)
    engine.text = text = nano.tokenizer.decode(engine.ids, skip_special_tokens=True)
    server = OpenAIServer(engine)
    _, answer = send(server, "/v1/completions", {"prompt": "3 + 4", "logprobs": 1, "temperature": 0})
    server.close()
    logprobs = answer["choices"][0]["logprobs"]
    offsets, tokens = logprobs["text_offset"], logprobs["tokens"]
    assert len(offsets) == len(tokens) == len(engine.ids)
    assert offsets[0] == 0
    expected = [
        len(nano.tokenizer.decode(engine.ids[:k], skip_special_tokens=True).rstrip("\ufffd"))
        for k in range(len(tokens))
    ]
    assert offsets == expected
    assert logprobs["top_logprobs"] == [{token: -0.5} for token in tokens]


def test_long_prompts_do_not_block_other_requests(nano: LoadedModel) -> None:
    class SlowTokenizer:
        """Takes half a second for a prompt, and releases the interpreter lock as the tokenizers of transformers do."""

        def __init__(self) -> None:
            self.started = False

        def __getattr__(self, name: str) -> Any:
            return getattr(nano.tokenizer, name)

        def __len__(self) -> int:
            return len(nano.tokenizer)

        def encode(self, text: str, **options: Any) -> list[int]:
            if len(text) > 5_000_000:
                self.started = True
                time.sleep(0.5)
                return [1] * 1000
            return list(nano.tokenizer.encode(text, **options))

    engine = EchoEngine(nano)
    server = SessionServer(engine)
    server.tokenizer = SlowTokenizer()
    server._chat_encoders.clear()
    app, text = server.make_app(), "12 " * 1_700_000

    async def measure(path: str, body: Any) -> tuple[int, float]:
        server.tokenizer.started = False
        asking = asyncio.create_task(call(app, "POST", path, body))
        longest = 0.0
        while not asking.done():
            start = time.monotonic()
            assert (await call(app, "GET", "/health"))[0] == 200
            longest = max(longest, time.monotonic() - start)
            await asyncio.sleep(0.005)
        assert server.tokenizer.started
        return asking.result()[0], longest

    for path, body in {
        "/v1/completions": {"prompt": text},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": text}]},
        "/sessions/long/v1/chat/completions": {"messages": [{"role": "user", "content": text}]},
    }.items():
        status, longest = asyncio.run(measure(path, body))
        assert status == 400  # It is longer than the context.
        assert longest < 0.25
    server.close()
