"""A player of the environment at `ENV_URL` with the official client of an API: `api_player.py API [stream]`."""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from http_agent import call

MODEL = os.environ.get("OPENAI_MODEL", "")
SYSTEM = "Be short."


def play(answer: Callable[[list[Any], list[Any]], Any]) -> None:
    """Play one episode. `answer` gets the new messages and the tools, and returns a message in OpenAI's format."""
    state = call(os.environ["ENV_URL"])
    while not state["done"]:
        message = answer(state["messages"], state.get("tools") or [])
        tools = state.get("tools")
        state = {"tools": tools} | call(os.environ["ENV_URL"], {"message": message})


def to_call(name: str, arguments: str, id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def complete_openai(stream: bool, **options: Any) -> Any:
    from openai import OpenAI

    client = OpenAI()
    if not stream:
        return client.chat.completions.create(model=MODEL, **options)
    with client.chat.completions.stream(model=MODEL, **options) as events:
        return events.get_final_completion()


def complete_litellm(stream: bool, **options: Any) -> Any:
    import litellm

    response = litellm.completion(model=f"openai/{MODEL}", stream=stream, **options)
    return litellm.stream_chunk_builder(list(response)) if stream else response


def play_chat(complete: Callable[..., Any]) -> None:
    history = [{"role": "system", "content": SYSTEM}]

    def answer(messages: list[Any], tools: list[Any]) -> Any:
        history.extend(messages)
        response = complete(messages=history, **({"tools": tools} if tools else {}))
        message = response.choices[0].message
        calls = [to_call(c.function.name, c.function.arguments, c.id) for c in message.tool_calls or ()]
        history.append({"role": "assistant", "content": message.content} | ({"tool_calls": calls} if calls else {}))
        return history[-1]

    play(answer)


def play_messages(stream: bool) -> None:
    from anthropic import Anthropic

    client, history = Anthropic(), []

    def to_content(message: Any) -> Any:
        if message["role"] != "tool":
            return message["content"]
        return [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}]

    def answer(messages: list[Any], tools: list[Any]) -> Any:
        history.extend({"role": "user", "content": to_content(message)} for message in messages)
        functions = [tool["function"] for tool in tools]
        offered = [
            {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in functions
        ]
        options = {"model": MODEL, "messages": history, "system": SYSTEM} | ({"tools": offered} if tools else {})
        expected = client.messages.count_tokens(**options).input_tokens
        if stream:
            with client.messages.stream(max_tokens=64, **options) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(max_tokens=64, **options)
        assert message.usage.input_tokens == expected, (message.usage, expected)
        history.append({"role": "assistant", "content": message.content})
        text = "".join(block.text for block in message.content if block.type == "text")
        uses = [block for block in message.content if block.type == "tool_use"]
        assert message.stop_reason == ("tool_use" if uses else message.stop_reason)
        calls = [to_call(use.name, json.dumps(use.input), use.id) for use in uses]
        return {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})

    play(answer)


def play_responses(stream: bool, chained: bool) -> None:
    from openai import OpenAI

    client, history, last = OpenAI(), list[Any](), None

    def to_item(message: Any) -> Any:
        if message["role"] != "tool":
            return message
        return {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}

    def answer(messages: list[Any], tools: list[Any]) -> Any:
        nonlocal last
        if chained:
            history.clear()
        history.extend(map(to_item, messages))
        options: dict[str, Any] = {"model": MODEL, "input": history, "instructions": SYSTEM}
        options |= {"tools": [{"type": "function", **tool["function"]} for tool in tools]} if tools else {}
        options |= {"previous_response_id": last} if chained and last else {}
        if stream:
            with client.responses.stream(**options) as events:
                response = [event for event in events if event.type in ("response.completed", "response.incomplete")]
            response = response[0].response
        else:
            response = client.responses.create(**options)
        last = response.id
        history.extend(item.model_dump(exclude_none=True) for item in response.output)
        items = [item for item in response.output if item.type == "function_call"]
        calls = [to_call(item.name, item.arguments, item.call_id) for item in items]
        return {"role": "assistant", "content": response.output_text} | ({"tool_calls": calls} if calls else {})

    play(answer)


PLAYERS: dict[str, Callable[[bool], None]] = {
    "chat": lambda stream: play_chat(partial(complete_openai, stream)),
    "litellm": lambda stream: play_chat(partial(complete_litellm, stream)),
    "messages": play_messages,
    "responses": lambda stream: play_responses(stream, chained=False),
    "chained-responses": lambda stream: play_responses(stream, chained=True),
}

if __name__ == "__main__":
    PLAYERS[sys.argv[1]]("stream" in sys.argv[2:])
