"""Images in the transformers engine, with a small random checkpoint of nano-vlm's architecture."""

import base64
import io
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from palaestra.core.errors import MissingExtraError
from palaestra.core.records import (
    Completion,
    Failure,
    FailureCause,
    ImagePart,
    Message,
    Request,
    Sampling,
    Split,
    TextPart,
)
from palaestra.core.seeding import Seeds
from palaestra.engines.transformers import TransformersEngine
from palaestra.models import images as module
from palaestra.models import registry as models
from palaestra.models.images import ImageError, load_image, visual_prompt
from palaestra.models.registry import LoadedModel
from palaestra.rl.optimizers import fork_torch_rng
from palaestra.students.pretraining import (
    IMAGE_TOKENS,
    build_processor,
    build_vlm,
    build_vlm_tokenizer,
    compute_padded_loss,
    draw_pictures,
    encode_pictured,
    load_batches,
    pretrain_model,
    to_pixel_values,
)
from palaestra.tasks.vision.corpus import Shown, corpus
from palaestra.tasks.vision.render import png_url, render_scene
from palaestra.tasks.vision.scene import Item, Scene
from palaestra.tasks.vision.task import VisionSkills

PROBLEMS = VisionSkills().problems(Split.TEST, 1, 0)
GREEDY, SAMPLED = Sampling(max_tokens=6), Sampling(max_tokens=6, temperature=1.0, top_p=0.95)
RED = Scene((Item("circle", "red", "large", 24, 40),))


def make(folder: Path) -> None:
    stream = corpus(Seeds(0).generator())
    tokenizer = build_vlm_tokenizer([next(stream) for _ in range(400)])
    with fork_torch_rng(Seeds(1)):
        model = build_vlm(tokenizer, layers=2, width=32)
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "embed" not in name:  # Random weights at which pictures matter.
                weight.data.mul_(3)
    model.save_pretrained(folder)
    build_processor(tokenizer).save_pretrained(folder)


@pytest.fixture(scope="module")
def vlm(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("vlm")
    make(folder)
    return models.load(str(folder), device="cpu")


def ask(*parts: TextPart | ImagePart, sampling: Sampling = GREEDY) -> Request:
    return Request((Message("user", parts),), sampling, seed=1)


def render_part(scene: Scene) -> ImagePart:
    return ImagePart(png_url(render_scene(scene)))


def test_vision_checkpoint_loads_without_torchvision(vlm: LoadedModel) -> None:
    assert type(vlm.weights).__name__ == "LlavaForConditionalGeneration"
    assert type(vlm.processor.image_processor).__name__ == "SiglipImageProcessorPil"
    assert vlm.processor.tokenizer.padding_side == "left"


def test_the_same_request_gives_the_same_tokens_in_any_company(vlm: LoadedModel) -> None:
    """Greedy and sampled, with and without images, at batch sizes 1, 5 and 64."""
    requests = [Request(p.messages, how, seed=k) for k, p in enumerate(PROBLEMS) for how in (GREEDY, SAMPLED)]
    requests += [Request((Message("user", f"What is {k} + 4?"),), GREEDY) for k in range(3)]
    ids = [
        [a[0].token_ids for a in TransformersEngine.from_loaded(vlm, size).generate(requests)] for size in (64, 5, 1)
    ]  # type: ignore[union-attr]
    assert ids[0] == ids[1] == ids[2]
    assert len(set(ids[0])) > 10


def test_nano_vlm_answers_alike_alone_and_in_a_batch() -> None:
    model = models.load("nano-vlm", device="cpu")
    requests = [Request(p.messages, Sampling(max_tokens=24)) for p in PROBLEMS[::2]]
    requests += [ask(TextPart("What is 3 + 4?")), ask(render_part(RED), render_part(RED), TextPart("Same?"))]
    alone = [TransformersEngine.from_loaded(model, 1).generate([request])[0][0] for request in requests]
    together = [several[0] for several in TransformersEngine.from_loaded(model, 64).generate(requests)]
    assert [a.text for a in together] == [a.text for a in alone]  # type: ignore[union-attr]
    for single, other in zip(alone, together, strict=True):
        assert isinstance(single, Completion)
        assert isinstance(other, Completion)
        assert single.token_ids == other.token_ids
        assert single.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_greedy_tokens_and_prompts_equal_generate(vlm: LoadedModel) -> None:
    for problem in PROBLEMS[::4]:
        picture, question = problem.messages[0].content
        assert isinstance(picture, ImagePart)
        assert isinstance(question, TextPart)
        chat = [
            {
                "role": "user",
                "content": [{"type": "image", "url": picture.url}, {"type": "text", "text": question.text}],
            }
        ]
        given = vlm.processor.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )
        theirs = vlm.weights.generate(**given, max_new_tokens=6, do_sample=False)[0].tolist()
        (answer,) = TransformersEngine.from_loaded(vlm).generate([Request(problem.messages, GREEDY)])[0]
        assert isinstance(answer, Completion)
        assert list(answer.prompt_ids + answer.token_ids) == theirs


def test_logprobs_are_those_of_one_full_forward_pass(vlm: LoadedModel) -> None:
    for (answer,), problem in zip(
        TransformersEngine.from_loaded(vlm, 7).generate([Request(p.messages, SAMPLED, seed=3) for p in PROBLEMS[::3]]),
        PROBLEMS[::3],
        strict=True,
    ):
        assert isinstance(answer, Completion)
        seen = visual_prompt(vlm.processor, problem.messages)
        assert tuple(seen.ids) == answer.prompt_ids
        with torch.inference_mode():
            logprobs_TV = (
                vlm.weights(input_ids=torch.tensor([answer.prompt_ids + answer.token_ids]), **seen.inputs)
                .logits[0]
                .log_softmax(-1)
            )
        start = len(answer.prompt_ids)
        expected = [float(logprobs_TV[start + k - 1, token]) for k, token in enumerate(answer.token_ids)]
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


def test_images_change_answers_and_have_placeholder_tokens(vlm: LoadedModel) -> None:
    other = Scene((Item("star", "blue", "small", 40, 8),))
    single, second = (ask(render_part(s), TextPart("What is it?")) for s in (RED, other))
    (a,), (b,) = TransformersEngine.from_loaded(vlm).generate([single, second])
    assert isinstance(a, Completion)
    assert isinstance(b, Completion)
    assert a.prompt_ids == b.prompt_ids
    assert a.prompt_ids.count(vlm.weights.config.image_token_id) == IMAGE_TOKENS
    assert a.logprobs != b.logprobs
    assert a.usage.prompt_tokens == len(a.prompt_ids)


def test_several_pictures_and_several_completions_of_one_prompt(vlm: LoadedModel) -> None:
    second = ask(
        render_part(RED), render_part(RED), TextPart("Same?"), sampling=Sampling(max_tokens=4, temperature=2.0, count=3)
    )
    answers = TransformersEngine.from_loaded(vlm, 2).generate([second, ask(render_part(RED), TextPart("What?"))])
    assert len({a.token_ids for a in answers[0]}) > 1  # type: ignore[union-attr]
    assert answers[0][0].prompt_ids.count(vlm.weights.config.image_token_id) == 2 * IMAGE_TOKENS  # type: ignore[union-attr]
    assert isinstance(answers[1][0], Completion)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("data:image/png;base64,AAAA", "Pillow"),
        ("data:image/png;base64,!!", "cannot read the image"),
        ("data:image/png", "Pillow"),
        ("no/such/file.png", "No such file"),
    ],
)
def test_unreadable_image_fails_alone(vlm: LoadedModel, url: str, reason: str) -> None:
    answers = TransformersEngine.from_loaded(vlm).generate(
        [ask(ImagePart(url), TextPart("?")), ask(render_part(RED), TextPart("?"))]
    )
    failure = answers[0][0]
    assert isinstance(failure, Failure)
    assert failure.cause is FailureCause.INVALID_REQUEST
    assert reason in failure.message
    assert isinstance(answers[1][0], Completion)


def test_a_prompt_longer_than_the_context_fails_alone(vlm: LoadedModel) -> None:
    long = ask(*(render_part(RED) for _ in range(5)), TextPart("?"))
    answers = TransformersEngine.from_loaded(vlm).generate([long, ask(render_part(RED), TextPart("?"))])
    assert answers[0][0].cause is FailureCause.CONTEXT_LENGTH  # type: ignore[union-attr]
    assert isinstance(answers[1][0], Completion)


def test_a_text_model_given_an_image_still_fails_with_its_cause(nano: LoadedModel) -> None:
    failure = TransformersEngine.from_loaded(nano).generate([ask(render_part(RED), TextPart("?"))])[0][0]
    assert isinstance(failure, Failure)
    assert failure.cause is FailureCause.INVALID_REQUEST
    assert "text only" in failure.message


def test_images_are_read_from_files_and_addresses_alike(tmp_path: Path) -> None:
    image = render_scene(RED)
    image.save(tmp_path / "red.png")
    image.convert("P").save(tmp_path / "red.gif")
    wanted = np.asarray(image)
    for url in (str(tmp_path / "red.png"), f"file://{tmp_path / 'red.png'}", png_url(image)):
        assert (np.asarray(load_image(url)) == wanted).all()
    assert load_image(str(tmp_path / "red.gif")).mode == "RGB"
    cut = io.BytesIO()
    image.save(cut, "PNG")
    with pytest.raises(ImageError, match="cannot read"):
        load_image("data:image/png;base64," + base64.b64encode(cut.getvalue()[:200]).decode())


def test_without_pillow_the_install_command_is_named(vlm: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"palaestra\[vision\]"):
        TransformersEngine.from_loaded(vlm).generate([ask(render_part(RED), TextPart("?"))])


def test_training_sees_what_the_engine_asks(vlm: LoadedModel) -> None:
    """The same ids, and the same numbers for the picture, by the fast way and by the processor's."""
    stream = corpus(Seeds(3).generator())
    for shown in [next(stream) for _ in range(40)]:
        parts: tuple[TextPart | ImagePart, ...] = (TextPart(shown.question),)
        if shown.scene is not None:
            parts = (render_part(shown.scene), *parts)
        asked = visual_prompt(vlm.processor, [Message("user", parts)])
        encoded = encode_pictured(shown, vlm.tokenizer)
        assert list(encoded.prompt_ids) == asked.ids
        assert vlm.tokenizer.decode(encoded.response_ids) == f"{shown.response}<|end|>"
        if shown.scene is not None:
            mine = to_pixel_values(torch.from_numpy(np.asarray(render_scene(shown.scene))[None].copy()))
            assert torch.allclose(mine, asked.inputs["pixel_values"], atol=1e-5)


def test_pretraining_batches_repeat_with_the_seed(vlm: LoadedModel) -> None:
    def take(seed: int, workers: int = 0) -> list[dict[str, torch.Tensor]]:
        stream = load_batches(partial(draw_pictures, vlm.tokenizer, 6), Seeds(seed), torch.device("cpu"), workers)
        return [next(stream) for _ in range(3)]

    before = torch.random.get_rng_state()
    first, again, other, apart = take(0), take(0), take(1), take(0, workers=1)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a[k], b[k]) for a, b in zip(first, apart, strict=True) for k in a)
    assert all(torch.equal(a[k], b[k]) for a, b in zip(first, again, strict=True) for k in a)
    assert not all(torch.equal(a["input_ids"], b["input_ids"]) for a, b in zip(first, other, strict=True))
    for batch in first:
        places = int((batch["input_ids"] == vlm.weights.config.image_token_id).sum())
        assert places == IMAGE_TOKENS * len(batch.get("pixel_values", ()))


def test_a_small_one_learns_what_it_is_shown(vlm: LoadedModel) -> None:
    """Two pictures that differ in colour alone, told apart after a few dozen steps."""
    rows = [
        Shown(Scene((Item("circle", colour, "large", 24, 24),)), "What colour?", f"Answer: {colour}")
        for colour in ("red", "blue")
    ]
    with fork_torch_rng(Seeds(2)):
        model = build_vlm(vlm.tokenizer, layers=1, width=32)
    encoded = [encode_pictured(shown, vlm.tokenizer) for shown in rows]
    pictures = to_pixel_values(torch.from_numpy(np.stack([np.asarray(render_scene(s.scene)) for s in rows if s.scene])))

    def batches():  # type: ignore[no-untyped-def]
        from palaestra.students.batches import collate

        while True:
            yield {**collate(encoded, vlm.tokenizer.pad_token_id), "pixel_values": pictures}

    losses: list[float] = []
    pretrain_model(
        model,
        batches(),
        partial(compute_padded_loss, model),
        steps=60,
        matrix_learning_rate=0.01,
        vector_learning_rate=0.01,
        on_step=lambda _, loss: losses.append(loss) if loss == loss else None,
    )
    engine = TransformersEngine.from_loaded(LoadedModel("small", model, vlm.tokenizer, vlm.processor))
    replies = engine.generate(
        [ask(render_part(s.scene), TextPart(s.question), sampling=Sampling(max_tokens=8)) for s in rows if s.scene]
    )
    assert [a[0].text for a in replies] == ["Answer: red", "Answer: blue"]  # type: ignore[union-attr]
    assert losses[-1] < 0.1


def test_any_size_of_picture_is_brought_to_the_towers(vlm: LoadedModel) -> None:
    file = io.BytesIO()
    Image.new("RGB", (200, 90), "red").save(file, "JPEG")
    url = "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
    seen = visual_prompt(vlm.processor, [Message("user", (ImagePart(url), TextPart("?")))])
    assert tuple(seen.inputs["pixel_values"].shape) == (1, 3, 64, 64)
