"""Calls of a submitted program's functions from outside its sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from palaestra.core.errors import SandboxError
from palaestra.research.judge.deadline import interrupt
from palaestra.research.tasks.records import SubmissionError
from palaestra.sandbox.base import MIB, Limits, Sandbox
from palaestra.sandbox.rpc import Script, last_error_line

LONGEST = 8 * MIB
"""Maximum bytes of a submission's answer."""
FOLDER = "_palaestra"
"""The folder of our script in the submission's workspace."""
SERVER = Script(
    "palaestra.research.judge.inside", ("submission_server",), LONGEST, folder=FOLDER, command=("python3", "-B")
)


class Program:
    """A module of a submission in its own sandbox. Use it as a context manager.

    Function calls and results are JSON: the module sees only its arguments. Results are untrusted and must be checked.
    `called` says whether the module has received anything yet.

    Arguments:
        files: the submission.
        module: the file to import, without `.py`.

    Raises:
        SubmissionError: the module cannot be imported.
        SandboxError: the sandbox failed.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        files: Mapping[str, bytes],
        module: str,
        limits: Limits,
        read_only: Mapping[str, str] = {},
        env: Mapping[str, str] = {},
    ) -> None:
        self.module, self.called = module, False
        self._kept = 0
        own = {name: content for name, content in files.items() if not name.startswith(f"{FOLDER}/")}
        self._session = SERVER.start(sandbox, limits, own, read_only, env)
        try:
            names = self._ask({"module": module})
            self.functions: Sequence[str] = [str(name) for name in names] if isinstance(names, list) else []
        except BaseException:
            self.close()
            raise

    def call(self, function: str, *arguments: Any, **named: Any) -> Any:
        """Call a function of the module and return its value.

        Raises:
            SubmissionError: the function is missing, raised, exceeded a limit or returned something other than JSON.
            SandboxError: the sandbox failed.
        """
        return self._ask({"function": function, "arguments": arguments, "named": named})

    def map(self, function: str, many: Sequence[Sequence[Any]]) -> list[Any]:
        """Call a function for many tuples of arguments in one message; raises like `call`."""
        values = self._ask({"function": function, "many": many})
        if not isinstance(values, list) or len(values) != len(many):
            raise SubmissionError(
                f"{self.module}.py did not give one value for each of {len(many)} calls of {function}"
            )
        return values

    def make(self, function: str, *arguments: Any, **named: Any) -> RemoteObject:
        """Call a function or class and keep the result in the sandbox, to call its methods."""
        self._kept += 1
        self._ask({"function": function, "arguments": arguments, "named": named, "keep": str(self._kept)})
        return RemoteObject(self, str(self._kept))

    def _ask(self, message: dict[str, Any]) -> Any:
        self.called = self.called or "function" in message
        self._session.send(message)
        reply = self._session.receive()
        # Only a value or an error is an answer, whatever else the submission writes to the pipe.
        if reply is None or reply.keys() not in ({"value"}, {"error"}):
            result = self._session.close()
            if self._session.channel.too_long:
                too_long = f"{self.module}.py gave an answer of more than {LONGEST} bytes"
                raise SubmissionError(too_long, too_long)
            ended = f"{self.module}.py ended before it answered ({result.status.value})"
            raise SubmissionError(f"{ended}: {last_error_line(result)}", ended)
        if "error" in reply:
            raise SubmissionError(
                f"{self.module}.py: {str(reply['error'])[:2000]}", f"{self.module}.py raised an exception"
            )
        return reply["value"]

    def close(self) -> None:
        """End the program."""
        with suppress(SandboxError):
            self._session.close()

    def kill(self) -> None:
        """End the program at once from another thread. Waiting calls fail."""
        interrupt(self._session.thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RemoteObject:
    """An object that a program keeps in its sandbox."""

    def __init__(self, program: Program, number: str) -> None:
        self._program, self._number = program, number

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method and return its value; raises like `Program.call`."""
        return self._program._ask({"object": self._number, "function": method, "arguments": arguments, "named": named})
