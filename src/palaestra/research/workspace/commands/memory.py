"""The agent's notes, for one episode or, with a file, across episodes."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
from collections import Counter
from pathlib import Path

from palaestra.core.errors import SettingsError
from palaestra.runs.guard import storage_errors

LONGEST_KEY, LONGEST_TEXT, MOST = 200, 20_000, 1000
SHOWN = 10
"""The maximum number of notes in one answer."""
BEGINNING = b'{"key": '
"""The beginning of every line of a memory file."""
_WORD = re.compile(r"\w+")


class Memory:
    """Notes by key; a new note replaces the one with the same key.

    Arguments:
        path: a JSON Lines file for the notes, which several sessions may share. `None` keeps them in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._own: dict[str, str] = {}

    def write(self, key: str, text: str) -> None:
        """Store a note.

        Raises:
            StorageError: the file cannot be written.
        """
        if self.path is None:
            self._own.pop(key, None)
            self._own[key] = text
            return
        with storage_errors(self.path, "writing an agent's memory"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                # A line that was cut by a kill is ended first, so that it does not swallow this one.
                start = b"" if _ends_with_newline(self.path) else b"\n"
                stream.write(start + json.dumps({"key": key, "text": text}).encode() + b"\n")

    def notes(self) -> dict[str, str]:
        """Return all notes, the oldest first."""
        if self.path is None:
            return dict(self._own)
        notes: dict[str, str] = {}
        if not self.path.exists():
            return notes
        for line in self.path.read_bytes().splitlines():
            note = _note(line)
            if note is not None:
                notes.pop(note[0], None)
                notes[note[0]] = note[1]
        return notes

    def search(self, query: str) -> list[tuple[str, str]]:
        """Return the notes that share words with `query`, those with more and rarer ones first; without a query, the
        newest first.
        """
        notes = self.notes()
        if not query.strip():
            return list(reversed(notes.items()))
        words = {key: Counter(_words(f"{key} {text}")) for key, text in notes.items()}
        wanted = set(_words(query))
        spread = {word: sum(word in counts for counts in words.values()) for word in wanted}

        def weight(key: str) -> float:
            counts = words[key]
            return sum(
                (1 + math.log(counts[word])) * math.log(1 + len(notes) / spread[word])
                for word in wanted
                if counts[word]
            )

        newest = list(reversed(notes.items()))
        newest.sort(key=lambda note: -weight(note[0]))
        return [note for note in newest if weight(note[0]) > 0]


def check_memory(path: Path) -> None:
    """Raise if notes cannot be stored at a path.

    Raises:
        SettingsError: it is a folder, or a file without notes.
        StorageError: it cannot be read.
    """
    if path.is_dir():
        raise SettingsError(f"the memory is a file; {path} is a folder")
    above = next(folder for folder in path.parents if folder.exists())
    if not above.is_dir():
        raise SettingsError(f"the memory is a file in a folder; {above} is none")
    with storage_errors(path, "reading an agent's memory"):
        lines = [line for line in path.read_bytes().splitlines() if line.strip()] if path.exists() else []
    # The only line may have been cut by a kill.
    cut = len(lines) == 1 and lines[0].startswith(BEGINNING) and not _ends_with_newline(path)
    if lines and not cut and all(_note(line) is None for line in lines):
        raise SettingsError(f"the memory {path} is a file of something else: no line of it is a note")


def _note(line: bytes) -> tuple[str, str] | None:
    """Return key and text of a note; `None` if the line is not a note."""
    try:
        note = json.loads(line)
        return str(note["key"]), str(note["text"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as stream:
        if stream.seek(0, os.SEEK_END) == 0:
            return True
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("_", " "))
