"""The text files that a step changed, as unified diffs.

The files of the workspace are read before and after a step, so that changes by programs are found as well as those by
commands. Only small text files are compared.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import PurePosixPath
from typing import Literal

from palaestra.core.errors import SandboxError
from palaestra.core.text import clean_fields
from palaestra.sandbox.base import Shell

MOST_FILES = 200
"""Maximum files of a workspace that are compared; in a larger one, changes are not recorded."""
LARGEST = 64 << 10
"""Maximum bytes of a file that is compared."""
LONGEST = 64 << 10
"""Maximum characters of a diff."""
PATIENCE = 1.0
"""Maximum seconds for reading the files. A slower sandbox is not asked again in this episode."""
IGNORED = {"__pycache__", ".git", ".ipynb_checkpoints", ".pytest_cache", "node_modules"}

ChangeKind = Literal["created", "changed", "deleted"]


@dataclass(frozen=True, slots=True)
class FileChange:
    """The change of one file.

    Arguments:
        path: relative to the workspace.
        diff: a unified diff without its two lines of file names.
        missing: number of characters that were cut from the end of the diff.
    """

    path: str
    kind: ChangeKind
    diff: str
    missing: int = 0

    def __post_init__(self) -> None:
        clean_fields(self, "path", "diff")


class FileTracker:
    """Compares the text files of a workspace with those of the last time."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self._known: Mapping[str, str | None] | None = None
        self._too_slow = False

    def take_changes(self) -> tuple[FileChange, ...]:
        """Return the changes since the last call; none at the first call, and none if the files cannot be read."""
        if self._too_slow:
            return ()
        start = time.monotonic()
        try:
            before, self._known = self._known, self._read()
        except SandboxError:
            return ()
        self._too_slow = time.monotonic() - start > PATIENCE
        return compare_files(before, self._known) if before is not None and self._known is not None else ()

    def _read(self) -> dict[str, str | None] | None:
        """The texts by name; `None` for a file that is not a small text."""
        names = self.shell.list_files(MOST_FILES + 1)
        if len(names) > MOST_FILES:
            return None
        wanted = [name for name in names if not IGNORED.intersection(PurePosixPath(name).parts)]
        texts: dict[str, str | None] = dict.fromkeys(wanted)
        for name, content in self.shell.read_files(wanted, longest=LARGEST + 1).items():
            if len(content) <= LARGEST and b"\0" not in content:
                try:
                    texts[name] = content.decode()
                except UnicodeDecodeError:
                    continue  # Not a text.
        return texts


def compare_files(before: Mapping[str, str | None], after: Mapping[str, str | None]) -> tuple[FileChange, ...]:
    """Return the differences of two sets of files, by name. Files without a text on either side are left out.

    >>> compare_files({"a": "1\\n2\\n"}, {"a": "1\\n3\\n"})[0].diff
    '@@ -1,2 +1,2 @@\\n 1\\n-2\\n+3'
    """
    changes = []
    for path in sorted({**before, **after}):
        old, new = before.get(path, ""), after.get(path, "")
        if old is not None and new is not None and (old != new or (path in before) != (path in after)):
            kind: ChangeKind = "created" if path not in before else "deleted" if path not in after else "changed"
            diff = "\n".join(_diff_lines(old, new))
            changes.append(FileChange(path, kind, diff[:LONGEST], max(0, len(diff) - LONGEST)))
    return tuple(changes)


def _diff_lines(old: str, new: str) -> list[str]:
    first, second = (text.split("\n") for text in (old, new))
    # A final newline ends the last line and begins no other.
    for lines, text in ((first, old), (second, new)):
        if text.endswith("\n") or not text:
            lines.pop()
    lines = list(unified_diff(first, second, lineterm=""))[2:]
    if old and new and old.endswith("\n") != new.endswith("\n"):
        lines.append(f"\\ {'No newline' if old.endswith(chr(10)) else 'A newline'} at the end of the file")
    return lines
