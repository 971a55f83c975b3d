"""The tools at work: a process in a sandbox of its own that stays for a while, and makes the calls of many answers.

It runs our own code only, on arguments that were checked; no code of a model ever comes near it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import SandboxError, TaskError
from palaestra.sandbox.base import MIB, Limits
from palaestra.tasks.tools.channel import Conversation, last_words, tool_files
from palaestra.tasks.tools.library.tool import Tool
from palaestra.tasks.tools.plans import Made

if TYPE_CHECKING:
    from palaestra.sandbox.base import Sandbox

LIFE = 30.0
"""Seconds after which a worker is not used again: one that waits costs its sandbox's watch some time."""
MOST_CALLS = 5000
"""Of one worker: what it says is kept by its sandbox as long as it lives."""
LIMITS = Limits(wall_seconds=2 * LIFE, cpu_seconds=LIFE, memory=256 * MIB, processes=4, output=64 * MIB, disk=4 * MIB)


class _Worker:
    def __init__(self, sandbox: Sandbox) -> None:
        self.conversation = Conversation(sandbox, tool_files(), "worker.py", LIMITS)
        self.born, self.calls = time.monotonic(), 0

    @property
    def usable(self) -> bool:
        young = time.monotonic() - self.born < LIFE and self.calls < MOST_CALLS
        return young and self.conversation.alive

    def ask(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        self.calls += 1
        self.conversation.send({"tool": tool, "arguments": arguments})
        return self.conversation.receive()


class ToolWorkers:
    """Makes calls, for any number of threads.

    Arguments:
        sandbox: gives the sandbox when the first call comes.
    """

    def __init__(self, sandbox: Callable[[], Sandbox]) -> None:
        self._sandbox = sandbox
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _dismiss, self._idle)

    def call(self, tool: Tool, arguments: Mapping[str, Any]) -> Made:
        """Make a call with bound arguments.

        Raises:
            SandboxError: the sandbox of the tools broke.
            TaskError: the tool itself broke on arguments that it should take.
        """
        reply = self._ask(tool.name, arguments)
        if "broken" in reply:
            raise TaskError(f"the tool {tool.name} broke: {reply['broken']}; mend it in {tool.function.__module__}")
        if "error" in reply:
            return Made(tool.name, arguments, error=str(reply["error"]))
        return Made(tool.name, arguments, reply["value"])

    def _ask(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        while True:
            worker, fresh = self._take()
            reply = worker.ask(tool, arguments)
            if reply is not None:
                with self._lock:
                    self._idle.append(worker)
                return reply
            ended = worker.conversation.end()
            if fresh:  # An old one may have come to its end meanwhile; a call can be made again, it changes nothing.
                raise SandboxError(f"the sandbox of the tools ended during {tool}: {last_words(ended)}")

    def _take(self) -> tuple[_Worker, bool]:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.usable:
                    return worker, False
                worker.conversation.hang_up()
        return _Worker(self._sandbox()), True

    def close(self) -> None:
        """Send the workers home. The next call gets a new one."""
        with self._lock:
            _dismiss(self._idle)


def _dismiss(idle: list[_Worker]) -> None:
    while idle:
        conversation = idle.pop().conversation
        with suppress(SandboxError):
            conversation.end()
