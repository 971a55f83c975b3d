"""The architecture of `nano-vlm`, and its pretraining batches.

It is a LLaVA model: a small SigLIP encoder turns an image of 64 x 64 pixels into 64 patches, and a projector passes them to
a Llama model of nano's size. Tokenizer and chat template are nano's, plus an image token. Worker processes render and
encode the images. They send bytes, which become floats on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from palaestra.core.records import Example, Message
from palaestra.core.seeding import Seeds
from palaestra.learn import pretrain
from palaestra.learn.batches import Encoded, collate
from palaestra.learn.pretrain import Batch, batch_by_length
from palaestra.tasks.vision.corpus import Shown, corpus
from palaestra.tasks.vision.render import render
from palaestra.tasks.vision.scene import SIDE

if TYPE_CHECKING:
    from transformers import LlavaForConditionalGeneration, LlavaProcessor, PreTrainedTokenizerFast

WINDOW = 4
"""Batches that a worker generates at once and sorts by length."""
PATCH = 8
IMAGE_TOKENS = (SIDE // PATCH) ** 2
"""Tokens of an image."""
IMAGE_TOKEN = "<|image|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{{ '<|end|>' }}{% endgeneration %}"
    "{% elif message['content'] is string %}{{ message['content'] + '<|end|>' }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<|image|>' }}{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{{ '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_tokenizer(texts: Sequence[Shown]) -> PreTrainedTokenizerFast:
    """Train a tokenizer like nano's on these texts and add the image token."""
    examples = (Example((Message("user", shown.question),), shown.response) for shown in texts)
    tokenizer = pretrain.build_tokenizer(examples)
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN]}, replace_extra_special_tokens=False)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_processor(tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
    """The processor that is saved beside the weights. It resizes images to 64 x 64 with Pillow."""
    from transformers import LlavaProcessor
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    return LlavaProcessor(
        image_processor=SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE}),
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="full",
        chat_template=tokenizer.chat_template,
        image_token=IMAGE_TOKEN,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, layers: int = 4, width: int = 192) -> LlavaForConditionalGeneration:
    """An untrained `nano-vlm` with `layers` layers in each half. The caller seeds torch's global generator."""
    from transformers import LlavaConfig, LlavaForConditionalGeneration, SiglipVisionConfig

    vision = SiglipVisionConfig(
        hidden_size=width,
        intermediate_size=width * 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        image_size=SIDE,
        patch_size=PATCH,
        vision_use_head=False,  # All patches are used, so there is no pooling.
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=pretrain.build_config(tokenizer, layers, width),
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        image_seq_length=IMAGE_TOKENS,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    model.generation_config = pretrain.build_generation_config(tokenizer)
    return model


def encode_pictured(shown: Shown, tokenizer: PreTrainedTokenizerFast) -> Encoded:
    """The prompt ids as the engine encodes them, and the response ids."""
    user, end, assistant, image = tokenizer.convert_tokens_to_ids(["<|user|>", "<|end|>", "<|assistant|>", IMAGE_TOKEN])
    question, response = tokenizer([shown.question, shown.response], add_special_tokens=False)["input_ids"]
    image_ids = (image,) * (IMAGE_TOKENS if shown.scene is not None else 0)
    return Encoded((user, *image_ids, *question, end, assistant), (*response, end))


def to_pixel_values(pictures_NHWC: torch.Tensor) -> torch.Tensor:
    """Convert bytes to the processor's format: floats from -1 to 1, channels first."""
    return pictures_NHWC.permute(0, 3, 1, 2).float() / 127.5 - 1.0


Arrays = dict[str, np.ndarray]


class _PictureStream(torch.utils.data.IterableDataset[Arrays]):
    """Batches of one worker's part of the corpus: `pictures` as bytes, and the output of `collate`.

    They are numpy arrays, which are sent through a pipe. Tensors would need more shared memory than many containers have.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, batch_size: int, seeds: Seeds) -> None:
        self.tokenizer, self.batch_size, self.seeds = tokenizer, batch_size, seeds

    def __iter__(self) -> Iterator[Arrays]:
        worker = torch.utils.data.get_worker_info()
        stream = corpus(self.seeds.derive("corpus", worker.id if worker else 0).generator())
        while True:
            samples = [
                (encode_pictured(shown, self.tokenizer), shown) for shown in islice(stream, WINDOW * self.batch_size)
            ]
            for rows in batch_by_length(samples, self.batch_size, lambda pair: len(pair[0])):
                batch = collate([row for row, _ in rows], int(self.tokenizer.pad_token_id))
                arrays = {name: tensor.numpy() for name, tensor in batch.items()}
                pictures = [np.asarray(render(shown.scene)) for _, shown in rows if shown.scene is not None]
                yield arrays | ({"pictures": np.stack(pictures)} if pictures else {})


def picture_batches(
    tokenizer: PreTrainedTokenizerFast, batch_size: int, seeds: Seeds, device: torch.device, workers: int = 0
) -> Iterator[Batch]:
    """An endless stream of batches, for `pretrain_model`.

    Arguments:
        workers: processes that render images; 0 renders in this one. The batches depend only on `seeds` and on
            the number of workers.
    """
    loader: Any = torch.utils.data.DataLoader(
        _PictureStream(tokenizer, batch_size, seeds),
        batch_size=None,
        collate_fn=_identity,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        worker_init_fn=_use_one_thread,
        generator=torch.Generator().manual_seed(0),  # The default is torch's global generator.
    )
    for arrays in loader:
        batch: Batch = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        if "pictures" in batch:
            batch["pixel_values"] = to_pixel_values(batch.pop("pictures"))
        yield batch


def _identity(arrays: Any) -> Any:
    return arrays


def _use_one_thread(_: int) -> None:
    torch.set_num_threads(1)
