"""Commands that write and search the agent's notes: memory_write, memory_read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palaestra.research.workspace.commands.base import Command, CommandParameter
from palaestra.research.workspace.commands.memory import LONGEST_KEY, LONGEST_TEXT, MOST, SHOWN
from palaestra.research.workspace.commands.session import Session


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
    notes = session.memory.search(query)
    if not notes:
        total = len(session.memory.notes())
        if not total:
            return "The memory is empty. Write to it with: memory_write KEY TEXT"
        return f"None of the {total} notes shares a word with '{query}'. Without a query memory_read shows the newest."
    lines = [f"[{key}]\n{text}" for key, text in notes[:SHOWN]]
    if len(notes) > SHOWN:
        more = [key for key, _ in notes[SHOWN:]]
        names = ", ".join(more[:50]) + (", ..." if len(more) > 50 else "")
        lines.append(f"({len(more)} more: {names})")
    return "\n".join(lines)


MEMORY_WRITE = Command(
    "memory_write",
    _write,
    "Write a note down under a key, to be read later, also when the conversation has grown too long to see. A note with "
    "the same key is replaced.",
    (
        CommandParameter("key", "one word that names the note"),
        CommandParameter("text", "the note, of any number of lines", rest=True),
    ),
    "memory_write best_so_far two hidden layers of 64, learning rate 0.003: validation 0.871",
)
MEMORY_READ = Command(
    "memory_read",
    _read,
    "Show the notes whose key or text shares words with the query, the best first; without a query, the newest.",
    (CommandParameter("query", "words to look for", required=False, rest=True),),
    "memory_read learning rate",
)
