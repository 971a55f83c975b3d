"""A file as lines, and back to the same bytes."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self


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
        """Replace the lines `first` to `last`, counted from 1; `last` before `first` replaces none."""
        return replace(self, lines=(*self.lines[: first - 1], *lines, *self.lines[last:]))

    @property
    def source(self) -> str:
        """The text with plain newlines, for the compiler."""
        return "".join(line + "\n" for line in self.lines)


def split_lines(text: str) -> list[str]:
    """Split a text of the agent into lines; a final newline begins no further line.

    >>> split_lines("a\\nb\\n"), split_lines("a\\nb"), split_lines(""), split_lines("\\n")
    (['a', 'b'], ['a', 'b'], [], [''])
    """
    if not text:
        return []
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def truncate_line(line: str, most: int) -> str:
    """Return a line for display: invalid UTF-8 as U+FFFD, and cut if it is too long."""
    line = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return line if len(line) <= most else f"{line[:most]}… ({len(line) - most} more characters)"
