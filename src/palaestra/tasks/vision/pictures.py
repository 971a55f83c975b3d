"""Generate the images of lessons that a language model writes, once each.

An image is stored with the example in its lesson. Images of slow generators are also stored in the user's cache, so that
a killed run finds the identical images when it is resumed.
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
"""Folder in the user's cache for images that were generated from words."""
_END = b"IEND\xaeB`\x82"
"""The last bytes of a complete PNG file."""


class Pictures:
    """The data schema and the images of lessons for a visual task.

    Arguments:
        images: the image generator; see `make_image_generator`.
        seed: of the image generator. The same description and seed give the same image.

    Raises:
        SettingsError, UnknownNameError, MissingExtraError, ModelError: the image generator is unknown, or cannot be created.
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
        """Instructions for the writer on how to describe an image."""
        return SCENES if self.image_generator.reads == "scene" else WORDS

    def prepare(self, data: Sequence[Any]) -> None:
        """Generate the images of all `data` in one batch."""
        if self.image_generator.identity:
            self.generate_images(data)

    def make_example(
        self, datum: Any, asked: str, response: str, choices: Sequence[str], skill: str, subskill: str
    ) -> Example:
        """The training example of a datum, with its image.

        Arguments:
            asked: the text after the image.

        Raises:
            UnusableError: the image cannot be generated.
        """
        (content,) = self.generate_images([datum])
        if isinstance(content, Failure):
            raise UnusableError(f"the picture cannot be painted ({content.cause}): {content.message}")
        metadata: dict[str, Any] = {"choices": list(choices), **self._describe(datum)}
        message = Message("user", (ImagePart(data_url(content)), TextPart(asked)))
        return Example((message,), response, skill, subskill, datum.answer.strip(), metadata)

    def generate_images(self, data: Sequence[Any]) -> list[bytes | Failure]:
        """The image of each datum as a PNG, in order. Missing images are generated in one batch."""
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
        """The output of the image generator. Its exceptions become failures."""
        try:
            pictures = list(self.image_generator.generate(descriptions, self.seed))
            if len(pictures) != len(descriptions):
                raise ValueError(f"gave {len(pictures)} pictures for {len(descriptions)} descriptions")
        except PalaestraError:
            raise  # The generator does not work at all; the user has to fix it.
        except Exception as error:  # An image generator may be a plugin that raises anything.
            failure = Failure(
                FailureCause.ENGINE, f"image generator '{self.images}' broke: {type(error).__name__}: {error}"
            )
            return [failure] * len(descriptions)
        return pictures

    def _describe(self, datum: Any) -> Mapping[str, Any]:
        """The metadata of an image: its scene, or the description and the image generator."""
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
    except Exception as error:  # Pillow may detect a damaged file only now, and a plugin may return anything.
        return Failure(FailureCause.MALFORMED, f"the image generator gave no picture: {type(error).__name__}: {error}")
    return file.getvalue()


def _path(key: str) -> Path:
    from palaestra.engines.models import cache_folder

    return cache_folder() / FOLDER / key[:2] / f"{key}.png"


def _read(key: str) -> bytes | None:
    try:
        content = _path(key).read_bytes()
    except OSError:  # Not cached. Errors of the disk are reported on writing.
        return None
    return content if content.endswith(_END) else None


def _write(key: str, content: bytes) -> None:
    """Store an image atomically, even if other processes write it too."""
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
