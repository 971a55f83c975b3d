"""The tools at work: a process in a sandbox of its own that stays for a while, and makes the calls of many answers.

It runs our own code only, on arguments that were checked; no code of a model ever comes near it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import SandboxError, TaskError
from palaestra.sandbox.base import MIB, Limits
from palaestra.sandbox.rpc import ScriptSession, SessionPool, last_words
from palaestra.tasks.tools.channel import line, tool_files
from palaestra.tasks.tools.library.tool import Tool
from palaestra.tasks.tools.plans import ExecutedCall

if TYPE_CHECKING:
    from palaestra.sandbox.base import Sandbox

LIFE = 30.0
"""Seconds after which a worker is not used again: one that waits costs its sandbox's watch some time."""
LIMITS = Limits(wall_seconds=2 * LIFE, cpu_seconds=LIFE, memory=256 * MIB, processes=4, output=64 * MIB, disk=4 * MIB)


class ToolWorkers:
    """Makes calls, for any number of threads.

    Arguments:
        sandbox: gives the sandbox when the first call comes.
    """

    def __init__(self, sandbox: Callable[[], Sandbox]) -> None:
        self._pool = SessionPool(lambda: ScriptSession(sandbox(), tool_files(), "worker.py", LIMITS, line), LIFE)

    def call(self, tool: Tool, arguments: Mapping[str, Any]) -> ExecutedCall:
        """Make a call with bound arguments.

        Raises:
            SandboxError: the sandbox of the tools broke.
            TaskError: the tool itself broke on arguments that it should take.
        """
        reply = self._ask(tool.name, arguments)
        error, broken = reply.get("error"), reply.get("broken")
        if isinstance(error, str):
            return ExecutedCall(tool.name, arguments, error=error)
        if "value" not in reply:
            raise TaskError(f"the tool {tool.name} broke: {broken}; mend it in {tool.function.__module__}")
        return ExecutedCall(tool.name, arguments, reply["value"])

    def _ask(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        while True:
            worker, fresh = self._pool.take()
            worker.send({"tool": tool, "arguments": arguments})
            reply = worker.receive()
            if reply is not None:
                self._pool.give(worker)
                return reply
            ended = self._pool.end(worker)
            if fresh:  # An old one may have come to its end meanwhile; a call can be made again, it changes nothing.
                raise SandboxError(f"the sandbox of the tools ended during {tool}: {last_words(ended)}")

    def close(self) -> None:
        """Send the workers home. The next call gets a new one."""
        self._pool.close()
