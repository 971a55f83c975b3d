"""Rows of a user's data as questions: which column has what, and what each row asks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from palaestra.core.errors import SettingsError, TaskError, UnknownNameError
from palaestra.core.records import Message, Split, Values
from palaestra.core.settings import short_repr
from palaestra.core.tables import load_table
from palaestra.engines.openai_format import parse_message
from palaestra.tasks.math.extraction import Evidence, extract_worked
from palaestra.tasks.scorers import LETTERS, read_tests
from palaestra.tasks.sources import Row

_TABLE = load_table(__file__, "columns")
COLUMNS: Mapping[str, Sequence[str]] = _TABLE["columns"]
"""The usual names of each kind of column, the most specific first."""
SPLITS = {name: Split(split) for name, split in _TABLE["splits"].items()}
_ONE_SKILL = "questions"
_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class DataRow:
    """A row as a question.

    Arguments:
        messages: the conversation that the model continues.
        answer: the final answer; `others` are correct as well.
        response: the response to learn, with its reasoning; empty if there is none.
        split: from a column or a file; `None` if it is decided by the hash.
        columns: the values of the row, for templates and scorers.
    """

    where: str
    messages: tuple[Message, ...]
    answer: str
    others: tuple[str, ...]
    response: str
    skill: str
    subskill: str
    split: Split | None
    choices: tuple[str, ...]
    tests: Any
    image: Any
    columns: Row

    @property
    def text(self) -> str:
        return "\n".join(message.text for message in self.messages)

    @property
    def rejected(self) -> str:
        """The rejected response of a preference pair; empty if the row has none."""
        value = self.columns.get("rejected")
        return parse_message(value[-1]).text if _is_chat(value) else _to_text(value)


def find_columns(path: str, row: Row, named: Mapping[str, str], template: str) -> Mapping[str, str]:
    """The column of each kind that the data has.

    Arguments:
        row: the columns, each with a value.
        named: the columns that the user names, by kind.

    Raises:
        UnknownNameError: a named column does not exist.
        TaskError: no column has the question.
    """
    for kind, name in named.items():
        if name not in row:
            raise UnknownNameError(f"column of {path} ({kind}=)", name, list(row))
    columns = dict(named)
    for kind, usual in COLUMNS.items():
        free = [name for name in usual if name in row and name not in columns.values()]
        if kind not in columns and free:
            columns[kind] = free[0]
    if "question" in named and "messages" not in named:
        columns.pop("messages", None)
    if not ({"question", "messages"} & set(columns) or _is_chat(row.get("chosen")) or template):
        raise TaskError(
            f"{path} has no question: expected a column {', '.join(COLUMNS['question'])} or messages, or question=COLUMN; "
            f"it has {', '.join(row)}"
        )
    return columns


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads rows as questions.

    Arguments:
        columns: the column of each kind.
        has_answers: whether the user names the column of the answers, which then counts before the end of a conversation.
        template: see `DataTask`; `system` too.
    """

    columns: Mapping[str, str]
    has_answers: bool
    template: str
    system: str

    def read(self, where: str, split: Split | None, row: Row) -> DataRow:
        """The question of a row; raises `ValueError` if it has none, or its values have another form."""
        values: dict[str, Any] = {kind: row.get(name) for kind, name in self.columns.items()}
        messages, response = self._read_messages(values, row)
        given = values.get("answer")
        if given is None or (values.get("messages") is not None and not self.has_answers):
            given = response
        if _is_chat(given):
            given = parse_message(given[-1]).text
        answer, *others = [_to_text(entry) for entry in (given if isinstance(given, list) and given else [given])]
        response = response or answer
        final = extract_worked(answer)
        if final is not None and final.evidence in (Evidence.BOXED, Evidence.HASHES):
            answer = final.text
        choices, answer = _read_choices(values.get("choices"), answer)
        if (tests := values.get("tests")) is not None:
            read_tests(tests)
        if (name := values.get("split")) is not None:
            if str(name).lower() not in SPLITS:
                raise ValueError(f"expected a split of {', '.join(SPLITS)}; got {short_repr(name)}")
            split = SPLITS[str(name).lower()]
        return DataRow(
            where=where,
            messages=messages,
            answer=answer,
            others=tuple(others),
            response=response,
            skill=_to_text(values.get("skill")) or _ONE_SKILL,
            subskill=_to_text(values.get("subskill")),
            split=split,
            choices=choices,
            tests=tests,
            image=values.get("image"),
            columns=row,
        )

    def ask(self, question: str) -> tuple[Message, ...]:
        """The messages of a question."""
        system = (Message("system", self.system),) if self.system else ()
        return (*system, Message("user", question))

    def _read_messages(self, values: Values, row: Row) -> tuple[tuple[Message, ...], str]:
        """The conversation that the model continues, and the response at its end, if it has one."""
        chat = values.get("messages")
        if chat is None:
            usual = values["question"] if "question" in values else row.get("chosen")
            chat = usual if _is_chat(usual) else None
        if chat is None:
            return self.ask(self._write_question(values, row)), ""
        if not _is_chat(chat):
            raise ValueError(f"expected a list of messages with role and content; got {short_repr(chat)}")
        messages = [parse_message(entry) for entry in chat]
        response = messages.pop().text if messages[-1].role == "assistant" else ""
        if not messages:
            raise ValueError("expected a message before the assistant's")
        if self.system and messages[0].role != "system":
            messages.insert(0, Message("system", self.system))
        return tuple(messages), response

    def _write_question(self, values: Values, row: Row) -> str:
        if self.template:
            question = _PLACE.sub(lambda place: self._fill(place[1], values, row), self.template)
        else:
            question = _to_text(values.get("question"))
            if self.columns.get("question") == "instruction" and (more := _to_text(row.get("input"))):
                question = f"{question}\n\n{more}"  # Alpaca's format
        if not question.strip():
            raise ValueError(f"the question is empty (column '{self.columns.get('question', '')}')")
        if (choices := values.get("choices")) and not self.template:
            options = zip(LETTERS, choices if isinstance(choices, list) else _to_options(choices), strict=False)
            question += "\n\n" + "\n".join(f"{letter}. {option}" for letter, option in options)
        return question

    def _fill(self, name: str, values: Values, row: Row) -> str:
        if name not in row and name not in values:
            raise SettingsError(f"option 'template': the data has no column '{name}'; it has {', '.join(row)}")
        return _to_text(row[name] if name in row else values[name])


def _is_chat(value: Any) -> TypeGuard[list[Values]]:
    is_list = isinstance(value, list) and bool(value)
    return is_list and all(isinstance(entry, Mapping) and "role" in entry for entry in value)


def _to_text(value: object) -> str:
    return "" if value is None else str(value).strip()


def _to_options(value: object) -> list[str]:
    """The options of a question: a list, or, as on the hub, `{"text": [...], "label": [...]}`."""
    options = value.get("text") if isinstance(value, Mapping) else value
    if not isinstance(options, list) or not 2 <= len(options) <= len(LETTERS):
        raise ValueError(f"expected a list of at least 2 choices; got {short_repr(value)}")
    return [_to_text(option) for option in options]


def _read_choices(value: object, answer: str) -> tuple[tuple[str, ...], str]:
    """The choices, and the answer as one of them: its text, its letter, or its index from 0."""
    if value is None:
        return (), answer
    options = _to_options(value)
    letters = LETTERS[: len(options)]
    if answer not in options and len(answer) == 1 and answer.upper() in letters:
        answer = options[letters.index(answer.upper())]
    elif answer not in options and answer.isdecimal() and int(answer) < len(options):
        answer = options[int(answer)]
    if answer not in options:
        raise ValueError(f"expected an answer among the choices {short_repr(options)}; got {short_repr(answer)}")
    return tuple(options), answer
