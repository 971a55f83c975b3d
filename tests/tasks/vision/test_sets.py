"""GQA, NaturalBench, easy-VQA and NLVR from folders in their own formats, and from the hub."""

import base64
import gzip
import io
import itertools
import json
import os
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from palaestra.core.errors import MissingExtraError, TaskError, TooFewProblemsError
from palaestra.core.records import Attempt, Completion, Failure, FailureCause, ImagePart, Problem, Score, Split
from palaestra.core.statistics import Mean, report_on, wilson_interval
from palaestra.engines.mock import MockEngine
from palaestra.tasks import sources
from palaestra.tasks.base import EVERY, make_task
from palaestra.tasks.evaluate import evaluate
from palaestra.tasks.vision.sets import GQA, NLVR, EasyVQA, NaturalBench

DATA = Path(os.environ.get("PALAESTRA_DATA") or Path(__file__).parents[4] / "shared" / "data")


def skip_without(name: str) -> pytest.MarkDecorator:
    there = (DATA / name).is_dir()
    return pytest.mark.skipif(not there, reason=f"{name} is not there; PALAESTRA_DATA names the folder that holds it")


def png(colour: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(file, "PNG")
    return file.getvalue()


def read_image(problem: Problem) -> bytes:
    part = problem.messages[0].content[0]
    assert isinstance(part, ImagePart)
    return base64.b64decode(part.url.partition(",")[2])


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_gqa_from_a_folder(tmp_path: Path) -> None:
    questions = {
        f"q{k}": {
            "imageId": f"n{k}",
            "question": "Who is it?" if k % 2 else "Is it red?",
            "answer": "dog" if k % 2 else "no",
            "types": {"structural": "query" if k % 2 else "verify"},
        }
        for k in range(6)
    }
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
    with pytest.raises(TaskError, match="'compare' of gqa"):
        task.problems(Split.TEST, 1, 0, ["compare"])
    with pytest.raises(TaskError, match=r"val_balanced_questions\.jsonl"):
        task.problems(Split.VALIDATION, 1, 0)


def test_easy_vqa_folder_end_to_end(tmp_path: Path) -> None:
    """An engine that sees colours alone: right about those, and about no shape."""
    colours = {"red": "red", "blue": "blue", "green": "green"}
    rows = []
    for k, colour in enumerate(colours):
        (tmp_path / f"{k}.png").write_bytes(png(colour))
        rows += [
            {"question": f"what color is the shape ({k})?", "answer": colour, "image": f"{k}.png"},
            {"question": f"what shape is this ({k})?", "answer": "circle", "image": f"{k}.png"},
            {
                "question": f"is there a red shape ({k})?",
                "answer": "yes" if colour == "red" else "no",
                "image": f"{k}.png",
            },
        ]
    (tmp_path / "test.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    by_bytes = {png(colour): colour for colour in colours}

    def answer_by_colour(request: Any, k: int) -> str:
        colour = by_bytes[read_image(Problem("", request.messages, ""))]
        asked = request.messages[0].text
        if "red" in asked:
            return f"It is {colour}. Answer: {'yes' if colour == 'red' else 'no'}"
        return f"The shape is {colour}." if "color" in asked else "triangle"

    task = make_task("easy-vqa", path=str(tmp_path))
    problems = task.problems(Split.TEST, 3, 0)
    report = report_on(evaluate(task, problems, lambda: MockEngine(answer_by_colour)))
    assert {part.name: (part.correct, part.count) for part in report.slices} == {
        "colour": (3, 3),
        "shape": (0, 3),
        "yes_no": (3, 3),
    }
    assert not report.failures
    with pytest.raises(TooFewProblemsError, match="3 test problems"):
        task.problems(Split.TEST, 4, 0)


@skip_without("easy_vqa")
def test_published_easy_vqa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_DATA", str(DATA))
    task = make_task("easy-vqa")
    assert isinstance(task, EasyVQA)
    counts = {split: sum(len(rows) for rows in task.load_questions(split).values()) for split in Split}
    assert counts[Split.TEST] == 9673
    assert counts[Split.TRAIN] + counts[Split.VALIDATION] == 38575
    problems = task.problems(Split.TEST, 20, 0)
    answers = {p.messages[0].text + str(read_image(p)): p.reference for p in problems}

    def look_up_answer(request: Any, k: int) -> str:
        return f"It is {answers[request.messages[0].text + str(read_image(Problem('', request.messages, '')))]}."

    attempts = evaluate(task, problems, lambda: MockEngine(look_up_answer))
    assert all(a.correct for a in attempts)
    assert Image.open(io.BytesIO(read_image(problems[0]))).size == (64, 64)


@skip_without("easy_vqa")
def test_splits_of_easy_vqa_share_no_image() -> None:
    rows = [row for _, row in sources.read_rows(EasyVQA.source, str(DATA / "easy_vqa"), "train")]
    task = EasyVQA(path=str(DATA / "easy_vqa"))
    of: dict[str, set[Split]] = {}
    for split in (Split.TRAIN, Split.VALIDATION):
        for question in itertools.chain(*task.load_questions(split).values()):
            of.setdefault(rows[int(question.id.rpartition("/")[2])]["image"], set()).add(split)
    assert len(of) == 4000
    assert all(len(splits) == 1 for splits in of.values())


@skip_without("nlvr")
def test_published_nlvr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_DATA", str(DATA))
    task = make_task("nlvr")
    assert isinstance(task, NLVR)
    assert [sum(map(len, task.load_questions(s).values())) for s in (Split.VALIDATION, Split.TEST)] == [989, 990]
    for problem in task.problems(Split.TEST, 10, 0):
        answer = {"true": "Yes.", "false": "No."}[problem.reference]
        assert task.score(problem, Completion(answer)).value == 1.0  # type: ignore[union-attr]
        assert task.score(problem, Completion(f"Answer: {problem.reference}")).value == 1.0  # type: ignore[union-attr]
        assert read_image(problem).startswith(b"\x89PNG")
    with pytest.raises(TaskError, match=r"train\.jsonl"):
        task.problems(Split.TRAIN, 1, 0)


def test_missing_and_invalid_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PALAESTRA_DATA", raising=False)
    for kind in (EasyVQA, NLVR):
        assert kind().skills()
        with pytest.raises(TaskError, match="PALAESTRA_DATA"):
            kind().problems(Split.TEST, 1, 0)
    with pytest.raises(TaskError, match="/nowhere/at/all"):
        EasyVQA(path="/nowhere/at/all").problems(Split.TEST, 1, 0)
    lines(tmp_path / "test.jsonl", [{"question": "q", "answer": "maroon", "image": "0.png"}])
    with pytest.raises(TaskError, match="'maroon'"):
        EasyVQA(path=str(tmp_path)).problems(Split.TEST, 1, 0)
    lines(tmp_path / "test.jsonl", [{"question": "q", "answer": "red", "image": "0.png"}])
    with pytest.raises(TaskError, match=r"0\.png"):
        EasyVQA(path=str(tmp_path)).problems(Split.TEST, 1, 0, ["colour"])
    (tmp_path / "test.jsonl").write_text("{broken")
    with pytest.raises(TaskError, match=r"test\.jsonl, row 1"):
        EasyVQA(path=str(tmp_path)).problems(Split.TEST, 1, 0)


def test_images_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
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
        table = datasets.Dataset.from_dict(held)
        return table.cast_column("image", datasets.Image()) if "image" in held else table

    monkeypatch.setattr(datasets, "load_dataset", load)
    (problem,) = make_task("gqa").problems(Split.TEST, 1, 0, ["verify"])
    assert read_image(problem) == png("red")
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
        table = datasets.Dataset.from_dict(rows)
        return table.cast_column("Image_0", datasets.Image()).cast_column("Image_1", datasets.Image())

    monkeypatch.setattr(datasets, "load_dataset", pairs)
    four = NaturalBench().problems(Split.TRAIN, 4, 0, ["multiple_choice"])
    assert [read_image(p) for p in four] == [png("red"), png("blue")] * 2
    assert [p.reference for p in four] == ["A", "B", "B", "A"]
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"palaestra\[data\]"):
        NaturalBench().problems(Split.TEST, 4, 0)


def test_unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def unreachable(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no network\nand more lines")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(TaskError, match="owner/name: no network") as caught:
        NLVR(path="owner/name").problems(Split.TEST, 1, 0)
    assert "\n" not in str(caught.value)


@pytest.fixture
def natural_bench(tmp_path: Path) -> Path:
    """Forty groups; the images of each in an archive."""
    rows = [
        {
            "Index": k,
            "Image_0": f"{k}a.png",
            "Image_1": f"{k}b.png",
            "Question_0": f"Is it red {k}?",
            "Question_1": f"Is it blue {k}?",
            "Image_0_Question_0": "Yes",
            "Image_1_Question_0": "No",
            "Image_0_Question_1": "No",
            "Image_1_Question_1": "Yes",
            "Question_Type": "yes_no",
            "Source": "test",
        }
        for k in range(40)
    ]
    (tmp_path / "naturalbench.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for k in range(40):
            archive.writestr(f"{k}a.png", png("red"))
            archive.writestr(f"{k}b.png", png("blue"))
    return tmp_path


def test_problems_come_in_whole_groups(natural_bench: Path) -> None:
    task = NaturalBench(path=str(natural_bench))
    problems = task.problems(Split.TRAIN, 8, 0, ["yes_no"])
    assert len({p.id for p in problems}) == 8
    for four in itertools.batched(problems, 4) if hasattr(itertools, "batched") else (problems[:4], problems[4:]):
        assert len({p.metadata["group"] for p in four}) == 1
        assert [(p.metadata["question"], p.metadata["image"]) for p in four] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert [p.reference for p in four] == ["Yes", "No", "No", "Yes"]
        assert [read_image(p) for p in four] == [png("red"), png("blue")] * 2
    assert problems[0].messages[0].text.endswith("Please answer Yes or No.")
    for asked, given in ((25, 24), (11, 8), (7, 4), (3, 4), (1, 4)):  # Whole groups, and at least one.
        some = task.problems(Split.TRAIN, asked, 0, ["yes_no"])
        assert len(some) == given
        assert set(Counter(p.metadata["group"] for p in some).values()) == {4}
    with pytest.raises(TooFewProblemsError):
        task.problems(Split.TRAIN, 401, 0, ["yes_no"])
    every = task.problems(Split.TRAIN, EVERY, 0, ["yes_no"])
    assert every[:8] == problems
    assert len(every) > 80
    ids = [{p.metadata["group"] for p in task.problems(s, 4, 0, ["yes_no"])} for s in Split]
    assert not ids[0] & ids[1] | ids[1] & ids[2] | ids[0] & ids[2]


def rates(means: Mapping[str, Mean]) -> list[float]:
    assert list(means) == ["question accuracy", "image accuracy", "group accuracy"]
    return [mean.value for mean in means.values()]


def test_blind_answers_have_no_paired_accuracy(natural_bench: Path) -> None:
    task = NaturalBench(path=str(natural_bench))
    problems = task.problems(Split.TRAIN, 40, 0, ["yes_no"])
    attempts = evaluate(task, problems, lambda: MockEngine(lambda request, k: "Yes."))
    blind = task.metrics(attempts)
    assert report_on(attempts).accuracy == 0.5
    assert rates(blind) == [0.0, 0.0, 0.0]
    assert [mean.count for mean in blind.values()] == [20, 20, 10]
    by_content = {(p.messages[0].text, read_image(p)): p.reference for p in problems}

    def look_up_answer(request: Any, k: int) -> str:
        shown = Problem("", request.messages, "")
        return by_content[request.messages[0].text, read_image(shown)]

    seeing = task.metrics(evaluate(task, problems, lambda: MockEngine(look_up_answer)))
    assert rates(seeing) == [1.0, 1.0, 1.0]


def test_paired_accuracies_of_every_group() -> None:
    """All sixteen groups, each counted by hand: question by its row, image by its column."""
    every = list(itertools.product((False, True), repeat=4))
    places = list(itertools.product((0, 1), repeat=2))

    def attempt(number: int, right: bool, place: tuple[int, int]) -> Attempt:
        metadata = {"group": f"g{number}", "question": place[0], "image": place[1]}
        return Attempt(Problem(f"{number}{place}", (), "", metadata=metadata), Completion("x"), Score(float(right)))

    groups = [[attempt(k, *answer) for answer in zip(group, places, strict=True)] for k, group in enumerate(every)]
    for (a, b, c, d), attempts in zip(every, groups, strict=True):
        accuracies = rates(NaturalBench().metrics(attempts))
        assert accuracies == [((a and b) + (c and d)) / 2, ((a and c) + (b and d)) / 2, float(a and b and c and d)]
    whole = NaturalBench().metrics([attempt for group in groups for attempt in group])
    assert rates(whole) == [0.25, 0.25, 0.0625]
    for mean, (correct, count) in zip(whole.values(), ((8, 32), (8, 32), (1, 16)), strict=True):
        assert mean.count == count
        assert (mean.low, mean.high) == pytest.approx(wilson_interval(correct, count))


def test_incomplete_groups_are_left_out(natural_bench: Path) -> None:
    task = NaturalBench(path=str(natural_bench))
    problems = task.problems(Split.TRAIN, 16, 0, ["yes_no"])
    attempts = [Attempt(p, Completion("x"), Score(float(k != 12))) for k, p in enumerate(problems)]
    attempts[2] = Attempt(problems[2], None, Failure(FailureCause.ENGINE, "lost"))
    del attempts[6]
    accuracies = task.metrics(attempts)
    # The third group is right; of the fourth, one answer is wrong, and with it a question and an image.
    assert rates(accuracies) == [0.75, 0.75, 0.5]
    assert [mean.count for mean in accuracies.values()] == [4, 4, 2]
    assert task.metrics(attempts[:7]) == {}
    assert task.metrics([]) == {}


def test_samples_form_separate_groups(natural_bench: Path) -> None:
    """One round right and one blind is half a group, and not a right question of the first with an image of the second."""
    task = NaturalBench(path=str(natural_bench))
    problems = task.problems(Split.TRAIN, 4, 0, ["yes_no"])
    rounds = ((1, 1, 1, 1), (1, 0, 0, 1))
    attempts = [
        Attempt(p, Completion("x"), Score(float(r[k])), s) for k, p in enumerate(problems) for s, r in enumerate(rounds)
    ]
    accuracies = task.metrics(attempts)
    assert rates(accuracies) == [0.5, 0.5, 0.5]
    assert [mean.count for mean in accuracies.values()] == [2, 2, 1]
    attempts[1] = Attempt(problems[0], None, Failure(FailureCause.ENGINE, "lost"), 1)
    assert rates(task.metrics(attempts)) == [1.0, 1.0, 1.0]
