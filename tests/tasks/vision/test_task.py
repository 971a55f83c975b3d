"""Generated pictures: scenes and answers are recomputed from the pixels."""

import base64
import io
import json
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from palaestra.core.errors import MissingExtraError, TaskError, TooFewProblemsError, UnknownNameError
from palaestra.core.records import Completion, ImagePart, Message, Problem, Score, Split, TextPart
from palaestra.core.seeding import Seeds
from palaestra.runs.files import from_json, to_json
from palaestra.tasks import procedural as task_module
from palaestra.tasks.base import GenerativeTask, make_task
from palaestra.tasks.vision import render as module
from palaestra.tasks.vision.corpus import TRACE, corpus
from palaestra.tasks.vision.drafts import PLURALS, SEEN, SKILLS, TAUGHT, VisionDraft, pick_kind, place
from palaestra.tasks.vision.render import FLOOR, PAPER, STEP, agrees, png_url, render_scene
from palaestra.tasks.vision.scene import COLORS, RADII, SHAPES, Chart, Item, Scene, check_scene, scene_split
from palaestra.tasks.vision.task import VisionSkills

TASK = VisionSkills()
OF_SHAPES = [name for name in SKILLS if "chart" not in name and name != "bar_values"]


def drafts(skill: str, count: int, seed: int = 0) -> list[VisionDraft]:
    rng = np.random.default_rng(seed)
    draw = list(SKILLS[skill].values())
    return [draw[k % len(draw)](rng) for k in range(count)]


def pixels(scene: Scene) -> np.ndarray:
    return np.asarray(render_scene(scene)).astype(int)


def compute_mask(picture: np.ndarray, colour: str) -> np.ndarray:
    """Where `colour` is pure: smooth edges and everything else left out."""
    result: np.ndarray = np.abs(picture - np.array(COLORS[colour])).max(-1) <= 2
    return result


def read_items(scene: Scene) -> list[Item]:
    """The shapes of a picture, from its pixels alone: blobs that are not paper, each against every shape."""
    picture = pixels(scene)
    inked = np.abs(picture - np.array(PAPER)).max(-1) > 24
    result = []
    while inked.any():
        at = tuple(np.argwhere(inked)[0])
        blob, todo = [], [at]
        inked[at] = False
        while todo:
            y, x = todo.pop()
            blob.append((y, x))
            for near in [(y + j, x + i) for j in (-1, 0, 1) for i in (-1, 0, 1)]:
                if 0 <= near[0] < 64 and 0 <= near[1] < 64 and inked[near]:
                    inked[near] = False
                    todo.append(near)
        ys, xs = [y for y, _ in blob], [x for _, x in blob]
        colour = max(COLORS, key=lambda c: sum(compute_mask(picture[y : y + 1, x : x + 1], c)[0, 0] for y, x in blob))
        size = "large" if max(max(ys) - min(ys), max(xs) - min(xs)) + 1 > 9 else "small"
        middle = (min(xs) + max(xs) + 1) / 2, (min(ys) + max(ys) + 1) / 2
        part = np.s_[min(ys) : max(ys) + 1, min(xs) : max(xs) + 1]

        def compute_difference(
            shape: str, near: tuple[int, int], colour: str = colour, size: str = size, part: Any = part
        ) -> float:
            drawn = pixels(Scene((Item(shape, colour, size, *near),)))
            return float(np.abs(drawn[part] - picture[part]).mean())

        places = [(round(middle[0]), round(middle[1]) + dy) for dy in (0, 1)]
        places = [(min(57, max(7, x)), min(57, max(7, y))) if size == "large" else (x, y) for x, y in places]
        shape, (x, y) = min(((s, p) for s in SHAPES for p in places), key=lambda sp: compute_difference(*sp))
        result.append(Item(shape, colour, size, x, y))
    return result


def select_items(text: str, items: list[Item]) -> list[Item]:
    """The items that a noun phrase such as "large red circles" means."""
    singular = {plural: shape for shape, plural in PLURALS.items()}
    for word in text.replace("shapes", "").replace("shape", "").split():
        word = singular.get(word, word)
        items = [i for i in items if word in (i.shape, i.colour, i.size)]
    return items


def to_yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


NOUN = r"((?:(?:large|small|[a-z]+) )?[a-z]+)"
AXIS = {"left": ("column", -1), "right": ("column", 1), "above": ("row", -1), "below": ("row", 1)}


def oracle(question: str, items: list[Item]) -> str:
    """The answer to a question about shapes, found with nothing but the items."""
    q = question.lower().rstrip(".?")

    def find_only_item(text: str) -> Item:
        (result,) = select_items(text, items)
        return result

    if m := re.search(r"(?:what|which) (colour|shape) (?:is the shape |is )(left of|right of|above|below) the (.*)", q):
        other = find_only_item(m[3])
        word, sign = AXIS[m[2].split()[0]]
        (result,) = [i for i in items if sign * (getattr(i, word) - getattr(other, word)) > 0]
        return str(getattr(result, m[1]))
    if m := re.search(r"(?:is|does) the (.*?) (?:lie )?(left of|right of|above|below) the (.*)", q):
        a, b = find_only_item(m[1]), find_only_item(m[3])
        word, sign = AXIS[m[2].split()[0]]
        return to_yes_or_no(sign * (getattr(a, word) - getattr(b, word)) > 0)
    if m := re.search(r"(colour|shape) is the (leftmost|rightmost|highest|lowest)", q):
        word = "column" if m[2].endswith("most") else "row"
        best = (min if m[2] in ("leftmost", "highest") else max)(getattr(i, word) for i in items)
        (result,) = [i for i in items if getattr(i, word) == best]
        return str(getattr(result, m[1]))
    if "differs in size" in q:
        rare = min(Counter(i.size for i in items).items(), key=lambda pair: pair[1])[0]
        return find_only_item(rare).colour
    if m := re.search(r"which (colour|shape) is (?:there only once|the odd one out)", q):
        (answer,) = [v for v, n in Counter(getattr(i, m[1]) for i in items).items() if n == 1]
        return answer
    if m := re.search(r"which (colour|shape) is (?:the most common|there most often)", q):
        (first, most), *rest = Counter(getattr(i, m[1]) for i in items).most_common()
        assert not rest or rest[0][1] < most
        return first
    if m := re.search(r"which (colour|shape) comes next", q):
        shown = [getattr(i, m[1]) for i in sorted(items, key=lambda i: (i.row, i.column))]
        period = next(p for p in (2, 3) if all(shown[k] == shown[k - p] for k in range(p, len(shown))))
        return str(shown[len(shown) - period])
    if m := re.search(r"are there more (.*) than (.*)", q):
        return to_yes_or_no(len(select_items(m[1], items)) > len(select_items(m[2], items)))
    if m := re.search(r"how many more (.*) than (.*) are there", q):
        return str(len(select_items(m[1], items)) - len(select_items(m[2], items)))
    if m := re.search(r"how many (.*) and (.*) are there together", q):
        return str(len({id(i) for part in (m[1], m[2]) for i in select_items(part, items)}))
    if m := re.search(r"how many shapes are not (.*)", q) or re.search(r"all (.*) are taken away", q):
        return str(len(items) - len(select_items(m[1], items)))
    if m := re.search(r"(?:how many (.*) are there|count the (.*)|what is the number of (.*))", q):
        return str(len(select_items(next(g for g in m.groups() if g), items)))
    if m := re.search(r"(?:the two have the same|both of the same) (\w+)|is the (\w+) of the two", q):
        return to_yes_or_no(len({getattr(i, m[1] or m[2]) for i in items}) == 1)
    if m := re.search(r"(?:is there|picture show|you see) an? (.*)", q):
        return to_yes_or_no(bool(select_items(m[1], items)))
    if m := re.search(r"(?:is|side is|where is) the (.*?),? (?:on the left|left or|at the top|top or)", q):
        item = find_only_item(m[1])
        return ("left", "right")[item.x > 32] if "left" in q else ("top", "bottom")[item.y > 32]
    if m := re.search(r"(?:is|size is) the (.*?),? large or small", q):
        return find_only_item(m[1]).size
    if m := re.search(r"colour (?:is|does|of) the (.*?)(?: have)?$", q):
        return find_only_item(m[1]).colour
    if q in ("what shape is it", "which shape is in the picture", "name the shape"):
        return find_only_item("shape").shape
    if m := re.search(r"what is the (\w+) shape|which shape is (\w+)|name the (\w+) shape", q):
        return find_only_item(next(g for g in m.groups() if g)).shape
    raise AssertionError(f"the oracle does not know: {question}")


@pytest.mark.parametrize("skill", OF_SHAPES)
def test_answers_about_shapes_follow_from_pixels(skill: str) -> None:
    for draft in drafts(skill, 6, seed=1):
        seen = read_items(draft.scene)
        expected = sorted((i.shape, i.colour, i.size, i.column, i.row) for i in draft.scene.items)
        assert sorted((i.shape, i.colour, i.size, i.column, i.row) for i in seen) == expected
        assert oracle(draft.question, seen) == draft.answer, draft


@pytest.mark.parametrize("skill", OF_SHAPES)
def test_answers_about_shapes_follow_from_scenes(skill: str) -> None:
    for draft in drafts(skill, 150, seed=2):
        assert oracle(draft.question, list(draft.scene.items)) == draft.answer, draft


@pytest.mark.parametrize("skill", ["bar_chart", "bar_values"])
def test_pixels_of_bars_agree_with_answers(skill: str) -> None:
    for draft in drafts(skill, 24, seed=3):
        picture = pixels(draft.scene)
        heights = {c: int(compute_mask(picture, c).any(1).sum()) / STEP for c in COLORS}
        heights = {c: round(h) for c, h in heights.items() if h}
        q = draft.question
        mentioned = [c for c in re.findall(r"\w+", q) if c in heights]
        if "How many bars" in q or "Count" in q or "number of bars" in q:
            answer = str(len(heights))
        elif "highest" in q or "lowest" in q:
            answer = (max if "highest" in q else min)(heights, key=lambda c: heights[c])
        elif "add up" in q:
            answer = str(sum(heights[c] for c in mentioned))
        elif "higher" in q:
            answer = str(heights[mentioned[0]] - heights[mentioned[1]])
        else:
            answer = str(heights[mentioned[0]])
        assert answer == draft.answer, draft


def test_pixels_of_slices_agree_with_answers() -> None:
    for draft in drafts("pie_chart", 40, seed=4):
        picture = pixels(draft.scene)
        areas = {c: int(compute_mask(picture, c).sum()) for c in COLORS}
        areas = {c: n for c, n in areas.items() if n > 20}
        if "largest" in draft.question or "smallest" in draft.question:
            assert draft.answer == (max if "largest" in draft.question else min)(areas, key=lambda c: areas[c])
        elif "half" in draft.question:
            (colour,) = [c for c in areas if c in draft.question]
            assert draft.answer == to_yes_or_no(areas[colour] > sum(areas.values()) / 2)
        else:
            assert draft.answer == str(len(areas))


def test_pixels_of_lines_agree_with_values() -> None:
    for draft in drafts("line_chart", 45, seed=5):
        chart = draft.scene.chart
        assert chart is not None
        ink = compute_mask(pixels(draft.scene), chart.colours[0])
        columns = [11 + 44 * k / (len(chart.values) - 1) for k in range(len(chart.values))]
        for x, value in zip(columns, chart.values, strict=True):
            assert ink[FLOOR - value * STEP, round(x)], draft
        order = list(chart.values)
        if "rising" in draft.question:
            assert draft.answer == ("rising" if order == sorted(order) else "falling")
        elif "highest" in draft.question or "lowest" in draft.question:
            at = ("first", "second", "third", "fourth", "fifth").index(draft.answer)
            assert order[at] == (max(order) if "highest" in draft.question else min(order))
        else:
            at = next(k for k, w in enumerate(("first", "second", "third", "fourth", "fifth")) if w in draft.question)
            assert draft.answer == str(order[at])


def test_the_task_is_registered_and_generative() -> None:
    assert isinstance(make_task("vision-skills"), GenerativeTask)
    assert len(TASK.skills()) == 18
    assert all(len(parts) >= 2 for parts in TASK.skills().values())
    assert {*SEEN, *TAUGHT} == set(SKILLS)
    assert set(TRACE) == set(TAUGHT)


@pytest.mark.parametrize("skill", list(SKILLS))
def test_only_the_right_choice_scores(skill: str) -> None:
    for problem in TASK.problems(Split.TRAIN, 12, 1, [skill]):
        choices = problem.metadata["choices"]
        assert problem.reference in choices
        assert value(problem, problem.metadata["worked"]) == 1.0
        for left, right in re.findall(r"([\d+-]+)=(\d+)", problem.metadata["worked"]):
            a, sign, b = re.split(r"([+-])", left)
            assert int(a) + int(b) * (1 if sign == "+" else -1) == int(right)
        assert [c for c in choices if value(problem, f"Answer: {c}")] == [problem.reference]
        assert value(problem, "I do not know") == 0.0


def value(problem: Problem, text: str) -> float:
    score = TASK.score(problem, Completion(text))
    assert isinstance(score, Score)
    return score.value


@pytest.mark.parametrize("skill", list(SKILLS))
def test_answers_are_balanced(skill: str) -> None:
    """Within a subskill, guessing the most frequent answer is no way to pass."""
    for name, draw in SKILLS[skill].items():
        rng = np.random.default_rng(7)
        answers = Counter(draw(rng).answer for _ in range(400))
        assert answers.most_common(1)[0][1] / 400 <= 0.62, (name, answers)


def test_problem_has_an_image_and_a_stable_id() -> None:
    first, again, other = (TASK.problems(Split.TEST, 3, seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert len({p.id for p in first}) == len(first) == 54
    for problem in first[::7]:
        picture, question = problem.messages[0].content
        assert isinstance(picture, ImagePart)
        assert isinstance(question, TextPart)
        image = Image.open(io.BytesIO(base64.b64decode(picture.url.removeprefix("data:image/png;base64,"))))
        assert (image.size, image.mode) == ((64, 64), "RGB")
        scene = from_json(Scene, json.dumps(problem.metadata["scene"]))
        assert agrees(image, scene)
        assert from_json(Problem, to_json(problem)) == problem


@pytest.mark.parametrize("skill", list(SKILLS))
def test_no_scene_is_in_two_splits(skill: str) -> None:
    shown: dict[Split, set[str]] = {split: set() for split in Split}
    for draft in drafts(skill, 400, seed=6):
        shown[scene_split(draft.scene)].add(draft.scene.canonical())
    assert all(shown.values())
    assert not shown[Split.TRAIN] & shown[Split.TEST]
    assert not shown[Split.VALIDATION] & shown[Split.TEST]
    held_out = {picture(p.messages[0]) for p in TASK.problems(Split.TEST, 15, 0, [skill])}
    taught = TASK.write_examples(skill, "", 30, np.random.default_rng(0))
    assert not held_out & {picture(e.messages[0]) for e in taught}
    assert {e.subskill for e in taught} == set(SKILLS[skill])


def picture(message: Message) -> str:
    part = message.content[0]
    assert isinstance(part, ImagePart)
    return part.url


def test_jitter_does_not_change_the_split() -> None:
    scene = Scene((Item("circle", "red", "small", 8, 8), Item("star", "blue", "large", 40, 24)))
    moved = Scene((Item("star", "blue", "large", 40, 24), Item("circle", "red", "small", 6, 9)))
    assert scene.canonical() == moved.canonical()
    assert scene.exact() != moved.exact()
    assert not agrees(render_scene(moved), scene)


def test_corpus_has_train_scenes_and_a_trace_of_lessons() -> None:
    stream = corpus(Seeds(0).derive("corpus").generator())
    seen = [next(stream) for _ in range(3_000)]
    assert all(s.scene is None or scene_split(s.scene) is Split.TRAIN for s in seen)
    share = sum(s.skill in TRACE for s in seen) / len(seen)
    assert share == pytest.approx(sum(TRACE.values()) / 100, abs=0.002)
    wordings = {d.question for skill in TAUGHT for d in drafts(skill, 100)}
    assert not {s.question for s in seen if s.skill not in TRACE and s.scene is not None} & wordings - {
        d.question for skill in SEEN for d in drafts(skill, 200)
    }


def test_unknown_names_and_too_many_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "MAX_DRAWS_PER_PROBLEM", 30)
    monkeypatch.setattr(task_module, "MAX_DRAWS_PER_FOUND", 0)
    with pytest.raises(UnknownNameError, match="'colour'"):
        TASK.problems(Split.TEST, 1, 0, ["colours"])
    with pytest.raises(UnknownNameError, match="'single'"):
        TASK.write_examples("colour", "singel", 1, np.random.default_rng(0))
    with pytest.raises(TooFewProblemsError):
        TASK.problems(Split.TEST, 100_000, 0, ["shape"])


RED = Item("circle", "red", "large", 8, 8)


@pytest.mark.parametrize(
    ("scene", "message"),
    [
        (Scene(), "neither"),
        (Scene((RED,), Chart("bar", (1, 2), ("red", "blue"))), "both"),
        (Scene((replace(RED, shape="blob"),)), "unknown shape 'blob'"),
        (Scene((replace(RED, colour="mauve"),)), "unknown colour"),
        (Scene((replace(RED, size="huge"),)), "unknown size"),
        (Scene((replace(RED, x=2),)), "partly outside"),
        (Scene((RED, replace(RED, x=18, colour="blue"))), "touch"),
        (Scene(chart=Chart("bar", (1, 9), ("red", "blue"))), "from 1 to 8"),
        (Scene(chart=Chart("bar", (1,), ("red",))), "2 to 5 values"),
        (Scene(chart=Chart("bar", (1, 2), ("red", "red"))), "different colours"),
        (Scene(chart=Chart("pie", (5, 5), ("red", "blue"))), "12 twelfths"),
        (Scene(chart=Chart("line", (1, 2, 3), ("red", "blue"))), "1 different colours"),
        (Scene(chart=Chart("cake", (1, 2), ("red", "blue"))), "unknown kind of chart"),  # type: ignore[arg-type]
    ],
)
def test_invalid_scenes(scene: Scene, message: str) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        render_scene(scene)
    assert "\n" not in str(caught.value)


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_placed_scenes_are_valid_and_survive_json(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    scene = place(rng, [pick_kind(rng) for _ in range(count)])
    check_scene(scene)
    assert from_json(Scene, to_json(scene)) == scene
    drawn = pixels(scene)
    assert (drawn == pixels(Scene(scene.items[::-1]))).all()
    for colour in COLORS:
        there = [i for i in scene.items if i.colour == colour]
        area = int(compute_mask(drawn, colour).sum())
        assert bool(area) == bool(there)
        assert area <= sum((2 * RADII[i.size]) ** 2 for i in there)


def test_colors_are_far_apart() -> None:
    names = list(COLORS)
    for k, a in enumerate(names):
        for b in [*names[k + 1 :]]:
            assert np.abs(np.subtract(COLORS[a], COLORS[b])).sum() >= 90, (a, b)
        assert np.abs(np.subtract(COLORS[a], PAPER)).sum() >= 120


def test_missing_pillow_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"palaestra\[vision\]"):
        TASK.problems(Split.TEST, 1, 0, ["colour"])
    assert TASK.skills()


def test_png_is_deterministic() -> None:
    scene = drafts("bar_chart", 1)[0].scene
    assert png_url(render_scene(scene)) == png_url(render_scene(scene))
