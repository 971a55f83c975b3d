"""Anthropic's Messages API of the gateway: blocks, events, refusals. `test_agent_packages.py` has the real client."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_engine import ScriptedEngine

from palaestra.models.registry import LoadedModel
from palaestra.serving.gateway import CaptureServer, ServerThread

QUESTION = [{"role": "user", "content": "3 + 4?"}]
TOOL = {"name": "add", "description": "Add.", "input_schema": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>'


@pytest.fixture(scope="module")
def thread(nano: LoadedModel) -> Iterator[ServerThread]:
    thread = ServerThread(CaptureServer(ScriptedEngine(nano, f"Look. {CALL}"), "nano", api_key="secret", max_tokens=64))
    yield thread
    thread.close()


def post(thread: ServerThread, path: str = "messages", key: str = "secret", **body: Any) -> tuple[int, str]:
    """Status and text of the response to a request."""
    session = thread.server.open_session()
    data = json.dumps({"model": "m", "max_tokens": 64, "messages": QUESTION} | body).encode()
    headers = {"x-api-key": key, "Content-Type": "application/json"}
    request = urllib.request.Request(f"{thread.url}/sessions/{session.name}/v1/{path}", data, headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_message_has_text_and_tool_use_blocks(thread: ServerThread) -> None:
    status, text = post(thread, tools=[TOOL], system=[{"type": "text", "text": "Be short."}])
    message = json.loads(text)
    use = {"type": "tool_use", "id": "call00001", "name": "add", "input": {"a": 3}}
    assert (status, message["content"]) == (200, [{"type": "text", "text": "Look."}, use])
    assert (message["stop_reason"], message["role"], message["model"]) == ("tool_use", "assistant", "m")


def test_stream_has_the_events_of_each_block(thread: ServerThread) -> None:
    _, text = post(thread, tools=[TOOL], stream=True)
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")] == [
        event["type"] for event in events
    ]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [event["type"] for event in events] == ["message_start", *block, *block, "message_delta", "message_stop"]
    assert [event["index"] for event in events if "index" in event] == [0, 0, 0, 1, 1, 1]
    assert json.loads(events[5]["delta"]["partial_json"]) == {"a": 3}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_defaults_of_claude_code_change_nothing(thread: ServerThread) -> None:
    defaults = {
        "thinking": {"type": "adaptive", "display": "omitted"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }
    prompts = []
    for body in (
        {"system": "Be short."},
        defaults | {"messages": [{"role": "system", "content": "Be short."}, *QUESTION]},
    ):
        assert post(thread, tools=[TOOL], **body)[0] == 200
        prompts.append(thread.server.engine.requests[-1].prompt_ids)
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize(
    ("status", "kind", "reason", "body"),
    [
        (401, "authentication_error", "key", {"key": "wrong"}),
        (400, "invalid_request_error", "temperature", {"temperature": 0}),
        (400, "invalid_request_error", "prefilled", {"messages": [*QUESTION, {"role": "assistant", "content": "7"}]}),
        (400, "invalid_request_error", "image", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
        (400, "invalid_request_error", "offered tools", {"tool_choice": {"type": "any"}}),
        (400, "invalid_request_error", "use adaptive", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (400, "invalid_request_error", "send all of them", {"tools": [TOOL | {"defer_loading": True}]}),
        (
            400,
            "invalid_request_error",
            "offer functions",
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        ),
        (400, "invalid_request_error", "use high", {"output_config": {"effort": "low"}}),
        (404, "not_found_error", "/v1/messages", {"path": "messages/batches"}),
    ],
)
def test_refusals_have_anthropics_form(
    thread: ServerThread, status: int, kind: str, reason: str, body: dict[str, Any]
) -> None:
    answer, text = post(thread, **body)
    error = json.loads(text)
    assert (answer, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert reason in error["error"]["message"]
