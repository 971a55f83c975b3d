"""Our engines as models of Inspect AI. `inspect eval TASK --model palaestra/nano` plays any task of Inspect with one."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from typing import Any

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolCall as ToolCallOfInspect
from inspect_ai.tool import ToolChoice, ToolInfo

from palaestra.chat.encoder import CallReader
from palaestra.core.errors import EngineError
from palaestra.core.records import Failure, Json, Message, Request, Sampling, StopReason, ToolCall
from palaestra.engines.factory import open_engine
from palaestra.serving.batching import Batcher

_MAX_TOKENS = 512
"""The token limit of calls without one."""
_MAX_BATCH = 128


@modelapi(name="palaestra")
class PalaestraModel(ModelAPI):  # type: ignore[misc]
    """A model of `palaestra evaluate --model`, in this process. Concurrent calls of Inspect are answered in one batch.

    Tool calls are read in the format of the model's chat template. Without a temperature the model decodes greedily, as
    in `palaestra evaluate`. Only the text of messages is used. A failure of the engine raises, so that Inspect records
    an error of the sample.

    Arguments:
        model_name: a registered name, a folder, a hub id, or `scheme:model`.
        engine_kwargs: arguments of the engine (`-M name=value`).
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        **engine_kwargs: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        engine = open_engine(model_name, **engine_kwargs)
        self._calls = CallReader(getattr(engine, "tokenizer", None), model_name)
        self._batcher = Batcher(engine, _MAX_BATCH)

    def max_connections(self) -> int:
        return _MAX_BATCH

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        offered = "" if tool_choice == "none" or not tools else json.dumps([_to_openai_tool(tool) for tool in tools])
        sampling = Sampling(
            max_tokens=config.max_tokens or _MAX_TOKENS,
            temperature=config.temperature or 0.0,
            top_p=config.top_p or 1.0,
            top_k=config.top_k or 0,
            stop=tuple(config.stop_seqs or ()),
        )
        seed = config.seed if config.seed is not None else uuid.uuid4().int >> 65
        request = Request(tuple(_to_message(message) for message in input), sampling, seed, tools=offered)
        (answer,) = await asyncio.wrap_future(self._batcher.submit(request))
        if isinstance(answer, Failure):
            raise EngineError(f"{answer.cause}: {answer.message}")
        text, calls = self._calls.split(answer, offered) if offered else (answer.text, ())
        own_calls = _to_inspect_calls((*answer.tool_calls, *calls))
        message = ChatMessageAssistant(content=text, tool_calls=own_calls, model=self.model_name)
        end = "max_tokens" if answer.stop_reason is StopReason.LENGTH else "stop"
        stop = "tool_calls" if own_calls else end
        read, written = answer.usage.prompt_tokens, answer.usage.completion_tokens
        usage = ModelUsage(input_tokens=read, output_tokens=written, total_tokens=read + written)
        choice = ChatCompletionChoice(message=message, stop_reason=stop)
        return ModelOutput(model=self.model_name, choices=[choice], usage=usage)


def _to_message(message: ChatMessage) -> Message:
    """Convert a message of Inspect."""
    own = getattr(message, "tool_calls", None) or ()
    calls = tuple(ToolCall(call.function, json.dumps(call.arguments), call.id) for call in own)
    if message.role != "tool":
        return Message(message.role, message.text, calls)
    text = f"error: {message.error.message}" if message.error is not None else message.text
    return Message("tool", text, tool_call_id=message.tool_call_id or "")


def _to_openai_tool(tool: ToolInfo) -> Json:
    """Convert the description of a tool to OpenAI's format."""
    parameters = tool.parameters.model_dump(exclude_none=True)
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _to_inspect_calls(calls: Sequence[ToolCall]) -> list[ToolCallOfInspect] | None:
    """Convert tool calls; `None` if there are none."""
    return [ToolCallOfInspect(call.id, call.name, json.loads(call.arguments)) for call in calls] or None
