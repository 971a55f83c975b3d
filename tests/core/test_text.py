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
from palaestra.research.workspace.step_record import Step
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
def test_clean_text_can_be_encoded_and_only_lone_surrogates_change(text: str) -> None:
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
def test_a_record_comes_back_from_json_as_it_went_in(one: str, two: str, values: Mapping[str, Any]) -> None:
    message = Message("assistant", (TextPart(one), ImagePart(two)), (ToolCall(one, two, one),), two)
    for record in (
        message,
        Problem(one, (message,), two, one, two, values),
        Completion(one, tool_calls=(ToolCall(two, one),)),
        Failure(FailureCause.SCORER, one),
        Score(0.5, {one: two}),
        Example((message,), one, two, one, two, values),
        Decision(one, two, one, {two: 1}),
        Trajectory(one, 3, infos=(values,)),
        Step(0, 1, message, one, (message,), state=values, agent=values, info=values, stop_reason=one, note=two),
    ):
        assert from_json(type(record), to_json(record)) == record


@pytest.mark.parametrize("text", ["\ud800" * 100, "\0" * 100, "x" * 1_000_000, "é\ud800" * 500_000])
def test_long_and_strange_texts_are_stored_as_they_are_held(text: str) -> None:
    record = Completion(text)
    assert from_json(Completion, to_json(record)) == record
