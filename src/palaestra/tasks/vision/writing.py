"""What a language model writes for pictures: a scene to be drawn, a question about it, its working and its answer."""

from __future__ import annotations

from pydantic import BaseModel, Field

from palaestra.core.errors import TaskError
from palaestra.core.records import Example, ImagePart, Message, TextPart
from palaestra.tasks.drawing import worked
from palaestra.tasks.teaching import UnusableError
from palaestra.tasks.vision.render import png_url, render
from palaestra.tasks.vision.scene import COLOURS, GAP, RADII, SHAPES, SIDE, Scene, check_scene

BRIEF = (
    f"Questions about small pictures of {SIDE} x {SIDE} pixels. A picture holds shapes or one chart. Shapes: "
    f"{', '.join(SHAPES)}; colours: {', '.join(COLOURS)}; sizes: {', '.join(RADII)} (radius "
    f"{', '.join(f'{name} {radius:g}' for name, radius in RADII.items())}). A shape's x and y are its middle in pixels from the "
    f"upper left corner; shapes lie wholly inside and at least {GAP} pixels apart. A chart is of bars (values 1 to 8), a "
    "line (values 0 to 8, one colour) or a pie (slices in twelfths that make 12). The question can be answered from "
    "the picture alone, in one word or number; the working says in a short sentence what is seen."
)


class VisionDatum(BaseModel):
    """A picture with a question about it."""

    scene: Scene = Field(description="What is in the picture: items, or a chart.")
    question: str = Field(min_length=1, description="What is asked about the picture.")
    reasoning: str = Field(min_length=1, description="What is seen, in a short sentence.")
    answer: str = Field(min_length=1, description="The answer alone: a word or a number.")
    choices: list[str] = Field(default=[], description="All possible answers, where they are a few.")


def example_of(datum: VisionDatum, skill: str, subskill: str) -> Example:
    """The datum as it is taught, its scene drawn.

    Raises:
        UnusableError: the scene cannot be drawn.
    """
    from palaestra.runs.records import to_data

    try:
        check_scene(datum.scene)
    except TaskError as error:
        raise UnusableError(f"the scene cannot be drawn: {error}") from error
    asked = Message("user", (ImagePart(png_url(render(datum.scene))), TextPart(datum.question.strip())))
    answer = datum.answer.strip()
    metadata = {"choices": list(datum.choices), "scene": to_data(datum.scene)}
    return Example((asked,), worked([datum.reasoning], answer), skill, subskill, answer, metadata)
