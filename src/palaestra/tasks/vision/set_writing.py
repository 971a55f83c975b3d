"""Instructions for a language model that writes lessons for the published data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from palaestra.core.records import Example
from palaestra.tasks.base import TaskHooks
from palaestra.tasks.teaching import UnusableError
from palaestra.tasks.vision.answers import normalise
from palaestra.tasks.vision.pictures import Pictures

ABOUT: Mapping[str, str] = {
    "gqa": (
        "Questions about photographs of everyday scenes: what there is, its colour, material and doing, where it is, and "
        "how things lie to each other. Kinds: verify (is it so?), query (an open question), choose (which of two that the "
        "question names?), logical (both, either or none of two things?), compare (two things with each other). The "
        "answer is one word or a short phrase in lower case; of verify and logical it is yes or no."
    ),
    "naturalbench": (
        "Questions about photographs that nobody can answer without looking closely. Kinds: yes_no, whose answer is Yes or "
        "No; multiple_choice, whose question ends with its two options, as in 'Option: A: on the left; B: on the right', "
        "and whose answer is the letter A or B. Let either answer be as likely as the other."
    ),
    "easy-vqa": (
        "Questions about a picture of one filled shape (circle, rectangle or triangle) on a plain background. Kinds: colour, "
        "whose answer is black, blue, brown, gray, green, red, teal or yellow; shape, whose answer is circle, rectangle "
        "or triangle; yes_no, whose answer is yes or no."
    ),
    "nlvr": (
        "Statements about a picture of three grey boxes side by side that hold circles, squares and triangles in yellow, "
        "black and blue. Kinds: tower, where squares are stacked in the boxes; scatter, where shapes lie about in them. "
        "The question is one statement about numbers, colours or places, and the answer is true or false; let either be "
        "as likely as the other."
    ),
}
"""By the name of the task."""


class WrittenSet(TaskHooks):
    """The part of a published data set that is needed to write lessons; it requires an image generator."""

    name: str
    instruction: str
    closed: Mapping[str, tuple[str, ...]] = {}
    """All possible answers of a kind of question, where they are few."""
    pictures: Pictures
    datum: type[BaseModel]
    """Exists only with an image generator. Without one, the task is not a `WritableTask`."""

    def let_write(self, pictures: Pictures) -> None:
        self.pictures, self.datum = pictures, pictures.datum

    def brief(self) -> str:
        return f"{ABOUT[self.name]} {self.pictures.brief}"

    def prepare(self, data: Sequence[Any]) -> None:
        self.pictures.prepare(data)

    def make_example(self, datum: Any, skill: str, subskill: str) -> Example:
        """The training example of a datum, with the prompt of the data set and the answer alone as response."""
        answer = datum.answer.strip()
        kind = get_kind(answer, skill, self.closed)
        asked = self.format_prompt(self.format_question(datum.question.strip(), kind))
        return self.pictures.make_example(datum, asked, answer, self.choices(kind, answer), skill, subskill)

    def choices(self, kind: str, answer: str) -> tuple[str, ...]:
        """All answers that such a question can have; none where they are open."""
        return self.closed.get(kind, ())

    def format_question(self, question: str, kind: str) -> str:
        """A question with what the set puts behind those of its kind."""
        return question

    def format_prompt(self, question: str) -> str:
        """A question with the line that follows all of them."""
        return f"{question}\n{self.instruction}" if self.instruction else question


def get_kind(answer: str, skill: str, closed: Mapping[str, tuple[str, ...]]) -> str:
    """The kind of question that a datum is: its skill, or, where that is none of the set's own, the one that fits.

    Arguments:
        closed: the kinds that have few possible answers, with all of these.

    Raises:
        UnusableError: its kind cannot have that answer.
    """
    given = normalise(answer)
    kinds = [skill] if skill in closed else list(closed)
    for kind in kinds:
        if given in map(normalise, closed[kind]):
            return kind
    if kinds:
        possible = dict.fromkeys(choice for kind in kinds for choice in closed[kind])
        raise UnusableError(f"the answer '{answer}' is none of {', '.join(possible)}")
    return skill
