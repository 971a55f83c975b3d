"""Generate images from words with any text-to-image pipeline of diffusers.

Every image has its own random generator on the CPU, seeded by the seed and the description. So its initial noise does not
depend on the batch or the device. Rounding differences of GPUs remain.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from palaestra.core.errors import MissingExtraError, ModelError, SettingsError
from palaestra.core.records import Failure, FailureCause
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_integer, check_number
from palaestra.tasks.base import check_choice
from palaestra.tasks.sources import is_hub_id
from palaestra.tasks.vision.image_generators.base import Description
from palaestra.tasks.vision.render import need_pillow

if TYPE_CHECKING:
    from PIL import Image

_DTYPES = ("float32", "float16", "bfloat16")


class TextToImage:
    """A diffusers pipeline as an image generator. Its weights are loaded on first use.

    Arguments:
        model: a folder written by `save_pretrained` of a pipeline, or a hub id.
        steps: denoising steps; 0 for the default of the pipeline.
        size: width and height in pixels; 0 for the default of the pipeline.
        guidance: guidance scale; `None` for the default of the pipeline.
        batch: images per batch.
        device: for example `"cpu"` or `"cuda:1"`; empty for a GPU if there is one.
        dtype: one of `_DTYPES`; empty means float32 on a CPU and bfloat16 on a GPU.

    Raises:
        MissingExtraError: diffusers or Pillow is not installed.
        ModelError: the folder does not exist or contains no pipeline.
        SettingsError: an option is invalid.
    """

    reads: Literal["scene", "words"] = "words"

    def __init__(
        self,
        model: str,
        *,
        steps: int = 0,
        size: int = 0,
        guidance: float | None = None,
        batch: int = 8,
        device: str = "",
        dtype: str = "",
    ) -> None:
        if find_spec("diffusers") is None:
            raise MissingExtraError("diffusers", "diffusers", "generating images from words")
        need_pillow()
        self.model = str(model)
        self.where = _locate(self.model)
        for name, value, minimum in (("steps", steps, 0), ("size", size, 0), ("batch", batch, 1)):
            check_integer(f"option '{name}' of an image generator", value, minimum, error=SettingsError)
        check_choice("an image generator", "dtype", dtype, ("", *_DTYPES))
        self.batch, self.device, self.dtype = batch, str(device), str(dtype)
        wanted = {"num_inference_steps": steps, "height": size, "width": size}
        self.options: dict[str, Any] = {name: value for name, value in wanted.items() if value}
        if guidance is not None:
            self.options["guidance_scale"] = check_number(
                "option 'guidance' of an image generator", guidance, error=SettingsError
            )
        settings = ",".join(f"{name}={value}" for name, value in sorted(self.options.items()))
        self.identity = f"diffusers:{_fingerprint(self.where)}|{self.dtype}|{settings}"
        self._pipeline: Any = None

    def generate(self, descriptions: Sequence[Description], seed: int) -> list[Image.Image | Failure]:
        pipeline = self._load()
        checked = {description: _check_description(pipeline, description) for description in descriptions}
        images: dict[Description, Image.Image | Failure] = {key: why for key, why in checked.items() if why is not None}
        pending = [description for description in checked if isinstance(description, str) and description not in images]
        for start in range(0, len(pending), self.batch):
            batch = pending[start : start + self.batch]
            images |= zip(batch, self._generate(batch, seed), strict=True)
        return [images[description] for description in descriptions]

    def _generate(self, words: list[str], seed: int) -> list[Image.Image | Failure]:
        """The images of a batch. If the batch fails, they are generated one by one."""
        import torch

        own = [Seeds(seed).derive("picture", text).integer() for text in words]
        generators = [torch.Generator("cpu").manual_seed(number) for number in own]
        try:
            output = self._pipeline(prompt=words, generator=generators, **self.options)
            images = [image.convert("RGB") for _, image in zip(words, output.images, strict=True)]
        except Exception as error:  # Pipelines may raise anything.
            if len(words) > 1:
                return [self._generate([text], seed)[0] for text in words]
            return [Failure(FailureCause.ENGINE, f"the pipeline {self.model} raised an error: {_first_line(error)}")]
        held = getattr(output, "nsfw_content_detected", None) or [False] * len(words)
        refused = Failure(FailureCause.REFUSED, f"the safety checker of {self.model} rejected the image")
        return [refused if flag else image for image, flag in zip(images, held, strict=True)]

    def _load(self) -> Any:
        if self._pipeline is not None:
            return self._pipeline
        import torch

        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = getattr(torch, self.dtype or ("float32" if device == "cpu" else "bfloat16"))
        try:
            with _quiet():
                kind: Any = import_module("diffusers").DiffusionPipeline
                # Never a pickle, which could run code.
                loaded = kind.from_pretrained(self.where, dtype=dtype, use_safetensors=True)
                pipeline = loaded.to(device)
        except Exception as error:  # diffusers, transformers, safetensors and torch raise different exceptions.
            raise ModelError(f"cannot load the pipeline '{self.model}': {_first_line(error)}") from error
        known = inspect.signature(pipeline.__call__).parameters
        for name in ("prompt", "generator", *self.options):
            if name not in known:
                why = f"'{self.model}' is a {type(pipeline).__name__}, which takes no {name}"
                if name in self.options:
                    raise SettingsError(f"{why}; omit it")
                raise ModelError(f"{why}; give a text-to-image pipeline that can be seeded")
        pipeline.set_progress_bar_config(disable=True)
        self._pipeline = pipeline
        return pipeline


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".removesuffix(": ")


def _locate(model: str) -> str:
    folder = Path(model).expanduser()
    if folder.is_dir() and not (folder / "model_index.json").exists():
        raise ModelError(f"the folder {folder} is not a diffusers pipeline: it has no model_index.json")
    if not folder.is_dir() and not is_hub_id(model):
        raise ModelError(f"expected a folder or a hub id such as owner/name; there is no folder {model}")
    return str(folder) if folder.is_dir() else model


def _fingerprint(where: str) -> str:
    """An identifier of the weights: a different checkpoint in the same folder has a different one."""
    folder = Path(where)
    if not folder.is_dir():
        return where
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    known = [f"{file.relative_to(folder)} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    return f"{folder.resolve()} {hashlib.blake2b('|'.join(known).encode(), digest_size=8).hexdigest()}"


def _check_description(pipeline: Any, words: Description) -> Failure | None:
    """A failure if a description is not valid text, or too long. Pipelines would silently truncate it."""
    if not isinstance(words, str):
        return Failure(FailureCause.INVALID_REQUEST, "expected a description in words; got a scene")
    try:
        words.encode()
    except UnicodeEncodeError:  # A lone surrogate, which no tokenizer accepts.
        return Failure(FailureCause.INVALID_REQUEST, "the description is not valid Unicode text")
    parts = pipeline.components.items()
    tokenizers = [part for name, part in parts if name.startswith("tokenizer") and part is not None]
    limit = inspect.signature(pipeline.__call__).parameters.get("max_sequence_length")
    most = limit.default if limit is not None and isinstance(limit.default, int) else math.inf
    sizes = [(min(t.model_max_length, most), len(t(words, verbose=False)["input_ids"])) for t in tokenizers]
    if not sizes or any(length <= room for room, length in sizes):
        return None  # It is enough that one of several text encoders reads all of it.
    room, length = max(sizes)
    why = f"the description has {length} tokens, and the image generator reads {room}"
    return Failure(FailureCause.CONTEXT_LENGTH, f"{why}; describe the picture in fewer words")


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn off the progress bars of diffusers, and the advice of transformers to install torchvision."""
    from transformers.utils import logging as transformers_logging

    logging: Any = import_module("diffusers.utils.logging")
    drawn, verbosity = logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if drawn:
            logging.enable_progress_bar()
