"""An image generator for tests: draws the colors and shapes of a description, and counts its calls."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

from PIL import Image, ImageDraw

from palaestra.core.records import Failure, FailureCause
from palaestra.tasks.vision.image_generators.base import IMAGE_GENERATORS, Description

COLORS = ("red", "green", "blue", "yellow", "black")


class SketchGenerator:
    """Discs of the colors that a description names, one a column, on a paper whose shade tells description and seed.

    A description with the word `forbidden` is refused, one with `nothing` is generated white, `broken` breaks the image generator,
    for `nonsense` it gives no picture, and `absent` it leaves out.
    """

    reads: Literal["scene", "words"] = "words"
    asked: list[list[str]] = []  # noqa: RUF012  (of all generators of a process: each test empties it)

    def __init__(self, model: str = "plain", size: int = 32) -> None:
        self.size, self.identity = size, f"sketch {model} {size}"

    def generate(self, descriptions: Sequence[Description], seed: int) -> list[Image.Image | Failure]:
        SketchGenerator.asked.append([str(words) for words in descriptions])
        return [self._draw(str(words), seed) for words in descriptions if words != "absent"]

    def _draw(self, words: str, seed: int) -> Image.Image | Failure:
        if "broken" in words:
            raise ZeroDivisionError("the brush broke")
        if "forbidden" in words:
            return Failure(FailureCause.REFUSED, "this is not generated")
        if "nonsense" in words:
            return "a picture"  # type: ignore[return-value]
        if "nothing" in words:
            return Image.new("RGB", (self.size, self.size), "white")
        shade = 180 + hashlib.blake2b(f"{seed} {words}".encode(), digest_size=1).digest()[0] % 70
        picture = Image.new("RGB", (self.size, self.size), (shade, shade, shade))
        named = [color for color in COLORS if color in words] or ["black"]
        wide = self.size // len(named)
        for place, color in enumerate(named):
            ImageDraw.Draw(picture).ellipse((place * wide, 4, (place + 1) * wide - 2, 4 + wide - 2), fill=color)
        return picture


IMAGE_GENERATORS.register("sketch", "sketch_generator:SketchGenerator", "for tests")
