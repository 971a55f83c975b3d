"""The agent's commands over the Model Context Protocol: any client that speaks it can be the agent.

`serve` offers the commands of a session as they are. `serve_task` plays an episode of a task: its limits hold, and it ends
with a submission or with the client.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from palaestra.core.errors import MissingExtraError, PalaestraError
from palaestra.core.records import Message, ToolCall
from palaestra.research.commands import Command, Outcome, load_commands, tool_schemas
from palaestra.research.task import ResearchTask
from palaestra.version import __version__

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from palaestra.research.env import ResearchEnv


class Served(Protocol):
    """What can be served: a `Session`, or an `Episode`."""

    @property
    def commands(self) -> Mapping[str, Command]: ...

    def call(self, name: str, arguments: Mapping[str, Any] | str) -> Outcome: ...


class Episode:
    """An episode of a research task whose actions come one call at a time. Starts with a `reset`.

    Arguments:
        env: offers its commands as tools.
    """

    def __init__(self, env: ResearchEnv, seed: int | None = None) -> None:
        self.env = env
        self.commands: Mapping[str, Command] = load_commands(env.commands)
        observation, self.info = env.reset(seed=seed)
        self.opening = "\n\n".join(message.text for message in observation.messages)
        self.reward, self._calls = 0.0, 0

    def call(self, name: str, arguments: Mapping[str, Any] | str) -> Outcome:
        """One step of the environment. What the agent is told is what the step added to the conversation."""
        if self.env.over:
            return Outcome("The episode is over; nothing was run.", ok=False, kind="error")
        self._calls += 1
        asked = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call = ToolCall(name, asked, f"call_{self._calls}")
        before = len(self.env.conversation().messages)
        observation, reward, _, _, self.info = self.env.step(Message("assistant", "", (call,)))
        self.reward += reward
        said = [message.text for message in observation.messages[before + 1 :]]
        if "failure" in self.info:
            said.append(f"The episode ended: something around you broke. {self.info['failure'].message}")
        return Outcome("\n\n".join(said), ok="failure" not in self.info, name=name)

    def end(self) -> Mapping[str, Any]:
        """End it if the agent has not: what is there is handed in. Gives the last `info`, with `reward` over all steps."""
        from palaestra.envs.turn.records import StopReason

        if not self.env.over:
            _, reward, _, _, self.info = self.env.stop(StopReason.INTERRUPTED)
            self.reward += reward
        self.env.close()
        return {**self.info, "reward": self.reward}


def make_server(served: Served, instructions: str = "") -> Server[Any]:
    """An MCP server whose tools are commands. Calls are done one at a time, each in a thread of its own.

    Raises:
        MissingExtraError: the package `mcp` is not installed.
    """
    try:
        import anyio
        import anyio.to_thread
        import mcp.types as types
        from mcp.server.lowlevel import Server
    except ImportError as error:
        raise MissingExtraError("mcp", "mcp", "serving commands over MCP") from error
    one_at_a_time = anyio.Lock()
    tools = [
        types.Tool(name=tool["name"], description=tool["description"], input_schema=tool["parameters"])
        for tool in (schema["function"] for schema in tool_schemas(served.commands))
    ]

    def perform(name: str, arguments: Mapping[str, Any]) -> Outcome:
        try:
            return served.call(name, arguments)
        except PalaestraError as error:  # of the sandbox, or of the environment
            return Outcome(f"{type(error).__name__}: {error}", ok=False, kind="error")

    async def list_tools(context: Any, parameters: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Any, parameters: types.CallToolRequestParams) -> types.CallToolResult:
        async with one_at_a_time:
            outcome = await anyio.to_thread.run_sync(perform, parameters.name, parameters.arguments or {})
        text = outcome.whole or "(it printed nothing)"
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=not outcome.ok)

    return Server(
        "palaestra",
        version=__version__,
        instructions=instructions or None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def serve(served: Served, instructions: str = "") -> None:
    """Serve commands over stdin and stdout until the client leaves.

    Raises:
        MissingExtraError: the package `mcp` is not installed.
    """
    server = make_server(served, instructions)
    import anyio
    from mcp.server.stdio import stdio_server

    async def run() -> None:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    anyio.run(run)


def serve_task(task: ResearchTask | str | Path, *, seed: int | None = None, **options: Any) -> Mapping[str, Any]:
    """Serve an episode of a task over stdin and stdout, to its end or until the client leaves.

    The server's instructions are what an agent is told at the beginning.

    Arguments:
        options: further ones of `ResearchEnv`.

    Returns: the last `info` of the episode, with `reward` over all of its steps.
    """
    from palaestra.research.env import ResearchEnv

    episode = Episode(ResearchEnv(task, tools=True, **options), seed)
    try:
        serve(episode, episode.opening)
    finally:
        result = episode.end()
    return result
