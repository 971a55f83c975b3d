"""The shape of `nano-vlm`, and the batches that it is pretrained on.

It is a LLaVA: a small SigLIP tower reads a picture of 64 x 64 pixels as 64 patches, a projector hands them
to a Llama of nano's shape. Tokenizer and chat template are nano's, with a token for the places of a
picture. Worker processes draw and encode the pictures; they travel as bytes and become numbers on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from palaestra.core.records import Example, Message
from palaestra.core.seeding import Seeds
from palaestra.learn.batches import Encoded, collate
from palaestra.learn.nano import build_tokenizer as build_nano_tokenizer
from palaestra.learn.pretrain import Batch
from palaestra.tasks.vision.corpus import Shown, corpus
from palaestra.tasks.vision.render import render
from palaestra.tasks.vision.scene import SIDE

if TYPE_CHECKING:
    from transformers import LlavaForConditionalGeneration, LlavaProcessor, PreTrainedTokenizerFast

WINDOW = 4
"""How many batches a worker draws at once and sorts by length."""
PATCH = 8
PLACES = (SIDE // PATCH) ** 2
"""Tokens that a picture takes."""
CONTEXT = 256
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
    """Train the tokenizer as nano's, on these texts, and give it the token for a picture's places."""
    examples = (Example((Message("user", shown.question),), shown.response) for shown in texts)
    tokenizer = build_nano_tokenizer(examples)
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN]}, replace_extra_special_tokens=False)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_processor(tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
    """What `AutoProcessor` will load beside the weights: Pillow's path, any picture brought to 64 x 64."""
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
    """An untrained `nano-vlm`, `layers` deep in each half. Its weights come from torch's generator: seed it."""
    from transformers import (
        GenerationConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        SiglipVisionConfig,
    )

    heads = width // 32
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=width**-0.5 / 2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    vision = SiglipVisionConfig(
        hidden_size=width,
        intermediate_size=width * 4,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        image_size=SIDE,
        patch_size=PATCH,
        vision_use_head=False,  # The pooling head would be dead weight: every patch is handed on.
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        image_seq_length=PLACES,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False
    )
    return model


def encode_shown(shown: Shown, tokenizer: PreTrainedTokenizerFast) -> Encoded:
    """The ids that the engine would ask with, and the response to be learned."""
    user, end, assistant, image = _marks(tokenizer)
    question, response = tokenizer([shown.question, shown.response], add_special_tokens=False)["input_ids"]
    places = (image,) * (PLACES if shown.scene is not None else 0)
    return Encoded((user, *places, *question, end, assistant), (*response, end))


def _marks(tokenizer: PreTrainedTokenizerFast) -> tuple[int, int, int, int]:
    user, end, assistant, image = tokenizer.convert_tokens_to_ids(["<|user|>", "<|end|>", "<|assistant|>", IMAGE_TOKEN])
    return user, end, assistant, image


def pixels(pictures_NHWC: torch.Tensor) -> torch.Tensor:
    """Bytes to the numbers that the processor makes of them: from -1 to 1, channels first."""
    return pictures_NHWC.permute(0, 3, 1, 2).float() / 127.5 - 1.0


Arrays = dict[str, np.ndarray]


class _Stream(torch.utils.data.IterableDataset[Arrays]):
    """Batches from one worker's share of the corpus: `pictures` as bytes, and the rest as `collate` makes it.

    They are arrays, which travel through a pipe: tensors would need more shared memory than many containers have.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, batch_size: int, seeds: Seeds) -> None:
        self.tokenizer, self.batch_size, self.seeds = tokenizer, batch_size, seeds

    def __iter__(self) -> Iterator[Arrays]:
        worker = torch.utils.data.get_worker_info()
        stream = corpus(self.seeds.derive("corpus", worker.id if worker else 0).generator())
        while True:
            drawn = [(encode_shown(shown, self.tokenizer), shown) for shown in islice(stream, WINDOW * self.batch_size)]
            drawn.sort(key=lambda pair: len(pair[0]))
            starts = list(range(0, len(drawn), self.batch_size))
            for start in starts[::2] + starts[1::2][::-1]:
                rows = drawn[start : start + self.batch_size]
                batch = collate([row for row, _ in rows], int(self.tokenizer.pad_token_id))
                arrays = {name: tensor.numpy() for name, tensor in batch.items()}
                pictures = [np.asarray(render(shown.scene)) for _, shown in rows if shown.scene is not None]
                yield arrays | ({"pictures": np.stack(pictures)} if pictures else {})


def picture_batches(
    tokenizer: PreTrainedTokenizerFast, batch_size: int, seeds: Seeds, device: torch.device, workers: int = 0
) -> Iterator[Batch]:
    """Batches of the corpus without end, as `pretrain_model` takes them.

    Arguments:
        workers: processes that draw; 0 draws in this one. The batches depend on their number, and on
            nothing else besides `seeds`.
    """
    loader: Any = torch.utils.data.DataLoader(
        _Stream(tokenizer, batch_size, seeds),
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        worker_init_fn=_one_thread,
        generator=torch.Generator().manual_seed(0),  # Else it would draw from torch's own.
    )
    for arrays in loader:
        batch: Batch = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        if "pictures" in batch:
            batch["pixel_values"] = pixels(batch.pop("pictures"))
        yield batch


def _as_it_is(arrays: Any) -> Any:
    return arrays


def _one_thread(_: int) -> None:
    torch.set_num_threads(1)
