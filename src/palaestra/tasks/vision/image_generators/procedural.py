"""Draw scenes with the renderer of the package. The seed has no effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from palaestra.core.errors import TaskError
from palaestra.core.records import Failure, FailureCause
from palaestra.tasks.vision.image_generators.base import Description
from palaestra.tasks.vision.render import render

if TYPE_CHECKING:
    from PIL import Image


class Procedural:
    """Draws scenes of shapes and charts; see `palaestra.tasks.vision.render`."""

    reads: Literal["scene", "words"] = "scene"
    identity = ""

    def generate(self, descriptions: Sequence[Description], seed: int) -> list[Image.Image | Failure]:
        return [_draw(description) for description in descriptions]


def _draw(description: Description) -> Image.Image | Failure:
    if isinstance(description, str):
        return Failure(
            FailureCause.INVALID_REQUEST, "the procedural image generator draws scenes; got a description in words"
        )
    try:
        return render(description)
    except TaskError as error:
        return Failure(FailureCause.MALFORMED, str(error))
