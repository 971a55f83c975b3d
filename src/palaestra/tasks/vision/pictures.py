"""The images of visual tasks: those that a language model requests for lessons, and those of published data sets.

A language model writes a scene, which is drawn, or a description in words, from which an image generator creates the image
(`palaestra.tasks.vision.image_generators`). An image is generated once and stored with the example in its lesson. Images of
slow generators are also stored in the user's cache, so that a resumed run finds the identical images.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field, StringConstraints

from palaestra.core.errors import PalaestraError, SettingsError, TaskError
from palaestra.core.records import Example, Failure, FailureCause, ImagePart, Json, Message, TextPart
from palaestra.core.settings import check_integer, short_repr
from palaestra.runs.cache import digest
from palaestra.runs.files import storage_errors, to_data
from palaestra.tasks.base import UnusableError
from palaestra.tasks.content import read_brief
from palaestra.tasks.sources import StoredImage
from palaestra.tasks.vision.image_generators.base import Description, make_image_generator
from palaestra.tasks.vision.render import data_url, encode_png
from palaestra.tasks.vision.scene import COLORS, GAP, RADII, SHAPES, SIDE, Scene

if TYPE_CHECKING:
    from PIL import Image


_FOLDER = "pictures"
"""Folder in the user's cache for images that were generated from words."""
MAX_IMAGE = 64 << 20
"""Maximum bytes of an image in an archive."""
_END = b"IEND\xaeB`\x82"
"""The last bytes of a complete PNG file."""


_RADII = ", ".join(f"{name} {radius:g}" for name, radius in RADII.items())
_LISTS = {name: ", ".join(values) for name, values in (("shapes", SHAPES), ("colours", COLORS), ("sizes", RADII))}
_SCENES = read_brief("vision-scenes").format(**_LISTS, radii=_RADII, gap=GAP)
ABOUT_SCENES = f"Questions about small pictures of {SIDE} x {SIDE} pixels."
ABOUT_WORDS = "Questions about simple pictures of coloured shapes, or of one chart of bars, a line or a pie."
ANSWERS = read_brief("vision-answers")

Question = Annotated[str, Field(min_length=1, description="What is asked about the picture.")]
Reasoning = Annotated[str, Field(min_length=1, description="What is seen, in a short sentence.")]
Answer = Annotated[str, Field(min_length=1, description="The answer alone: a word or a number.")]
Words = Annotated[
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

    description: Words
    question: Question
    reasoning: Reasoning
    answer: Answer
    choices: Choices = []


Datum = VisionDatum | DescribedDatum


class Pictures:
    """The data schema and the images of lessons for a visual task.

    Arguments:
        images: the image generator; see `make_image_generator`.
        seed: of the image generator. The same description and seed give the same image.

    Raises:
        SettingsError, UnknownNameError, MissingExtraError, ModelError: the image generator is unknown, or cannot be created.
    """

    def __init__(self, images: str, seed: int = 0) -> None:
        self.images, self.seed = images, check_integer("option 'images_seed'", seed, error=SettingsError)
        self.image_generator = make_image_generator(images)
        self.reads_scenes = self.image_generator.reads == "scene"
        self.datum: type[BaseModel] = VisionDatum if self.reads_scenes else DescribedDatum
        self.brief = _SCENES if self.reads_scenes else read_brief("described-pictures")
        """Instructions for the writer on how to describe an image."""
        self._failed: dict[str, Failure] = {}

    def prepare(self, data: Sequence[Datum]) -> None:
        """Generate the images of all `data` in one batch."""
        if self.image_generator.identity:
            self.generate_images(data)

    def make_example(
        self, datum: Datum, asked: str, response: str, choices: Sequence[str], skill: str, subskill: str
    ) -> Example:
        """The training example of a datum, with its image.

        Arguments:
            asked: the text after the image.

        Raises:
            UnusableError: the image cannot be generated.
        """
        (content,) = self.generate_images([datum])
        if isinstance(content, Failure):
            raise UnusableError(f"the image cannot be generated ({content.cause}): {content.message}")
        metadata: Json = {"choices": list(choices)}
        if isinstance(datum, VisionDatum):
            metadata["scene"] = to_data(datum.scene)
        else:
            metadata |= {"description": datum.description, "image_generator": self.images}
        message = Message("user", (ImagePart(data_url(content)), TextPart(asked)))
        return Example((message,), response, skill, subskill, datum.answer.strip(), metadata)

    def generate_images(self, data: Sequence[Datum]) -> list[bytes | Failure]:
        """The image of each datum as a PNG, in order. Missing images are generated in one batch."""
        descriptions = [d.scene if isinstance(d, VisionDatum) else " ".join(d.description.split()) for d in data]
        identity = self.image_generator.identity
        if not identity:
            return self._generate(descriptions)
        keys = [digest([identity, self.seed, to_data(description)]) for description in descriptions]
        contents = {key: self._failed.get(key) or _read(key) for key in keys}
        missing = {key: words for key, words in zip(keys, descriptions, strict=True) if contents[key] is None}
        for key, content in zip(missing, self._generate(list(missing.values())) if missing else [], strict=True):
            contents[key] = content
            if isinstance(content, Failure):
                self._failed[key] = content
            else:
                _write(key, content)
        return [known for key in keys if (known := contents[key]) is not None]

    def _generate(self, descriptions: Sequence[Description]) -> list[bytes | Failure]:
        """The output of the image generator as PNGs. Its exceptions become failures."""
        try:
            pictures = list(self.image_generator.generate(descriptions, self.seed))
            if len(pictures) != len(descriptions):
                raise ValueError(f"it returned {len(pictures)} images for {len(descriptions)} descriptions")
        except PalaestraError:
            raise  # The generator does not work at all; the user has to fix it.
        except Exception as error:  # An image generator may be a plugin that raises anything.
            message = f"image generator '{self.images}' raised {type(error).__name__}: {error}"
            return [Failure(FailureCause.ENGINE, message)] * len(descriptions)
        return [_content(picture) for picture in pictures]


def _content(picture: Image.Image | Failure) -> bytes | Failure:
    if isinstance(picture, Failure):
        return picture
    try:
        return encode_png(picture.convert("RGB"))
    except Exception as error:  # Pillow may detect a damaged file only now, and a plugin may return anything.
        message = f"the image generator returned no image: {type(error).__name__}: {error}"
        return Failure(FailureCause.MALFORMED, message)


def _path(key: str) -> Path:
    from palaestra.models.registry import cache_folder

    return cache_folder() / _FOLDER / key[:2] / f"{key}.png"


def _read(key: str) -> bytes | None:
    try:
        content = _path(key).read_bytes()
    except OSError:  # Not cached. Disk errors are reported on writing.
        return None
    return content if content.endswith(_END) else None


def _write(key: str, content: bytes) -> None:
    """Store an image atomically, even if other processes write it too."""
    path = _path(key)
    with storage_errors(path, "storing an image"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as partial:
            try:
                partial.write(content)
                partial.flush()
                os.replace(partial.name, path)
            except BaseException:
                Path(partial.name).unlink(missing_ok=True)
                raise


class Images:
    """The images of a data set: files in its folder by name (below it, below `images/`, in `images.zip`), or stored in its rows.

    Arguments:
        folder: `None` if the data set is on the hub.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._zip: zipfile.ZipFile | None = None

    def url(self, held: object, where: str) -> str:
        """The image of a row as a `data:` URL with the unchanged bytes of the file.

        Arguments:
            held: the name of a file in the folder, or the stored value of a table.
            where: the name of the row for error messages.

        Raises:
            TaskError: the image does not exist or cannot be read.
        """
        if isinstance(held, str) and self.folder is not None:
            return self._find_by_name(self.folder, held)
        value = held.read() if isinstance(held, StoredImage) else held
        try:
            if isinstance(value, Mapping) and (value.get("bytes") or value.get("path")):
                name = str(value.get("path") or "")
                return data_url(value.get("bytes") or Path(name).read_bytes(), name)
        except OSError as error:
            raise TaskError(f"{where}: its image cannot be read: {error}") from error
        raise TaskError(f"{where}: expected an image; got {short_repr(value)}")

    def _find_by_name(self, folder: Path, name: str) -> str:
        archive = folder / "images.zip"
        try:
            for file in (folder / name, folder / "images" / name):
                if file.is_file():
                    return data_url(file.read_bytes(), name)
            if self._zip is None and archive.exists():
                self._zip = zipfile.ZipFile(archive)
            if self._zip is not None:
                if (size := self._zip.getinfo(name).file_size) > MAX_IMAGE:
                    raise TaskError(f"{name} of {archive} has {size} bytes; an image has at most {MAX_IMAGE}")
                return data_url(self._zip.read(name), name)
        except KeyError:
            pass
        except (zipfile.BadZipFile, zlib.error, OSError) as error:
            raise TaskError(f"cannot read {name} of {folder}: {error}") from error
        raise TaskError(f"image {name} was not found in {folder}, its images/ or its images.zip")
