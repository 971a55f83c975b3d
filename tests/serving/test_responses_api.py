"""OpenAI's Responses API of the gateway with the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel
from scripted_engine import ScriptedEngine

from palaestra.models.registry import LoadedModel
from palaestra.serving.gateway import CaptureServer, ServerThread

TOOL = {
    "type": "function",
    "name": "add",
    "description": "Add.",
    "parameters": {"type": "object", "properties": {}},
    "strict": True,
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>'


@pytest.fixture
def engine(nano: LoadedModel) -> ScriptedEngine:
    return ScriptedEngine(nano, f"Look. {CALL}", '{"answer": 7}')


@pytest.fixture
def thread(engine: ScriptedEngine) -> Iterator[ServerThread]:
    thread = ServerThread(CaptureServer(engine, "nano", max_tokens=64))
    yield thread
    thread.close()


@pytest.fixture
def client(thread: ServerThread) -> Iterator[openai.OpenAI]:
    session = thread.server.open_session(name="one")
    with openai.OpenAI(base_url=f"{thread.url}/sessions/{session.name}/v1", api_key="x", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("is_chained", [False, True])
def test_function_calls_are_continued(
    thread: ServerThread, client: openai.OpenAI, engine: ScriptedEngine, is_chained: bool
) -> None:
    class Sum(BaseModel):
        answer: int

    options: dict[str, Any] = {"model": "m", "instructions": "Be short.", "tools": [TOOL]}
    options |= {"reasoning": {"summary": "auto"}, "extra_body": {"client_metadata": {"turn_id": "1"}}}  # As Codex does.
    question = {"role": "user", "content": [{"type": "input_text", "text": "3 + 4?"}]}
    first = client.responses.create(input=[question], **options)
    assert (first.status, first.output_text) == ("completed", "Look.")
    call = first.output[1]
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "add", {"a": 3})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
    if is_chained:
        options |= {"previous_response_id": first.id, "input": [result]}
    else:
        options["input"] = [question, *[item.model_dump(exclude_none=True) for item in first.output], result]
    second = client.responses.parse(text_format=Sum, **options)
    assert second.output_parsed == Sum(answer=7)
    (sequence,) = thread.server.sessions["one"].build_sequences()
    assert [message.role for message in sequence.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert [sequence.ids[k] for k in sequence.chosen] == [id for text in engine.texts for id in engine.encode(text)]


def test_stream_has_the_events_of_each_item(client: openai.OpenAI) -> None:
    with client.responses.stream(model="m", input="3 + 4?", tools=[TOOL]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    text = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds == ["created", "in_progress", *text, "output_item.done", *call, "completed"]
    assert [item.type for item in final.output] == ["message", "function_call"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"input": [{"type": "item_reference", "id": "a"}]}, "item_reference"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
        ({"input": "7?", "previous_response_id": "resp_0"}, "this session has no response"),
        ({"input": "7?", "tools": [{"type": "web_search"}]}, "offer functions, and disable the others"),
        ({"input": "7?", "tool_choice": "required"}, "offered tools"),
        ({"input": "7?", "reasoning": {"effort": "high"}}, "use none or leave it out"),
        ({"input": "7?", "temperature": 0}, "temperature"),
    ],
)
def test_unsupported_parameters_are_refused(
    thread: ServerThread, client: openai.OpenAI, given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=reason):
        client.responses.create(model="m", **given)
    assert thread.server.sessions["one"].calls == []
