"""The text-to-image generator with a real diffusers pipeline: tiny Stable Diffusion with random weights."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

pytest.importorskip("diffusers", reason="diffusers is not installed; pip install 'palaestra[diffusers]'")

from palaestra.core.errors import ModelError, SettingsError
from palaestra.core.records import Failure, FailureCause, ImagePart
from palaestra.tasks.base import WritableTask, make_task
from palaestra.tasks.vision.image_generators.base import make_image_generator
from palaestra.tasks.vision.image_generators.text_to_image import TextToImage
from palaestra.tasks.vision.scene import Item, Scene

ROOM = 24
"""Tokens that the pipeline's text encoder reads; a token is a letter here."""


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `save_pretrained` writes it: Stable Diffusion with weights of 370 KB, which were never trained."""
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("pipeline")
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: place for place, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=ROOM)
    torch.manual_seed(0)
    text = CLIPTextConfig(
        hidden_size=16, intermediate_size=16, num_attention_heads=2, num_hidden_layers=1, vocab_size=len(words),
        max_position_embeddings=ROOM, bos_token_id=len(words) - 2, eos_token_id=len(words) - 1, pad_token_id=1,
    )  # fmt: skip
    made = StableDiffusionPipeline(
        unet=UNet2DConditionModel(
            block_out_channels=(8, 16), layers_per_block=1, sample_size=8, in_channels=4, out_channels=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=16, norm_num_groups=4, attention_head_dim=4,
        ),
        vae=AutoencoderKL(
            block_out_channels=(8, 8), latent_channels=4, norm_num_groups=4,
            down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        ),
        text_encoder=CLIPTextModel(text), tokenizer=tokenizer, feature_extractor=None,
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False), safety_checker=None, requires_safety_checker=False,
    )  # fmt: skip
    made.save_pretrained(folder / "checkpoint")
    return folder / "checkpoint"


def image_generator(pipeline: Path, **options: Any) -> TextToImage:
    return TextToImage(str(pipeline), device="cpu", **({"steps": 2, "size": 16} | options))


def pixels(generated: list[Image.Image | Failure]) -> list[bytes]:
    assert all(isinstance(one, Image.Image) for one in generated), generated
    return [one.tobytes() for one in generated if isinstance(one, Image.Image)]


def off(a: bytes, b: bytes) -> int:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def test_pictures_come_in_order_and_depend_on_their_words_and_the_seed_alone(pipeline: Path) -> None:
    words, made = ["a red dog", "two cats", "a red dog", "one tree"], image_generator(pipeline)
    state = torch.get_rng_state()
    together = pixels(made.generate(words, seed=7))
    assert torch.equal(state, torch.get_rng_state())  # Nobody else's randomness is touched.
    assert together[0] == together[2]
    assert len({together[0], together[1], together[3]}) == 3
    alone = [pixels(made.generate([text], seed=7))[0] for text in words]
    assert all(off(a, b) <= 1 for a, b in zip(together, alone, strict=True))
    made.batch = 3
    backwards = pixels(made.generate(words[::-1], seed=7))[::-1]
    assert all(off(a, b) <= 1 for a, b in zip(together, backwards, strict=True))
    assert off(together[0], pixels(made.generate(words[:1], seed=8))[0]) > 1
    assert not {"torchvision", "torchaudio"} & set(sys.modules)


def test_what_the_pipeline_cannot_read_whole_is_a_failure_and_not_a_picture_of_half_of_it(pipeline: Path) -> None:
    long, scene = "a very long tale of dogs and cats", Scene((Item("circle", "red", "large", 20, 20),))
    found = image_generator(pipeline).generate(["a dog", long, scene, "half \ud800", "a cat"], seed=0)
    assert [type(one).__name__ for one in found] == ["Image", "Failure", "Failure", "Failure", "Image"]
    causes = [one.cause for one in found if isinstance(one, Failure)]
    assert causes == [FailureCause.CONTEXT_LENGTH, FailureCause.INVALID_REQUEST, FailureCause.INVALID_REQUEST]
    assert "has 28 tokens, and the image generator reads 24; describe the picture in fewer words" in str(found[1])


def test_a_batch_that_breaks_is_painted_one_by_one_and_what_is_held_back_is_refused(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = image_generator(pipeline)
    before = pixels(made.generate(["a dog", "a cat"], seed=0))
    inner, sizes = made._pipeline, []

    class Moody:
        components = inner.components

        def __call__(self, prompt: list[str], **rest: Any) -> Any:
            sizes.append(len(prompt))
            if "a bomb" in prompt:
                raise RuntimeError("out of memory\nand more")
            output = inner(prompt=prompt, **rest)
            output.nsfw_content_detected = ["nude" in text for text in prompt]
            return output

    monkeypatch.setattr(made, "_pipeline", Moody())
    dog, bomb, nude, cat = made.generate(["a dog", "a bomb", "a nude", "a cat"], seed=0)
    assert sizes == [4, 1, 1, 1, 1]
    assert bomb == Failure(FailureCause.ENGINE, f"the pipeline {pipeline} raised an error: RuntimeError: out of memory")
    assert isinstance(nude, Failure)
    assert nude.cause is FailureCause.REFUSED
    assert all(off(a, b) <= 1 for a, b in zip(pixels([dog, cat]), before, strict=True))


def test_options_reach_the_pipeline_and_another_checkpoint_is_another_painter(pipeline: Path, tmp_path: Path) -> None:
    spec = f"diffusers:{pipeline},steps=1,size=32,guidance=1.5,device=cpu"
    made = make_image_generator(spec)
    assert isinstance(made, TextToImage)
    assert made.options == {"num_inference_steps": 1, "height": 32, "width": 32, "guidance_scale": 1.5}
    (picture,) = made.generate(["a dog"], seed=0)
    assert isinstance(picture, Image.Image)
    assert (picture.size, picture.mode) == ((32, 32), "RGB")
    assert make_image_generator(spec).identity == made.identity
    others = [
        image_generator(pipeline, steps=3).identity,
        image_generator(pipeline, guidance=2).identity,
        made.identity,
    ]
    (pipeline / "model_index.json").touch()
    assert len({*others, make_image_generator(spec).identity}) == 4


def test_a_folder_that_holds_no_pipeline_of_words_is_refused_by_name(pipeline: Path, tmp_path: Path) -> None:
    from diffusers import DDIMScheduler, DDPMPipeline, UNet2DModel

    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "model_index.json").write_text("{}")
    with pytest.raises(ModelError, match=r"cannot load the pipeline '.*empty'") as caught:
        image_generator(tmp_path / "empty").generate(["a dog"], seed=0)
    assert "\n" not in str(caught.value)
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    wordless = UNet2DModel(sample_size=8, block_out_channels=(8, 8), norm_num_groups=4, layers_per_block=1, **blocks)
    DDPMPipeline(wordless, DDIMScheduler()).save_pretrained(tmp_path / "wordless")
    with pytest.raises(ModelError, match="is a DDPMPipeline, which takes no prompt; give a text-to-image pipeline"):
        image_generator(tmp_path / "wordless").generate(["a dog"], seed=0)
    made = image_generator(pipeline)
    made.options["strength"] = 1.0
    with pytest.raises(SettingsError, match="is a StableDiffusionPipeline, which takes no strength; omit it"):
        made.generate(["a dog"], seed=0)


def test_a_task_teaches_with_pictures_of_the_pipeline(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path))
    task = make_task("gqa", images=f"diffusers:{pipeline},steps=1,size=16,device=cpu", images_seed=5)
    assert isinstance(task, WritableTask)
    data = [
        task.datum(description=f"a {animal}", question="Which animal?", reasoning=f"A {animal}", answer=animal)
        for animal in ("dog", "cat")
    ]
    task.prepare(data)  # type: ignore[attr-defined]
    kept = {file.read_bytes() for file in tmp_path.rglob("*.png")}
    assert len(kept) == 2
    examples = [task.make_example(datum, "query", "") for datum in data]
    assert [example.response for example in examples] == ["dog", "cat"]
    parts = [example.messages[0].content[0] for example in examples]
    assert len({part.url for part in parts if isinstance(part, ImagePart)}) == 2
    assert {file.read_bytes() for file in tmp_path.rglob("*.png")} == kept
