"""The journal of a teach run, and the export of its lessons as JSON Lines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import RunError
from palaestra.core.records import Attempt, Example, ImagePart, Message
from palaestra.runs.files import PARTIAL, write_folder, write_text
from palaestra.runs.ledger import LedgerEntry
from palaestra.runs.run import Run

if TYPE_CHECKING:
    from palaestra.learn.student import Student

LESSONS = "lessons.jsonl"


class RunJournal:
    """The journal of a lesson episode in a run folder; see `palaestra.envs.lesson.journal`.

    Arguments:
        keep_all: keep the weights of every round, not only those that may still be needed.
    """

    def __init__(self, run: Run, *, keep_all: bool = False) -> None:
        self.run, self.keep_all = run, keep_all

    def attempts(self, phase: str) -> list[Attempt]:
        return self.run.store.attempts(phase)

    def add_attempts(self, phase: str, attempts: Sequence[Attempt], cost: LedgerEntry) -> None:
        self.run.store.add_attempts(phase, attempts, cost)

    def weights_sha256(self, round_: int) -> str | None:
        return self.run.store.weights_sha256(round_)

    def add_training(
        self,
        round_: int,
        student: Student,
        curve: Sequence[tuple[int, float]],
        cost: LedgerEntry,
        needed: Collection[int] = (),
    ) -> None:
        # The weights are saved before the store records them. A kill in between repeats the training.
        write_folder(self._folder(round_), student.save)
        self.run.store.add_training(round_, student.weights_sha256(), curve, cost)
        self.tidy(round_, *needed)

    def tidy(self, *rounds: int) -> None:
        """Remove all weights except those of `rounds`, and the saved state of a finished training."""
        wanted = {self._folder(round_) for round_ in rounds}
        for folder in self.run.checkpoints.iterdir() if self.run.checkpoints.is_dir() else ():
            is_round = folder.name.startswith("round-") and not folder.name.endswith(PARTIAL)
            if folder not in wanted and not (self.keep_all and is_round):
                shutil.rmtree(folder, ignore_errors=True)

    def load(self, round_: int, student: Student) -> None:
        folder = self._folder(round_)
        if not folder.is_dir():
            raise RunError(
                f"the run folder is damaged: the checkpoint {folder} is missing; restore it or start a new run"
            )
        student.load(folder)
        if student.weights_sha256() != self.weights_sha256(round_):
            raise RunError(f"the run folder is damaged: the weights in {folder} were changed after they were saved")

    def progress_folder(self) -> Path | None:
        return self.run.checkpoints / "training"

    def _folder(self, round_: int) -> Path:
        return self.run.checkpoints / f"round-{round_}"


def write_lessons(run: Run) -> Path:
    """Write every example that was taught to `lessons.jsonl` in the run folder, one object per line. Returns its path.

    Each line has `messages` (roles and contents; the response is the last message of the assistant), `round`, `position`,
    `skill`, `subskill`, `reference`, and `metadata` as JSON text. All lines have the same fields with the same types, as
    column-based readers require. If any example has images, every content is a list of parts.
    """
    rows: list[tuple[int, int, Example]] = []
    for round_ in run.store.lesson_rounds():
        lesson = run.store.lesson(round_)
        rows += [(round_, position, example) for position, example in enumerate(lesson.examples if lesson else ())]
    messages = [message for _, _, example in rows for message in example.messages]
    in_parts = any(not isinstance(message.content, str) for message in messages)
    with_calls = any(message.tool_calls or message.tool_call_id for message in messages)
    lines = [
        json.dumps(
            {
                "messages": [
                    _to_plain(message, in_parts, with_calls)
                    for message in (*example.messages, Message("assistant", example.response))
                ],
                "round": round_,
                "position": position,
                "skill": example.skill,
                "subskill": example.subskill,
                "reference": example.reference,
                "metadata": json.dumps(dict(example.metadata), ensure_ascii=False, default=str),
            },
            ensure_ascii=False,
        )
        for round_, position, example in rows
    ]
    path = run.folder / LESSONS
    write_text(path, "".join(f"{line}\n" for line in lines))
    return path


def _to_plain(message: Message, in_parts: bool, with_calls: bool) -> dict[str, Any]:
    content: Any = message.content
    if in_parts:
        parts = message.content if not isinstance(message.content, str) else ()
        content = [
            {"type": "image", "text": None, "url": part.url}
            if isinstance(part, ImagePart)
            else {"type": "text", "text": part.text, "url": None}
            for part in parts
        ] or [{"type": "text", "text": message.text, "url": None}]
    plain = {"role": message.role, "content": content}
    if with_calls:
        plain["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
        plain["tool_call_id"] = message.tool_call_id
    return plain
