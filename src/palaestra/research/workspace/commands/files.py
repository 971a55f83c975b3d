"""The agent's files, accessed without opening a path of the agent on the host; queries to its shell; the window.

The agent's own shell resolves a path inside its sandbox. Files of the workspace are then read and written by the
sandbox's calls, which follow no links; all others are printed by the shell in pieces.
"""

from __future__ import annotations

import codecs
import math
import posixpath
import re
import secrets
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

from palaestra.core.errors import SandboxError
from palaestra.core.tables import load_table
from palaestra.research.workspace.commands.base import CommandError
from palaestra.sandbox.base import Shell, ShellResult

MAX_BYTES = 4 << 20
"""The maximum bytes of a file that is read as a whole, and so of one that can be edited."""
_MAX_WIDTH = 2000
"""The maximum characters of a line that are shown."""
_MAX_SHOWN = 40_000
"""The maximum characters of a window; in a larger one lines are cut shorter."""
HEADER = re.compile(r"^\[file (.+), \d+ lines?(?:, .*)?\]$", re.MULTILINE)
"""The first line of every window, with the path; history processors find windows by it."""

_QUERIES = load_table(__file__, "queries")
_PROBLEMS: dict[str, str] = _QUERIES["problems"]


# Queries to the shell


_MAX_STRAY = 1 << 16


class ShellQuery:
    """A shell, and the queries to it that are not the agent's.

    Output of background processes arrives with the next command. If that is a query, the output is kept in `stray` for
    the agent's next command. All queries of one command share a `deadline`.
    """

    def __init__(self, shell: Shell, names: list[str]) -> None:
        self.shell, self.stray, self.deadline = shell, b"", math.inf
        self._prepared, self._folder = False, ""
        self._prelude = _QUERIES["prelude"].format(names="|".join(map(shlex.quote, names)) or "''")

    def execute(self, command: str, timeout: float | None = None) -> ShellResult:
        """Run a command of the agent."""
        if not self._prepared:
            self._prepared = True
            self._stay(self._run(self._prelude).output)
        self._folder = ""
        return self._run(command, timeout)

    def ask(self, script: str, *arguments: str, timeout: float = 20.0) -> list[bytes] | None:
        """Run a script with `arguments` as `$1` and so on, and return what it left in the array `__a`.

        Returns `None` if the output was too large.

        Raises:
            CommandError: the shell does not answer.
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise CommandError("the shell is too slow to answer; look at what runs in the background")
        mark = secrets.token_hex(12)
        words = " ".join(map(shlex.quote, arguments))
        result = self._run(_QUERIES["question"].format(script=script, mark=mark, arguments=words), min(timeout, left))
        parts = result.output.split(mark.encode())
        if len(parts) != 3:
            self._stay(result.output)
            why = result.note or "something else is printing into it"
            raise CommandError(f"the shell did not answer ({why}); look at what runs in the background, or try again")
        self._stay(parts[0] + parts[2].removeprefix(b"\0"))
        return None if result.truncated else parts[1].split(b"\0")[1:-1]

    @property
    def folder(self) -> str:
        """The shell's current folder, queried once after each command of the agent."""
        if not self._folder:
            try:
                answer = self.ask('__a=("$PWD")', timeout=2.0)
            except CommandError:
                answer = None
            self._folder = b"".join(answer or ()).decode("utf-8", "replace") or self.shell.workspace
        return self._folder

    def take_stray(self) -> bytes:
        stray, self.stray = self.stray, b""
        return stray

    def _stay(self, output: bytes) -> None:
        self.stray = (self.stray + output)[-_MAX_STRAY:]

    def _run(self, command: str, timeout: float | None = None) -> ShellResult:
        result = self.shell.execute(command, timeout)
        if result.restarted:
            self._prepared, self._folder = False, ""
        return result


# Files


@dataclass(frozen=True, slots=True)
class Text:
    """The lines of a file without their ends. Invalid UTF-8 is kept as lone surrogates.

    Arguments:
        newline: the line end: `\\n`, or `\\r\\n` if all lines end so.
        final: whether the last line is terminated.
        mark: a byte order mark, or empty.

    Example:
        >>> text = Text.decode(b"one\\r\\ntwo")
        >>> text.lines, text.newline, text.final
        (('one', 'two'), '\\r\\n', False)
        >>> text.replace_lines(1, 1, ["1", "1.5"]).encode()
        b'1\\r\\n1.5\\r\\ntwo'
    """

    lines: tuple[str, ...] = ()
    newline: str = "\n"
    final: bool = True
    mark: bytes = b""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
        whole = data[len(mark) :].decode("utf-8", "surrogateescape")
        if not whole:
            return cls((), "\n", True, mark)
        ends = whole.count("\n")
        newline = "\r\n" if ends and whole.count("\r\n") == ends else "\n"
        lines = whole.split(newline)
        final = lines[-1] == ""
        return cls(tuple(lines[:-1] if final else lines), newline, final, mark)

    def encode(self) -> bytes:
        whole = self.newline.join(self.lines) + (self.newline if self.final and self.lines else "")
        return self.mark + whole.encode("utf-8", "surrogateescape")

    def replace_lines(self, first: int, last: int, lines: Sequence[str]) -> Self:
        """Replace the lines `first` to `last`, counted from 1; `last` before `first` replaces none. A new last line is
        terminated.
        """
        final = self.final or last >= len(self.lines)
        return replace(self, lines=(*self.lines[: first - 1], *lines, *self.lines[last:]), final=final)

    @property
    def source(self) -> str:
        """The text with plain newlines, for the compiler."""
        return "".join(line + "\n" for line in self.lines)


@dataclass(frozen=True, slots=True)
class FileLocation:
    """Where a path of the agent leads.

    Arguments:
        path: the absolute path without links, as commands see it.
        relative: the path relative to the workspace; `None` outside.
        writable: whether the agent may write it.
        given: the path as the agent wrote it.
        data: the content of a workspace file that can be read as a whole.
    """

    path: str
    relative: str | None
    kind: Literal["file", "folder", "missing", "dangling", "special", "unreadable"]
    writable: bool
    given: str
    data: bytes | None = field(default=None, repr=False)


class Page(NamedTuple):
    """Some lines of a file: the number of the first one, and how many the file has."""

    lines: Sequence[str]
    first: int
    total: int


class Files:
    """The files of one shell."""

    def __init__(self, query: ShellQuery) -> None:
        self.query, self.shell = query, query.shell

    def locate(self, path: str) -> FileLocation:
        """Resolve a path from the shell's current folder."""
        if not path or "\0" in path or "\n" in path or len(path) > 4000:
            raise CommandError(f"a path of a file is expected; got {path[:80]!r}")
        answer = self.query.ask(_QUERIES["resolve"], path, self.shell.workspace)
        if answer is None or len(answer) != 4 or not answer[3]:
            raise CommandError(f"'{path}' cannot be looked at; try: pwd; ls -ld '{path}'")
        kind, writable, absolute, root = (part.decode("utf-8", "replace") for part in answer)
        name = posixpath.relpath(posixpath.normpath(absolute), posixpath.normpath(root))
        relative = None if name == ".." or name.startswith("../") else name
        data = self._read_whole(relative) if kind == "file" and relative is not None else None
        return FileLocation(posixpath.normpath(absolute), relative, kind, writable == "1", path, data)  # type: ignore[arg-type]

    def existing(self, path: str) -> FileLocation:
        """Resolve a path that must be a readable file."""
        location = self.locate(path)
        if location.kind != "file":
            # The only other kind is output of a background process within a long answer.
            unknown = "cannot be looked at while something else prints into the shell; try again"
            raise CommandError(f"'{path}' {_PROBLEMS.get(location.kind, unknown).format(path=path)}")
        return location

    def text(self, location: FileLocation) -> Text:
        """Return a workspace file as lines."""
        if location.data is None:
            raise CommandError(
                f"'{location.given}' cannot be edited: only files up to {MAX_BYTES} bytes can. Change it by a program: sed, python"
            )
        if b"\0" in location.data:
            raise _binary(location)
        return Text.decode(location.data)

    def page(self, location: FileLocation, first: int, count: int) -> Page:
        """Return some lines of any file; the last ones if too few follow `first`."""
        if location.data is not None:
            lines = self.text(location).lines
            first = max(1, min(first, len(lines) - count + 1))
            return Page(lines[first - 1 : first - 1 + count], first, len(lines))
        answer = self.query.ask(_QUERIES["measure"], location.path)
        if answer is None or len(answer) != 2 or not answer[1].isdigit():
            raise CommandError(f"'{location.given}' cannot be read; try: ls -l '{location.given}'")
        if answer[0] == b"1":
            raise _binary(location)
        total = int(answer[1])
        first = max(1, min(first, total - count + 1))
        return Page(self._read_lines(location, first, count), first, total)

    def write(self, location: FileLocation, data: bytes) -> None:
        """Write a workspace file. If that fails, its old content is restored."""
        assert location.relative is not None
        try:
            self.shell.write_files({location.relative: data})
        except SandboxError as error:
            self.query.ask(":")  # Raises if the sandbox itself failed.
            if location.data is not None:
                try:
                    self.shell.write_files({location.relative: location.data})
                except SandboxError:
                    raise CommandError(
                        f"'{location.given}' could not be written, and is lost: {error}. Make room and write it again"
                    ) from error
            raise CommandError(f"'{location.given}' could not be written: {error}") from error

    def remove(self, relative: str) -> None:
        """Delete a workspace file."""
        self.query.ask('builtin command -p rm -f -- "$1"', posixpath.join(self.shell.workspace, relative))
        if self.shell.read_files([relative], 1):
            raise CommandError(f"'{relative}' cannot be removed; see its rights with: ls -l '{relative}'")

    def _read_whole(self, relative: str) -> bytes | None:
        """Read a workspace file without links; `None` if it is too large or no longer a regular file."""
        try:
            data = self.shell.read_files([relative], MAX_BYTES + 1).get(relative)
        except SandboxError as error:  # The agent can forge the shell's answer.
            raise CommandError(f"'{relative}' cannot be read: {error}") from error
        return data if data is not None and len(data) <= MAX_BYTES else None

    def _read_lines(self, location: FileLocation, first: int, count: int, width: int = _MAX_WIDTH) -> list[str]:
        """Read lines through the shell, in parts if the output is too large."""
        answer = self.query.ask(_QUERIES["slice"], location.path, str(first), str(count), str(width))
        if answer is None and count > 1:
            half = count // 2
            rest = self._read_lines(location, first + half, count - half, width)
            return self._read_lines(location, first, half, width) + rest
        if answer is None:
            return self._read_lines(location, first, 1, width // 2) if width > 1 else [""]
        return [line.decode("utf-8", "surrogateescape").removesuffix("\r") for line in answer]


def _binary(location: FileLocation) -> CommandError:
    return CommandError(
        f"'{location.given}' is not a text: it contains NUL bytes. Look at it by a program, for example: "
        f"file '{location.given}'; python -c '...'"
    )


# The window


def show_window(name: str, page: Page, remark: str = "") -> str:
    """Render a page for the agent: numbered lines, and how many lines are above and below."""
    header = f"[file {name}, {count_lines(page.total)}{', ' + remark if remark else ''}]"
    if not page.total:
        return f"{header}\n(the file is empty)"
    width = _MAX_WIDTH
    if sum(map(len, page.lines)) > _MAX_SHOWN:
        width = min(_MAX_WIDTH, max(80, _MAX_SHOWN // len(page.lines)))
    numbered = [f"{number}|{truncate_line(line, width)}" for number, line in enumerate(page.lines, page.first)]
    above, below = page.first - 1, page.total - page.first - len(page.lines) + 1
    first = [f"({above} more line{'s' if above > 1 else ''} above)"] if above else []
    last = [f"({below} more line{'s' if below > 1 else ''} below)"] if below > 0 else []
    return "\n".join([header, *first, *numbered, *last])


def select_around(lines: Sequence[str], first: int, last: int, size: int) -> Page:
    """Return a page of at most `size` lines that shows `first` to `last`, or their beginning, with some context."""
    total = len(lines)
    margin = max(0, min(5, (size - (last - first + 1)) // 2))
    start = max(1, min(first - margin, total))
    end = min(total, max(last, first) + margin, start + size - 1)
    return Page(lines[start - 1 : end], start, total)


def count_lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


def truncate_line(line: str, most: int) -> str:
    """Return a line for display: invalid UTF-8 as U+FFFD, and cut if it is too long."""
    line = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return line if len(line) <= most else f"{line[:most]}… ({len(line) - most} more characters)"
