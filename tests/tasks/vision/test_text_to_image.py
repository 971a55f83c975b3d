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
        hidden_size=16,
        intermediate_size=16,
        num_attention_heads=2,
        num_hidden_layers=1,
        vocab_size=len(words),
        max_position_embeddings=ROOM,
        bos_token_id=len(words) - 2,
        eos_token_id=len(words) - 1,
        pad_token_id=1,
    )
    generator = StableDiffusionPipeline(
        unet=UNet2DConditionModel(
            block_out_channels=(8, 16),
            layers_per_block=1,
            sample_size=8,
            in_channels=4,
            out_channels=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=16,
            norm_num_groups=4,
            attention_head_dim=4,
        ),
        vae=AutoencoderKL(
            block_out_channels=(8, 8),
            latent_channels=4,
            norm_num_groups=4,
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
        ),
        text_encoder=CLIPTextModel(text),
        tokenizer=tokenizer,
        feature_extractor=None,
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False),
        safety_checker=None,
        requires_safety_checker=False,
    )
    generator.save_pretrained(folder / "checkpoint")
    return folder / "checkpoint"


def image_generator(pipeline: Path, **options: Any) -> TextToImage:
    return TextToImage(str(pipeline), device="cpu", **({"steps": 2, "size": 16} | options))


def pixels(generated: list[Image.Image | Failure]) -> list[bytes]:
    assert all(isinstance(image, Image.Image) for image in generated), generated
    return [image.tobytes() for image in generated if isinstance(image, Image.Image)]


def max_difference(a: bytes, b: bytes) -> int:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def test_images_depend_on_description_and_seed_only(pipeline: Path) -> None:
    words, generator = ["a red dog", "two cats", "a red dog", "one tree"], image_generator(pipeline)
    state = torch.get_rng_state()
    together = pixels(generator.generate(words, seed=7))
    assert torch.equal(state, torch.get_rng_state())  # Nobody else's randomness is touched.
    assert together[0] == together[2]
    assert len({together[0], together[1], together[3]}) == 3
    alone = [pixels(generator.generate([text], seed=7))[0] for text in words]
    assert all(max_difference(a, b) <= 1 for a, b in zip(together, alone, strict=True))
    generator.batch = 3
    backwards = pixels(generator.generate(words[::-1], seed=7))[::-1]
    assert all(max_difference(a, b) <= 1 for a, b in zip(together, backwards, strict=True))
    assert max_difference(together[0], pixels(generator.generate(words[:1], seed=8))[0]) > 1
    assert not {"torchvision", "torchaudio"} & set(sys.modules)


def test_unreadable_descriptions_are_failures(pipeline: Path) -> None:
    long, scene = "a very long tale of dogs and cats", Scene((Item("circle", "red", "large", 20, 20),))
    images = image_generator(pipeline).generate(["a dog", long, scene, "half \ud800", "a cat"], seed=0)
    assert [type(image).__name__ for image in images] == ["Image", "Failure", "Failure", "Failure", "Image"]
    causes = [image.cause for image in images if isinstance(image, Failure)]
    assert causes == [FailureCause.CONTEXT_LENGTH, FailureCause.INVALID_REQUEST, FailureCause.INVALID_REQUEST]
    assert "28 tokens, and the image generator reads 24" in str(images[1])


def test_failed_batch_is_generated_one_by_one(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = image_generator(pipeline)
    before = pixels(generator.generate(["a dog", "a cat"], seed=0))
    inner, sizes = generator._pipeline, []

    class Moody:
        components = inner.components

        def __call__(self, prompt: list[str], **rest: Any) -> Any:
            sizes.append(len(prompt))
            if "a bomb" in prompt:
                raise RuntimeError("out of memory\nand more")
            output = inner(prompt=prompt, **rest)
            output.nsfw_content_detected = ["nude" in text for text in prompt]
            return output

    monkeypatch.setattr(generator, "_pipeline", Moody())
    dog, bomb, nude, cat = generator.generate(["a dog", "a bomb", "a nude", "a cat"], seed=0)
    assert sizes == [4, 1, 1, 1, 1]
    assert bomb == Failure(FailureCause.ENGINE, f"the pipeline {pipeline} raised an error: RuntimeError: out of memory")
    assert isinstance(nude, Failure)
    assert nude.cause is FailureCause.REFUSED
    assert all(max_difference(a, b) <= 1 for a, b in zip(pixels([dog, cat]), before, strict=True))


def test_options_and_checkpoint_change_the_identity(pipeline: Path, tmp_path: Path) -> None:
    spec = f"diffusers:{pipeline},steps=1,size=32,guidance=1.5,device=cpu"
    generator = make_image_generator(spec)
    assert isinstance(generator, TextToImage)
    assert generator.options == {"num_inference_steps": 1, "height": 32, "width": 32, "guidance_scale": 1.5}
    (picture,) = generator.generate(["a dog"], seed=0)
    assert isinstance(picture, Image.Image)
    assert (picture.size, picture.mode) == ((32, 32), "RGB")
    assert make_image_generator(spec).identity == generator.identity
    others = [
        image_generator(pipeline, steps=3).identity,
        image_generator(pipeline, guidance=2).identity,
        generator.identity,
    ]
    (pipeline / "model_index.json").touch()
    assert len({*others, make_image_generator(spec).identity}) == 4


def test_folder_without_a_text_to_image_pipeline(pipeline: Path, tmp_path: Path) -> None:
    from diffusers import DDIMScheduler, DDPMPipeline, UNet2DModel

    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "model_index.json").write_text("{}")
    with pytest.raises(ModelError, match="empty") as caught:
        image_generator(tmp_path / "empty").generate(["a dog"], seed=0)
    assert "\n" not in str(caught.value)
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    wordless = UNet2DModel(sample_size=8, block_out_channels=(8, 8), norm_num_groups=4, layers_per_block=1, **blocks)
    DDPMPipeline(wordless, DDIMScheduler()).save_pretrained(tmp_path / "wordless")
    with pytest.raises(ModelError, match=r"DDPMPipeline.*prompt"):
        image_generator(tmp_path / "wordless").generate(["a dog"], seed=0)
    generator = image_generator(pipeline)
    generator.options["strength"] = 1.0
    with pytest.raises(SettingsError, match=r"StableDiffusionPipeline.*strength"):
        generator.generate(["a dog"], seed=0)


def test_examples_with_images_of_a_pipeline(pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
