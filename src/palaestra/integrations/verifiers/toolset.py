"""The tool server of the packages that `palaestra export --to verifiers` writes for environments with tools.

In verifiers the agent's harness sends each call to a tool server. The environment answers all calls of a message in one
turn, in the process of the evaluation. The answers are in the rollout's state, and the server returns them. One server
serves all rollouts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import verifiers.v1 as vf
from mcp.types import CallToolResult, TextContent, Tool
from pydantic import BaseModel, Field


class CallAnswer(BaseModel):
    """The environment's answer to a call. `is_used` is true once the server has returned it."""

    name: str
    arguments: str
    text: str
    is_used: bool = False


class AnswerState(vf.State):  # type: ignore[misc]
    """The answers to the calls of the last message of a rollout."""

    answers: list[CallAnswer] = Field(default_factory=list)


class AnswerToolsetConfig(vf.SharedToolsetConfig):  # type: ignore[misc]
    """The tools of the environment, in OpenAI's format."""

    tools: list[dict[str, Any]] = Field(default_factory=list)


class AnswerToolset(vf.Toolset[AnswerToolsetConfig, AnswerState]):  # type: ignore[misc]
    """Lists the environment's tools with their schemas and returns its answers."""

    TOOL_PREFIX = None

    def register(self, mcp: Any) -> None:
        # MCPServer derives schemas from Python functions; these tools have theirs already.
        mcp.list_tools = self.list_tools
        mcp.call_tool = self._with_state(self.call_tool)

    async def list_tools(self) -> list[Tool]:
        tools = []
        for function in (tool["function"] for tool in self.config.tools):
            schema = function.get("parameters") or {"type": "object"}
            tools.append(Tool(name=function["name"], description=function.get("description"), input_schema=schema))
        return tools

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> CallToolResult:
        answer = _select_answer(self.state.answers, name, arguments)
        if answer is None:
            text = f"the last message of the model has no call of {name!r}"
            return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
        answer.is_used = True
        return CallToolResult(content=[TextContent(type="text", text=answer.text)])


def _select_answer(answers: Sequence[CallAnswer], name: str, arguments: Mapping[str, Any]) -> CallAnswer | None:
    """Select the answer to a call: the first unused one with these arguments.

    If a harness changes the arguments, it is the first unused one of the tool. A call that is repeated because of a network
    error gets the last answer again. Returns `None` if the message has no call of this tool.
    """
    same_tool = [answer for answer in answers if answer.name == name]
    same_call = [answer for answer in same_tool if _parse_arguments(answer.arguments) == arguments]
    candidates = same_call or same_tool
    return next((answer for answer in candidates if not answer.is_used), candidates[-1] if candidates else None)


def _parse_arguments(text: str) -> Any:
    """Parse the arguments of a call. Returns `None` if they are not JSON."""
    try:
        return json.loads(text or "{}")
    except ValueError:
        return None


if __name__ == "__main__":
    AnswerToolset.run()
