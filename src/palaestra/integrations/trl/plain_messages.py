"""A tokenizer with which a model that does not call tools plays turn environments in TRL."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from palaestra.core.errors import ModelError

TOOL = "reply"
"""The tool of an environment without tools of its own (see `make_environment_class`)."""
_TO_PLAIN = (
    "{%- set tools = none -%}"
    "{%- set plain = namespace(messages=[]) -%}"
    "{%- for message in messages -%}"
    "{%- set text = namespace(value=message['content'] or '') -%}"
    "{%- for call in message.get('tool_calls') or [] -%}"
    "{%- if call['function']['name'] == '" + TOOL + "' -%}"
    "{%- set text.value = text.value + call['function']['arguments'].get('message', '') -%}"
    "{%- else -%}"
    "{%- set text.value = text.value + call['function']['name'] + ' ' + (call['function']['arguments'] | tojson) -%}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- set role = 'user' if message['role'] == 'tool' else message['role'] -%}"
    "{%- set plain.messages = plain.messages + [{'role': role, 'content': text.value}] -%}"
    "{%- endfor -%}"
    "{%- set messages = plain.messages -%}"
)
"""Jinja that turns calls of `reply` into plain messages and tool messages into those of the user."""


def make_plain_tokenizer(tokenizer: Any) -> Any:
    """Copy a tokenizer so that TRL plays an environment with plain messages, as `palaestra train` does.

    Each message of the model counts as a call of the tool `reply`. The environment's answer is rendered as a user's
    message, and no tool is described in the prompt. Set `max_tool_calling_iterations` to the number of turns: TRL asks
    for another message after every call.

    Raises:
        ModelError: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise ModelError("the tokenizer has no chat template")
    question = [{"role": "user", "content": "?"}]
    without = tokenizer.apply_chat_template(question, tokenize=False)
    prompt = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    plain = deepcopy(tokenizer)
    plain.chat_template = _TO_PLAIN + tokenizer.chat_template
    plain.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": prompt.removeprefix(without),
        "fields": {
            "tool_calls": {
                "close": tokenizer.eos_token,
                "repeats": True,
                "content": "text",
                "transform": {"type": "function", "function": {"name": TOOL, "arguments": {"message": "{content}"}}},
            },
        },
    }
    return plain
