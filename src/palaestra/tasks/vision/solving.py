"""Answer questions about scenes, to verify written examples.

The scene determines the answer. A question is answered if its wording is one of `vision-skills` and the scene leaves no
doubt; otherwise it has no answer here.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from palaestra.tasks.vision.drafts import BESIDE, EXTREMES, ORDINALS, PLURALS, TRENDS, YES_NO
from palaestra.tasks.vision.scene import COLOR_NAMES, PIE_PARTS, SHAPES, SIDE, SIZES, Chart, Item, Scene
from palaestra.tasks.wordings import read_wordings

_CLEAR = 4
"""Minimum distance in pixels of a clear difference in position."""


class SceneAnswer(NamedTuple):
    """The answer to a question about a scene, with the skill and subskill of `vision-skills`."""

    answer: str
    skill: str
    subskill: str


def answer_question(scene: Scene, question: str) -> SceneAnswer | None:
    """Answer a question; `None` if it is not understood or the scene leaves doubt."""
    text = re.sub(r"\bcolor", "colour", " ".join(question.lower().split()).rstrip("?.! "))
    for pattern, solve in _CHART_TEMPLATES if scene.chart is not None else _SHAPE_TEMPLATES:
        if match := re.fullmatch(pattern, text):
            with suppress(_DoubtError):
                return solve(scene, match)
    return None


class _DoubtError(Exception):
    """A phrase is not understood or names no single thing, or the scene leaves doubt."""


_SHAPE_WORDS = {name: name for name in SHAPES} | {plural: name for name, plural in PLURALS.items()}
_PHRASE = re.compile(
    rf"(?:(?P<size>{'|'.join(SIZES)}) ?)?(?:(?P<colour>{'|'.join(COLOR_NAMES)}) ?)?"
    rf"(?P<shape>{'|'.join((*_SHAPE_WORDS, 'shapes', 'shape'))})?"
)
_COUNTS = {
    (): ("count", "all"),
    ("colour",): ("count", "colour"),
    ("shape",): ("count", "shape"),
    ("colour", "shape"): ("count_logic", "both"),
    ("size",): ("count_logic", "sized"),
}
"""The skill and subskill of a count, by the attributes of the phrase."""


def _select(scene: Scene, phrase: str) -> tuple[list[Item], tuple[str, ...]]:
    """The items that a phrase such as "large red circles" names, and the attributes that it uses."""
    match = _PHRASE.fullmatch(phrase.strip())
    if match is None or not phrase.strip():
        raise _DoubtError
    wanted = {**match.groupdict(), "shape": _SHAPE_WORDS.get(match["shape"] or "")}
    used = {name: value for name, value in wanted.items() if value}
    items = [item for item in scene.items if all(getattr(item, name) == value for name, value in used.items())]
    return items, tuple(used)


def _find(scene: Scene, phrase: str) -> tuple[Item, tuple[str, ...]]:
    """The only item that a phrase names."""
    items, used = _select(scene, phrase)
    return _only(items), used


def _only(items: Sequence[Item]) -> Item:
    if len(items) != 1:
        raise _DoubtError
    return items[0]


def _is_ahead(distance: int) -> bool:
    """Whether a distance in pixels is positive."""
    if abs(distance) < _CLEAR:
        raise _DoubtError
    return distance > 0


def _at(item: Item, axis: int) -> int:
    return (item.x, item.y)[axis]


def _attribute(scene: Scene, match: re.Match[str], name: str) -> SceneAnswer:
    item, used = _find(scene, match["p"] if "p" in match.groupdict() else "shape")
    if name in used:
        raise _DoubtError
    return SceneAnswer(getattr(item, name), name, "sized" if used == ("size",) else "named" if used else "single")


def _exists(scene: Scene, match: re.Match[str]) -> SceneAnswer:
    items, used = _select(scene, match["p"])
    if not used:
        raise _DoubtError
    subskill = {("colour",): "colour", ("shape",): "shape", ("colour", "shape"): "both"}.get(used, "")
    return SceneAnswer(YES_NO[not items], "existence", subskill)


def _count(scene: Scene, match: re.Match[str]) -> SceneAnswer:
    items, used = _select(scene, match["p"])
    return SceneAnswer(str(len(items)), *_COUNTS.get(used, ("count_logic", "")))


def _combine(scene: Scene, match: re.Match[str], way: str) -> SceneAnswer:
    first = _select(scene, match["p"])[0]
    second = _select(scene, match["q"])[0] if "q" in match.groupdict() else []
    m, n, rest = len(first), len(second), len(scene.items) - len(first)
    if way == "more":
        return SceneAnswer(YES_NO[m <= n], "majority", way)
    value = {"sum": m + n, "difference": m - n, "left_over": rest, "not": rest}[way]
    if value < 0 or (way == "sum" and any(item in second for item in first)):
        raise _DoubtError
    return SceneAnswer(str(value), "count_logic" if way == "not" else "count_arithmetic", way)


def _half(scene: Scene, match: re.Match[str], side: str) -> SceneAnswer:
    axis, words = (0, ("left", "right")) if side == "left" else (1, ("top", "bottom"))
    item, _ = _find(scene, match["p"])
    return SceneAnswer(words[_is_ahead(_at(item, axis) - SIDE // 2)], "position", ("side", "height")[axis])


def _same(scene: Scene, match: re.Match[str]) -> SceneAnswer:
    if len(scene.items) != 2:
        raise _DoubtError
    first, second = (getattr(item, match["a"]) for item in scene.items)
    return SceneAnswer(YES_NO[first != second], "same", match["a"])


def _relation(scene: Scene, match: re.Match[str]) -> SceneAnswer:
    (first, _), (second, _), (axis, sign) = _find(scene, match["p"]), _find(scene, match["q"]), BESIDE[match["r"]]
    holds = _is_ahead(sign * (_at(first, axis) - _at(second, axis)))
    return SceneAnswer(YES_NO[not holds], "relation", ("beside", "over")[axis])


def _neighbor(scene: Scene, match: re.Match[str]) -> SceneAnswer:
    (reference, _), (axis, sign) = _find(scene, match["q"]), BESIDE[match["r"]]
    neighbor = _only([item for item in scene.items if sign * (_at(item, axis) - _at(reference, axis)) > 0])
    _is_ahead(_at(neighbor, axis) - _at(reference, axis))
    return SceneAnswer(getattr(neighbor, match["a"]), "relation", "neighbour")


def _extreme(scene: Scene, match: re.Match[str]) -> SceneAnswer:
    axis, sign = EXTREMES[match["w"]]
    *others, last = sorted(scene.items, key=lambda item: sign * _at(item, axis))
    if others:
        _is_ahead(_at(last, axis) - _at(others[-1], axis))
    return SceneAnswer(getattr(last, match["a"]), "extreme", ("side", "height")[axis])


def _odd(scene: Scene, match: re.Match[str], differs: str = "") -> SceneAnswer:
    """The attribute `a` of the only item that differs from the others, in this attribute or in `differs`."""
    differs = differs or match["a"]
    counts = Counter(getattr(item, differs) for item in scene.items)
    odd = _only([item for item in scene.items if counts[getattr(item, differs)] == 1])
    if len(scene.items) < 3:
        raise _DoubtError
    return SceneAnswer(getattr(odd, match["a"]), "odd_one_out", differs)


def _most(scene: Scene, match: re.Match[str]) -> SceneAnswer:
    (best, count), *others = Counter(getattr(item, match["a"]) for item in scene.items).most_common()
    if others and others[0][1] == count:
        raise _DoubtError
    return SceneAnswer(best, "majority", match["a"])


def _next(scene: Scene, match: re.Match[str]) -> SceneAnswer:
    in_rows = sorted(scene.items, key=lambda item: (item.row, item.column))
    shown = [getattr(item, match["a"]) for item in in_rows]
    for period in range(2, len(shown) // 2 + 1):
        if all(a == b for a, b in zip(shown, shown[period:], strict=False)) and len(set(shown[:period])) == period:
            subskills = {(2, "colour"): "colour", (2, "shape"): "shape", (3, "colour"): "three_colours"}
            return SceneAnswer(shown[len(shown) - period], "pattern", subskills.get((period, match["a"]), ""))
    raise _DoubtError


def _find_chart(scene: Scene, part: str) -> Chart:
    """The chart of a scene, which must consist of this part: "bar", "slices" or "line"."""
    if scene.chart is None or scene.chart.kind != {"slice": "pie"}.get(part.removesuffix("s"), part.removesuffix("s")):
        raise _DoubtError
    return scene.chart


def _find_best(values: Sequence[int], word: str) -> int:
    """The place of the only highest, largest, lowest or smallest value."""
    best = (max if word in ("highest", "largest") else min)(values)
    if values.count(best) > 1:
        raise _DoubtError
    return values.index(best)


def _chart_extreme(scene: Scene, match: re.Match[str]) -> SceneAnswer:
    chart, word = _find_chart(scene, match["k"]), match["w"]
    subskill = word if word in (("highest", "lowest") if chart.kind == "bar" else ("largest", "smallest")) else ""
    return SceneAnswer(chart.colours[_find_best(chart.values, word)], f"{chart.kind}_chart", subskill)


def _chart_count(scene: Scene, match: re.Match[str]) -> SceneAnswer:
    chart = _find_chart(scene, match["k"])
    return SceneAnswer(str(len(chart.values)), f"{chart.kind}_chart", "count")


def _find_values(scene: Scene, match: re.Match[str], part: str) -> list[int]:
    """The values of the colours that a question names."""
    chart = _find_chart(scene, part)
    if not set(match.groups()) <= set(chart.colours):
        raise _DoubtError
    return [chart.values[chart.colours.index(color)] for color in match.groups()]


def _pie_half(scene: Scene, match: re.Match[str]) -> SceneAnswer:
    (value,) = _find_values(scene, match, "slice")
    return SceneAnswer(YES_NO[value <= PIE_PARTS // 2], "pie_chart", "half")


def _bars(scene: Scene, match: re.Match[str], subskill: str) -> SceneAnswer:
    values = _find_values(scene, match, "bar")
    result = values[0] - values[1] if subskill == "difference" else sum(values)
    if result < 0:
        raise _DoubtError
    return SceneAnswer(str(result), "bar_values", subskill)


def _line(scene: Scene, match: re.Match[str], subskill: str) -> SceneAnswer:
    values = _find_chart(scene, "line").values
    if subskill == "peak":
        return SceneAnswer(ORDINALS[_find_best(values, match["w"])], "line_chart", subskill)
    if subskill == "point":
        place = ORDINALS.index(match["o"])
        if place >= len(values):
            raise _DoubtError
        return SceneAnswer(str(values[place]), "line_chart", subskill)
    rising = {b > a for a, b in itertools.pairwise(values)}
    if len(rising) != 1 or any(a == b for a, b in itertools.pairwise(values)):
        raise _DoubtError
    return SceneAnswer(TRENDS[not rising.pop()], "line_chart", subskill)


_PIECES = {
    "P": "(?P<p>[a-z ]+?)",
    "Q": "(?P<q>[a-z ]+?)",
    "R": f"(?P<r>{'|'.join(BESIDE)})",
    "W": f"(?P<w>{'|'.join(EXTREMES)})",
    "A": "(?P<a>colour|shape)",
    "C": f"({'|'.join(COLOR_NAMES)})",
    "BEST": "(?P<w>highest|lowest|largest|smallest)",
    "ORDINAL": "|".join(ORDINALS),
}
_Solve = Callable[[Scene, re.Match[str]], SceneAnswer]
_SHAPE_TEMPLATES: Sequence[tuple[str, _Solve]] = read_wordings(__file__, "shapes", globals(), _PIECES)
_CHART_TEMPLATES: Sequence[tuple[str, _Solve]] = read_wordings(__file__, "chart", globals(), _PIECES)
