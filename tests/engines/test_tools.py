"""Tools in every engine: offered, called, answered, and part of the cache key."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from chat_server import Reply, Server, calling

from palaestra.core.records import Completion, Message, ToolCall
from palaestra.engines.base import Request, Sampling
from palaestra.engines.cached import CachedEngine, prompt_size, request_keys
from palaestra.engines.chat import offers_tools, prompt_ids, with_tools
from palaestra.engines.models import LoadedModel
from palaestra.engines.openai import OpenAIEngine
from palaestra.engines.openai_format import BrokenAnswerError, parse_response
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


def test_a_tool_message_without_its_call_is_told_as_a_users_and_an_open_call_is_left_out() -> None:
    call = ToolCall("bash", "{}", "a")
    said = Message("assistant", "text", (call, replace(call, id="b")))
    messages = (
        Message("user", "q"),
        said,
        Message("tool", "r", tool_call_id="a"),
        Message("tool", "stray", tool_call_id="z"),
    )
    with Server(lambda call, before: Reply("ok")) as server:
        OpenAIEngine(server.model).generate([Request(messages)])
    sent = server.calls[0].body["messages"]
    assert [one["role"] for one in sent] == ["user", "assistant", "tool", "user"]
    assert [one["id"] for one in sent[1]["tool_calls"]] == ["a"]
    assert "tools" not in server.calls[0].body


def test_arguments_may_be_an_object_and_a_call_without_a_name_is_no_answer() -> None:
    def answer(call: Any) -> dict[str, Any]:
        return {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}

    found, _ = parse_response(answer({"id": 7, "function": {"name": "bash", "arguments": {"command": "ls"}}}))
    assert isinstance(found, Completion)
    assert found.tool_calls == (ToolCall("bash", '{"command": "ls"}', "7"),)
    assert found.text == ""
    with pytest.raises(BrokenAnswerError):
        parse_response(answer({"function": {}}))


def test_tools_and_calls_make_another_request_and_without_them_it_is_the_same_as_ever() -> None:
    plain = replace(ASKED, tools="")
    called = replace(plain, messages=(Message("assistant", "x", (ToolCall("a", "{}", "1"),)), *plain.messages))
    other = replace(plain, messages=(Message("assistant", "x", (ToolCall("b", "{}", "1"),)), *plain.messages))
    keys = {request_keys("e", one) for one in (plain, ASKED, called, other)}
    assert len(keys) == 4
    # Fixed, so that answers of earlier versions are found again.
    assert request_keys("e", plain) == ("777d417a70120dbd040f46621f6d6ad9a90a80ab",)
    assert prompt_size(ASKED) == prompt_size(plain) + len(TOOLS)


def test_a_chat_template_that_offers_tools_is_given_them(nano: LoadedModel) -> None:
    import copy

    tokenizer = copy.deepcopy(nano.tokenizer)
    tokenizer.chat_template = TEMPLATE
    assert offers_tools(tokenizer, TOOLS)
    said = Message("assistant", "", (ToolCall("bash", '{"command": "ls"}', "a"),))
    ids = prompt_ids(tokenizer, [Message("user", "q"), said, Message("tool", "r", tool_call_id="a")], TOOLS)
    assert tokenizer.decode(ids) == "TOOLS bash <user>q<assistant>[bash ls]<tool>r"


def test_to_a_template_that_knows_none_tools_are_described(nano: LoadedModel) -> None:
    assert not offers_tools(nano.tokenizer, TOOLS)
    said = Message("assistant", "Look.", (ToolCall("bash", "no json", "a"),))
    told = with_tools([Message("system", "rules"), Message("user", "q"), said, Message("tool", "r")], TOOLS)
    assert [message.role for message in told] == ["system", "user", "assistant", "user"]
    assert told[0].text.startswith("rules\n\nYou can call these tools")
    assert '"name": "bash"' in told[0].text
    assert '<tool_call>\n{"name": "bash", "arguments": "no json"}\n</tool_call>' in told[2].text
    assert told[3].text == "<tool_response>\nr\n</tool_response>"
    engine = nano.engine()
    assert engine.prompt_tokens(ASKED) == len(prompt_ids(nano.tokenizer, ASKED.messages, TOOLS))
    assert engine.prompt_tokens(ASKED) > engine.prompt_tokens(replace(ASKED, tools=""))


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}",
        "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    ],
)
def test_a_system_message_begins_the_users_where_a_template_has_none(nano: LoadedModel, template: str) -> None:
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
