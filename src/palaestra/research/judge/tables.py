"""CSV tables: task data and submitted predictions.

A table task shows the rows of both splits without their targets, and the agent submits a prediction for each row. The
evaluator scores the rows of one split.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TypeVar

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.tasks.task import SubmissionError

_SUBMISSION = "submission.csv"
_HEADER = ("id", "prediction")
_SPLITS = ("validation", "test")
Value = TypeVar("Value")


def _write_table(path: Path, columns: Mapping[str, Sequence[object]]) -> None:
    """Write named columns of equal length as CSV; `None` becomes an empty field."""
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def write_right(hidden: Path, split: str, ids: Sequence[str], right: Sequence[object]) -> None:
    """Write the targets that `read_predictions` compares with."""
    _write_table(hidden / f"{split}.csv", dict(zip(_HEADER, (ids, right), strict=True)))


def write_splits(
    public: Path,
    hidden: Path,
    sizes: Mapping[str, int],
    ids: Sequence[str],
    table: Mapping[str, Sequence[object]],
    target: str,
    right: Sequence[object],
    taught: Callable[[slice], Sequence[object]],
) -> None:
    """Write a table by split: `train` with its target, the others without. Their targets go to `hidden`.

    Arguments:
        sizes: rows of each part, in this order.
        target: the name of the target column.
        taught: the targets of the training rows, which may contain label noise.
    """
    start = 0
    for split, size in sizes.items():
        rows = slice(start, start + size)
        start += size
        columns: dict[str, Sequence[object]] = {"id": ids[rows], **{name: v[rows] for name, v in table.items()}}
        if split == "train":
            columns[target] = taught(rows)
        else:
            write_right(hidden, split, ids[rows], right[rows])
        _write_table(public / f"{split}.csv", columns)


def read_predictions(evaluation: Evaluation, parse: Callable[[str], Value]) -> tuple[list[Value], list[Value]]:
    """Return the predictions and the targets of the evaluated split, in the same order.

    Arguments:
        parse: converts a field; raises `ValueError` with what was expected. Fields of both splits are checked, so that
            mistakes in the test rows are reported during validation.

    Raises:
        SubmissionError: the table does not have exactly one valid prediction per row of both splits.
    """
    right: dict[str, dict[str, str]] = {}
    for split in _SPLITS:
        with (evaluation.hidden / f"{split}.csv").open(encoding="utf-8", newline="") as lines:
            right[split] = {row["id"]: row["prediction"] for row in csv.DictReader(lines)}
    split_by_id = {name: split for split in _SPLITS for name in right[split]}
    predictions: dict[str, Value] = {}
    try:
        rows = list(csv.reader(StringIO(evaluation.text(_SUBMISSION).removeprefix("\ufeff"), newline="")))
    except csv.Error as error:
        raise SubmissionError(f"{_SUBMISSION} cannot be read as CSV: {error}") from None
    if not rows or tuple(field.strip() for field in rows[0]) != _HEADER:
        header = ",".join(rows[0])[:80] if rows else ""
        raise SubmissionError(f"the first line of {_SUBMISSION} must be '{','.join(_HEADER)}'; got {header!r}")
    for number, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        place = f"{_SUBMISSION}, row {number}"
        if len(row) != len(_HEADER):
            raise SubmissionError(f"{place}: expected {len(_HEADER)} fields, {' and '.join(_HEADER)}; got {len(row)}")
        name, text = (field.strip() for field in row)
        if name not in split_by_id:
            raise SubmissionError(f"{place}: there is no row with the id {name[:40]!r} in /data")
        if name in predictions:
            raise SubmissionError(f"{place}: the id {name!r} occurs twice; give one prediction per id")
        try:
            predictions[name] = parse(text)
        except ValueError as error:
            raise SubmissionError(f"{place}: expected {error}; got {text[:40]!r}") from None
    missing = [name for name in split_by_id if name not in predictions]
    if missing:
        raise SubmissionError(
            f"{_SUBMISSION} needs a prediction for every row of both splits, {len(split_by_id)} together; {len(missing)} are "
            f"missing, the first with the id {missing[0]!r}, of the {split_by_id[missing[0]]} split"
        )
    wanted = right[evaluation.split]
    return [predictions[name] for name in wanted], [parse(text) for text in wanted.values()]


def number(low: float = -math.inf, high: float = math.inf) -> Callable[[str], float]:
    """Return a parser of finite numbers within bounds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and low <= value <= high):
            raise ValueError(f"a number between {low:g} and {high:g}")
        return value

    return parse


def parse_label(labels: Sequence[str]) -> Callable[[str], str]:
    """Return a parser of labels."""

    def parse(text: str) -> str:
        if text not in labels:
            raise ValueError(f"one of {', '.join(labels)}")
        return text

    return parse
