"""The architectures of the embedded models, and their pretraining from scratch, on an endless corpus.

`nano` and `nano-coder` are Llama models; `palaestra.models.embedded` has their sizes. `nano-vlm` is a LLaVA model: a
small SigLIP encoder turns an image of 64 x 64 pixels into 64 patches, and a projector passes them to a Llama model of
nano's size. Tokenizer and chat template are nano's, plus an image token. Worker processes generate the data, and render the
images. They send arrays; the bytes of images become floats on the device.

Two choices make the training fit into an hour on two cores. The weight matrices are trained with Muon, which learned this
corpus faster than AdamW. Batches consist of examples of similar length. The learning rate warms up, stays constant, and
falls linearly to zero at the end.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from palaestra.chat.rendering import to_plain
from palaestra.core.records import Example
from palaestra.core.registry import find_reference
from palaestra.core.seeding import Seeds
from palaestra.models.embedded import EMBEDDED, EmbeddedModel
from palaestra.rl.optimizers import MuonAdamW
from palaestra.students.batches import IGNORE, Encoded, collate, encode
from palaestra.tasks.vision.corpus import Shown, corpus
from palaestra.tasks.vision.render import render_scene
from palaestra.tasks.vision.scene import SIDE

if TYPE_CHECKING:
    from transformers import (
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
        LlavaForConditionalGeneration,
        LlavaProcessor,
        PreTrainedModel,
        PreTrainedTokenizerBase,
        PreTrainedTokenizerFast,
    )

T = TypeVar("T")
Batch = dict[str, torch.Tensor]

_WINDOW = 16
"""Number of batches whose examples are sorted by length together."""
_WARMUP, _DECAY = 0.03, 0.4
"""The fractions of the steps in which the learning rate rises and falls."""


def text_batches(
    corpus: Iterator[Example], tokenizer: PreTrainedTokenizerBase, batch_size: int, limit: int
) -> Iterator[list[Encoded]]:
    """An endless stream of batches of examples of similar length, for `pretrain_model`."""
    while True:
        rows = [encode(example, tokenizer, limit) for example in islice(corpus, _WINDOW * batch_size)]
        yield from _batch_by_length(rows, batch_size, len)


def _batch_by_length(rows: Sequence[T], batch_size: int, length: Callable[[T], int]) -> Iterator[list[T]]:
    """Batches of rows of similar length. Short and long batches alternate."""
    ordered = sorted(rows, key=length)
    starts = list(range(0, len(ordered), batch_size))
    for start in starts[::2] + starts[1::2][::-1]:
        yield ordered[start : start + batch_size]


def pretrain_model(
    model: PreTrainedModel,
    batches: Iterator[T],
    batch_loss: Callable[[T], torch.Tensor],
    *,
    steps: int,
    matrix_learning_rate: float,
    vector_learning_rate: float,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Train `model` in place on `steps` batches.

    Arguments:
        batch_loss: computes the loss of a batch.
        matrix_learning_rate: learning rate of Muon, for the weight matrices of the blocks.
        vector_learning_rate: learning rate of AdamW, for the embeddings and the norms.
        on_step: called with the number of completed steps and the last loss.
    """
    optimizer = MuonAdamW(model.named_parameters())
    optimizer.param_groups[0]["weight_decay"], optimizer.param_groups[1]["betas"] = 0.01, (0.9, 0.98)
    model.train()
    for step, batch in enumerate(islice(batches, steps)):
        scale = min(1.0, (step + 1) / max(1, _WARMUP * steps), (steps - step) / max(1, _DECAY * steps))
        loss = batch_loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group, rate in zip(optimizer.param_groups, (matrix_learning_rate, vector_learning_rate), strict=True):
            group["lr"] = rate * scale
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done = step + 1
        on_step(done, float(loss.detach()) if done % 20 == 0 or done == steps else float("nan"))
    model.eval()


def compute_padded_loss(model: PreTrainedModel, batch: Batch, half: bool = False) -> torch.Tensor:
    """The mean cross-entropy of the labeled tokens of a batch that is padded on the right.

    Arguments:
        batch: keyword arguments of the model, on its device, and `labels` for the tokens to learn.
        half: use bfloat16 autocast; the weights stay in float32.
    """
    labels_BT = batch["labels"][:, 1:]
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    learned_BT = labels_BT != IGNORE  # Most tokens belong to prompts.
    with torch.autocast(model.device.type, torch.bfloat16) if half else nullcontext():
        hidden_BTD = model.model(**inputs).last_hidden_state
        logits_LV = model.lm_head(hidden_BTD[:, :-1][learned_BT])
    return cross_entropy(logits_LV.float(), labels_BT[learned_BT])


_SPECIAL_TOKENS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")


def build_tokenizer(texts: Iterable[str], row: EmbeddedModel = EMBEDDED["nano"]) -> PreTrainedTokenizerFast:
    """Train the tokenizer: byte-level BPE with single digits."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=row.vocabulary,
        special_tokens=list(_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=list(_SPECIAL_TOKENS[2:]),
        model_max_length=row.context,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    # The generation tags of the templates mark the assistant's tokens, for example for TRL.
    fast.chat_template = Path(__file__).with_name(f"{row.folder.name}.jinja").read_text(encoding="utf-8")
    return fast


def build_model(tokenizer: PreTrainedTokenizerFast, name: str = "nano", **sizes: int) -> LlamaForCausalLM:
    """An untrained model. Its weights come from torch's global generator, which the caller seeds.

    Arguments:
        name: the embedded model.
        sizes: fields of its row that differ, such as `layers` and `width`.
    """
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(_build_config(tokenizer, replace(EMBEDDED[name], **sizes)))  # type: ignore[arg-type]
    model.generation_config = _build_generation_config(tokenizer)
    return model


def _build_config(tokenizer: PreTrainedTokenizerFast, row: EmbeddedModel) -> LlamaConfig:
    from transformers import LlamaConfig

    width, heads = row.width, row.width // 32
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=row.layers,
        num_attention_heads=heads,
        num_key_value_heads=gcd(heads, row.key_value_heads),
        head_dim=32,
        max_position_embeddings=row.context,
        tie_word_embeddings=True,
        initializer_range=width**-0.5 / 2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _build_generation_config(tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
    from transformers import GenerationConfig

    return GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False)


_PICTURE_WINDOW = 4
"""Number of batches that a worker generates at once and sorts by length."""
_CONVERSATIONS = 12_288
"""Number of conversations that a worker generates at once and sorts by length."""
_MULTIPLE = 64
"""The lengths of padded conversations are multiples of this number, so that there are few shapes."""
_PATCH = 8
IMAGE_TOKENS = (SIDE // _PATCH) ** 2
"""Number of tokens per image."""
_IMAGE = "<|image|>"


def build_vlm_tokenizer(texts: Sequence[Shown]) -> PreTrainedTokenizerFast:
    """Train a tokenizer like nano's on these texts and add the image token."""
    row = EMBEDDED["nano-vlm"]
    tokenizer = build_tokenizer((text for shown in texts for text in (shown.question, shown.response)), row)
    tokenizer.add_special_tokens({"additional_special_tokens": [_IMAGE]}, replace_extra_special_tokens=False)
    return tokenizer


def build_processor(tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
    """The processor that is saved beside the weights. It resizes images to 64 x 64 with Pillow."""
    from transformers import LlavaProcessor
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    return LlavaProcessor(
        image_processor=SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE}),
        tokenizer=tokenizer,
        patch_size=_PATCH,
        vision_feature_select_strategy="full",
        chat_template=tokenizer.chat_template,
        image_token=_IMAGE,
    )


def build_vlm(tokenizer: PreTrainedTokenizerFast, layers: int = 4, width: int = 192) -> LlavaForConditionalGeneration:
    """An untrained `nano-vlm` with `layers` layers in each half. The caller seeds torch's global generator."""
    from transformers import LlavaConfig, LlavaForConditionalGeneration, SiglipVisionConfig

    row = replace(EMBEDDED["nano-vlm"], layers=layers, width=width)
    vision = SiglipVisionConfig(
        hidden_size=width,
        intermediate_size=width * 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        image_size=SIDE,
        patch_size=_PATCH,
        vision_use_head=False,  # All patches are used, so there is no pooling.
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=_build_config(tokenizer, row),
        image_token_index=tokenizer.convert_tokens_to_ids(_IMAGE),
        image_seq_length=IMAGE_TOKENS,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    model.generation_config = _build_generation_config(tokenizer)
    return model


def encode_pictured(shown: Shown, tokenizer: PreTrainedTokenizerFast) -> Encoded:
    """The prompt ids as the engine encodes them, and the response ids."""
    user, end, assistant, image = tokenizer.convert_tokens_to_ids(["<|user|>", "<|end|>", "<|assistant|>", _IMAGE])
    question, response = tokenizer([shown.question, shown.response], add_special_tokens=False)["input_ids"]
    image_ids = (image,) * (IMAGE_TOKENS if shown.scene is not None else 0)
    return Encoded((user, *image_ids, *question, end, assistant), (*response, end))


def to_pixel_values(pictures_NHWC: torch.Tensor) -> torch.Tensor:
    """Convert bytes to the processor's format: floats from -1 to 1, channels first."""
    return pictures_NHWC.permute(0, 3, 1, 2).float() / 127.5 - 1.0


_Arrays = dict[str, np.ndarray]


Draw = Callable[[np.random.Generator], Iterator[_Arrays]]
"""An endless stream of batches, drawn with a generator. Batches are numpy arrays, which are sent through a pipe. Tensors
would need more shared memory than many containers have."""


def draw_pictures(
    tokenizer: PreTrainedTokenizerFast, batch_size: int, generator: np.random.Generator
) -> Iterator[_Arrays]:
    """Batches of the corpus of `nano-vlm`: `pictures` as bytes, and the output of `collate`."""
    stream = corpus(generator)
    while True:
        window = islice(stream, _PICTURE_WINDOW * batch_size)
        samples = [(encode_pictured(shown, tokenizer), shown) for shown in window]
        for rows in _batch_by_length(samples, batch_size, lambda pair: len(pair[0])):
            batch = collate([row for row, _ in rows], int(tokenizer.pad_token_id))
            arrays = {name: tensor.numpy() for name, tensor in batch.items()}
            pictures = [np.asarray(render_scene(shown.scene)) for _, shown in rows if shown.scene is not None]
            yield arrays | ({"pictures": np.stack(pictures)} if pictures else {})


def mix_corpora(shares: Mapping[str, float], generator: np.random.Generator) -> Iterator[Example]:
    """An endless stream of examples of several corpora, which are given by references `module:function`."""
    streams = [find_reference(name)(generator) for name in shares]
    weights = np.array(list(shares.values()))
    while True:
        yield next(streams[int(generator.choice(len(streams), p=weights / weights.sum()))])


def list_texts(example: Example) -> list[tuple[str, bool]]:
    """The parts of a conversation as the chat template of `nano-coder` renders them, and whether the assistant wrote them."""
    parts, prompt = list[tuple[str, bool]](), ""
    for message in example.messages:
        text = message.text if message.role == "tool" else to_plain(message).text
        prompt += f"<|{message.role}|>"
        if message.role == "assistant":
            parts += [(prompt, False), (f"{text}<|end|>", True)]
            prompt = ""
        else:
            prompt += f"{text}<|end|>"
    return [*parts, (f"{prompt}<|assistant|>", False), (f"{example.response}<|end|>", True)]


def encode_conversations(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The ids of conversations, and their labels: those of all messages of the assistant."""
    texts = [list_texts(example) for example in examples]
    encoded = iter(tokenizer([text for parts in texts for text, _ in parts], add_special_tokens=False)["input_ids"])
    rows = []
    for parts in texts:
        ids = [np.array(next(encoded)) for _ in parts]
        labels = [own if learned else np.full(len(own), IGNORE) for own, (_, learned) in zip(ids, parts, strict=True)]
        rows.append((np.concatenate(ids), np.concatenate(labels)))
    return rows


def draw_conversations(
    shares: Mapping[str, float],
    tokenizer: PreTrainedTokenizerFast,
    batch_tokens: int,
    context: int,
    generator: np.random.Generator,
    window: int = 0,
) -> Iterator[_Arrays]:
    """Batches of conversations of similar length, each of at most `batch_tokens` tokens. Longer ones than `context` are dropped.

    `window` conversations are drawn at once and sorted by length; 0 for the default. The padding is on the right, so the model needs no attention mask, and attention runs at full speed.
    """
    stream = mix_corpora(shares, generator)
    while True:
        rows = encode_conversations(list(islice(stream, window or _CONVERSATIONS)), tokenizer)
        rows = sorted((row for row in rows if len(row[0]) <= context), key=lambda row: len(row[0]))
        batches: list[list[tuple[np.ndarray, np.ndarray]]] = [[]]
        for row in rows:
            if (len(batches[-1]) + 1) * len(row[0]) > batch_tokens and batches[-1]:
                batches.append([])
            batches[-1].append(row)
        for place in generator.permutation(len(batches)):
            length = -(-len(batches[place][-1][0]) // _MULTIPLE) * _MULTIPLE
            input_ids_BT = np.full((len(batches[place]), length), tokenizer.pad_token_id)
            labels_BT = np.full_like(input_ids_BT, IGNORE)
            for index, (ids, labels) in enumerate(batches[place]):
                input_ids_BT[index, : len(ids)], labels_BT[index, : len(ids)] = ids, labels
            yield {"input_ids": input_ids_BT, "labels": labels_BT}


class _Stream(torch.utils.data.IterableDataset[_Arrays]):
    """One worker's part of a stream of batches."""

    def __init__(self, draw: Draw, seeds: Seeds) -> None:
        self.draw, self.seeds = draw, seeds

    def __iter__(self) -> Iterator[_Arrays]:
        worker = torch.utils.data.get_worker_info()
        return self.draw(self.seeds.derive("corpus", worker.id if worker else 0).generator())


def load_batches(draw: Draw, seeds: Seeds, device: torch.device, workers: int = 0) -> Iterator[Batch]:
    """An endless stream of batches, for `pretrain_model`.

    Arguments:
        workers: processes that generate the batches; 0 generates them in this one. The batches depend only on `seeds`
            and on the number of workers.
    """
    loader = torch.utils.data.DataLoader(
        _Stream(draw, seeds),
        batch_size=None,
        collate_fn=_identity,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        worker_init_fn=_prepare_worker,
        generator=torch.Generator().manual_seed(0),  # The default is torch's global generator.
    )
    for arrays in loader:
        batch: Batch = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        if "pictures" in batch:
            batch["pixel_values"] = to_pixel_values(batch.pop("pictures"))
        yield batch


def _identity(arrays: T) -> T:
    return arrays


def _prepare_worker(_: int) -> None:
    gc.freeze()  # Collecting objects of the parent that own threads would abort the worker.
    torch.set_num_threads(1)
