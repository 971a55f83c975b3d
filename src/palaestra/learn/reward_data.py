"""Comparisons, the data of a reward model: several responses to one prompt, and which is the best.

Two kinds of rows are read, from JSON lines, JSON, a folder of `datasets.save_to_disk`, or the hub:

- pairs: `chosen` and `rejected`, and `prompt` where there is one. Each is a text or a list of messages
  in the OpenAI format; two lists share all but their last message, the assistant's.
- one best of K: `query`, `sample0`, `sample1`, ... and `best`, the number of the best sample.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from palaestra.core.errors import MissingExtraError, SettingsError, TaskError
from palaestra.core.records import Message, Role
from palaestra.core.seeding import Seeds

LINES = (".jsonl", ".jsonl.gz")
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
        source: a `.jsonl`, `.jsonl.gz` or `.json` file; a folder with JSON lines or made by
            `datasets.save_to_disk`; or a hub id such as `owner/name`, of which `train` is read.

    Raises:
        SettingsError: there is nothing of that name, or it cannot be opened.
        TaskError: a row is no comparison; the message names the file and the row.
        MissingExtraError: `datasets` is needed and not installed.
    """
    comparisons = [comparison_of(row, where) for where, row in _rows(str(source))]
    if not comparisons:
        raise TaskError(f"{source} holds no comparisons; expected rows with {EXPECTED}")
    return comparisons


def comparison_of(row: Any, where: str = "row") -> Comparison:
    """One row as a comparison; `where` names it in errors."""
    try:
        if not isinstance(row, Mapping):
            raise TaskError(f"expected an object; got {_shown(row)}")
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
        raise TaskError(f"expected '{name}' to end with a message of the assistant; got {_shown(value)}")
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
            raise TaskError(f"expected 'sample{len(samples)}' to be a text; got {_shown(sample)}")
        samples.append(sample)
    best = row.get("best")
    if not isinstance(best, int) or isinstance(best, bool):
        raise TaskError(f"expected 'best' to be the number of the best sample; got {_shown(best)}")
    return Comparison(_prompt(row.get("query"), "query"), tuple(samples), best)


def _prompt(value: Any, name: str) -> Prompt:
    if value is None or isinstance(value, str):
        return value or ""
    return _messages(value, name)


def _messages(value: Any, name: str) -> tuple[Message, ...]:
    if not isinstance(value, list | tuple):
        raise TaskError(f"expected '{name}' to be a text or a list of messages; got {_shown(value)}")
    messages = []
    for message in value:
        fine = isinstance(message, Mapping) and isinstance(message.get("content"), str)
        if not fine or message.get("role") not in get_args(Role):
            raise TaskError(
                f"expected messages in '{name}' with a 'content' that is a text and a 'role' of "
                f"{', '.join(get_args(Role))}; got {_shown(message)}"
            )
        messages.append(Message(message["role"], message["content"]))
    return tuple(messages)


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _rows(source: str) -> Iterator[tuple[str, Any]]:
    """Each row with its name for errors."""
    path = Path(source).expanduser()
    if path.is_file():
        yield from _file_rows(path)
    elif path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(LINES))
        for file in files:
            yield from _file_rows(file)
        if not files:
            yield from _dataset_rows(source, saved=True)
    elif source.count("/") == 1 and not source.startswith((".", "/", "~")) and not path.suffix.startswith(".json"):
        yield from _dataset_rows(source, saved=False)
    else:
        raise SettingsError(f"there is no file or folder {source or '(empty)'} with comparisons, and it is no hub id")


def _file_rows(path: Path) -> Iterator[tuple[str, Any]]:
    if not path.name.endswith((*LINES, ".json")):
        raise SettingsError(f"cannot tell what {path} is; expected a name that ends with .jsonl, .jsonl.gz or .json")
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
            if path.suffix == ".json":
                yield from _array(path, file.read())
            else:
                yield from _lines(path, file)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise SettingsError(f"the file {path} cannot be read: {error}") from error


def _lines(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{path}, row {number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise TaskError(f"{where}: expected a JSON object; {error}") from error
            yield where, row


def _array(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise TaskError(f"{path}: expected a JSON list of objects (JSON lines end with .jsonl); {error}") from error
    if not isinstance(rows, list):
        raise TaskError(f"{path}: expected a JSON list of objects; got {_shown(rows)}")
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, start=1))


def _dataset_rows(source: str, saved: bool) -> Iterator[tuple[str, Any]]:
    if saved and not any((Path(source).expanduser() / name).exists() for name in ("dataset_dict.json", "state.json")):
        raise SettingsError(
            f"the folder {source} holds no comparisons; expected JSON lines (.jsonl) or a dataset of save_to_disk"
        )
    if find_spec("datasets") is None:
        raise MissingExtraError("datasets", "data", f"reading {source}")
    import datasets

    try:
        data = datasets.load_from_disk(str(Path(source).expanduser())) if saved else datasets.load_dataset(source)
    except Exception as error:  # datasets, pyarrow and the hub each raise their own.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SettingsError(f"cannot read the dataset {source}: {reason}") from error
    if isinstance(data, Mapping):
        if "train" not in data and len(data) != 1:
            raise SettingsError(f"the dataset {source} has no split 'train'; it has {', '.join(map(str, data))}")
        data = data["train"] if "train" in data else next(iter(data.values()))
    yield from ((f"{source}, row {number}", row) for number, row in enumerate(data, start=1))
