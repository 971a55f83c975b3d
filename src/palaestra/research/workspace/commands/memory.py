"""What an agent writes down for later: within the episode, and beyond it where the memory has a file."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import SettingsError
from palaestra.research.workspace.commands.base import Command, Parameter
from palaestra.runs.guard import storage_errors

if TYPE_CHECKING:
    from palaestra.research.workspace.commands.session import Session

LONGEST_KEY, LONGEST_TEXT, MOST = 200, 20_000, 1000
SHOWN = 10
"""Notes that one reading gives."""
BEGINNING = b'{"key": '
"""Of every line of a memory's file."""
_WORD = re.compile(r"\w+")


class Memory:
    """Notes by key; a new one takes the place of an old one with the same key.

    Arguments:
        path: a file of JSON lines that holds them; several sessions may share it. `None` keeps them in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._own: dict[str, str] = {}

    def write(self, key: str, text: str) -> None:
        """Keep a note.

        Raises:
            StorageError: the disk refused it.
        """
        if self.path is None:
            self._own.pop(key, None)
            self._own[key] = text
            return
        with storage_errors(self.path, "writing an agent's memory"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                # A line that was cut by a kill is ended first, so that it takes none with it.
                start = b"" if _ended(self.path) else b"\n"
                stream.write(start + json.dumps({"key": key, "text": text}).encode() + b"\n")

    def notes(self) -> dict[str, str]:
        """All notes, the oldest first."""
        if self.path is None:
            return dict(self._own)
        found: dict[str, str] = {}
        if not self.path.exists():
            return found
        for line in self.path.read_bytes().splitlines():
            note = _note(line)
            if note is not None:
                found.pop(note[0], None)
                found[note[0]] = note[1]
        return found

    def search(self, query: str) -> list[tuple[str, str]]:
        """The notes that share words with `query`, those with more and rarer ones first; the newest, without a query."""
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
    """Raise where notes cannot be kept, as what is there is something else.

    Raises:
        SettingsError: a folder is named, or a file that holds no note.
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
    cut = len(lines) == 1 and lines[0].startswith(BEGINNING) and not _ended(path)
    if lines and not cut and all(_note(line) is None for line in lines):
        raise SettingsError(f"the memory {path} is a file of something else: no line of it is a note")


def _note(line: bytes) -> tuple[str, str] | None:
    """Key and text of a note; `None` of a line that is none."""
    try:
        note = json.loads(line)
        return str(note["key"]), str(note["text"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _ended(path: Path) -> bool:
    with open(path, "rb") as stream:
        if stream.seek(0, os.SEEK_END) == 0:
            return True
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("_", " "))


def _write(session: Session, arguments: Mapping[str, Any]) -> str:
    key, text = arguments["key"].strip(), arguments["text"]
    if not key or len(key) > LONGEST_KEY:
        raise MEMORY_WRITE.error(f"KEY is a word of at most {LONGEST_KEY} characters; got {len(key)}")
    if len(text) > LONGEST_TEXT:
        raise MEMORY_WRITE.error(f"TEXT has at most {LONGEST_TEXT} characters; got {len(text)}")
    notes = session.memory.notes()
    if len(notes) >= MOST and key not in notes:
        raise MEMORY_WRITE.error(f"the memory is full ({MOST} notes); write over a key that is there")
    session.memory.write(key, text)
    return f"{'Changed' if key in notes else 'Kept'} the note '{key}'. There {'is' if len(notes | {key: ''}) == 1 else 'are'} {len(notes | {key: ''})} in memory."


def _read(session: Session, arguments: Mapping[str, Any]) -> str:
    query = arguments.get("query", "")
    found = session.memory.search(query)
    if not found:
        total = len(session.memory.notes())
        if not total:
            return "The memory is empty. Write to it with: memory_write KEY TEXT"
        return f"None of the {total} notes shares a word with '{query}'. Without a query memory_read shows the newest."
    lines = [f"[{key}]\n{text}" for key, text in found[:SHOWN]]
    if len(found) > SHOWN:
        more = [key for key, _ in found[SHOWN:]]
        names = ", ".join(more[:50]) + (", ..." if len(more) > 50 else "")
        lines.append(f"({len(more)} more: {names})")
    return "\n".join(lines)


MEMORY_WRITE = Command(
    "memory_write",
    _write,
    "Write a note down under a key, to be read later, also when the conversation has grown too long to see. A note with "
    "the same key is replaced.",
    (
        Parameter("key", "one word that names the note"),
        Parameter("text", "the note, of any number of lines", rest=True),
    ),
    "memory_write best_so_far two hidden layers of 64, learning rate 0.003: validation 0.871",
)
MEMORY_READ = Command(
    "memory_read",
    _read,
    "Show the notes whose key or text shares words with the query, the best first; without a query, the newest.",
    (Parameter("query", "words to look for", required=False, rest=True),),
    "memory_read learning rate",
)
