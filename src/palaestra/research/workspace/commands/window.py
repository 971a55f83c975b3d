"""The window: numbered lines of a file, and how many lines are above and below."""

from __future__ import annotations

import re
from collections.abc import Sequence

from palaestra.research.workspace.commands.files import WIDEST, Page
from palaestra.research.workspace.commands.text import truncate_line

HEADER = re.compile(r"^\[file .+, \d+ lines?(?:, .*)?\]$", re.MULTILINE)
"""The first line of every window; history processors find windows by it."""
MOST = 40_000
"""The maximum characters of a window; in a larger one lines are cut shorter."""


def window(name: str, page: Page, remark: str = "") -> str:
    """Render a page for the agent."""
    lines = "1 line" if page.total == 1 else f"{page.total} lines"
    header = f"[file {name}, {lines}{', ' + remark if remark else ''}]"
    if not page.total:
        return f"{header}\n(the file is empty)"
    return "\n".join([header, *_more(page.first - 1, "above"), *_number(page.lines, page.first),
                      *_more(page.total - page.first - len(page.lines) + 1, "below")])  # fmt: skip


def around(lines: Sequence[str], first: int, last: int, size: int) -> Page:
    """Return a page of at most `size` lines that shows `first` to `last`, or their beginning, with some context."""
    total = len(lines)
    margin = max(0, min(5, (size - (last - first + 1)) // 2))
    start = max(1, min(first - margin, total))
    end = min(total, max(last, first) + margin, start + size - 1)
    return Page(tuple(lines[start - 1 : end]), start, total)


def _number(lines: Sequence[str], first: int) -> list[str]:
    width = min(WIDEST, max(80, MOST // max(1, len(lines))))
    if sum(map(len, lines)) <= MOST:
        width = WIDEST
    return [f"{number}|{truncate_line(line, width)}" for number, line in enumerate(lines, first)]


def _more(count: int, where: str) -> list[str]:
    return [f"({count} more line{'s' if count > 1 else ''} {where})"] if count > 0 else []
