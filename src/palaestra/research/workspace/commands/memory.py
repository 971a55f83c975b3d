"""The agent's memory: notes by key, in a file that several episodes may share."""

from __future__ import annotations

import fcntl
import json
import math
import re
from collections import Counter
from pathlib import Path

from palaestra.core.errors import SettingsError
from palaestra.runs.files import storage_errors

_BEGINNING = b'{"key": '
"""The beginning of every line of a memory file."""


class Memory:
    """Notes by key; a new note replaces the one with the same key.

    Arguments:
        path: a JSON Lines file for the notes, which several sessions may share. `None` keeps them in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._lines: list[bytes] = []

    def write(self, key: str, text: str) -> None:
        """Store a note.

        Raises:
            StorageError: the file cannot be written.
        """
        line = json.dumps({"key": key, "text": text}).encode()
        if self.path is None:
            self._lines.append(line)
            return
        with storage_errors(self.path, "writing an agent's memory"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                # A line that was cut by a kill is terminated first, so that this note is not appended to it.
                cut = not (self.path.read_bytes() or b"\n").endswith(b"\n")
                stream.write((b"\n" if cut else b"") + line + b"\n")

    def notes(self) -> dict[str, str]:
        """Return all notes, the oldest first."""
        lines = self._lines if self.path is None else _read_lines(self.path)
        notes: dict[str, str] = {}
        for key, text in filter(None, map(_parse_note, lines)):
            notes.pop(key, None)
            notes[key] = text
        return notes

    def search(self, query: str) -> list[tuple[str, str]]:
        """Return the notes that share words with `query`, those with more and rarer ones first; without a query, the
        newest first.
        """
        newest = list(reversed(self.notes().items()))
        if not query.strip():
            return newest
        words = {key: Counter(_split_words(f"{key} {text}")) for key, text in newest}
        spread = {word: sum(word in counts for counts in words.values()) for word in set(_split_words(query))}

        def weight(note: tuple[str, str]) -> float:
            counts = words[note[0]]
            shared = [word for word in spread if counts[word]]
            return sum((1 + math.log(counts[word])) * math.log(1 + len(newest) / spread[word]) for word in shared)

        return [note for note in sorted(newest, key=weight, reverse=True) if weight(note) > 0]


def check_memory(path: Path) -> None:
    """Raise if notes cannot be stored at a path.

    Raises:
        SettingsError: it is a folder, or a file without notes.
        StorageError: it cannot be read.
    """
    if path.is_dir():
        raise SettingsError(f"the memory must be a file; {path} is a folder")
    if not (above := next(folder for folder in path.parents if folder.exists())).is_dir():
        raise SettingsError(f"the memory must be a file in a folder; {above} is not a folder")
    with storage_errors(path, "reading an agent's memory"):
        lines = _read_lines(path)
    # The only line may have been cut by a kill.
    cut = len(lines) == 1 and lines[0].startswith(_BEGINNING)
    if lines and not cut and not any(map(_parse_note, lines)):
        raise SettingsError(f"the memory must be a file of notes; no line of {path} is a note")


def _read_lines(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().splitlines() if line.strip()] if path.exists() else []


def _parse_note(line: bytes) -> tuple[str, str] | None:
    """Return key and text of a note; `None` if the line is not a note."""
    try:
        note = json.loads(line)
        return str(note["key"]), str(note["text"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _split_words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower().replace("_", " "))
