"""Records store and return arbitrary external text unchanged."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.core.records import (
    Completion,
    Decision,
    Example,
    Failure,
    FailureCause,
    ImagePart,
    Message,
    Problem,
    Score,
    TextPart,
    ToolCall,
    Trajectory,
)
from palaestra.core.text import clean, clean_text
from palaestra.research.workspace.workspace import Step
from palaestra.runs.files import from_json, to_json

ANY = st.text(st.characters(), max_size=40) | st.sampled_from(
    ["\ud800", "a\udfffb", "\ude00\ud83d", "\0", "\ufeff\ud800", "\x1b[2J", "\u2028"]
)
"""Text of any characters, lone surrogates among them."""
PLAIN = st.recursive(
    ANY | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY, inner, max_size=3),
    max_leaves=6,
)


@given(ANY)
def test_cleaning_changes_only_lone_surrogates(text: str) -> None:
    cleaned = clean_text(text)
    assert cleaned.encode().decode() == cleaned
    assert clean_text(cleaned) is cleaned
    surrogates = any("\ud800" <= letter <= "\udfff" for letter in text)
    assert surrogates or cleaned is text
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    expected = "".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in joined)
    assert cleaned == expected


def test_containers_that_need_no_change_are_not_copied() -> None:
    value = {"a": ["b", ("c", 1)], "é": {"x": None}}
    assert clean(value) is value
    frozen = MappingProxyType({"a": ["\ud800", 1]})
    assert clean(frozen) == {"a": ["\ufffd", 1]}
    assert frozen["a"] == ["\ud800", 1]
    kept = ["\ud800", value]
    assert clean(kept)[1] is value


@given(ANY, ANY, st.dictionaries(ANY, PLAIN, max_size=3))
def test_a_record_comes_back_from_json_as_it_went_in(first: str, second: str, values: Mapping[str, Any]) -> None:
    message = Message("assistant", (TextPart(first), ImagePart(second)), (ToolCall(first, second, first),), second)
    for record in (
        message,
        Problem(first, (message,), second, first, second, values),
        Completion(first, tool_calls=(ToolCall(second, first),)),
        Failure(FailureCause.SCORER, first),
        Score(0.5, {first: second}),
        Example((message,), first, second, first, second, values),
        Decision(first, second, first, {second: 1}),
        Trajectory(first, 3, infos=(values,)),
        Step(0, 1, message, first, (message,), state=values, agent=values, info=values, stop_reason=first, note=second),
    ):
        assert from_json(type(record), to_json(record)) == record


@pytest.mark.parametrize("text", ["\ud800" * 100, "\0" * 100, "x" * 1_000_000, "é\ud800" * 500_000])
def test_long_and_strange_texts_are_stored_as_they_are_held(text: str) -> None:
    record = Completion(text)
    assert from_json(Completion, to_json(record)) == record
