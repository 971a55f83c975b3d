"""Comparisons, the data of a reward model: several responses to one prompt, and which is the best.

Two kinds of rows are read, from JSON lines, JSON, parquet, a folder of `datasets.save_to_disk`, or the hub:

- pairs: `chosen` and `rejected`, and `prompt` where there is one. Each is a text or a list of messages
  in the OpenAI format; two lists share all but their last message, the assistant's.
- one best of K: `query`, `sample0`, `sample1`, ... and `best`, the number of the best sample.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from palaestra.core.errors import SettingsError, TaskError
from palaestra.core.records import Message, Role
from palaestra.core.seeding import Seeds
from palaestra.tasks.sources import (
    ENDINGS,
    LINES,
    Rows,
    abbreviate,
    file_rows,
    hub_rows,
    is_hub_id,
    is_saved,
    read_saved_rows,
)

EXPECTED = "'chosen' and 'rejected', or 'query', 'sample0', 'sample1', ... and 'best'"

Prompt = str | tuple[Message, ...]
"""A text, or a conversation that a response goes on with; empty where there is none."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Responses to one prompt, of which one is the best.

    >>> Comparison("2 + 2 =", (" 5", " 4"), best=1).responses[1]
    ' 4'
    """

    prompt: Prompt
    responses: tuple[str, ...]
    best: int

    def __post_init__(self) -> None:
        if len(self.responses) < 2:
            raise TaskError(f"expected at least 2 responses to compare; got {len(self.responses)}")
        if not 0 <= self.best < len(self.responses):
            raise TaskError(f"expected 'best' from 0 to {len(self.responses) - 1}; got {self.best}")

    @property
    def decidable(self) -> bool:
        """Whether the best response is unlike all others: nothing can be learned from the rest."""
        return self.responses.count(self.responses[self.best]) == 1


def read_comparisons(source: str | Path) -> list[Comparison]:
    """All comparisons of a file, a folder or a dataset on the hub.

    Arguments:
        source: a `.jsonl`, `.jsonl.gz`, `.json` or `.parquet` file; a folder with JSON lines or made by
            `datasets.save_to_disk`; or a hub id such as `owner/name`, of which `train` is read.

    Raises:
        SettingsError: there is nothing of that name.
        TaskError: it cannot be read, or a row is no comparison; the message names the file and the row.
        MissingExtraError: `datasets` is needed and not installed.
    """
    comparisons = [comparison_of(row, where) for where, row in _rows(str(source))]
    if not comparisons:
        raise TaskError(f"{source} holds no comparisons; expected rows with {EXPECTED}")
    return comparisons


def comparison_of(row: Mapping[str, Any], where: str = "row") -> Comparison:
    """One row as a comparison; `where` names it in errors."""
    try:
        if "chosen" in row or "rejected" in row:
            return _pair(row)
        if "best" in row or "sample0" in row:
            return _best_of_k(row)
        raise TaskError(f"expected the fields {EXPECTED}; got {', '.join(map(str, row)) or 'none'}")
    except TaskError as error:
        raise TaskError(f"{where}: {error}") from None


def split_comparisons(
    comparisons: Sequence[Comparison], share: float, seeds: Seeds
) -> tuple[list[Comparison], list[Comparison]]:
    """Two parts, of which the second holds about `share` of the comparisons.

    The side is drawn from a hash of the prompt (of the responses where there is none): a prompt is
    never on both sides, and the order of the rows does not matter.

    Raises:
        TaskError: there are fewer than two different prompts.
    """
    groups: dict[str, list[int]] = {}
    for index, comparison in enumerate(comparisons):
        groups.setdefault(_key(comparison), []).append(index)
    if len(groups) < 2:
        raise TaskError(
            f"{len(comparisons)} comparisons with {len(groups)} different prompts cannot be split: a prompt may "
            "not be on both sides; expected at least 2"
        )
    salt = str(seeds.integer())
    order = sorted(groups, key=lambda key: hashlib.blake2b(f"{salt}/{key}".encode(), digest_size=16).digest())
    wanted = max(1, round(share * len(comparisons)))
    held: set[int] = set()
    for key in order:
        if len(held) + len(groups[key]) <= wanted:
            held.update(groups[key])
    if not held:
        held.update(groups[min(order, key=lambda key: len(groups[key]))])
    if len(held) == len(comparisons):
        held.difference_update(groups[order[0]])
    return (
        [c for index, c in enumerate(comparisons) if index not in held],
        [c for index, c in enumerate(comparisons) if index in held],
    )


def _key(comparison: Comparison) -> str:
    if isinstance(comparison.prompt, str):
        said: list[Any] = [comparison.prompt] if comparison.prompt else []
    else:
        said = [[message.role, message.text] for message in comparison.prompt]
    return json.dumps(["prompt", said] if said else ["responses", sorted(comparison.responses)])


def _pair(row: Mapping[str, Any]) -> Comparison:
    for name in ("chosen", "rejected"):
        if row.get(name) is None:
            raise TaskError(f"expected 'chosen' and 'rejected'; '{name}' is missing")
    chosen, rejected, prompt = row["chosen"], row["rejected"], _prompt(row.get("prompt"), "prompt")
    if isinstance(chosen, str) and isinstance(rejected, str):
        return Comparison(prompt, (chosen, rejected), 0)
    if isinstance(chosen, str) or isinstance(rejected, str):
        raise TaskError("expected 'chosen' and 'rejected' to be two texts or two lists of messages; got one of each")
    good, bad = _answered(chosen, prompt, "chosen"), _answered(rejected, prompt, "rejected")
    if good[0] != bad[0]:
        raise TaskError("expected 'chosen' and 'rejected' to share all messages but the last; they differ before it")
    return Comparison(good[0], (good[1], bad[1]), 0)


def _answered(value: Any, prompt: Prompt, name: str) -> tuple[Prompt, str]:
    """The conversation before the last message, and the text of that."""
    messages = _messages(value, name)
    if not messages or messages[-1].role != "assistant":
        raise TaskError(f"expected '{name}' to end with a message of the assistant; got {abbreviate(value)}")
    before, said = messages[:-1], messages[-1].text
    if not before:
        return prompt, said
    # Some datasets repeat the prompt at the head of both lists, some as a text beside them.
    if isinstance(prompt, str) or before[: len(prompt)] == prompt:
        return before, said
    return prompt + before, said


def _best_of_k(row: Mapping[str, Any]) -> Comparison:
    samples: list[str] = []
    while (sample := row.get(f"sample{len(samples)}")) is not None:
        if not isinstance(sample, str):
            raise TaskError(f"expected 'sample{len(samples)}' to be a text; got {abbreviate(sample)}")
        samples.append(sample)
    best = row.get("best")
    if not isinstance(best, int) or isinstance(best, bool):
        raise TaskError(f"expected 'best' to be the number of the best sample; got {abbreviate(best)}")
    return Comparison(_prompt(row.get("query"), "query"), tuple(samples), best)


def _prompt(value: Any, name: str) -> Prompt:
    if value is None or isinstance(value, str):
        return value or ""
    return _messages(value, name)


def _messages(value: Any, name: str) -> tuple[Message, ...]:
    if not isinstance(value, list | tuple):
        raise TaskError(f"expected '{name}' to be a text or a list of messages; got {abbreviate(value)}")
    messages = []
    for message in value:
        fine = isinstance(message, Mapping) and isinstance(message.get("content"), str)
        if not fine or message.get("role") not in get_args(Role):
            raise TaskError(
                f"expected messages in '{name}' with a 'content' that is a text and a 'role' of "
                f"{', '.join(get_args(Role))}; got {abbreviate(message)}"
            )
        messages.append(Message(message["role"], message["content"]))
    return tuple(messages)


def _rows(source: str) -> Rows:
    """Each row with its name for errors."""
    path = Path(source).expanduser()
    if path.is_file():
        return file_rows(path)
    if path.is_dir():
        if files := sorted(file for file in path.iterdir() if file.name.endswith(LINES)):
            return chain.from_iterable(map(file_rows, files))
        if is_saved(path):
            return read_saved_rows(path)
        raise SettingsError(
            f"the folder {source} holds no comparisons; expected JSON lines (.jsonl) or a dataset of save_to_disk"
        )
    if is_hub_id(source) and not source.endswith(ENDINGS):
        return hub_rows(source)
    raise SettingsError(f"there is no file or folder {source or '(empty)'} with comparisons, and it is no hub id")
