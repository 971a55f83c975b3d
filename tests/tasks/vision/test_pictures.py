"""Image generators, and the pictures of examples by a language model."""

import json
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sketch_generator
from PIL import Image

from palaestra.core.errors import MissingExtraError, ModelError, PalaestraError, SettingsError, StorageError
from palaestra.core.records import Completion, Example, Failure, FailureCause, ImagePart, Lesson, Problem, Score
from palaestra.engines.mock import MockEngine
from palaestra.models.images import load_image
from palaestra.tasks.base import Task, UnusableError, WritableTask, make_task
from palaestra.tasks.vision.image_generators import text_to_image
from palaestra.tasks.vision.image_generators.base import IMAGE_GENERATORS, make_image_generator
from palaestra.tasks.vision.pictures import DescribedDatum, Pictures, VisionDatum
from palaestra.tasks.vision.render import render_scene
from palaestra.tasks.vision.scene import Item, Scene
from palaestra.teachers.base import Order
from palaestra.teachers.model_writer import ModelWriter
from palaestra.teachers.prompts import TeacherPrompts
from palaestra.teachers.quality.base import Context, inspect, make_checks

DATUM = {
    "description": "A red disc beside a blue disc.",
    "question": "Which colour has the left disc?",
    "reasoning": "The disc on the left is red",
    "answer": "red",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and no memory of what other tests asked for."""
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))
    sketch_generator.SketchGenerator.asked.clear()
    return tmp_path / "cache" / "pictures"


def make_datum(**values: Any) -> DescribedDatum:
    return DescribedDatum.model_validate(DATUM | values)


def load_example_image(example: Example) -> Image.Image:
    part = example.messages[-1].content[0]
    assert isinstance(part, ImagePart)
    return load_image(part.url)


def score(task: Task, example: Example) -> Score | Failure:
    problem = Problem("p", example.messages, example.reference, example.skill, "", example.metadata)
    return task.score(problem, Completion(example.response))


def test_procedural_generator_reports_invalid_scenes() -> None:
    good, bad = (Scene((Item("circle", colour, "large", 20, 20),)) for colour in ("red", "mauve"))
    result = make_image_generator("procedural").generate([good, bad, good], seed=3)
    assert [image.cause if isinstance(image, Failure) else image.tobytes() for image in result] == [
        render_scene(good).tobytes(),
        FailureCause.MALFORMED,
        render_scene(good).tobytes(),
    ]


@pytest.mark.parametrize(
    ("images", "kind", "message"),
    [
        ("sketsh", PalaestraError, "'sketch'"),
        ("", SettingsError, "name of an image generator"),
        (4, SettingsError, "got 4"),
        ("procedural:model", SettingsError, "'procedural' .*'model'"),
        ("procedural,size=3", SettingsError, "'procedural' .*'size'"),
        ("sketch,width=3", SettingsError, "'width'; .*size"),
        ("diffusers", SettingsError, "diffusers:MODEL"),
    ],
)
def test_invalid_image_generator(images: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        make_task("vision-skills", images=images)
    assert "\n" not in str(caught.value)


def test_options_of_an_image_generator() -> None:
    generator = make_image_generator("sketch:/data/a, b=c/model,size=8")
    assert isinstance(generator, sketch_generator.SketchGenerator)
    assert (generator.size, generator.identity) == (8, "sketch /data/a, b=c/model 8")
    assert {"procedural", "diffusers", "sketch"} <= set(IMAGE_GENERATORS.names())


def test_missing_diffusers_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_to_image, "find_spec", lambda name: None if name == "diffusers" else util.find_spec(name))
    with pytest.raises(MissingExtraError, match=r"palaestra\[diffusers\]"):
        make_task("gqa", images="diffusers:owner/name")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("diffusers:/no/such/folder", "/no/such/folder"),
        ("diffusers:{folder}", "model_index\\.json"),
        (
            "diffusers:owner/name,steps=-1",
            "'steps' .*-1",
        ),
        (
            "diffusers:owner/name,batch=0",
            "'batch' .*0",
        ),
        (
            "diffusers:owner/name,size=big",
            "'size' .*'big'",
        ),
        (
            "diffusers:owner/name,guidance=much",
            "'guidance' .*'much'",
        ),
        ("diffusers:owner/name,dtype=int3", "'dtype' .*float32"),
    ],
)
def test_invalid_pipeline_is_rejected_before_loading(
    spec: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_to_image, "find_spec", lambda name: object())
    with pytest.raises((SettingsError, ModelError), match=message):
        make_image_generator(spec.format(folder=tmp_path))


def test_datum_follows_the_image_generator() -> None:
    drawn, generated = make_task("vision-skills"), make_task("vision-skills", images="sketch")
    assert isinstance(drawn, WritableTask)
    assert isinstance(generated, WritableTask)
    assert (drawn.datum, generated.datum) == (VisionDatum, DescribedDatum)
    assert "x and y are its middle" in drawn.brief()
    assert "does not see the question" in generated.brief()
    assert "x and y" not in generated.brief()


def test_described_datum_becomes_a_scorable_example() -> None:
    task = make_task("vision-skills", images="sketch,size=16")
    assert isinstance(task, WritableTask)
    example = task.make_example(make_datum(choices=["red", "blue"]), "colour", "name")
    assert example.response == "The disc on the left is red. Answer: red"
    assert example.messages[-1].text == DATUM["question"]
    assert load_example_image(example).size == (16, 16)
    assert example.metadata == {
        "choices": ["red", "blue"],
        "description": DATUM["description"],
        "image_generator": "sketch,size=16",
    }
    assert score(task, example) == Score(1.0, {"extracted": "red", "expected": "red"})


def test_images_are_cached_by_description_seed_and_model(cache: Path) -> None:
    asked = sketch_generator.SketchGenerator.asked
    data = [make_datum(), make_datum(question="Another?"), make_datum(description="A   red disc beside\na blue disc. ")]
    first = Pictures("sketch").generate_images(data)
    assert asked == [["A red disc beside a blue disc."]]
    assert len(set(first)) == 1
    assert Pictures("sketch").generate_images(data) == first  # As another process would.
    assert len(asked) == 1
    for other in (Pictures("sketch", seed=1), Pictures("sketch,size=8"), Pictures("sketch:other")):
        other.generate_images(data)
    assert len(asked) == 4
    assert not [file for file in cache.rglob("*") if file.is_file() and file.suffix != ".png"]
    for file in cache.rglob("*.png"):
        file.write_bytes(file.read_bytes()[:-9])  # A power cut may have left a part of it.
    assert Pictures("sketch").generate_images(data) == first
    assert len(asked) == 5


def test_failed_image_does_not_affect_the_others() -> None:
    pictures = Pictures("sketch")
    data = [make_datum(), make_datum(description="forbidden"), make_datum(description="A green disc.")]
    first, refused, last = pictures.generate_images(data)
    assert isinstance(first, bytes)
    assert isinstance(last, bytes)
    assert refused == Failure(FailureCause.REFUSED, "this is not generated")
    task = make_task("vision-skills", images="sketch")
    assert isinstance(task, WritableTask)
    with pytest.raises(UnusableError, match=r"\(refused\)"):
        task.make_example(data[1], "colour", "")
    with pytest.raises(UnusableError, match=r"\(engine\): .*'sketch' raised ZeroDivisionError"):
        task.make_example(make_datum(description="broken"), "colour", "")
    with pytest.raises(UnusableError, match=r"\(malformed\)"):
        task.make_example(make_datum(description="nonsense"), "colour", "")
    with pytest.raises(UnusableError, match="0 images for 1"):
        task.make_example(make_datum(description="absent"), "colour", "")


def test_prepare_generates_all_images_in_one_batch() -> None:
    task = make_task("vision-skills", images="sketch")
    assert isinstance(task, WritableTask)
    data = [make_datum(description=f"{colour} disc") for colour in ("red", "green", "forbidden")]
    task.prepare(data)  # type: ignore[attr-defined]
    assert sketch_generator.SketchGenerator.asked == [["red disc", "green disc", "forbidden disc"]]
    task.make_example(data[1], "colour", "")
    with pytest.raises(UnusableError):
        task.make_example(data[2], "colour", "")
    assert len(sketch_generator.SketchGenerator.asked) == 1


def test_unwritable_cache_is_a_storage_error(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("not a folder")
    with pytest.raises(StorageError, match="pictures"):
        Pictures("sketch").generate_images([make_datum()])


@pytest.mark.parametrize(
    ("name", "skill", "answer", "asked", "choices"),
    [
        ("gqa", "verify", "yes", "{q}\nAnswer the question using a single word or phrase.", ["yes", "no"]),
        ("gqa", "query", "red", "{q}\nAnswer the question using a single word or phrase.", []),
        ("naturalbench", "yes_no", "No", "{q} Please answer Yes or No.", ["yes", "no"]),
        ("naturalbench", "found by somebody", "B", "{q} Please output the letter corresponding to the correct option.", ["A", "B"]),
        ("easy-vqa", "shape", "circle", "{q}", ["circle", "rectangle", "triangle"]),
        ("nlvr", "tower", "false", "{q}\nIs this true or false of the picture? Answer true or false.", ["true", "false"]),
    ],
)  # fmt: skip
def test_examples_have_the_prompts_of_evaluations(
    name: str, skill: str, answer: str, asked: str, choices: list[str]
) -> None:
    task = make_task(name, images="sketch")
    assert isinstance(task, WritableTask)
    example = task.make_example(make_datum(answer=f" {answer} "), skill, "")
    assert example.messages[-1].text == asked.format(q=DATUM["question"])
    assert example.response == example.reference == answer
    assert example.metadata["choices"] == choices
    assert isinstance(score(task, example), Score)
    assert score(task, example).value == 1.0  # type: ignore[union-attr]


def test_impossible_answers_are_rejected() -> None:
    task = make_task("naturalbench", images="sketch")
    assert isinstance(task, WritableTask)
    with pytest.raises(UnusableError, match=r"yes, no; .*'perhaps'$"):
        task.make_example(make_datum(answer="perhaps"), "yes_no", "")
    with pytest.raises(UnusableError, match=r"yes, no, A, B; .*'perhaps'$"):
        task.make_example(make_datum(answer="perhaps"), "", "")
    assert not sketch_generator.SketchGenerator.asked  # Nobody paints in vain.


def test_lessons_need_an_image_generator() -> None:
    for name in ("gqa", "naturalbench", "easy-vqa", "nlvr"):
        assert not isinstance(make_task(name), WritableTask), name
        with_scenes = make_task(name, images="procedural")
        assert isinstance(with_scenes, WritableTask)
        assert with_scenes.datum is VisionDatum


def test_writer_gets_the_brief_and_the_reason_of_a_failure() -> None:
    task = make_task("gqa", images="sketch")
    message = iter([[DATUM | {"description": "forbidden"}], [DATUM]])
    engine = MockEngine(lambda request, _: json.dumps({"data": next(message)}))
    (written,) = ModelWriter(task, engine, TeacherPrompts(), "no_state").write(
        [Order("query", "", 1, "mend", "why")], np.random.default_rng(0)
    )
    assert len(written.examples) == 1
    assert "photographs of everyday scenes" in engine.requests[0].messages[-1].text
    assert "this is not generated" in engine.requests[1].messages[-1].text


def test_picture_check_drops_blank_images() -> None:
    task = make_task("vision-skills", images="sketch")
    assert isinstance(task, WritableTask)
    examples = [task.make_example(make_datum(description=words), "colour", "") for words in ("a red disc", "nothing")]
    result = inspect(Lesson(tuple(examples)), make_checks(["picture"]), Context(task))
    assert result.kept == (examples[0],)
    assert [(drop.position, drop.reason) for drop in result.dropped] == [(1, "the image shows nothing")]
    report = result.check("picture")
    assert (report.not_judged, report.remarks) == (1, {"generated from words, which cannot be verified": 1})
