"""A few attempts to read, spread over the skills."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from palaestra.core.records import Attempt, Failure, ImagePart, Message, Problem

SHOWN = 9
"""How many samples of a kind are shown."""
LONGEST = 4000
"""Characters of one text that are shown."""
LARGEST = 400_000
"""Characters of an image's address: a larger picture would make the page slow to open."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SampleResponse:
    """What a model said, and what became of it."""

    heading: str
    text: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One problem with the responses to it; `images` are `data:` addresses."""

    skill: str
    subskill: str
    question: str
    reference: str
    responses: tuple[SampleResponse, ...]
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """Samples of one kind, out of `count` that there are."""

    title: str
    explanation: str
    count: int
    total: int
    samples: tuple[Sample, ...]


def compare_attempts(
    before: Sequence[Attempt], after: Sequence[Attempt], names: tuple[str, str] = ("Before", "After")
) -> tuple[SampleGroup, ...]:
    """What became right, what stayed wrong and what was lost, over the problems scored both times."""
    first = {attempt.problem.id: attempt for attempt in before}
    pairs = [(first[attempt.problem.id], attempt) for attempt in after if attempt.problem.id in first]
    scored = [(b, a) for b, a in pairs if b.correct is not None and a.correct is not None]

    def group(title: str, explanation: str, was: bool, is_: bool) -> SampleGroup:
        chosen = [(b, a) for b, a in scored if (b.correct, a.correct) == (was, is_)]
        shown = spread(chosen, lambda pair: pair[0].problem.skill)
        samples = tuple(_sample(b.problem, (_response(b, names[0]), _response(a, names[1]))) for b, a in shown)
        return SampleGroup(title, explanation, len(chosen), len(scored), samples)

    first_, second_ = (name.lower() if names == ("Before", "After") else f"by {name}" for name in names)
    return (
        group("Now right", f"wrong {first_}, right {second_}", False, True),
        group("Still wrong", f"wrong {first_} and {second_}", False, False),
        group("Lost", f"right {first_}, wrong {second_}", True, False),
    )


def right_and_wrong(attempts: Sequence[Attempt]) -> tuple[SampleGroup, ...]:
    """Samples of right, wrong and failed attempts; the last only where there are any."""
    groups = []
    for title, correct in (("Wrong", False), ("Right", True), ("Failed", None)):
        chosen = [attempt for attempt in attempts if attempt.correct is correct]
        shown = spread(chosen, lambda attempt: attempt.problem.skill)
        samples = tuple(_sample(attempt.problem, (_response(attempt, "Response"),)) for attempt in shown)
        explanation = "nothing is known of these; they are in no accuracy" if correct is None else ""
        if chosen or correct is not None:
            groups.append(SampleGroup(title, explanation, len(chosen), len(attempts), samples))
    return tuple(groups)


def spread(items: Sequence[T], kind: Callable[[T], str], most: int = SHOWN) -> list[T]:
    """At most `most` items from as many kinds as possible, sorted by kind.

    Every kind gives its first item, then its second, and so on. Where there are more kinds than
    places, kinds are taken at even distances, so that the end of the alphabet is seen too.

    >>> spread(["a1", "a2", "b1", "c1"], lambda item: item[0], 3)
    ['a1', 'b1', 'c1']
    >>> spread(["a1", "b1", "c1", "d1"], lambda item: item[0], 2)
    ['a1', 'c1']
    """
    kinds: dict[str, list[T]] = {}
    for item in items:
        kinds.setdefault(kind(item), []).append(item)
    names = sorted(kinds)
    if len(names) > most:
        names = [names[k * len(names) // most] for k in range(most)]
    rows = range(max((len(kinds[name]) for name in names), default=0))
    taken = [kinds[name][row] for row in rows for name in names if row < len(kinds[name])]
    return sorted(taken[:most], key=kind)


def _sample(problem: Problem, responses: tuple[SampleResponse, ...]) -> Sample:
    question, reference = _question(problem), _truncate(problem.reference)
    return Sample(problem.skill, problem.subskill, question, reference, responses, _images(problem))


def _images(problem: Problem) -> tuple[str, ...]:
    """The images that the page itself can hold: one from elsewhere would not be there without a network."""
    parts = (part for m in problem.messages if not isinstance(m.content, str) for part in m.content)
    urls = (part.url for part in parts if isinstance(part, ImagePart))
    return tuple(url for url in urls if url.startswith("data:image/") and len(url) <= LARGEST)


def _question(problem: Problem) -> str:
    if len(problem.messages) == 1:
        return _truncate(_content(problem.messages[0]))
    return _truncate("\n\n".join(f"{message.role}: {_content(message)}" for message in problem.messages))


def _content(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join("[image]" if isinstance(part, ImagePart) else part.text for part in message.content)


def _response(attempt: Attempt, heading: str) -> SampleResponse:
    text = "" if attempt.completion is None else _truncate(attempt.completion.text)
    if isinstance(attempt.outcome, Failure):
        return SampleResponse(heading, text or _truncate(attempt.outcome.message), f"failed: {attempt.outcome.cause}")
    return SampleResponse(heading, text, "right" if attempt.correct else "wrong")


def _truncate(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text) - LONGEST} more characters)"
