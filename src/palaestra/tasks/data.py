"""A user's own data as a task: a file, a folder, or a dataset on the hub.

    make_task("questions.jsonl")
    make_task("exam.csv", question="Frage", answer="Antwort", scorer="contains")
    make_task("hf:openai/gsm8k:main", scorer="number")

**Rows** are JSON lines, JSON, CSV, TSV or parquet. Columns are recognized by their usual names (`COLUMNS`) or named by
options. Rows of TRL's formats are read as they are: a `prompt` is a text or a list of messages, with or without a
`completion`; `messages` end with the assistant's answer; of a preference pair the chosen response is the answer.

**Splits** come from a column `split`, from the files of a folder (`train.jsonl`, `test.csv`), or from a hash of the
question. The hash depends on the content alone: new rows move no old one. Near-duplicates are in the same split.

**Scoring**: see `palaestra.tasks.scorers`. `auto` is `code` for rows with tests, `choice` for rows with choices, `number` if
all answers are numbers, `math` if they contain LaTeX, and otherwise `exact`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, Field

from palaestra.core.errors import TaskError
from palaestra.core.records import Completion, Example, Failure, ImagePart, Message, Problem, Score, Split, TextPart
from palaestra.core.seeding import Seeds
from palaestra.core.settings import short_repr
from palaestra.tasks.base import EVERY, TaskHooks, UnusableError, check_skills, get_split
from palaestra.tasks.duplicates import find_near_duplicates
from palaestra.tasks.math.equivalence.compare import compare_numbers
from palaestra.tasks.rows import SPLITS, DataRow, RowReader, find_columns
from palaestra.tasks.scorers import LETTERS, TaskScorer, make_scorer
from palaestra.tasks.sources import (
    ENDINGS,
    HUB,
    Row,
    Rows,
    file_rows,
    folder_rows,
    has_split,
    hub_rows,
    is_saved,
    list_hub_splits,
)
from palaestra.tasks.texts import digest_texts
from palaestra.tasks.vision.pictures import Images

_MAX_BAD = 5
"""Maximum number of bad rows that an error message names."""
_HEAD = 100
"""Number of rows that are read to find the columns."""


class DataItem(NamedTuple):
    """A row with the id of its problem, and the key that near-duplicates share."""

    row: DataRow
    id: str
    content: str


class DataDatum(BaseModel):
    """What a language model writes for a lesson."""

    question: str = Field(
        description="one new question, in the form of the examples, with all that is needed to answer it"
    )
    response: str = Field(description="the full response, in the form of the examples")
    answer: str = Field(description="the final answer alone")


class DataTask(TaskHooks):
    """A task of a user's own data.

    Arguments:
        path: a file (`.jsonl`, `.jsonl.gz`, `.json`, `.csv`, `.tsv`, `.parquet`), a folder with such files or written by
            `datasets.save_to_disk`, or `hf:owner/name` or `hf:owner/name:config`.
        question, answer, messages, image, tests, choices, skill, subskill, split: names of columns; by default the usual ones.
            `split` may also be a split that gets all rows, for data that is only evaluated: test.
        scorer: see above; `exact`, `number`, `math`, `choice`, `regex`, `contains`, `json`, `code`, or
            `FILE.py:function`.
        template: the question as a text with columns in braces, for example `"{context}\\n\\n{question}"`.
        system: a system message before each question.
        max_tokens: maximum length of an answer.

    Raises:
        SettingsError: an option has an unusable value.
        TaskError: on first use, the data cannot be read, or rows are unusable; the message names them by line.
    """

    datum = DataDatum
    is_scored: bool = True
    """Whether responses are scored. Otherwise rows need no answer."""

    def __init__(
        self,
        path: str,
        question: str = "",
        answer: str = "",
        messages: str = "",
        image: str = "",
        tests: str = "",
        choices: str = "",
        skill: str = "",
        subskill: str = "",
        split: str = "",
        scorer: str = "auto",
        template: str = "",
        system: str = "",
        max_tokens: int = TaskHooks.max_tokens,
    ) -> None:
        self.path, self.template, self.system, self.max_tokens = str(path), template, system, max_tokens
        given = {
            "question": question, "answer": answer, "messages": messages, "image": image, "tests": tests, "choices": choices,
            "skill": skill, "subskill": subskill, "split": "" if split in tuple(Split) else split,
        }  # fmt: skip
        self._split = Split(split) if split in tuple(Split) else None
        self._named = {kind: name for kind, name in given.items() if name}
        self._scorer_name = scorer
        self._is_hub = self.path.startswith(HUB)
        title = self.path.removeprefix(HUB) if self._is_hub else Path(self.path).name.partition(".")[0]
        self.name = re.sub(r"[^\w.-]+", "-", title)
        if scorer != "auto":
            _ = self.scorer

    @property
    def concurrent_scoring(self) -> bool:  # type: ignore[override]
        return self.scorer.concurrent

    @cached_property
    def scorer(self) -> TaskScorer:
        """The scorer, chosen by the rows if it is `auto`."""
        return make_scorer(self.scorer_name)

    @cached_property
    def scorer_name(self) -> str:
        if self._scorer_name != "auto":
            return self._scorer_name
        rows = self.rows
        if all(row.tests for row in rows):
            return "code"
        if all(row.choices for row in rows):
            return "choice"
        answers = [row.answer for row in rows]
        if all(not isinstance(compare_numbers("0", answer), Failure) for answer in answers):
            return "number"
        return "math" if any("\\" in answer or "$" in answer for answer in answers) else "exact"

    @cached_property
    def columns(self) -> Mapping[str, str]:
        """The column of each kind that the data has."""
        values: dict[str, Any] = {}
        for _, _, row in islice(self._read(), _HEAD):
            values = {**row, **values}
        if not values:
            raise TaskError(f"{self.path} has no rows")
        return find_columns(self.path, values, self._named, self.template)

    @cached_property
    def _reader(self) -> RowReader:
        return RowReader(self.columns, "answer" in self._named, self.template, self.system)

    @cached_property
    def rows(self) -> list[DataRow]:
        """All rows.

        Raises:
            TaskError: some rows are unusable. The message names the first ones by line.
        """
        reader, rows, bad = self._reader, list[DataRow](), list[str]()
        for split, where, values in self._read():
            try:
                row = reader.read(where, split, values)
                if self._scorer_name == "regex":
                    re.compile(row.answer)
                if (
                    self._scorer_name == "number"
                    and row.answer
                    and isinstance(compare_numbers("0", row.answer), Failure)
                ):
                    raise ValueError(f"expected a number as the answer; got {short_repr(row.answer)}")
                rows.append(row)
            except (TaskError, ValueError, re.error) as error:
                bad.append(str(error) if str(error).startswith(where) else f"{where}: {error}")
        if bad:
            more = f"; and {len(bad) - _MAX_BAD} more" if len(bad) > _MAX_BAD else ""
            raise TaskError(
                f"{len(bad)} of {len(bad) + len(rows)} rows cannot be used: {'; '.join(bad[:_MAX_BAD])}{more}"
            )
        is_auto = self._scorer_name == "auto"
        needs_answers = not all(row.tests for row in rows) if is_auto else self.scorer.needs_answer
        without = [row.where for row in rows if not row.answer]
        if without and needs_answers and self.is_scored:
            raise TaskError(
                f"{without[0]}: there is no answer; name its column with answer=COLUMN, or score without one: "
                "scorer=FILE.py:function"
            )
        return rows

    @cached_property
    def items(self) -> Mapping[Split, Sequence[DataItem]]:
        """The rows by split, with their ids."""
        keys = find_near_duplicates(
            [f"{row.text} {row.image}" if isinstance(row.image, str) else row.text for row in self.rows]
        )
        has_validation = any(row.split is Split.VALIDATION for row in self.rows)
        seen: Counter[str] = Counter()
        items: dict[Split, list[DataItem]] = {split: [] for split in Split}
        for row, key in zip(self.rows, keys, strict=True):
            split = self._split or row.split or get_split(key)
            if (
                not self._split and row.split is Split.TRAIN and not has_validation
            ):  # As for published data sets: a part of train.
                split = Split.VALIDATION if get_split(key) is Split.VALIDATION else Split.TRAIN
            name = digest_texts(row.text)[:12]
            seen[name] += 1
            number = f"-{seen[name]}" if seen[name] > 1 else ""
            items[split].append(DataItem(row, f"{self.name}/{name}{number}", key))
        return items

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        skills: dict[str, dict[str, None]] = {}
        for row in self.rows:
            parts = skills.setdefault(row.skill, {})
            if row.subskill:
                parts[row.subskill] = None
        return {skill: tuple(parts) for skill, parts in sorted(skills.items())}

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        """`per_skill` problems of each skill; all that it has if these are fewer, because skills of own data are uneven."""
        check_skills(self, skills)
        problems: list[Problem] = []
        for skill in skills or self.skills():
            own = [item for item in self.items[split] if item.row.skill == skill]
            order = Seeds(seed).derive(self.name, split, skill).generator().permutation(len(own)).tolist()
            chosen = order if per_skill == EVERY else order[:per_skill]
            problems += [self._make_problem(own[place]) for place in chosen]
        return problems

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        return self.scorer(completion.text, problem)

    def check_scoring(self) -> None:
        self.scorer.check(list(dict.fromkeys(name for row in self.rows for name in row.columns)))

    def get_shots(self, skill: str, count: int) -> list[Example]:
        return [self._make_example(row) for row in self._list_worked() if row.skill == skill][:count]

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        """`count` rows of TRAIN with their responses, in random order. They repeat once all are used."""
        rows = [row for row in self._list_worked() if row.skill == skill and subskill in ("", row.subskill)]
        if not rows:
            raise TaskError(
                f"{self.path} has no train rows of {f'{skill} {subskill}'.strip()} with a response to learn"
            )
        examples: list[Example] = []
        while len(examples) < count:
            examples += [self._make_example(rows[int(place)]) for place in generator.permutation(len(rows))]
        return examples[:count]

    def brief(self) -> str:
        rows = self._list_worked()[:3]
        shown = "\n\n".join(f"Question: {row.text}\nResponse: {self._response(row)}" for row in rows)
        return f"Questions and responses in the form of these examples.\n\n{shown}"

    def make_example(self, datum: DataDatum, skill: str, subskill: str) -> Example:
        if not datum.question.strip() or not datum.response.strip():
            raise UnusableError("the question or the response is empty")
        return Example(
            self._reader.ask(datum.question.strip()), datum.response.strip(), skill, subskill, datum.answer.strip()
        )

    def to_problem(self, example: Example) -> Problem | None:
        if not example.reference:
            return None
        known = {name: value for name, value in example.metadata.items() if name in ("choices", "other_answers")}
        return Problem("written", example.messages, example.reference, example.skill, metadata=known)

    def _read(self) -> Iterator[tuple[Split | None, str, Row]]:
        """All rows, with the split of their file."""
        tables = self._list_tables()
        for name, rows in tables.items():
            split = SPLITS[name] if len(tables) > 1 else None
            yield from ((split, where, row) for where, row in rows)

    def _list_tables(self) -> Mapping[str, Rows]:
        """The rows of each published split; of one without a name if there are no splits."""
        if self._is_hub:
            hub, _, config = self.path.removeprefix(HUB).partition(":")
            names = list_hub_splits(hub, config)
            known = [name for name in names if name.lower() in SPLITS]
            return {name.lower(): hub_rows(hub, config, name) for name in known or names[:1]}
        path = Path(self.path).expanduser()
        if not path.exists():
            raise TaskError(f"the file {path} does not exist")
        if not path.is_dir():
            return {"": file_rows(path)}
        names = [] if (path / "state.json").is_file() else [name for name in SPLITS if has_split(path, name)]
        if names:
            return {name: folder_rows(path, name) for name in names}
        if is_saved(path):
            return {"": folder_rows(path)}
        files = [file for file in sorted(path.iterdir()) if file.name.endswith(ENDINGS)]
        if len(files) != 1:
            raise TaskError(
                f"the folder {path} has no splits and {len(files)} files of data; expected train.jsonl, test.csv, ..., "
                "or one file"
            )
        return {"": file_rows(files[0])}

    @cached_property
    def _images(self) -> Images:
        folder = Path(self.path).expanduser()
        return Images(None if self._is_hub else folder if folder.is_dir() else folder.parent)

    def _add_images(self, row: DataRow) -> tuple[Message, ...]:
        """The messages of a row with its images before the last question. They are read only for the problems of a run."""
        if row.image is None or row.image == []:
            return row.messages
        stored = row.image if isinstance(row.image, list) else [row.image]
        images = [ImagePart(self._images.url(image, row.where)) for image in stored]
        *earlier, last = row.messages
        return (*earlier, replace(last, content=(*images, TextPart(last.text))))

    def _make_problem(self, item: DataItem) -> Problem:
        row = item.row
        # The values that a store can keep.
        plain = {k: v for k, v in row.columns.items() if isinstance(v, str | int | float | bool | list | dict | None)}
        metadata: dict[str, Any] = {"content": item.content, "row": plain}
        extra = {"other_answers": list(row.others), "choices": list(row.choices), "tests": row.tests}
        metadata |= {name: value for name, value in extra.items() if value}
        return Problem(item.id, self._add_images(row), row.answer, row.skill, row.subskill, metadata)

    def _list_worked(self) -> list[DataRow]:
        """The train rows with a response to learn, in a fixed order."""
        rows = [item.row for item in self.items[Split.TRAIN] if item.row.response]
        return sorted(rows, key=lambda row: digest_texts(row.text))

    def _response(self, row: DataRow) -> str:
        if row.choices and row.response in row.choices:
            return LETTERS[row.choices.index(row.response)]
        return row.response

    def _make_example(self, row: DataRow) -> Example:
        values = {"rejected": row.rejected, "choices": list(row.choices), "other_answers": list(row.others)}
        metadata = {name: value for name, value in values.items() if value}
        return Example(self._add_images(row), self._response(row), row.skill, row.subskill, row.answer, metadata)


def name_data(path: str) -> Callable[..., DataTask]:
    """The function that makes the task of a path."""
    return partial(DataTask, path)
