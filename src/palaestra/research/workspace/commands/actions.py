"""Commands that open no file: bash, validate, submit, memory_write, memory_read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palaestra.research.workspace.commands.base import Command, CommandParameter, CommandResult
from palaestra.research.workspace.commands.session import Session

LONGEST_KEY, LONGEST_TEXT, MOST_NOTES = 200, 20_000, 1000
SHOWN = 10
"""The maximum number of notes in one answer; of the others only the keys are shown."""


def _bash(session: Session, arguments: Mapping[str, Any]) -> CommandResult:
    return session.run_bash(arguments["command"].replace("\r\n", "\n"))


def _validate(session: Session, arguments: Mapping[str, Any]) -> str | CommandResult:
    return session.hooks.validate()


def _submit(session: Session, arguments: Mapping[str, Any]) -> str | CommandResult:
    return session.hooks.submit()


def _write_note(session: Session, arguments: Mapping[str, Any]) -> str:
    key, text = arguments["key"].strip(), arguments["text"]
    if not key or len(key) > LONGEST_KEY or len(text) > LONGEST_TEXT:
        raise MEMORY_WRITE.error(
            f"KEY has 1 to {LONGEST_KEY} characters and TEXT at most {LONGEST_TEXT}; got {len(key)} and {len(text)}"
        )
    notes = session.memory.notes()
    if len(notes) >= MOST_NOTES and key not in notes:
        raise MEMORY_WRITE.error(f"the memory is full ({MOST_NOTES} notes); replace a note by using its key")
    session.memory.write(key, text)
    return f"{'Replaced' if key in notes else 'Stored'} the note '{key}'. Notes in memory: {len({*notes, key})}."


def _read_notes(session: Session, arguments: Mapping[str, Any]) -> str:
    query = arguments.get("query", "")
    notes = session.memory.search(query)
    if not notes:
        total = len(session.memory.notes())
        if not total:
            return "The memory is empty. Write to it with: memory_write KEY TEXT"
        return f"None of the {total} notes shares a word with '{query}'. Without a query memory_read shows the newest."
    lines = [f"[{key}]\n{text}" for key, text in notes[:SHOWN]]
    if len(notes) > SHOWN:
        lines.append(f"({len(notes) - SHOWN} more: {', '.join(key for key, _ in notes[SHOWN:][:50])})")
    return "\n".join(lines)


BASH = Command(
    "bash",
    _bash,
    "Run a text with bash, in a shell that stays: the current folder, variables and background processes are kept for the "
    "next command. Nothing is typed into it, so programs that wait for input do not work. A command that exceeds the time limit "
    "is ended.",
    (CommandParameter("command", "what bash is to run, of any number of lines"),),
    "python train.py --epochs 3 2>&1 | tail -n 20",
    textual=False,
)
VALIDATE = Command(
    "validate",
    _validate,
    "Have your work as it is now scored on the validation data, and go on. How often this can be done is limited.",
)
SUBMIT = Command("submit", _submit, "Hand your work in as it is now. It is scored, and the episode ends.")
MEMORY_WRITE = Command(
    "memory_write",
    _write_note,
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
    _read_notes,
    "Show the notes whose key or text shares words with the query, the best first; without a query, the newest.",
    (CommandParameter("query", "words to look for", required=False, rest=True),),
    "memory_read learning rate",
)
