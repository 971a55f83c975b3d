"""Our engines as models of Inspect AI. `inspect eval TASK --model palaestra/nano` plays any task of Inspect with one."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from typing import Any

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessageAssistant,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolCall as ToolCallOfInspect

from palaestra.core.errors import EngineError
from palaestra.core.records import Failure, Message, StopReason, ToolCall
from palaestra.engines.base import Request, Sampling
from palaestra.engines.batching import Batcher
from palaestra.engines.call_reader import CallReader
from palaestra.engines.factory import open_engine

MAX_TOKENS = 512
"""The token limit of calls without one."""
MAX_BATCH = 128


@modelapi(name="palaestra")
class PalaestraModel(ModelAPI):  # type: ignore[misc]
    """A model of `palaestra evaluate --model`, in this process. Concurrent calls of Inspect are answered in one batch.

    Tool calls are read in the format of the model's chat template. Without a temperature the model decodes greedily, as
    in `palaestra evaluate`. Only the text of messages is used. A failure of the engine raises, so that Inspect records
    an error of the sample.

    Arguments:
        model_name: a registered name, a folder, a hub id, or `scheme:model`.
        engine_options: arguments of the engine (`-M name=value`).
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: Any = None,
        **engine_options: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        engine = open_engine(model_name, **engine_options)
        self._calls = CallReader(getattr(engine, "tokenizer", None), model_name)
        self._batcher = Batcher(engine, MAX_BATCH)

    def max_connections(self) -> int:
        return MAX_BATCH

    async def generate(self, input: list[Any], tools: list[Any], tool_choice: Any, config: Any) -> Any:
        offered = "" if tool_choice == "none" or not tools else json.dumps([to_openai_tool(tool) for tool in tools])
        sampling = Sampling(
            max_tokens=config.max_tokens or MAX_TOKENS,
            temperature=config.temperature or 0.0,
            top_p=config.top_p or 1.0,
            top_k=config.top_k or 0,
            stop=tuple(config.stop_seqs or ()),
        )
        seed = config.seed if config.seed is not None else uuid.uuid4().int >> 65
        request = Request(tuple(to_message(message) for message in input), sampling, seed, tools=offered)
        (answer,) = await asyncio.wrap_future(self._batcher.submit(request))
        if isinstance(answer, Failure):
            raise EngineError(f"{answer.cause}: {answer.message}")
        text, calls = self._calls.split(answer, offered) if offered else (answer.text, ())
        message = ChatMessageAssistant(
            content=text, tool_calls=to_inspect_calls((*answer.tool_calls, *calls)), model=self.model_name
        )
        stop = (
            "tool_calls" if message.tool_calls else "max_tokens" if answer.stop_reason is StopReason.LENGTH else "stop"
        )
        read, written = answer.usage.prompt_tokens, answer.usage.completion_tokens
        usage = ModelUsage(input_tokens=read, output_tokens=written, total_tokens=read + written)
        choice = ChatCompletionChoice(message=message, stop_reason=stop)
        return ModelOutput(model=self.model_name, choices=[choice], usage=usage)


def to_message(message: Any) -> Message:
    """Convert a message of Inspect."""
    calls = tuple(
        ToolCall(call.function, json.dumps(call.arguments), call.id)
        for call in getattr(message, "tool_calls", None) or ()
    )
    if message.role != "tool":
        return Message(message.role, message.text, calls)
    text = f"error: {message.error.message}" if message.error is not None else message.text
    return Message("tool", text, tool_call_id=message.tool_call_id or "")


def to_openai_tool(tool: Any) -> dict[str, Any]:
    """Convert the description of a tool to OpenAI's format."""
    parameters = tool.parameters.model_dump(exclude_none=True)
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


def to_inspect_calls(calls: Sequence[ToolCall]) -> list[Any] | None:
    """Convert tool calls; `None` if there are none."""
    return [ToolCallOfInspect(call.id, call.name, json.loads(call.arguments)) for call in calls] or None
