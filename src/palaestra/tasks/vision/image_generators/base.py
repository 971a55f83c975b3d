"""Image generators: from descriptions to pictures.

    image_generator = make_image_generator("diffusers:owner/name,steps=4,size=256")
    first, second = image_generator.generate(["a red ball on a lawn", "two cats on a sofa"], seed=0)

A new image generator is a class and a registration; from another package by an entry point of the group `palaestra.image_generators`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from palaestra.core.errors import SettingsError
from palaestra.core.records import Failure
from palaestra.core.registry import Registry
from palaestra.tasks.vision.scene import Scene

if TYPE_CHECKING:
    from PIL import Image

IMAGE_GENERATORS = Registry("image generator", "palaestra.image_generators")
_HERE = "palaestra.tasks.vision.image_generators"
IMAGE_GENERATORS.register(
    "procedural", f"{_HERE}.procedural:Procedural", "draws structured scenes of shapes and charts, exactly"
)
IMAGE_GENERATORS.register(
    "diffusers",
    f"{_HERE}.text_to_image:TextToImage",
    "any text-to-image pipeline of diffusers, by folder or hub id: diffusers:MODEL",
)

Description = Scene | str
"""What is to be seen: a structured scene, or words."""

_OPTIONS = re.compile(r"(?:,[A-Za-z_]+=[^,]*)+$")


class ImageGenerator(Protocol):
    """Turns descriptions into pictures. Nothing heavy is loaded before the first of them."""

    reads: Literal["scene", "words"]
    """The kind of description that it takes: what a writer has to give."""
    identity: str
    """All that its pictures depend on beside description and seed, in a line: the same line, the same pictures. They are
    kept under it. Empty where a picture is drawn as fast as it is read."""

    def generate(self, descriptions: Sequence[Description], seed: int) -> list[Image.Image | Failure]:
        """A picture of each description, in order; where there is none, a failure with its cause.

        A picture depends on its own description and the seed alone, never on what else is generated with it.

        Raises:
            PalaestraError: it can generate nothing at all, for example because its weights cannot be loaded.
        """
        ...


def make_image_generator(text: str) -> ImageGenerator:
    """The image_generator that is called `NAME`, `NAME:MODEL` or `NAME:MODEL,option=value,...`.

    Raises:
        UnknownNameError: nobody has that name.
        SettingsError: it takes no model, needs one, or does not take one of the options.

    Example:
        >>> make_image_generator("procedural").reads
        'scene'
    """
    if not isinstance(text, str) or not text:
        raise SettingsError(
            f"expected the name of an image generator, such as 'procedural' or 'diffusers:MODEL'; got {text!r}"
        )
    # Only what looks like options is cut off: the name of a folder may have a comma.
    match = _OPTIONS.search(text)
    named = text[: match.start()] if match else text
    name, _, model = named.partition(":")
    kind = IMAGE_GENERATORS.get(name)
    options = dict(_option(part) for part in match[0][1:].split(",")) if match else {}
    known = inspect.signature(kind).parameters
    if model and "model" not in known:
        raise SettingsError(f"image generator '{name}' takes no model; got '{model}'")
    if not model and "model" in known and known["model"].default is inspect.Parameter.empty:
        raise SettingsError(f"image generator '{name}' needs a model, a folder or a hub id: {name}:MODEL")
    takes = [option for option in known if option != "model"]
    for option in options:
        if option not in takes:
            accepted = f"it takes {', '.join(takes)}" if takes else "it takes none"
            raise SettingsError(f"image generator '{name}' has no option '{option}'; {accepted}")
    image_generator: ImageGenerator = kind(**({"model": model} if model else {}), **options)
    return image_generator


def _option(text: str) -> tuple[str, Any]:
    """`name=value`, the value in JSON; a bare word is a text."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
