"""Image generators: from descriptions to images.

    generator = make_image_generator("diffusers:owner/name,steps=4,size=256")
    first, second = generator.generate(["a red ball on a lawn", "two cats on a sofa"], seed=0)

A new image generator is a class and a registration. Other packages use the entry point group
`palaestra.image_generators`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from palaestra.core.errors import SettingsError, TaskError
from palaestra.core.records import Failure, FailureCause
from palaestra.core.registry import Registry
from palaestra.core.settings import check_options
from palaestra.tasks.vision.render import render_scene
from palaestra.tasks.vision.scene import Scene

if TYPE_CHECKING:
    from PIL import Image


IMAGE_GENERATORS = Registry("image generator", "palaestra.image_generators")
_HERE = "palaestra.tasks.vision.image_generators"
IMAGE_GENERATORS.register(
    "procedural", f"{_HERE}.base:Procedural", "draws structured scenes of shapes and charts, exactly"
)
IMAGE_GENERATORS.register(
    "diffusers",
    f"{_HERE}.text_to_image:TextToImage",
    "any text-to-image pipeline of diffusers, by folder or hub id: diffusers:MODEL",
)

Description = Scene | str
"""The description of an image: a structured scene, or words."""

_OPTIONS = re.compile(r"(?:,[A-Za-z_]+=[^,]*)+$")


class ImageGenerator(Protocol):
    """Generates images from descriptions. Weights are loaded on first use."""

    reads: Literal["scene", "words"]
    """The kind of description that it needs from the writer."""
    identity: str
    """A text that identifies everything that the images depend on, besides description and seed. It is the key of cached
    images. Empty for generators that are too fast to need a cache."""

    def generate(self, descriptions: Sequence[Description], seed: int) -> list[Image.Image | Failure]:
        """Generate an image for each description, in order; or a failure with its cause.

        An image depends only on its description and the seed, not on the rest of the batch.

        Raises:
            PalaestraError: the generator does not work, for example because its weights cannot be loaded.
        """
        ...


def make_image_generator(text: str) -> ImageGenerator:
    """Build an image generator from `NAME`, `NAME:MODEL` or `NAME:MODEL,option=value,...`.

    Raises:
        UnknownNameError: the name is not registered.
        SettingsError: the model is missing or not accepted, or an option is unknown.

    Example:
        >>> make_image_generator("procedural").reads
        'scene'
    """
    if not isinstance(text, str) or not text:
        raise SettingsError(
            f"expected the name of an image generator, such as 'procedural' or 'diffusers:MODEL'; got {text!r}"
        )
    # Only text that looks like options is split off: a folder name may contain a comma.
    match = _OPTIONS.search(text)
    name, _, model = text[: match.start() if match else None].partition(":")
    kind = IMAGE_GENERATORS.get(name)
    options = dict(_option(part) for part in match[0][1:].split(",")) if match else {}
    known = inspect.signature(kind).parameters
    if model and "model" not in known:
        raise SettingsError(f"image generator '{name}' takes no model; got '{model}'")
    if not model and "model" in known and known["model"].default is inspect.Parameter.empty:
        raise SettingsError(f"image generator '{name}' needs a model, a folder or a hub id: {name}:MODEL")
    check_options(f"image generator '{name}'", options, [option for option in known if option != "model"])
    image_generator: ImageGenerator = kind(**({"model": model} if model else {}), **options)
    return image_generator


def _option(text: str) -> tuple[str, Any]:
    """`name=value`, the value in JSON; a bare word is a string."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


class Procedural:
    """Draws scenes of shapes and charts; see `palaestra.tasks.vision.render`."""

    reads: Literal["scene", "words"] = "scene"
    identity = ""

    def generate(self, descriptions: Sequence[Description], seed: int) -> list[Image.Image | Failure]:
        return [_draw(scene) for scene in descriptions if isinstance(scene, Scene)]


def _draw(scene: Scene) -> Image.Image | Failure:
    try:
        return render_scene(scene)
    except TaskError as error:
        return Failure(FailureCause.MALFORMED, str(error))
