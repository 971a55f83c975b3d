"""Vision architectures other than nano-vlm's agree with their own code in generation and training, in any batch."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from palaestra.core.records import Example, ImagePart, Message, Split, TextPart
from palaestra.core.seeding import Seeds
from palaestra.engines.base import Request, Sampling
from palaestra.engines.images import visual_prompt
from palaestra.engines.models import LoadedModel
from palaestra.learn.optimizers import fork_torch_rng
from palaestra.learn.supervised import Supervision, fine_tune
from palaestra.tasks.vision.task import VisionSkills

PROBLEMS = VisionSkills().problems(Split.TEST, 1, 0)
GREEDY = Sampling(max_tokens=6)
SUM = Message("user", (TextPart("What is 3 + 4?"),))

CHAT = (
    "{% for m in messages %}<|user|>{% for p in m['content'] %}{% if p['type'] == 'image' %}<image>"
    "{% else %}{{ p['text'] }}{% endif %}{% endfor %}<|end|>{% endfor %}<|assistant|>"
)
TEXT = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip


def grown(model: Any) -> Any:
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.data.mul_(8)
    return model.eval()


def idefics3(tokenizer: Any) -> tuple[Any, Any]:
    """Patches shuffled into few tokens, a mask of pixels beside them."""
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration, Idefics3Processor, LlamaConfig
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    config = Idefics3Config(
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"), scale_factor=2, pad_token_id=0,
        text_config=LlamaConfig(vocab_size=len(tokenizer), **TEXT),
        vision_config={"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
                       "image_size": 64, "patch_size": 8},
    )  # fmt: skip
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 64}, do_image_splitting=False
    )
    processor = Idefics3Processor(images, tokenizer, image_seq_len=16, chat_template=CHAT)
    return grown(Idefics3ForConditionalGeneration(config)), processor


class QwenProcessor:
    """Qwen2-VL's own wants torchvision for its videos; this does for pictures what it does."""

    def __init__(self, tokenizer: Any) -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self.tokenizer, self.chat_template = tokenizer, CHAT
        self.images = Qwen2VLImageProcessorPil(patch_size=8, size={"shortest_edge": 256, "longest_edge": 16384})

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        return str(self.tokenizer.apply_chat_template(conversation, **options))

    def __call__(self, text: list[str], images: Any, **_: Any) -> dict[str, torch.Tensor]:
        seen = dict(self.images(images=images[0], return_tensors="pt")) if images else {}
        places = int(seen["image_grid_thw"][0].prod()) // 4 if images else 0
        ids = torch.tensor(
            [self.tokenizer.encode(text[0].replace("<image>", "<image>" * places), add_special_tokens=False)]
        )
        if images:
            seen["mm_token_type_ids"] = (ids == self.tokenizer.convert_tokens_to_ids("<image>")).long()
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **seen}


def qwen2_vl(tokenizer: Any) -> tuple[Any, Any]:
    """Positions in three directions, patches of all pictures in one row, token types beside the tokens."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    of = tokenizer.convert_tokens_to_ids
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    config = Qwen2VLConfig(
        text_config={"vocab_size": len(tokenizer), "rope_parameters": rope, **TEXT},
        vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 8},
        image_token_id=of("<image>"), video_token_id=of("<video>"), vision_start_token_id=of("<start>"),
        vision_end_token_id=of("<stop>"),
    )  # fmt: skip
    return grown(Qwen2VLForConditionalGeneration(config)), QwenProcessor(tokenizer)


@pytest.fixture(params=[idefics3, qwen2_vl])
def other(nano: LoadedModel, request: pytest.FixtureRequest) -> LoadedModel:
    build: Callable[[Any], tuple[Any, Any]] = request.param
    tokenizer = copy.deepcopy(nano.tokenizer)
    extra = [
        "<image>",
        "<video>",
        "<start>",
        "<stop>",
        "<fake_token_around_image>",
        "<global-img>",
        "<end_of_utterance>",
    ]
    tokenizer.add_special_tokens({"additional_special_tokens": extra}, replace_extra_special_tokens=False)
    tokenizer.chat_template = CHAT
    with fork_torch_rng(Seeds(4)):
        model, processor = build(tokenizer)
    return LoadedModel("other", model, tokenizer, processor)


def test_other_architectures_answer_as_their_own_generate_does_in_any_company(other: LoadedModel) -> None:
    asked = [Request(p.messages, GREEDY) for p in PROBLEMS[::2]] + [Request((SUM,), GREEDY)]
    answers = [other.engine(size).generate(asked) for size in (32, 4, 1)]
    ids = [[a[0].token_ids for a in several] for several in answers]  # type: ignore[union-attr]
    assert ids[0] == ids[1] == ids[2]
    assert len(set(ids[0])) > 5
    for request, mine in list(zip(asked, ids[0], strict=True))[::3]:
        seen = visual_prompt(other.processor, request.messages)
        prompt = torch.tensor([seen.ids])
        theirs = other.weights.generate(
            prompt, attention_mask=torch.ones_like(prompt), **seen.inputs, max_new_tokens=6, do_sample=False
        )
        assert tuple(theirs[0, len(seen.ids) :].tolist()) == mine


def lone_loss(model: LoadedModel, example: Example) -> tuple[float, int]:
    """The summed loss of one example, by the model's own forward and its own loss, and over how many tokens."""
    seen = visual_prompt(model.processor, example.messages)
    response = [*model.tokenizer.encode(example.response, add_special_tokens=False), model.tokenizer.eos_token_id]
    ids = torch.tensor([seen.ids + response])
    inputs = dict(seen.inputs)
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, len(response)))
    labels = torch.tensor([[-100] * len(seen.ids) + response])
    with torch.inference_mode():
        loss = model.weights(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, **inputs).loss
    return float(loss) * len(response), len(response)


def mean(losses: list[tuple[float, int]]) -> float:
    return sum(loss for loss, _ in losses) / sum(count for _, count in losses)


def test_other_architectures_are_trained_on_their_own_loss_in_mixed_batches(other: LoadedModel) -> None:
    # One step at hardly any learning rate: its loss is that of the model as it was.
    still = Supervision(epochs=1, batch_size=8, learning_rate=1e-30)

    def losses(examples: list[Example]) -> list[float]:
        curve = fine_tune(other.weights, other.tokenizer, examples, still, Seeds(0), processor=other.processor)
        return [loss for _, loss in curve]

    one = [Example(p.messages, f"Answer: {p.reference}") for p in PROBLEMS[:3]]
    none = Example((SUM,), "3+4=7. Answer: 7")
    alone = [lone_loss(other, example) for example in (*one, none)]
    assert losses([*one, none]) == [pytest.approx(mean(alone), rel=1e-4)]
    # Idefics3 stacks the pictures of a prompt: one and two of them do not share a batch.
    pictures = [part for p in PROBLEMS[:2] for part in p.messages[0].content if isinstance(part, ImagePart)]
    two = Example((Message("user", (pictures[0], TextPart("and"), pictures[1], TextPart("Same?"))),), "no, they differ")
    pair = [lone_loss(other, example) for example in (one[0], two)]
    apart = type(other.weights).__name__.startswith("Idefics3")
    expected = [mean([loss]) for loss in pair] if apart else [mean(pair)]
    assert sorted(losses([one[0], two])) == pytest.approx(sorted(expected), rel=1e-4)
