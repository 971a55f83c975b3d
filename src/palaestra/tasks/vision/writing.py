"""What a language model writes for pictures: what is to be seen, a question about it, its working and its answer.

What is to be seen is a scene that we draw, or a description in words that somebody else paints by
(see `palaestra.tasks.vision.image_generators`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from palaestra.tasks.vision.scene import COLOURS, GAP, RADII, SHAPES, SIDE, Scene

SCENES = (
    "A picture holds shapes or one chart. Shapes: "
    f"{', '.join(SHAPES)}; colours: {', '.join(COLOURS)}; sizes: {', '.join(RADII)} (radius "
    f"{', '.join(f'{name} {radius:g}' for name, radius in RADII.items())}). A shape's x and y are its middle in pixels from the "
    f"upper left corner; shapes lie wholly inside and at least {GAP} pixels apart. A chart is of bars (values 1 to 8), a "
    "line (values 0 to 8, one colour) or a pie (slices in twelfths that make 12)."
)
WORDS = (
    "The picture is painted from your description alone, by a text-to-image model that does not see the question. "
    "Describe in one to three plain sentences, of at most 45 words in all, what there is to be seen: the things, how many "
    "there are of each, their colours, and where they are. Say outright whatever the question is about. Leave out what cannot be "
    "seen, what is not in the picture, and writing in it; prefer few things that are easily told apart."
)
ABOUT_SCENES = f"Questions about small pictures of {SIDE} x {SIDE} pixels."
ABOUT_WORDS = "Questions about simple pictures of coloured shapes, or of one chart of bars, a line or a pie."
ANSWERS = (
    "The question can be answered from the picture alone, in one word or number; the working says in a short sentence "
    "what is seen."
)

Question = Annotated[str, Field(min_length=1, description="What is asked about the picture.")]
Reasoning = Annotated[str, Field(min_length=1, description="What is seen, in a short sentence.")]
Answer = Annotated[str, Field(min_length=1, description="The answer alone: a word or a number.")]
Description = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=4000),
    Field(description="What there is to be seen, in plain words."),
]
Choices = Annotated[list[str], Field(description="All possible answers, where they are a few.")]


class VisionDatum(BaseModel):
    """A picture that is drawn from its scene, with a question about it."""

    scene: Scene = Field(description="What is in the picture: items, or a chart.")
    question: Question
    reasoning: Reasoning
    answer: Answer
    choices: Choices = []


class DescribedDatum(BaseModel):
    """A picture that is painted from words, with a question about it."""

    description: Description
    question: Question
    reasoning: Reasoning
    answer: Answer
    choices: Choices = []
