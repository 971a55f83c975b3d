import pytest

from palaestra.core.records import (
    Attempt,
    Completion,
    Decision,
    Example,
    Failure,
    FailureCause,
    ImagePart,
    Lesson,
    Message,
    Problem,
    Report,
    Score,
    Segment,
    StopReason,
    TextPart,
    Trajectory,
    Usage,
)
from palaestra.runs.files import from_json, to_json

RECORDS = [
    Message("user", "hi"),
    Message("user", (TextPart("look: "), ImagePart("data:image/png;base64,AA"))),
    Problem("p", (Message("user", "1+1?"),), "2", "s", "t", {"level": 3}),
    Completion("2", (5, 1), (-0.25, -0.5), StopReason.LENGTH, Usage(3, 2), (7, 8, 9)),
    Attempt(Problem("p", (), "2"), Completion("2"), Score(1.0, {"extracted": "2"})),
    Attempt(Problem("p", (), "2"), None, Failure(FailureCause.CONTEXT_LENGTH, "too long")),
    Lesson((Example((Message("user", "q"),), "a", "s", "t"),), (Decision("s", "explore", "why", {"t": 1}),)),
    Report("all", 0.5, 0.1, 0.9, 2, 1, {"engine": 1}, (Report("s", None, 0.0, 1.0, 0, 0),)),
    Trajectory("palaestra/Lesson-v0", 3, (0.5,), (Segment((1, 2), (False, True), (0.0, -1.0)),), True),
    Segment((1, 2), (True, True), (-0.5, -1.0), (0.5, 0.5), (0.1, 2.0), (-0.6, -0.7), (((1, -0.5), (3, -2.0)), ())),
]  # fmt: skip


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_every_record_survives_json_unchanged(record: object) -> None:
    assert from_json(type(record), to_json(record)) == record


def test_the_text_of_a_message_leaves_its_images_out() -> None:
    assert RECORDS[1].text == "look: "  # type: ignore[attr-defined]


def test_a_segment_needs_a_mark_and_a_logprob_for_every_token() -> None:
    with pytest.raises(ValueError, match="2 tokens, 1 marks"):
        Segment((1, 2), (True,), (0.0, 0.0))
    with pytest.raises(ValueError, match=r"2 tokens .*entropies.* 1"):
        Segment((1, 2), (True, True), (0.0, 0.0), entropies=(0.5,))


def test_a_segment_of_an_earlier_version_is_read() -> None:
    segment = from_json(Segment, '{"token_ids": [1], "chosen": [true], "logprobs": [-0.5]}')
    assert segment == Segment((1,), (True,), (-0.5,))
    assert segment.advantages == ()


def test_a_failed_attempt_is_neither_right_nor_wrong() -> None:
    assert [a.correct for a in RECORDS if isinstance(a, Attempt)] == [True, None]
