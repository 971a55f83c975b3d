"""NaturalBench: groups of two questions about two images, and its paired accuracies."""

import base64
import io
import itertools
import json
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from palaestra.core.errors import TaskError
from palaestra.core.records import Attempt, Completion, Failure, FailureCause, ImagePart, Problem, Score, Split
from palaestra.core.statistics import Mean, report_on, wilson_interval
from palaestra.engines.mock import MockEngine
from palaestra.tasks.base import EVERY
from palaestra.tasks.evaluate import evaluate
from palaestra.tasks.vision.sets import Group, NaturalBench, compute_paired_means, of_groups


def png(colour: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(file, "PNG")
    return file.getvalue()


def bytes_of(problem: Problem) -> bytes:
    part = problem.messages[0].content[0]
    assert isinstance(part, ImagePart)
    return base64.b64decode(part.url.partition(",")[2])


@pytest.fixture
def natural(tmp_path: Path) -> Path:
    """Forty groups; the images of each in an archive."""
    rows = [
        {
            "Index": k, "Image_0": f"{k}a.png", "Image_1": f"{k}b.png", "Question_0": f"Is it red {k}?", "Question_1": f"Is it blue {k}?",
            "Image_0_Question_0": "Yes", "Image_1_Question_0": "No", "Image_0_Question_1": "No", "Image_1_Question_1": "Yes",
            "Question_Type": "yes_no", "Source": "test",
        }
        for k in range(40)
    ]  # fmt: skip
    (tmp_path / "naturalbench.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for k in range(40):
            archive.writestr(f"{k}a.png", png("red"))
            archive.writestr(f"{k}b.png", png("blue"))
    return tmp_path


def test_naturalbench_gives_whole_groups_with_their_images(natural: Path) -> None:
    task = NaturalBench(path=str(natural))
    problems = task.problems(Split.TRAIN, 8, 0, ["yes_no"])
    assert len({p.id for p in problems}) == 8
    for four in itertools.batched(problems, 4) if hasattr(itertools, "batched") else (problems[:4], problems[4:]):
        assert len({p.metadata["group"] for p in four}) == 1
        assert [(p.metadata["question"], p.metadata["image"]) for p in four] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert [p.reference for p in four] == ["Yes", "No", "No", "Yes"]
        assert [bytes_of(p) for p in four] == [png("red"), png("blue")] * 2
    assert problems[0].messages[0].text.endswith("Please answer Yes or No.")
    for asked, given in ((25, 24), (11, 8), (7, 4), (3, 4), (1, 4)):  # Whole groups, and at least one.
        some = task.problems(Split.TRAIN, asked, 0, ["yes_no"])
        assert len(some) == given
        assert set(Counter(p.metadata["group"] for p in some).values()) == {4}
    with pytest.raises(TaskError, match="problems, fewer than 400; request fewer"):
        task.problems(Split.TRAIN, 401, 0, ["yes_no"])
    every = task.problems(Split.TRAIN, EVERY, 0, ["yes_no"])
    assert every[:8] == problems
    assert len(every) > 80
    ids = [{p.metadata["group"] for p in task.problems(s, 4, 0, ["yes_no"])} for s in Split]
    assert not ids[0] & ids[1] | ids[1] & ids[2] | ids[0] & ids[2]


def rates(means: Mapping[str, Mean]) -> list[float]:
    assert list(means) == ["question accuracy", "image accuracy", "group accuracy"]
    return [mean.value for mean in means.values()]


def test_whoever_does_not_look_gets_half_the_answers_and_no_question(natural: Path) -> None:
    task = NaturalBench(path=str(natural))
    problems = task.problems(Split.TRAIN, 40, 0, ["yes_no"])
    attempts = evaluate(task, problems, lambda: MockEngine(lambda request, k: "Yes."))
    blind = task.metrics(attempts)
    assert report_on(attempts).accuracy == 0.5
    assert rates(blind) == [0.0, 0.0, 0.0]
    assert [mean.count for mean in blind.values()] == [20, 20, 10]
    by_content = {(p.messages[0].text, bytes_of(p)): p.reference for p in problems}

    def look(request: Any, k: int) -> str:
        shown = Problem("", request.messages, "")
        return by_content[request.messages[0].text, bytes_of(shown)]

    seeing = task.metrics(evaluate(task, problems, lambda: MockEngine(look)))
    assert rates(seeing) == [1.0, 1.0, 1.0]


def test_paired_accuracy_is_what_its_definition_says_of_every_group() -> None:
    """All sixteen groups, each counted by hand: question by its row, image by its column."""
    every: list[Group] = [((a, b), (c, d)) for a, b, c, d in itertools.product((False, True), repeat=4)]
    for (a, b), (c, d) in every:
        found = rates(of_groups([[((a, b), (c, d))]]))
        assert found == [((a and b) + (c and d)) / 2, ((a and c) + (b and d)) / 2, float(a and b and c and d)]
    whole = of_groups([[group] for group in every])
    assert rates(whole) == [0.25, 0.25, 0.0625]
    for mean, (correct, count) in zip(whole.values(), ((8, 32), (8, 32), (1, 16)), strict=True):
        assert mean.count == count
        assert (mean.low, mean.high) == pytest.approx(wilson_interval(correct, count))


def test_groups_with_a_failure_and_groups_not_asked_in_full_are_left_out(natural: Path) -> None:
    task = NaturalBench(path=str(natural))
    problems = task.problems(Split.TRAIN, 16, 0, ["yes_no"])
    attempts = [Attempt(p, Completion("x"), Score(float(k != 12))) for k, p in enumerate(problems)]
    attempts[2] = Attempt(problems[2], None, Failure(FailureCause.ENGINE, "lost"))
    del attempts[6]
    found = task.metrics(attempts)
    # The third group is right; of the fourth, one answer is wrong, and with it a question and an image.
    assert rates(found) == [0.75, 0.75, 0.5]
    assert [mean.count for mean in found.values()] == [4, 4, 2]
    assert task.metrics(attempts[:7]) == {}
    assert task.metrics([]) == {}
    with pytest.raises(TaskError, match="belongs to no group"):
        compute_paired_means([Attempt(Problem("p", (), ""), None, Score(1.0))])


def test_of_several_answers_to_a_group_each_round_counts_for_itself(natural: Path) -> None:
    """One round right and one blind is half a group, and not a right question of the first with an image of the second."""
    task = NaturalBench(path=str(natural))
    problems = task.problems(Split.TRAIN, 4, 0, ["yes_no"])
    rounds = ((1, 1, 1, 1), (1, 0, 0, 1))
    attempts = [Attempt(p, Completion("x"), Score(float(r[k])), s) for k, p in enumerate(problems) for s, r in enumerate(rounds)]  # fmt: skip
    found = task.metrics(attempts)
    assert rates(found) == [0.5, 0.5, 0.5]
    assert [mean.count for mean in found.values()] == [2, 2, 1]
    attempts[1] = Attempt(problems[0], None, Failure(FailureCause.ENGINE, "lost"), 1)
    assert rates(task.metrics(attempts)) == [1.0, 1.0, 1.0]
