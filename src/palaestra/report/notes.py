"""The name and the notes that the user gave a run. They are in `notes.json` of its folder, apart from what the run writes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from palaestra.core.errors import RunError
from palaestra.core.records import Values
from palaestra.runs.files import check_own_file, read_json, write_json

NOTES = "notes.json"
MAX_NAME, MAX_NOTES = 200, 20_000
"""Maximum characters of a name, and of notes."""


@dataclass(frozen=True, slots=True)
class RunNotes:
    """The name of a run, and notes about it."""

    name: str = ""
    text: str = ""


def read_notes(folder: Path, settings: Values | None = None) -> RunNotes:
    """Read the name and the notes of a run. Until they are changed, the name is that of its settings.

    Raises:
        RunError: `notes.json` is damaged.
    """
    if not (folder / NOTES).exists() and not (folder / NOTES).is_symlink():
        return RunNotes(str((settings or {}).get("name", "")))
    stored = read_json(folder / NOTES)
    if not isinstance(stored, dict) or not all(isinstance(stored.get(name), str) for name in ("name", "text")):
        raise RunError(f"{folder / NOTES} has no name or no text; delete it to continue without them")
    return RunNotes(stored["name"][:MAX_NAME], stored["text"][:MAX_NOTES])


def write_notes(folder: Path, notes: RunNotes) -> None:
    """Write the name and the notes of a run, in one step. Secrets are masked.

    Raises:
        RunError: one of them is too long, or the folder has no run.
        StorageError: the file cannot be written, or is not the run's own.
    """
    for title, text, most in (("name", notes.name, MAX_NAME), ("notes", notes.text, MAX_NOTES)):
        if len(text) > most:
            raise RunError(f"the {title} of a run may have at most {most} characters; got {len(text)}")
    check_own_file(folder / NOTES)
    write_json(folder / NOTES, asdict(notes))
