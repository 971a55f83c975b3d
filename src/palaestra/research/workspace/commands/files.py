"""The agent's files, accessed without opening a path of the agent on the host.

The agent's own shell resolves a path inside its sandbox. Files of the workspace are then read and written by the
sandbox's calls, which follow no links; all others are printed by the shell in pieces.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import Literal

from palaestra.core.errors import SandboxError
from palaestra.research.workspace.commands.base import CommandError
from palaestra.research.workspace.commands.shell_query import ShellQuery
from palaestra.research.workspace.commands.text import Text

WHOLE = 4 << 20
"""The maximum bytes of a file that is read as a whole, and so of one that can be edited."""
LEVELS, UNDO_BYTES = 100, 32 << 20
"""The number of changes that can be undone, and the bytes kept for that."""
WIDEST = 2000
"""The maximum characters of a line that are shown."""

# Every process that a script starts costs a millisecond or more, so most files need none: `read` fails if a file ends
# before the requested bytes, and before a NUL byte. Otherwise `wc` gives the size. It matters only in the workspace,
# where it decides how a file is read.
_LOOK = r"""
local __path=$1 __kind=missing __size=0 __may=0 __plain=1 __part __head LC_ALL=C
[[ $__path == /* ]] || __path=${PWD%/}/$__path
if [[ -d $__path ]]; then __kind=folder
elif [[ -f $__path ]]; then
  __kind=unreadable
  if [[ -r $__path ]]; then
    __kind=file
    [[ $__path == "$2"/* ]] && IFS= builtin read -r -d '' -n 32768 __head <"$__path" \
      && builtin read -r __size < <(exec wc -c <"$__path")
  fi
elif [[ -e $__path ]]; then __kind=special; fi
[[ -w $__path ]] && __may=1
__part=$__path
while [[ $__part == */* ]]; do
  [[ -L $__part || ${__part##*/} == .. ]] && __plain=0 && break
  __part=${__part%/*}
done
__a=("$__kind" "$__size" "$__may" "$__path" "$__plain")
"""
# The path without links: the nearest existing folder, and the names below it.
_RESOLVE = r"""
builtin mapfile -t -d '' __a < <(
  __path=$1 __kind=missing __size=0 __may=0
  [[ $__path == */ && $__path != / ]] && __path=${__path%/}
  if [[ -L $__path ]]; then __kind=dangling; __target=$(readlink -f -- "$__path") && __path=$__target; fi
  if [[ -d $__path ]]; then __kind=folder
  elif [[ -f $__path ]]; then __kind=unreadable; [[ -r $__path ]] && __kind=file && __size=$(wc -c <"$__path")
  elif [[ -e $__path ]]; then __kind=special; fi
  [[ -w $__path ]] && __may=1
  __folder=$__path __below=
  while [[ $__folder == */* ]]; do
    __below=/${__folder##*/}$__below __folder=${__folder%/*}
    [[ -d ${__folder:-/} ]] && break
  done
  builtin cd -P -- "${__folder:-/}" && __path=${PWD%/}$__below && builtin cd -P -- "$2" \
    && builtin printf '%s\0' "$__kind" "$__size" "$__may" "$__path" "$PWD"
)
"""
# `read` stops at a NUL byte with success before it has all requested bytes.
_MEASURE = r"""
local __lines __bytes __head __zero=0 LC_ALL=C
builtin read -r __lines __bytes < <(exec wc -lc <"$1")
IFS= builtin read -r -d '' -n 1000 __head <"$1" && (( ${#__head} < 1000 )) && __zero=1
__a=("$__zero" "$__lines" "$__bytes")
"""
_SLICE = r"""
local __k LC_ALL=C
if (( $5 < 8000000 )); then builtin mapfile -t -s "$(( $2 - 1 ))" -n "$3" __a <"$1"
else builtin mapfile -t __a < <(tail -n "+$2" -- "$1" | head -n "$3"); fi
for __k in "${!__a[@]}"; do __a[__k]=${__a[__k]::$4}; done
"""

Kind = Literal["file", "folder", "missing", "dangling", "special", "unreadable"]


@dataclass(frozen=True, slots=True)
class FileLocation:
    """Where a path of the agent leads.

    Arguments:
        path: the absolute path without links, as commands see it.
        relative: the path relative to the workspace; `None` outside.
        size: the bytes of a file of the workspace.
        writable: whether the agent may write it.
        given: the path as the agent wrote it.
        link: whether the path contains a link.
        data: the content of a workspace file that can be read as a whole.
    """

    path: str
    relative: str | None
    kind: Kind
    size: int
    writable: bool
    given: str
    link: bool = False
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a workspace file; `before` is `None` if the file was new."""

    relative: str
    before: bytes | None
    after: bytes
    what: str

    @property
    def size(self) -> int:
        return len(self.before or b"") + len(self.after)


@dataclass(slots=True)
class Changes:
    """The changes of an episode that can be undone."""

    done: list[Change] = field(default_factory=list)

    def add(self, change: Change) -> None:
        self.done.append(change)
        while len(self.done) > LEVELS or (
            len(self.done) > 1 and sum(change_.size for change_ in self.done) > UNDO_BYTES
        ):
            del self.done[0]

    def forget(self, relative: str) -> None:
        self.done = [change for change in self.done if change.relative != relative]


@dataclass(frozen=True, slots=True)
class Page:
    """Some lines of a file.

    Arguments:
        first: the number of the first line.
        total: the number of lines in the file.
    """

    lines: tuple[str, ...]
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
        kind, size, writable, absolute, plain = self._query(_LOOK, 5, path, self.shell.workspace)
        link, root = False, self.shell.workspace
        if plain != "1":  # with links or `..` in it
            kind, size, writable, real, root = self._query(_RESOLVE, 5, absolute, root)
            link = posixpath.normpath(absolute) != posixpath.normpath(real)
            absolute = real
        relative = _below(absolute, root)
        data = self._plain(relative) if kind == "file" and relative is not None and int(size) <= WHOLE else None
        known = int(size) if data is None else len(data)
        return FileLocation(posixpath.normpath(absolute), relative, kind, known, writable == "1", path, link, data)  # type: ignore[arg-type]

    def existing(self, path: str) -> FileLocation:
        """Resolve a path that must be a readable file."""
        location = self.locate(path)
        if location.kind != "file":
            # The only other kind is output of a background process within a long answer.
            problem = _PROBLEMS.get(
                location.kind, "cannot be looked at while something else prints into the shell; try again"
            )
            raise CommandError(f"'{path}' {problem.format(path=path)}")
        return location

    def read(self, location: FileLocation) -> bytes:
        """Return the whole content of a workspace file."""
        if location.data is not None:
            return location.data
        if location.size > WHOLE:
            raise CommandError(
                f"'{location.given}' has {location.size} bytes; files up to {WHOLE} can be edited here. Change it by a program: sed, python"
            )
        raise CommandError(f"'{location.given}' cannot be read: it changed just now. Try again")

    def text(self, location: FileLocation) -> Text:
        """Return a workspace file as lines."""
        data = self.read(location)
        if b"\0" in data:
            raise binary(location, len(data))
        return Text.decode(data)

    def page(self, location: FileLocation, first: int, count: int) -> Page:
        """Return some lines of any file; the last ones if too few follow `first`."""
        if location.data is not None:
            lines = self.text(location).lines
            first = _first(first, count, len(lines))
            return Page(lines[first - 1 : first - 1 + count], first, len(lines))
        zero, lines_, bytes_ = self._query(_MEASURE, 3, location.path)
        newlines, size = int(lines_), int(bytes_)
        if zero == "1":
            raise binary(location, size)
        last = self._slice(location, newlines + 1, 1, size)  # an unterminated last line, if any
        total = newlines + len(last)
        first = _first(first, count, total)
        return Page(tuple(self._slice(location, first, count, size)), first, total)

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
        self.query.ask('rm -f -- "$1"', posixpath.join(self.shell.workspace, relative))
        if self.shell.read_files([relative], 1):
            raise CommandError(f"'{relative}' cannot be removed; see its rights with: ls -l '{relative}'")

    def _query(self, script: str, count: int, *arguments: str) -> list[str]:
        answer = self.query.ask(script, *arguments)
        # The script's programs come from the agent's PATH, so the answer may be anything.
        if answer is None or len(answer) != count or not all(re.fullmatch(rb"\d{1,18}", part) for part in answer[1:3]):
            raise CommandError(f"'{arguments[0]}' cannot be looked at; try: pwd; ls -ld '{arguments[0]}'; type -a wc")
        return [part.decode("utf-8", "replace") for part in answer]

    def _plain(self, relative: str) -> bytes | None:
        """Read a workspace file without links; `None` if something else is there by now."""
        try:
            data = self.shell.read_files([relative], WHOLE + 1).get(relative)
        except SandboxError as error:  # The agent can forge the shell's answer.
            raise CommandError(f"'{relative}' cannot be read: {error}") from error
        return data if data is not None and len(data) <= WHOLE else None

    def _slice(self, location: FileLocation, first: int, count: int, size: int, width: int = WIDEST) -> list[str]:
        """Read lines through the shell, in parts if the output is too large."""
        answer = self.query.ask(_SLICE, location.path, str(first), str(count), str(width), str(size))
        if answer is None and count > 1:
            half = count // 2
            rest = self._slice(location, first + half, count - half, size, width)
            return self._slice(location, first, half, size, width) + rest
        if answer is None:
            return self._slice(location, first, 1, size, width // 2) if width > 1 else [""]
        return [line.decode("utf-8", "surrogateescape").removesuffix("\r") for line in answer]


def binary(location: FileLocation, size: int) -> CommandError:
    return CommandError(
        f"'{location.given}' is no text: it holds NUL bytes ({size} bytes in all). Look at it by a program, for example: "
        f"file '{location.given}'; python -c '...'"
    )


def _below(path: str, root: str) -> str | None:
    """Return a path relative to a folder; `None` if it is not below it."""
    relative = posixpath.relpath(posixpath.normpath(path), posixpath.normpath(root))
    return None if relative == ".." or relative.startswith("../") else relative


def _first(first: int, count: int, total: int) -> int:
    return max(1, min(first, total - count + 1))


_PROBLEMS: dict[str, str] = {
    "folder": "is a folder. List it with: ls -la '{path}'; or find a file with: find_file NAME '{path}'",
    "missing": "does not exist. Look with: ls, or find_file NAME; make it with: create '{path}'",
    "dangling": "is a link that leads to nothing. See where to with: ls -l '{path}'",
    "special": "is neither a file nor a folder (a device, a pipe or a socket), so it cannot be opened",
    "unreadable": "may not be read. See its rights with: ls -l '{path}'",
}
