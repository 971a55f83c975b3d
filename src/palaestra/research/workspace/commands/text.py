"""A file as lines, and back to the very same bytes."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Text:
    """The lines of a file, without their ends. Bytes that are no UTF-8 are kept as lone surrogates.

    Arguments:
        newline: what ends a line: `\\n`, or `\\r\\n` where all lines end so.
        final: whether the last line is ended too.
        mark: what stands before the text: a byte order mark, or nothing.

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
        """With other lines in the place of `first` to `last`, counted from 1; `last` before `first` replaces none."""
        return replace(self, lines=(*self.lines[: first - 1], *lines, *self.lines[last:]))

    @property
    def source(self) -> str:
        """The text with plain newlines, as a compiler takes it."""
        return "".join(line + "\n" for line in self.lines)


def split_lines(text: str) -> list[str]:
    """The lines that an agent wrote; a final newline begins no line of its own.

    >>> split_lines("a\\nb\\n"), split_lines("a\\nb"), split_lines(""), split_lines("\\n")
    (['a', 'b'], ['a', 'b'], [], [''])
    """
    if not text:
        return []
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def truncate_line(line: str, most: int) -> str:
    """A line as it is shown: what is no UTF-8 as U+FFFD, and what is too long cut."""
    line = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return line if len(line) <= most else f"{line[:most]}… ({len(line) - most} more characters)"
