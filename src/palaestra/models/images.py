"""Turn a conversation with images into the inputs of an image-text-to-text model.

Images are decoded by Pillow and prepared by the checkpoint's own processor with its Pillow backend. This produces the same
pixels on every machine and does not need torchvision.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import torch

from palaestra.core.errors import MissingExtraError
from palaestra.core.records import ImagePart, Message

if TYPE_CHECKING:
    from PIL import Image
    from transformers import ProcessorMixin


class ImageError(ValueError):
    """An image of a request cannot be loaded."""


@dataclass(frozen=True, slots=True)
class VisualPrompt:
    """A processed prompt with images.

    Arguments:
        ids: the token ids, including image placeholders.
        inputs: the processed images, for example `pixel_values`, by the name of the model's argument.
    """

    ids: list[int]
    inputs: Mapping[str, torch.Tensor]


Shapes = tuple[tuple[str, tuple[int, ...]], ...]


def image_shapes(inputs: Mapping[str, torch.Tensor], length: int) -> Shapes:
    """Names and shapes of the processed images of a prompt. Prompts with the same shapes can share a batch."""
    return tuple((name, tuple(t.shape[1:])) for name, t in sorted(inputs.items()) if not along_tokens(t, length))


def along_tokens(tensor: torch.Tensor, length: int) -> bool:
    """Whether an input has one value per token, as token types do."""
    return tuple(tensor.shape) == (1, length)


def load_image(url: str) -> Image.Image:
    """Load an RGB image from a path, or a `data:`, `file:` or `https:` URL.

    Raises:
        MissingExtraError: Pillow is not installed.
        ImageError: the image does not exist or is damaged.
    """
    if find_spec("PIL") is None:
        raise MissingExtraError("pillow", "vision", "reading images")
    from PIL import Image, UnidentifiedImageError

    shown = url if len(url) <= 60 else f"{url[:57]}..."
    try:
        if url.startswith(("http://", "https://")):
            from transformers.image_utils import load_image as fetch

            fetched: Image.Image = fetch(url, timeout=30).convert("RGB")
            return fetched
        with Image.open(io.BytesIO(_content(url))) as image:
            return image.convert("RGB")
    except UnidentifiedImageError as error:
        raise ImageError(f"'{shown}' is not an image that Pillow can read") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ImageError(f"cannot read the image '{shown}': {error}") from error


def _content(url: str) -> bytes:
    if not url.startswith("data:"):
        return Path(url.removeprefix("file://")).expanduser().read_bytes()
    head, _, body = url.partition(",")
    return base64.b64decode(body, validate=True) if head.endswith(";base64") else unquote_to_bytes(body)


def load_images(messages: Sequence[Message]) -> list[Image.Image]:
    """Return the images of a conversation, in order.

    Raises:
        ImageError: an image cannot be loaded.
    """
    return [
        load_image(part.url)
        for message in messages
        if not isinstance(message.content, str)
        for part in message.content
        if isinstance(part, ImagePart)
    ]


def render_prompt(processor: ProcessorMixin, messages: Sequence[Message]) -> tuple[str, dict[str, bool]]:
    """Return the text of the prompt for the next assistant message, and the arguments for tokenizing it."""
    template = getattr(processor, "chat_template", None) or getattr(processor.tokenizer, "chat_template", None)
    if template is None:
        count = sum(part["type"] == "image" for message in messages for part in _parts(message))
        marks = str(getattr(processor, "image_token", "")) * count
        return marks + "".join(f"{message.text}\n" for message in messages), {}
    conversation = [{"role": message.role, "content": _parts(message)} for message in messages]
    text = processor.apply_chat_template(
        conversation, chat_template=template, add_generation_prompt=True, tokenize=False
    )
    return str(text), {"add_special_tokens": False}  # The template has added them.


def visual_prompt(processor: ProcessorMixin, messages: Sequence[Message]) -> VisualPrompt:
    """Process a conversation with the checkpoint's chat template and processor.

    Raises:
        ImageError: an image cannot be loaded.
    """
    images = load_images(messages)
    text, options = render_prompt(processor, messages)
    encoded = processor(text=[text], images=[images] if images else None, return_tensors="pt", **options)
    ids = encoded["input_ids"][0].tolist()
    inputs = {
        name: value
        for name, value in encoded.items()
        if name not in ("input_ids", "attention_mask") and isinstance(value, torch.Tensor)
    }
    return VisualPrompt(ids, inputs)


def _parts(message: Message) -> list[dict[str, str]]:
    if isinstance(message.content, str):
        return [{"type": "text", "text": message.content}]
    return [
        {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": part.text}
        for part in message.content
    ]


def batch_inputs(
    prompts: Sequence[VisualPrompt], length: int, device: torch.device, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Batch the image inputs of prompts with the same image shapes. Inputs per token are padded on the left to `length`."""
    batch: dict[str, torch.Tensor] = {}
    for name in prompts[0].inputs:
        tensors = [prompt.inputs[name] for prompt in prompts]
        if along_tokens(tensors[0], len(prompts[0].ids)):
            tensors = [torch.nn.functional.pad(tensor, (length - tensor.shape[1], 0)) for tensor in tensors]
        whole = torch.cat(tensors)
        batch[name] = whole.to(device, dtype if whole.is_floating_point() else whole.dtype)
    return batch
