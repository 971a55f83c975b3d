"""Runs inside the sandbox of a model's program: provides the tools as functions that send requests to the host.

A call is sent as a message and executed elsewhere; the result is sent back. Whatever the program does to this process,
it can only change its requests and its answer.

Only modules that Python has already loaded are imported. `json` or `os` would double the time to start.
"""

from __future__ import annotations

import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_LENGTH = 60_000
"""Maximum characters of a message; the host accepts a little more."""


class ToolError(ValueError):
    """A tool rejected its arguments."""


def main() -> None:
    """Run one program."""
    here = posix.getcwd()
    sys.path.insert(0, here)
    from channel import HostChannel, encode  # type: ignore[import-not-found]

    sys.path.remove(here)
    channel = HostChannel()

    def send(message: dict[str, Any]) -> None:
        message = to_plain(message)
        length = len(encode(message))
        if length > MAX_LENGTH:
            raise ValueError(f"a value is too large: {length} characters, {MAX_LENGTH} at most")
        channel.send(message)

    def make_tool(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            send({"call": name, "args": args, "kwargs": kwargs})
            reply = channel.receive() or {"error": "the host has closed the channel"}
            if "error" in reply:
                raise ToolError(reply["error"])
            return reply["value"]

        call.__name__ = call.__qualname__ = name
        return call

    def answer(value: Any) -> None:
        send({"answer": value})
        posix._exit(0)  # Code after the answer is ignored.

    job = channel.receive()
    tools = {name: make_tool(name) for name in job["tools"]}
    try:
        exec(compile(job["code"], "program.py", "exec"), {"__name__": "__main__", "answer": answer, **tools})
    except SystemExit:
        pass
    except BaseException as error:
        send({"error": f"{type(error).__name__}: {error}"[:1000]})
        posix._exit(1)
    posix._exit(0)


def to_plain(value: Any) -> Any:
    """A value as JSON data: keys are texts, numbers are finite.

    Raises:
        TypeError: it is not a number, a text, a list or a dictionary of these.
    """
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"expected a finite number; got {value}")
        return value
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    raise TypeError(f"expected a number, a text or a list; got {type(value).__name__}")


if __name__ == "__main__":
    main()
