"""Students with images: the loss equals transformers', they learn from the picture, and training is reproducible."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.core.errors import LessonError, RunError
from palaestra.core.records import Example, ImagePart, Message, Request, Sampling, TextPart
from palaestra.core.seeding import Seeds
from palaestra.engines.transformers import TransformersEngine
from palaestra.models import registry as models
from palaestra.models.embedded import EMBEDDED
from palaestra.models.images import load_image
from palaestra.models.registry import LoadedModel
from palaestra.rl.optimizers import fork_torch_rng
from palaestra.runs.files import write_folder
from palaestra.students.batches import Encoded, split_by_shape
from palaestra.students.pretraining import build_vlm
from palaestra.students.student import SupervisedStudent
from palaestra.students.supervised import Method, Supervision, add_adapter, fine_tune, supervision_for
from palaestra.tasks.vision.render import png_url, render_scene
from palaestra.tasks.vision.scene import Item, Scene
from palaestra.tasks.vision.task import VisionSkills

STILL = Supervision(epochs=1, batch_size=64, learning_rate=1e-30)
"""One step that changes nothing: its loss is that of the model as it was."""
SUM = Example((Message("user", "What is 3 + 4?"),), "3+4=7. Answer: 7")


@pytest.fixture
def vlm() -> LoadedModel:
    return models.load("nano-vlm", device="cpu")


@pytest.fixture(scope="module")
def processor() -> Any:
    return models.load("nano-vlm", device="cpu").processor


@pytest.fixture
def tiny_model(processor: Any) -> LoadedModel:
    """Random weights of nano-vlm's shape, made small."""
    return build_model(processor)


def build_model(processor: Any, layers: int = 1, width: int = 32) -> LoadedModel:
    with fork_torch_rng(Seeds(1)):
        model = build_vlm(processor.tokenizer, layers, width).eval()
    for name, weight in model.named_parameters():
        if weight.ndim > 1 and "embed" not in name:  # Random weights at which pictures matter.
            weight.data.mul_(3)
    return LoadedModel("tiny", model, processor.tokenizer, processor)


def make_image(colour: str, x: int = 24, y: int = 24, shape: str = "circle") -> ImagePart:
    return ImagePart(png_url(render_scene(Scene((Item(shape, colour, "large", x, y),)))))


def make_example(response: str, *parts: ImagePart | TextPart) -> Example:
    return Example((Message("user", parts),), response)


QUESTION = TextPart("What is its name?")
NAMES = {"red": "Answer: star", "blue": "Answer: cross"}
"""What no picture says by itself: circles are called otherwise, by their colour."""
LESSON = [
    make_example(name, make_image(colour, x, y), QUESTION)
    for colour, name in NAMES.items()
    for x in (8, 40)
    for y in (8, 40)
]


def lesson(count: int = 6) -> list[Example]:
    return VisionSkills().write_examples("relation", "", count, np.random.default_rng(0))


def mixed() -> list[Example]:
    """No picture, one, two and three."""
    return [
        SUM,
        *lesson(2),
        make_example("different", make_image("red"), make_image("blue"), TextPart("Same?")),
        make_example(
            "Answer: 3", make_image("red"), TextPart("How many"), make_image("red"), make_image("blue"), TextPart("?")
        ),
    ]


def transformers_loss(model: LoadedModel, examples: Sequence[Example]) -> float:
    """One batch by transformers alone: its template, its processor, its forward, its loss."""
    texts, prompts, images = [], [], []
    for item in examples:
        content = item.messages[0].content
        parts = [TextPart(content)] if isinstance(content, str) else list(content)
        chat = [{"role": "user", "content": [
            {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": part.text} for part in parts
        ]}]  # fmt: skip
        prompt = model.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        seen = [load_image(part.url) for part in parts if isinstance(part, ImagePart)]
        prompts.append(model.processor(text=[prompt], images=seen or None, return_tensors="pt").input_ids.shape[1])
        texts.append(f"{prompt}{item.response}<|end|>")
        images += seen
    given = model.processor(text=texts, images=images or None, padding=True, padding_side="right", return_tensors="pt")
    labels_BT = given.input_ids.masked_fill(given.attention_mask == 0, -100)
    for row, length in enumerate(prompts):
        labels_BT[row, :length] = -100
    with torch.inference_mode():
        return float(model.weights(**given, labels=labels_BT).loss)


def palaestra_loss(model: LoadedModel, examples: Sequence[Example]) -> float:
    ((_, loss),) = fine_tune(model.weights, model.tokenizer, examples, STILL, Seeds(0), processor=model.processor)
    return loss


def copy_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_the_loss_of_a_batch_is_transformers_own(vlm: LoadedModel) -> None:
    examples = lesson()
    assert palaestra_loss(vlm, examples) == pytest.approx(transformers_loss(vlm, examples), rel=1e-5)
    # And it is the picture's: with those of others in their place it is another.
    swapped = [
        Example((Message("user", (b.messages[0].content[0], a.messages[0].content[1])),), a.response)  # type: ignore[arg-type]
        for a, b in zip(examples, examples[1:] + examples[:1], strict=True)
    ]
    assert palaestra_loss(vlm, swapped) > palaestra_loss(vlm, examples) + 0.05


def test_prompts_with_no_picture_one_and_several_share_a_batch(tiny_model: LoadedModel) -> None:
    examples = mixed()
    assert palaestra_loss(tiny_model, examples) == pytest.approx(transformers_loss(tiny_model, examples), rel=1e-5)
    sizes = [len(tiny_model.tokenizer.encode(e.response, add_special_tokens=False)) + 1 for e in examples]
    alone = [palaestra_loss(tiny_model, [e]) for e in examples]
    assert palaestra_loss(tiny_model, examples) == pytest.approx(np.average(alone, weights=sizes), rel=1e-4)
    assert palaestra_loss(tiny_model, [SUM, SUM]) == pytest.approx(transformers_loss(tiny_model, [SUM, SUM]), rel=1e-5)


def test_a_batch_is_split_by_image_shapes() -> None:
    def make_row(*shape: int) -> Encoded:
        return Encoded((1, 2), (3,), {"pixel_values": torch.zeros(shape), "types": torch.zeros(1, 2)} if shape else {})

    rows = [
        make_row(),
        make_row(1, 3, 8, 8),
        make_row(2, 3, 8, 8),
        make_row(1, 2, 3, 8, 8),
        make_row(),
        make_row(1, 3, 8, 9),
    ]
    assert list(split_by_shape([4, 2, 0, 1], rows)) == [[4, 2, 0, 1]]
    assert list(split_by_shape([0, 4], rows)) == [[0, 4]]
    assert list(split_by_shape([0, 1, 3, 2, 4, 5], rows)) == [[1, 2, 0, 4], [3], [5]]


@pytest.mark.parametrize("method", ["full", pytest.param("lora", marks=pytest.mark.backends)])
def test_a_student_learns_from_pictures_forgets_saves_and_loads(
    vlm: LoadedModel, tmp_path: Path, method: Method
) -> None:
    supervision = Supervision(method, epochs=4, batch_size=4, learning_rate=1e-3 if method == "full" else 5e-3)
    unseen = [Request((Message("user", (make_image(c, 24, 24), QUESTION)),), Sampling(max_tokens=8)) for c in NAMES]

    def ask_all(student: SupervisedStudent) -> list[str]:
        return [several[0].text for several in student.engine().generate(unseen)]  # type: ignore[union-attr]

    student = SupervisedStudent(vlm, supervision)
    before, clean = ask_all(student), student.weights_sha256()
    assert before != list(NAMES.values())
    student.check(LESSON)
    curve = student.learn(LESSON, Seeds(0))
    assert curve[-1][1] < 0.1 * curve[0][1]
    assert ask_all(student) == list(NAMES.values())
    learned = student.weights_sha256()
    write_folder(tmp_path / "student", student.save)
    student.restore()
    assert ask_all(student) == before
    assert student.weights_sha256() == clean
    student.load(tmp_path / "student")
    assert student.weights_sha256() == learned
    assert ask_all(student) == list(NAMES.values())
    if method == "full":  # An ordinary checkpoint, with its processor beside it.
        loaded = TransformersEngine.from_loaded(models.load(str(tmp_path / "student"), device="cpu")).generate(unseen)
        assert [several[0].text for several in loaded] == list(NAMES.values())  # type: ignore[union-attr]


@pytest.mark.parametrize("frozen", [True, False])
def test_the_encoder_of_images_is_frozen_unless_asked(processor: Any, frozen: bool) -> None:
    model = build_model(processor)
    assert supervision_for(model.weights).optimizer == "muon"
    student = SupervisedStudent(model, supervision_for(model.weights, epochs=1, freeze_vision=frozen))
    before = {name: p.detach().clone() for name, p in model.weights.named_parameters()}
    student.learn(mixed(), Seeds(0))
    kept = {name for name, p in model.weights.named_parameters() if torch.equal(p, before[name])}
    tower = {name for name in before if "vision_tower" in name}
    assert kept <= tower
    assert (kept == tower) is frozen


def test_the_same_seed_gives_the_same_weights_also_after_a_kill(processor: Any, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(step: int, total: int, loss: float) -> None:
        if step == 3:
            raise Killed

    def make_fresh_student() -> SupervisedStudent:
        return SupervisedStudent(build_model(processor), Supervision(epochs=2, batch_size=2), keep_every=0.0)

    students = [make_fresh_student(), make_fresh_student(), make_fresh_student()]
    curves = [student.learn(mixed(), Seeds(seed)) for student, seed in zip(students, (0, 0, 1), strict=True)]
    hashes = [student.weights_sha256() for student in students]
    assert hashes[0] == hashes[1] != hashes[2]
    assert curves[0] == curves[1]
    with pytest.raises(Killed):
        students[2].learn(mixed(), Seeds(0), kill, tmp_path / "training")
    steps: list[int] = []
    again = make_fresh_student()
    assert again.learn(mixed(), Seeds(0), lambda step, *_: steps.append(step), tmp_path / "training") == curves[0]
    assert steps[0] == 3
    assert again.weights_sha256() == hashes[0]


def test_the_checkpoint_of_another_model_is_refused(processor: Any, tiny_model: LoadedModel, tmp_path: Path) -> None:
    for layers, width in ((1, 64), (2, 32)):
        build_model(processor, layers, width).weights.save_pretrained(tmp_path / f"{layers}-{width}")
        with pytest.raises(RunError, match="model tiny"):
            SupervisedStudent(tiny_model).load(tmp_path / f"{layers}-{width}")
    two = SupervisedStudent(build_model(processor, 2))
    tiny_model.weights.save_pretrained(tmp_path / "1-32")
    with pytest.raises(RunError, match="model tiny"):
        two.load(tmp_path / "1-32")


PARTS = ("vision_tower", "multi_modal_projector", "language_model")


def test_full_training_changes_every_part(tiny_model: LoadedModel) -> None:
    supervision = Supervision(epochs=1, batch_size=4)
    for examples, moved in (([SUM] * 4, PARTS[2:]), (lesson(4), PARTS)):
        before = copy_weights(tiny_model.weights)
        fine_tune(
            tiny_model.weights, tiny_model.tokenizer, examples, supervision, Seeds(0), processor=tiny_model.processor
        )
        changed = {
            name for name, weight in copy_weights(tiny_model.weights).items() if not torch.equal(weight, before[name])
        }
        assert {part for part in PARTS for name in changed if part in name} == set(moved)
        still = {name for name in set(before) - changed if any(part in name for part in moved)}
        # LLaVA takes the tower's last hidden state from before its last norm.
        assert all("post_layernorm" in name for name in still), still


def test_adapter_training_leaves_the_base_unchanged(tiny_model: LoadedModel) -> None:
    before = copy_weights(tiny_model.weights)
    supervision = Supervision("lora", epochs=1, batch_size=2, rank=4)
    adapted = add_adapter(tiny_model.weights, supervision, Seeds(0))
    start = copy_weights(adapted)
    fine_tune(adapted, tiny_model.tokenizer, lesson(4), supervision, Seeds(0), processor=tiny_model.processor)
    changed = {name for name, weight in copy_weights(adapted).items() if not torch.equal(weight, start[name])}
    assert all("lora_" in name for name in changed)
    assert {part for part in PARTS for name in changed if part in name} == set(PARTS)
    after = copy_weights(adapted.unload())
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_what_a_student_cannot_be_shown_is_one_clear_line(tiny_model: LoadedModel, nano: LoadedModel) -> None:
    student = SupervisedStudent(tiny_model)
    long = make_example("many", *[make_image("red")] * 4, QUESTION)
    with pytest.raises(LessonError, match=f"at most {EMBEDDED['nano-vlm'].context}"):
        student.check([long])
    with pytest.raises(LessonError, match=r"image .*/no/such"):
        student.check([make_example("x", ImagePart("/no/such.png"), QUESTION)])
    with pytest.raises(LessonError, match="text only"):
        SupervisedStudent(nano).check(LESSON)
