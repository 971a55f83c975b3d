"""GQA, easy-VQA and NLVR from folders in their own formats, and from the hub."""

import base64
import gzip
import io
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from palaestra.core.errors import MissingExtraError, TaskError
from palaestra.core.records import Completion, ImagePart, Problem, Split
from palaestra.core.statistics import report_on
from palaestra.engines.mock import MockEngine
from palaestra.tasks import sources
from palaestra.tasks.base import make_task
from palaestra.tasks.evaluate import evaluate
from palaestra.tasks.vision.sets import GQA, NLVR, EasyVQA, NaturalBench

DATA = Path(os.environ.get("PALAESTRA_DATA") or Path(__file__).parents[3] / "shared" / "data")


def needs(name: str) -> pytest.MarkDecorator:
    there = (DATA / name).is_dir()
    return pytest.mark.skipif(not there, reason=f"{name} is not there; PALAESTRA_DATA names the folder that holds it")


def png(colour: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(file, "PNG")
    return file.getvalue()


def bytes_of(problem: Problem) -> bytes:
    part = problem.messages[0].content[0]
    assert isinstance(part, ImagePart)
    return base64.b64decode(part.url.partition(",")[2])


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_gqa_is_read_from_its_own_files(tmp_path: Path) -> None:
    questions = {
        f"q{k}": {
            "imageId": f"n{k}", "question": "Who is it?" if k % 2 else "Is it red?", "answer": "dog" if k % 2 else "no",
            "types": {"structural": "query" if k % 2 else "verify"},
        }
        for k in range(6)
    }  # fmt: skip
    (tmp_path / "testdev_balanced_questions.json").write_text(json.dumps(questions))
    (tmp_path / "images").mkdir()
    for k in range(6):
        (tmp_path / "images" / f"n{k}.jpg").write_bytes(png("red"))
    task = GQA(path=str(tmp_path))
    problems = task.problems(Split.TEST, 2, 0, ["verify", "query"])
    assert [p.reference for p in problems] == ["no", "no", "dog", "dog"]
    assert problems[0].messages[0].text == "Is it red?\nAnswer the question using a single word or phrase."
    assert task.score(problems[2], Completion("Dogs.")).value == 1.0  # type: ignore[union-attr]
    assert task.score(problems[2], Completion("It is a dog.")).value == 0.0  # type: ignore[union-attr]
    assert task.score(problems[0], Completion("No, it is blue.")).value == 1.0  # type: ignore[union-attr]
    with pytest.raises(TaskError, match=r"skill 'compare' of gqa has 0 test problems"):
        task.problems(Split.TEST, 1, 0, ["compare"])
    with pytest.raises(TaskError, match=r"no 'val_balanced_questions' split; expected val_balanced_questions\.jsonl"):
        task.problems(Split.VALIDATION, 1, 0)


def test_a_folder_like_easy_vqas_is_asked_and_scored_from_end_to_end(tmp_path: Path) -> None:
    """An engine that sees colours alone: right about those, and about no shape."""
    colours = {"red": "red", "blue": "blue", "green": "green"}
    rows = []
    for k, colour in enumerate(colours):
        (tmp_path / f"{k}.png").write_bytes(png(colour))
        rows += [
            {"question": f"what color is the shape ({k})?", "answer": colour, "image": f"{k}.png"},
            {"question": f"what shape is this ({k})?", "answer": "circle", "image": f"{k}.png"},
            {"question": f"is there a red shape ({k})?", "answer": "yes" if colour == "red" else "no", "image": f"{k}.png"},
        ]  # fmt: skip
    (tmp_path / "test.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    by_bytes = {png(colour): colour for colour in colours}

    def see(request: Any, k: int) -> str:
        colour = by_bytes[bytes_of(Problem("", request.messages, ""))]
        asked = request.messages[0].text
        if "red" in asked:
            return f"It is {colour}. Answer: {'yes' if colour == 'red' else 'no'}"
        return f"The shape is {colour}." if "color" in asked else "triangle"

    task = make_task("easy-vqa", path=str(tmp_path))
    problems = task.problems(Split.TEST, 3, 0)
    report = report_on(evaluate(task, problems, lambda: MockEngine(see)))
    assert {part.name: (part.correct, part.count) for part in report.slices} == {
        "colour": (3, 3), "shape": (0, 3), "yes_no": (3, 3),
    }  # fmt: skip
    assert not report.failures
    with pytest.raises(TaskError, match="has 3 test problems, fewer than 4"):
        task.problems(Split.TEST, 4, 0)


@needs("easy_vqa")
def test_easy_vqa_is_read_whole_and_its_references_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_DATA", str(DATA))
    task = make_task("easy-vqa")
    assert isinstance(task, EasyVQA)
    counts = {split: sum(len(rows) for rows in task._choose_held_out(split).values()) for split in Split}
    assert counts[Split.TEST] == 9673
    assert counts[Split.TRAIN] + counts[Split.VALIDATION] == 38575
    problems = task.problems(Split.TEST, 20, 0)
    answers = {p.messages[0].text + str(bytes_of(p)): p.reference for p in problems}

    def look(request: Any, k: int) -> str:
        return f"It is {answers[request.messages[0].text + str(bytes_of(Problem('', request.messages, '')))]}."

    attempts = evaluate(task, problems, lambda: MockEngine(look))
    assert all(a.correct for a in attempts)
    assert Image.open(io.BytesIO(bytes_of(problems[0]))).size == (64, 64)


@needs("easy_vqa")
def test_no_image_of_easy_vqa_is_in_two_splits() -> None:
    rows = [row for _, row in sources.read_rows(EasyVQA.source, str(DATA / "easy_vqa"), "train")]
    task = EasyVQA(path=str(DATA / "easy_vqa"))
    of: dict[str, set[Split]] = {}
    for split in (Split.TRAIN, Split.VALIDATION):
        for question in itertools.chain(*task._choose_held_out(split).values()):
            of.setdefault(rows[int(question.id.rpartition("/")[2])]["image"], set()).add(split)
    assert len(of) == 4000
    assert all(len(splits) == 1 for splits in of.values())


@needs("nlvr")
def test_nlvr_is_read_whole_and_both_words_of_truth_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_DATA", str(DATA))
    task = make_task("nlvr")
    assert isinstance(task, NLVR)
    assert [sum(map(len, task._choose_held_out(s).values())) for s in (Split.VALIDATION, Split.TEST)] == [989, 990]
    for problem in task.problems(Split.TEST, 10, 0):
        said = {"true": "Yes.", "false": "No."}[problem.reference]
        assert task.score(problem, Completion(said)).value == 1.0  # type: ignore[union-attr]
        assert task.score(problem, Completion(f"Answer: {problem.reference}")).value == 1.0  # type: ignore[union-attr]
        assert bytes_of(problem).startswith(b"\x89PNG")
    with pytest.raises(TaskError, match=r"no 'train' split; expected train\.jsonl"):
        task.problems(Split.TRAIN, 1, 0)


def test_without_data_the_error_says_where_to_put_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PALAESTRA_DATA", raising=False)
    for kind in (EasyVQA, NLVR):
        assert kind().skills()
        with pytest.raises(TaskError, match="set PALAESTRA_DATA to a folder that contains"):
            kind().problems(Split.TEST, 1, 0)
    with pytest.raises(TaskError, match=r"no folder /nowhere/at/all"):
        EasyVQA(path="/nowhere/at/all").problems(Split.TEST, 1, 0)
    lines(tmp_path / "test.jsonl", [{"question": "q", "answer": "maroon", "image": "0.png"}])
    with pytest.raises(TaskError, match="expected one of its 13 answers; got 'maroon'"):
        EasyVQA(path=str(tmp_path)).problems(Split.TEST, 1, 0)
    lines(tmp_path / "test.jsonl", [{"question": "q", "answer": "red", "image": "0.png"}])
    with pytest.raises(TaskError, match=r"image 0\.png was not found"):
        EasyVQA(path=str(tmp_path)).problems(Split.TEST, 1, 0, ["colour"])
    (tmp_path / "test.jsonl").write_text("{broken")
    with pytest.raises(TaskError, match=r"test\.jsonl, row 1: expected a JSON object; "):
        EasyVQA(path=str(tmp_path)).problems(Split.TEST, 1, 0)


def test_the_hub_needs_its_extra_and_is_asked_for_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.delenv("PALAESTRA_DATA", raising=False)
    asked: list[tuple[Any, ...]] = []

    def load(name: str, config: str | None, *, split: str) -> Any:
        asked.append((name, config, split))
        image = {"bytes": png("red"), "path": None}
        if config == "testdev_balanced_images":
            held: dict[str, Any] = {"id": ["n1"], "image": [image]}
        else:
            held = {
                "id": ["q1"], "imageId": ["n1"], "question": ["Is it red?"], "answer": ["yes"], "types": [{"structural": "verify"}],
            }  # fmt: skip
        made = datasets.Dataset.from_dict(held)
        return made.cast_column("image", datasets.Image()) if "image" in held else made

    monkeypatch.setattr(datasets, "load_dataset", load)
    (problem,) = make_task("gqa").problems(Split.TEST, 1, 0, ["verify"])
    assert bytes_of(problem) == png("red")
    assert asked == [
        ("lmms-lab/GQA", "testdev_balanced_images", "testdev"),
        ("lmms-lab/GQA", "testdev_balanced_instructions", "testdev"),
    ]

    def pairs(name: str, config: str | None, *, split: str) -> Any:
        rows = {
            "Index": list(range(20)), "Question_0": ["q"] * 20, "Question_1": ["r"] * 20, "Question_Type": ["multiple_choice"] * 20,
            **{f"Image_{i}_Question_{q}": ["AB"[i != q]] * 20 for i in (0, 1) for q in (0, 1)},
            **{f"Image_{i}": [{"bytes": png(colour), "path": None}] * 20 for i, colour in enumerate(("red", "blue"))},
        }  # fmt: skip
        made = datasets.Dataset.from_dict(rows)
        return made.cast_column("Image_0", datasets.Image()).cast_column("Image_1", datasets.Image())

    monkeypatch.setattr(datasets, "load_dataset", pairs)
    four = NaturalBench().problems(Split.TRAIN, 4, 0, ["multiple_choice"])
    assert [bytes_of(p) for p in four] == [png("red"), png("blue")] * 2
    assert [p.reference for p in four] == ["A", "B", "B", "A"]
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'palaestra\[data\]'"):
        NaturalBench().problems(Split.TEST, 4, 0)


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def unreachable(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no network\nand more lines")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(TaskError, match="cannot read the dataset owner/name: no network; or give a folder") as caught:
        NLVR(path="owner/name").problems(Split.TEST, 1, 0)
    assert "\n" not in str(caught.value)
