"""The agent's commands over the Model Context Protocol, so that any MCP client can be the agent.

`serve` offers commands over stdin and stdout: those of a `Session`, or those of an episode with its limits, through an
`EpisodeChannel` to the `ClientAgent` that plays it. `palaestra.recipes.research.mcp_server` runs such an episode.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import MissingExtraError, PalaestraError
from palaestra.core.records import Json, Message, ToolCall
from palaestra.core.text import clean_text
from palaestra.envs.turn.base import Conversation, TurnStopReason
from palaestra.research.agents import AGENTS, Agent, AgentContext, Halt
from palaestra.research.workspace.commands import Command, CommandResult, Session, load_commands, tool_schemas
from palaestra.research.workspace.workspace import Step
from palaestra.version import __version__

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

AGENT = "mcp"
"""The agent name of an MCP client."""
AGENTS.register(AGENT, "palaestra.research.agents.mcp:ClientAgent", "an MCP client: palaestra research mcp")


class EpisodeChannel:
    """Connects a client with the episode that it plays in another thread: calls go in, results come out.

    Arguments:
        commands: the names of the client's commands; all if empty.
    """

    def __init__(self, commands: Iterable[str] = ()) -> None:
        self.commands: Mapping[str, Command] = load_commands(commands)
        self.opening, self.over = "", False
        self.opened = threading.Event()
        """Set once the episode has begun, with its first messages in `opening`, or has ended before that."""
        self._calls: SimpleQueue[ToolCall | None] = SimpleQueue()
        self._answers: SimpleQueue[CommandResult] = SimpleQueue()
        self._count = 0

    # For the client

    def call(self, name: str, arguments: Json | str) -> CommandResult:
        """Perform one step of the episode. Calls must not overlap."""
        if self.over:
            return CommandResult("The episode is over; nothing was run.", ok=False, kind="error")
        self._count += 1
        asked = arguments if isinstance(arguments, str) else json.dumps(arguments)
        self._calls.put(ToolCall(clean_text(name), clean_text(asked), f"call_{self._count}"))
        return self._answers.get()

    def hang_up(self) -> None:
        """End the episode because the client has left; the current workspace is submitted."""
        self._calls.put(None)

    # For the episode

    def open(self, messages: Sequence[Message]) -> None:
        """Report that the episode has begun with these messages."""
        self.opening = "\n\n".join(message.text for message in messages)
        self.opened.set()

    def next(self) -> ToolCall | None:
        """Wait for the next call; `None` if the client has left."""
        return self._calls.get()

    def answer(self, outcome: CommandResult, over: bool = False) -> None:
        """Answer the pending call; `over` ends the episode, with or without a call."""
        self.over = over
        self._answers.put(outcome)
        if over:
            self.opened.set()

    def close(self, last: Step) -> None:
        """Report that the episode has ended with this step."""
        texts = [message.text for message in last.observation]
        if last.failure is not None:
            texts.append(f"The episode ended: something around you broke ({last.failure.cause}).")
        ok = last.failure is None and bool(last.state.get("ok", True))
        self.answer(CommandResult("\n\n".join(texts), ok=ok), over=True)


CHANNEL: ContextVar[EpisodeChannel | None] = ContextVar("channel", default=None)
"""The channel of the client whose episode is played in this context."""


class ClientAgent(Agent):
    """The client at the other end of the channel. Without one, as in a resumed run, it submits the current workspace."""

    interactive = True

    def __init__(self, argument: str, context: AgentContext) -> None:
        super().__init__(argument, context)
        self._channel, self._known = CHANNEL.get(), 0

    def environment(self) -> Json:
        return {"parser": "tool_call", "tools": True}

    def act(self, conversation: Conversation) -> Message | Halt:
        if self._channel is None:
            return Halt(TurnStopReason.INTERRUPTED, "there is no client; start one with: palaestra research mcp")
        fresh = conversation.messages[self._known :]
        if not self._known:
            self._channel.open(fresh)
        else:
            text = "\n\n".join(message.text for message in fresh)
            self._channel.answer(CommandResult(text, ok=bool(conversation.state.get("ok", True))))
        self._known = len(conversation.messages) + 1  # The next message is the client's own.
        call = self._channel.next()
        if call is None:
            return Halt(TurnStopReason.INTERRUPTED, "the client left")
        return Message("assistant", "", (call,))


def make_server(served: Session | EpisodeChannel, instructions: str = "") -> Server[Any]:
    """Make an MCP server whose tools are commands. Calls are serialised, each in its own thread.

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

    def perform(name: str, arguments: Json) -> CommandResult:
        try:
            return served.call(name, arguments)
        except PalaestraError as error:  # of the sandbox, or of a command
            return CommandResult(f"{type(error).__name__}: {error}", ok=False, kind="error")

    async def list_tools(context: object, parameters: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: object, parameters: types.CallToolRequestParams) -> types.CallToolResult:
        async with one_at_a_time:
            outcome = await anyio.to_thread.run_sync(perform, parameters.name, parameters.arguments or {})
        content = types.TextContent(type="text", text=outcome.whole or "(it printed nothing)")
        return types.CallToolResult(content=[content], is_error=not outcome.ok)

    about = instructions or None
    return Server(
        "palaestra", version=__version__, instructions=about, on_list_tools=list_tools, on_call_tool=call_tool
    )


def serve(served: Session | EpisodeChannel, instructions: str = "") -> None:
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
