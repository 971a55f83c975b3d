"""Tools in every engine: offered, called, answered, and part of the cache key."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from chat_server import Reply, Server, calling

from palaestra.chat.rendering import offers_tools, prompt_ids, with_tools
from palaestra.core.records import Completion, Message, Request, Sampling, ToolCall
from palaestra.engines.cached import CachedEngine, prompt_size, request_keys
from palaestra.engines.openai import OpenAIEngine
from palaestra.engines.openai_format import BrokenAnswerError, parse_response
from palaestra.engines.transformers import TransformersEngine
from palaestra.models.registry import LoadedModel
from palaestra.runs.cache import Cache

TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
TOOLS = json.dumps([TOOL])
ASKED = Request((Message("user", "look"),), Sampling(max_tokens=20), tools=TOOLS)
TEMPLATE = (
    "{% if tools %}TOOLS {% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments.command }}]{% endfor %}{% endfor %}"
)


def test_calls_come_back_and_are_kept_by_the_cache() -> None:
    with Server(lambda call, before: calling("bash", '{"command": "ls"}', id="")) as server, Cache(":memory:") as cache:
        engine = CachedEngine(OpenAIEngine(server.model), cache)
        (first,), (again,) = engine.generate([ASKED]), engine.generate([ASKED])
        assert len(server.calls) == 1
        assert server.calls[0].body["tools"] == [TOOL]
    assert isinstance(first[0], Completion)
    assert first[0].tool_calls == (ToolCall("bash", '{"command": "ls"}', ""),)
    assert again == first


def test_unmatched_tool_messages_and_calls_are_converted() -> None:
    call = ToolCall("bash", "{}", "a")
    spoken = Message("assistant", "text", (call, replace(call, id="b")))
    messages = (
        Message("user", "q"),
        spoken,
        Message("tool", "r", tool_call_id="a"),
        Message("tool", "stray", tool_call_id="z"),
    )
    with Server(lambda call, before: Reply("ok")) as server:
        OpenAIEngine(server.model).generate([Request(messages)])
    sent = server.calls[0].body["messages"]
    assert [entry["role"] for entry in sent] == ["user", "assistant", "tool", "user"]
    assert [entry["id"] for entry in sent[1]["tool_calls"]] == ["a"]
    assert "tools" not in server.calls[0].body


def test_call_arguments_may_be_an_object_but_need_a_name() -> None:
    def answer(call: Any) -> dict[str, Any]:
        return {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}

    parsed, _ = parse_response(answer({"id": 7, "function": {"name": "bash", "arguments": {"command": "ls"}}}))
    assert isinstance(parsed, Completion)
    assert parsed.tool_calls == (ToolCall("bash", '{"command": "ls"}', "7"),)
    assert parsed.text == ""
    with pytest.raises(BrokenAnswerError):
        parse_response(answer({"function": {}}))


def test_tools_and_calls_are_part_of_the_cache_key() -> None:
    plain = replace(ASKED, tools="")
    called = replace(plain, messages=(Message("assistant", "x", (ToolCall("a", "{}", "1"),)), *plain.messages))
    other = replace(plain, messages=(Message("assistant", "x", (ToolCall("b", "{}", "1"),)), *plain.messages))
    keys = {request_keys("e", entry) for entry in (plain, ASKED, called, other)}
    assert len(keys) == 4
    # Fixed, so that answers of earlier versions are found again.
    assert request_keys("e", plain) == ("777d417a70120dbd040f46621f6d6ad9a90a80ab",)
    assert prompt_size(ASKED) == prompt_size(plain) + len(TOOLS)


def test_a_chat_template_that_offers_tools_is_given_them(nano: LoadedModel) -> None:
    import copy

    tokenizer = copy.deepcopy(nano.tokenizer)
    tokenizer.chat_template = TEMPLATE
    assert offers_tools(tokenizer, TOOLS)
    spoken = Message("assistant", "", (ToolCall("bash", '{"command": "ls"}', "a"),))
    ids = prompt_ids(tokenizer, [Message("user", "q"), spoken, Message("tool", "r", tool_call_id="a")], TOOLS)
    assert tokenizer.decode(ids) == "TOOLS bash <user>q<assistant>[bash ls]<tool>r"


def test_to_a_template_that_knows_none_tools_are_described(nano: LoadedModel) -> None:
    assert not offers_tools(nano.tokenizer, TOOLS)
    spoken = Message("assistant", "Look.", (ToolCall("bash", "no json", "a"),))
    plain_messages = with_tools([Message("system", "rules"), Message("user", "q"), spoken, Message("tool", "r")], TOOLS)
    assert [message.role for message in plain_messages] == ["system", "user", "assistant", "user"]
    assert plain_messages[0].text.startswith("rules\n\nYou can call these tools")
    assert '"name": "bash"' in plain_messages[0].text
    assert '<tool_call>\n{"name": "bash", "arguments": "no json"}\n</tool_call>' in plain_messages[2].text
    assert plain_messages[3].text == "<tool_response>\nr\n</tool_response>"
    engine = TransformersEngine.from_loaded(nano)
    assert engine.prompt_tokens(ASKED) == len(prompt_ids(nano.tokenizer, ASKED.messages, TOOLS))
    assert engine.prompt_tokens(ASKED) > engine.prompt_tokens(replace(ASKED, tools=""))


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}",
        "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    ],
)
def test_system_message_is_merged_into_the_user_message(nano: LoadedModel, template: str) -> None:
    tokenizer, own = nano.tokenizer, nano.tokenizer.chat_template
    asked = [
        Message("system", "Be brief."),
        Message("user", "Why?"),
        Message("assistant", "So."),
        Message("user", "And?"),
    ]
    try:
        tokenizer.chat_template = template
        assert tokenizer.decode(prompt_ids(tokenizer, asked)) == "<user>Be brief.\n\nWhy?<assistant>So.<user>And?"
        tokenizer.chat_template = TEMPLATE
        assert tokenizer.decode(prompt_ids(tokenizer, asked)).startswith("<system>Be brief.<user>Why?")
    finally:
        tokenizer.chat_template = own
