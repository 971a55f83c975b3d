"""Small image-text models of other architectures than nano-vlm, with random weights."""

import copy
from collections.abc import Callable
from typing import Any

import torch

from palaestra.core.seeding import Seeds
from palaestra.models.registry import LoadedModel
from palaestra.rl.optimizers import fork_torch_rng

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


def build_model(build: Callable[[Any], tuple[Any, Any]], tokenizer: Any) -> LoadedModel:
    tokenizer = copy.deepcopy(tokenizer)
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
