"""Image generators, and the pictures of examples by a language model."""

import json
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sketching
from PIL import Image

from palaestra.core.errors import MissingExtraError, ModelError, PalaestraError, SettingsError, StorageError
from palaestra.core.records import Completion, Example, Failure, FailureCause, ImagePart, Lesson, Problem, Score
from palaestra.engines.images import load_image
from palaestra.engines.mock import MockEngine
from palaestra.tasks.base import Task, UnusableError, WritableTask, make_task
from palaestra.tasks.vision.image_generators import text_to_image
from palaestra.tasks.vision.image_generators.base import IMAGE_GENERATORS, make_image_generator
from palaestra.tasks.vision.pictures import DescribedDatum, Pictures, VisionDatum
from palaestra.tasks.vision.render import render
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
    sketching.Sketch.asked.clear()
    return tmp_path / "cache" / "pictures"


def described(**values: Any) -> DescribedDatum:
    return DescribedDatum.model_validate(DATUM | values)


def image_of(example: Example) -> Image.Image:
    part = example.messages[-1].content[0]
    assert isinstance(part, ImagePart)
    return load_image(part.url)


def score(task: Task, example: Example) -> Score | Failure:
    problem = Problem("p", example.messages, example.reference, example.skill, "", example.metadata)
    return task.score(problem, Completion(example.response))


def test_the_procedural_generator_draws_scenes_in_order_and_reports_invalid_ones() -> None:
    good, bad = (Scene((Item("circle", colour, "large", 20, 20),)) for colour in ("red", "mauve"))
    found = make_image_generator("procedural").generate([good, bad, good], seed=3)
    assert [one.cause if isinstance(one, Failure) else one.tobytes() for one in found] == [
        render(good).tobytes(), FailureCause.MALFORMED, render(good).tobytes(),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("images", "kind", "said"),
    [
        ("sketsh", PalaestraError, "did you mean 'sketch'"),
        ("", SettingsError, "expected the name of an image generator"),
        (4, SettingsError, "got 4"),
        ("procedural:model", SettingsError, "'procedural' takes no model; got 'model'"),
        ("procedural,size=3", SettingsError, "'procedural' has no option 'size'; it takes none"),
        ("sketch,width=3", SettingsError, "has no option 'width'; it takes size"),
        ("diffusers", SettingsError, "needs a model, a folder or a hub id: diffusers:MODEL"),
    ],
)
def test_a_painter_that_cannot_be_is_refused_with_what_to_do(images: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        make_task("vision-skills", images=images)
    assert "\n" not in str(caught.value)


def test_a_painter_is_made_with_its_options_and_a_comma_may_be_in_a_model() -> None:
    made = make_image_generator("sketch:/data/a, b=c/model,size=8")
    assert isinstance(made, sketching.Sketch)
    assert (made.size, made.identity) == (8, "sketch /data/a, b=c/model 8")
    assert {"procedural", "diffusers", "sketch"} <= set(IMAGE_GENERATORS.names())


def test_without_diffusers_the_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_to_image, "find_spec", lambda name: None if name == "diffusers" else util.find_spec(name))
    with pytest.raises(MissingExtraError, match=r"pip install 'palaestra\[diffusers\]'"):
        make_task("gqa", images="diffusers:owner/name")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("diffusers:/no/such/folder", "there is no folder /no/such/folder"),
        ("diffusers:{folder}", "it has no model_index.json"),
        (
            "diffusers:owner/name,steps=-1",
            "option 'steps' of an image generator must be a whole number of at least 0; got -1",
        ),
        (
            "diffusers:owner/name,batch=0",
            "option 'batch' of an image generator must be a whole number of at least 1; got 0",
        ),
        (
            "diffusers:owner/name,size=big",
            "option 'size' of an image generator must be a whole number of at least 0; got 'big'",
        ),
        (
            "diffusers:owner/name,guidance=much",
            "option 'guidance' of an image generator must be a finite number; got 'much'",
        ),
        ("diffusers:owner/name,dtype=int3", "option 'dtype' of an image generator: expected one of float32"),
    ],
)
def test_a_pipeline_that_cannot_be_is_refused_before_anything_is_loaded(
    spec: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_to_image, "find_spec", lambda name: object())
    with pytest.raises((SettingsError, ModelError), match=said):
        make_image_generator(spec.format(folder=tmp_path))


def test_the_painter_decides_what_a_writer_fills_in() -> None:
    drawn, generated = make_task("vision-skills"), make_task("vision-skills", images="sketch")
    assert isinstance(drawn, WritableTask)
    assert isinstance(generated, WritableTask)
    assert (drawn.datum, generated.datum) == (VisionDatum, DescribedDatum)
    assert "x and y are its middle" in drawn.brief()
    assert "does not see the question" in generated.brief()
    assert "x and y" not in generated.brief()


def test_a_described_datum_becomes_an_example_that_its_own_scorer_accepts() -> None:
    task = make_task("vision-skills", images="sketch,size=16")
    assert isinstance(task, WritableTask)
    example = task.make_example(described(choices=["red", "blue"]), "colour", "name")
    assert example.response == "The disc on the left is red. Answer: red"
    assert example.messages[-1].text == DATUM["question"]
    assert image_of(example).size == (16, 16)
    assert example.metadata == {
        "choices": ["red", "blue"], "description": DATUM["description"], "image_generator": "sketch,size=16",
    }  # fmt: skip
    assert score(task, example) == Score(1.0, {"extracted": "red", "expected": "red"})


def test_a_picture_is_painted_once_by_description_seed_and_painter_whoever_asks(cache: Path) -> None:
    asked = sketching.Sketch.asked
    data = [described(), described(question="Another?"), described(description="A   red disc beside\na blue disc. ")]
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


def test_what_cannot_be_painted_says_why_and_takes_nothing_with_it() -> None:
    pictures = Pictures("sketch")
    data = [described(), described(description="forbidden"), described(description="A green disc.")]
    first, refused, last = pictures.generate_images(data)
    assert isinstance(first, bytes)
    assert isinstance(last, bytes)
    assert refused == Failure(FailureCause.REFUSED, "this is not generated")
    task = make_task("vision-skills", images="sketch")
    assert isinstance(task, WritableTask)
    with pytest.raises(UnusableError, match=r"cannot be generated \(refused\): this is not generated"):
        task.make_example(data[1], "colour", "")
    with pytest.raises(
        UnusableError, match=r"cannot be generated \(engine\): image generator 'sketch' raised ZeroDivisionError"
    ):
        task.make_example(described(description="broken"), "colour", "")
    with pytest.raises(
        UnusableError, match=r"cannot be generated \(malformed\): the image generator returned no image"
    ):
        task.make_example(described(description="nonsense"), "colour", "")
    with pytest.raises(UnusableError, match="it returned 0 images for 1 descriptions"):
        task.make_example(described(description="absent"), "colour", "")


def test_all_that_is_prepared_is_painted_together_and_nothing_is_asked_for_again() -> None:
    task = make_task("vision-skills", images="sketch")
    assert isinstance(task, WritableTask)
    data = [described(description=f"{colour} disc") for colour in ("red", "green", "forbidden")]
    task.prepare(data)  # type: ignore[attr-defined]
    assert sketching.Sketch.asked == [["red disc", "green disc", "forbidden disc"]]
    task.make_example(data[1], "colour", "")
    with pytest.raises(UnusableError):
        task.make_example(data[2], "colour", "")
    assert len(sketching.Sketch.asked) == 1


def test_a_disk_that_takes_no_picture_is_an_error_that_names_it(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("not a folder")
    with pytest.raises(StorageError, match="storing an image"):
        Pictures("sketch").generate_images([described()])


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
def test_a_published_set_is_asked_and_answered_in_lessons_as_in_evaluations(
    name: str, skill: str, answer: str, asked: str, choices: list[str]
) -> None:
    task = make_task(name, images="sketch")
    assert isinstance(task, WritableTask)
    example = task.make_example(described(answer=f" {answer} "), skill, "")
    assert example.messages[-1].text == asked.format(q=DATUM["question"])
    assert example.response == example.reference == answer
    assert example.metadata["choices"] == choices
    assert isinstance(score(task, example), Score)
    assert score(task, example).value == 1.0  # type: ignore[union-attr]


def test_a_published_set_refuses_answers_that_its_questions_cannot_have() -> None:
    task = make_task("naturalbench", images="sketch")
    assert isinstance(task, WritableTask)
    with pytest.raises(UnusableError, match=r"the answer is one of yes, no; got 'perhaps'$"):
        task.make_example(described(answer="perhaps"), "yes_no", "")
    with pytest.raises(UnusableError, match=r"the answer is one of yes, no, A, B; got 'perhaps'$"):
        task.make_example(described(answer="perhaps"), "", "")
    assert not sketching.Sketch.asked  # Nobody paints in vain.


def test_a_published_set_without_a_painter_has_no_lessons_written_and_with_ours_gets_scenes() -> None:
    for name in ("gqa", "naturalbench", "easy-vqa", "nlvr"):
        assert not isinstance(make_task(name), WritableTask), name
        with_scenes = make_task(name, images="procedural")
        assert isinstance(with_scenes, WritableTask)
        assert with_scenes.datum is VisionDatum


def test_a_writer_of_a_published_set_is_told_what_it_is_and_why_a_datum_was_useless() -> None:
    task = make_task("gqa", images="sketch")
    said = iter([[DATUM | {"description": "forbidden"}], [DATUM]])
    engine = MockEngine(lambda request, _: json.dumps({"data": next(said)}))
    (written,) = ModelWriter(task, engine, TeacherPrompts(), "no_state").write(
        [Order("query", "", 1, "mend", "why")], np.random.default_rng(0)
    )
    assert len(written.examples) == 1
    assert "photographs of everyday scenes" in engine.requests[0].messages[-1].text
    assert "this is not generated" in engine.requests[1].messages[-1].text


def test_the_check_of_pictures_lets_painted_ones_pass_unverified_and_drops_blank_ones() -> None:
    task = make_task("vision-skills", images="sketch")
    assert isinstance(task, WritableTask)
    examples = [task.make_example(described(description=words), "colour", "") for words in ("a red disc", "nothing")]
    found = inspect(Lesson(tuple(examples)), make_checks(["picture"]), Context(task))
    assert found.kept == (examples[0],)
    assert [(drop.position, drop.reason) for drop in found.dropped] == [(1, "the image shows nothing")]
    report = found.check("picture")
    assert (report.not_judged, report.remarks) == (1, {"generated from words, which cannot be verified": 1})
