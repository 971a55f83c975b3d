"""The pictures of what a language model writes: each described by its writer, generated once, and kept.

A picture is a part of the example that is stored with its lesson. Those that took an image generator some time are also kept
below the user's cache, so that a run that was killed while a lesson was written finds them there, the same to the pixel.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from palaestra.core.errors import PalaestraError, SettingsError
from palaestra.core.records import Example, Failure, FailureCause, ImagePart, Message, TextPart
from palaestra.runs.cache import digest
from palaestra.runs.guard import storage_errors
from palaestra.runs.records import to_data
from palaestra.tasks.teaching import UnusableError
from palaestra.tasks.vision.image_generators.base import Description, make_image_generator
from palaestra.tasks.vision.images import data_url
from palaestra.tasks.vision.writing import SCENES, WORDS, DescribedDatum, VisionDatum

if TYPE_CHECKING:
    from PIL import Image

FOLDER = "pictures"
"""Below the user's cache: every picture that was generated from words."""
_END = b"IEND\xaeB`\x82"
"""How a PNG ends that was written to its end."""


class Pictures:
    """What a visual task has to have lessons written for it: the shape of a datum, and the picture of one.

    Arguments:
        images: the image generator; see `make_image_generator`.
        seed: what it paints by. The same description and seed, the same picture: two questions may be asked about it.

    Raises:
        SettingsError, UnknownNameError, MissingExtraError, ModelError: there is no such image generator, or it lacks something.
    """

    def __init__(self, images: str, seed: int = 0) -> None:
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise SettingsError(f"option 'images_seed': expected a whole number; got {seed!r}")
        self.images, self.seed = images, seed
        self.image_generator = make_image_generator(images)
        self.datum: type[BaseModel] = VisionDatum if self.image_generator.reads == "scene" else DescribedDatum
        self._failed: dict[str, Failure] = {}

    @property
    def brief(self) -> str:
        """What a writer must know to describe a picture."""
        return SCENES if self.image_generator.reads == "scene" else WORDS

    def prepare(self, data: Sequence[Any]) -> None:
        """Have the pictures of all `data` generated together, so that they are there when they are asked for."""
        if self.image_generator.identity:
            self.generate_images(data)

    def make_example(
        self, datum: Any, asked: str, response: str, choices: Sequence[str], skill: str, subskill: str
    ) -> Example:
        """The datum as it is taught, its picture generated.

        Arguments:
            asked: the text that follows the picture.

        Raises:
            UnusableError: the picture cannot be generated.
        """
        (content,) = self.generate_images([datum])
        if isinstance(content, Failure):
            raise UnusableError(f"the picture cannot be painted ({content.cause}): {content.message}")
        metadata: dict[str, Any] = {"choices": list(choices), **self._describe(datum)}
        message = Message("user", (ImagePart(data_url(content)), TextPart(asked)))
        return Example((message,), response, skill, subskill, datum.answer.strip(), metadata)

    def generate_images(self, data: Sequence[Any]) -> list[bytes | Failure]:
        """The picture of each datum as a PNG, in order; what is not there yet is generated together."""
        descriptions = [_description(datum) for datum in data]
        if not self.image_generator.identity:
            return [_content(picture) for picture in self._generate(descriptions)]
        keys = [
            digest([self.image_generator.identity, self.seed, to_data(description)]) for description in descriptions
        ]
        contents: dict[str, bytes | Failure] = {}
        for key in keys:
            if (known := self._failed.get(key) or _read(key)) is not None:
                contents[key] = known
        missing = {key: words for key, words in zip(keys, descriptions, strict=True) if key not in contents}
        for key, picture in zip(missing, self._generate(list(missing.values())) if missing else [], strict=True):
            content = contents[key] = _content(picture)
            if isinstance(content, Failure):
                self._failed[key] = content
            else:
                _write(key, content)
        return [contents[key] for key in keys]

    def _generate(self, descriptions: Sequence[Description]) -> Sequence[Image.Image | Failure]:
        """What the image generator gives, whatever happens in it."""
        try:
            pictures = list(self.image_generator.generate(descriptions, self.seed))
            if len(pictures) != len(descriptions):
                raise ValueError(f"gave {len(pictures)} pictures for {len(descriptions)} descriptions")
        except PalaestraError:
            raise  # It can generate nothing, and the user can help.
        except Exception as error:  # An image generator is a plugin: whatever it raises is its failure.
            failure = Failure(
                FailureCause.ENGINE, f"image generator '{self.images}' broke: {type(error).__name__}: {error}"
            )
            return [failure] * len(descriptions)
        return pictures

    def _describe(self, datum: Any) -> Mapping[str, Any]:
        """What an example says of its picture: its scene, or the words and who generated by them."""
        if isinstance(datum, VisionDatum):
            return {"scene": to_data(datum.scene)}
        return {"description": datum.description, "image_generator": self.images}


def _description(datum: Any) -> Description:
    return datum.scene if isinstance(datum, VisionDatum) else " ".join(datum.description.split())


def _content(picture: Image.Image | Failure) -> bytes | Failure:
    if isinstance(picture, Failure):
        return picture
    file = io.BytesIO()
    try:
        picture.convert("RGB").save(file, "PNG", compress_level=9)
    except (
        Exception
    ) as error:  # Pillow may find out only now that a file is damaged; an image generator may give anything.
        return Failure(FailureCause.MALFORMED, f"the image generator gave no picture: {type(error).__name__}: {error}")
    return file.getvalue()


def _path(key: str) -> Path:
    from palaestra.engines.models import cache_folder

    return cache_folder() / FOLDER / key[:2] / f"{key}.png"


def _read(key: str) -> bytes | None:
    try:
        content = _path(key).read_bytes()
    except OSError:  # Nothing is there; what else may be wrong with the disk is told when it is written to.
        return None
    return content if content.endswith(_END) else None


def _write(key: str, content: bytes) -> None:
    """Keep a picture; under its name it is there whole or not at all, whoever else writes it."""
    path = _path(key)
    with storage_errors(path, "keeping a picture"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as partial:
            try:
                partial.write(content)
                partial.flush()
                os.replace(partial.name, path)
            except BaseException:
                Path(partial.name).unlink(missing_ok=True)
                raise
