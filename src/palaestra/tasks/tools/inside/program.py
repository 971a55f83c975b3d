"""Runs inside the sandbox of a model's program: gives it the tools as functions that ask outside.

A call leaves as a message, is made elsewhere, and its result comes back. Whatever the program does to this process,
all it can change is what it asks and what it answers.

Nothing is imported that Python has not loaded anyway, not even `json` or `os`: with them it takes twice as long to start.
"""

from __future__ import annotations

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST = 60_000
"""Characters of the largest message; outside, a little more is taken."""
WORDS = {"null": None, "true": True, "false": False}


class ToolError(ValueError):
    """A tool refused its arguments."""


def main() -> None:
    """Run one program."""
    told = open(posix.dup(0), "rb")  # noqa: SIM115
    line = posix.dup(1)
    posix.dup2(posix.open("/dev/null", posix.O_RDWR), 0)
    posix.dup2(2, 1)  # What the program prints goes to stderr, which nobody judges.

    def say(message: dict[str, Any]) -> None:
        data = written(message)
        if len(data) > LONGEST:
            raise ValueError(f"a value is too large: {len(data)} characters, {LONGEST} at most")
        rest = data.encode() + b"\n"
        while rest:
            rest = rest[posix.write(line, rest) :]

    def hear() -> dict[str, Any]:
        # JSON is Python but for three words, and comes from outside, where nobody is hostile.
        found: dict[str, Any] = eval((told.readline() or b'{"error": "nobody answers any more"}').decode(), dict(WORDS))
        return found

    def tool(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            say({"call": name, "args": args, "kwargs": kwargs})
            reply = hear()
            if "error" in reply:
                raise ToolError(reply["error"])
            return reply["value"]

        call.__name__ = call.__qualname__ = name
        return call

    def answer(value: Any) -> None:
        say({"answer": value})
        posix._exit(0)  # Nothing that comes after the answer counts.

    job = hear()
    scope: dict[str, Any] = {"__name__": "__main__", "answer": answer, **{name: tool(name) for name in job["tools"]}}
    try:
        exec(compile(job["code"], "program.py", "exec"), scope)
    except SystemExit:
        pass
    except BaseException as error:
        say({"error": f"{type(error).__name__}: {error}"[:1000]})
        posix._exit(1)
    posix._exit(0)


def written(value: Any) -> str:
    """A value as JSON.

    Raises:
        TypeError: it is no number, text, list or dictionary of these.
    """
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f'"{"".join(map(_sign, value))}"'
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"expected a finite number; got {value}")
        return float.__repr__(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{written(str(key))}:{written(one)}' for key, one in value.items())}}}"
    raise TypeError(f"expected a number, a text or a list; got {type(value).__name__}")


def _sign(sign: str) -> str:
    if " " <= sign <= "~" and sign not in '"\\':
        return sign
    code = ord(sign)
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


if __name__ == "__main__":
    main()
