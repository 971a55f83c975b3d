"""Run the tools in their own sandbox, which is reused for many answers.

It runs only our own code on checked arguments, and never code of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files as package_files
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import SandboxError, TaskError
from palaestra.sandbox.base import KIB, MIB, Limits
from palaestra.sandbox.rpc import Script, SessionPool, last_error_line
from palaestra.tasks.tools.library.tool import Tool
from palaestra.tasks.tools.plans import ExecutedCall

if TYPE_CHECKING:
    from palaestra.sandbox.base import Sandbox

LIFETIME = 30.0
"""Seconds after which a worker is not used again."""
MAX_BYTES = 64 * KIB
WORKER = Script("palaestra.tasks.tools.inside", ("worker",), MAX_BYTES, ascii=False)
LIMITS = Limits(
    wall_seconds=2 * LIFETIME, cpu_seconds=LIFETIME, memory=256 * MIB, processes=4, output=64 * MIB, disk=4 * MIB
)


@cache
def library_files() -> dict[str, str]:
    """The modules of the tool library, under their package name."""
    package = "palaestra/tasks/tools"
    files = {f"{folder}/__init__.py": "" for folder in ("palaestra", "palaestra/tasks", package)}
    for module in (package_files("palaestra.tasks.tools") / "library").iterdir():
        if module.name.endswith(".py"):
            files[f"{package}/library/{module.name}"] = module.read_text(encoding="utf-8")
    return files


class ToolWorkers:
    """Makes tool calls, for any number of threads.

    Arguments:
        sandbox: returns the sandbox, on first use.
    """

    def __init__(self, sandbox: Callable[[], Sandbox]) -> None:
        self._pool = SessionPool(lambda: WORKER.start(sandbox(), LIMITS, library_files()), LIFETIME)

    def call(self, tool: Tool, arguments: Mapping[str, Any]) -> ExecutedCall:
        """Make a call with bound arguments.

        Raises:
            SandboxError: the sandbox of the tools failed.
            TaskError: the tool raised an unexpected error on valid arguments.
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
            worker, fresh = self._pool.acquire()
            worker.send({"tool": tool, "arguments": arguments})
            reply = worker.receive()
            if reply is not None:
                self._pool.release(worker)
                return reply
            ended = self._pool.discard(worker)
            if (
                fresh
            ):  # A used worker may have reached a limit meanwhile. The tools are pure, so the call can be repeated.
                raise SandboxError(f"the sandbox of the tools ended during {tool}: {last_error_line(ended)}")

    def close(self) -> None:
        """Close the idle workers. The next call starts a new one."""
        self._pool.close()
