"""Answer questions about scenes, to verify written examples.

The scene determines the answer. A question is answered if its wording is one of `vision-skills` and the scene leaves no
doubt; otherwise it has no answer here.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from palaestra.tasks.vision.charts import ORDINALS, TRENDS
from palaestra.tasks.vision.scene import COLOUR_NAMES, PIE_PARTS, PLURALS, SHAPES, SIDE, SIZES, YES_NO, Item, Scene
from palaestra.tasks.vision.shapes import BESIDE, EXTREMES

CLEAR = 4
"""Minimum distance in pixels of a clear difference in position."""


@dataclass(frozen=True, slots=True)
class SceneAnswer:
    """The answer to a question about a scene, with the skill and subskill of `vision-skills`."""

    answer: str
    skill: str
    subskill: str


def answer_question(scene: Scene, question: str) -> SceneAnswer | None:
    """Answer a question; `None` if it is not understood or the scene leaves doubt."""
    text = re.sub(r"\bcolor", "colour", " ".join(question.lower().split()).rstrip("?.! "))
    for pattern, solve in _CHART_TEMPLATES if scene.chart is not None else _SHAPE_TEMPLATES:
        match = pattern.fullmatch(text)
        answer = solve(scene, match) if match else None
        if answer is not None:
            return answer
    return None


# Shapes

_SHAPE_WORDS = {name: name for name in SHAPES} | {plural: name for name, plural in PLURALS.items()}
_ONE_OF = {
    "size": "|".join(SIZES),
    "colour": "|".join(COLOUR_NAMES),
    "shape": "|".join((*_SHAPE_WORDS, "shapes", "shape")),
}
_PHRASE = re.compile(
    rf"(?:(?P<size>{_ONE_OF['size']}) ?)?(?:(?P<colour>{_ONE_OF['colour']}) ?)?(?P<shape>{_ONE_OF['shape']})?"
)


def _select(scene: Scene, phrase: str) -> tuple[list[Item], tuple[str, ...]] | None:
    """The items that a phrase such as "large red circles" names, and the attributes that it uses; `None` if it is unclear."""
    match = _PHRASE.fullmatch(phrase.strip())
    if match is None or not phrase.strip():
        return None
    shape = _SHAPE_WORDS.get(match["shape"] or "")
    wanted = {"size": match["size"], "colour": match["colour"], "shape": shape}
    used = {name: value for name, value in wanted.items() if value}
    items = [item for item in scene.items if all(getattr(item, name) == value for name, value in used.items())]
    return items, tuple(used)


def _find(scene: Scene, phrase: str) -> tuple[Item, tuple[str, ...]] | None:
    """The only item that a phrase names."""
    selected = _select(scene, phrase)
    return (selected[0][0], selected[1]) if selected and len(selected[0]) == 1 else None


def _ask_attribute(name: str) -> Callable[[Scene, re.Match[str]], SceneAnswer | None]:
    def solve(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
        named = _find(scene, match["p"] if "p" in match.groupdict() else "shape")
        if named is None or name in named[1]:
            return None
        item, used = named
        if name == "size":
            return SceneAnswer(item.size, "size", "named" if used else "single")
        return SceneAnswer(getattr(item, name), name, "sized" if used == ("size",) else "named" if used else "single")

    return solve


def _exists(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
    selected = _select(scene, match["p"])
    if selected is None or not selected[1]:
        return None
    subskill = {("colour",): "colour", ("shape",): "shape", ("colour", "shape"): "both"}.get(selected[1], "")
    return SceneAnswer(YES_NO[not selected[0]], "existence", subskill)


def _count(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
    selected = _select(scene, match["p"])
    if selected is None:
        return None
    labels = {(): ("count", "all"), ("colour",): ("count", "colour"), ("shape",): ("count", "shape"),
              ("colour", "shape"): ("count_logic", "both"), ("size",): ("count_logic", "sized")}  # fmt: skip
    return SceneAnswer(str(len(selected[0])), *labels.get(selected[1], ("count_logic", "")))


def _count_others(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
    selected = _select(scene, match["p"])
    return None if selected is None else SceneAnswer(str(len(scene.items) - len(selected[0])), "count_logic", "not")


def _combine(subskill: str) -> Callable[[Scene, re.Match[str]], SceneAnswer | None]:
    def solve(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
        first = _select(scene, match["p"])
        second = _select(scene, match["q"]) if "q" in match.groupdict() else ([], ())
        if first is None or second is None:
            return None
        m, n = len(first[0]), len(second[0])
        if subskill == "sum" and any(item in second[0] for item in first[0]):
            return None
        if subskill == "more":
            return SceneAnswer(YES_NO[m <= n], "majority", "more")
        value = {"sum": m + n, "difference": m - n, "left_over": len(scene.items) - m}[subskill]
        return SceneAnswer(str(value), "count_arithmetic", subskill) if value >= 0 else None

    return solve


def _half(axis: str, words: tuple[str, str], subskill: str) -> Callable[[Scene, re.Match[str]], SceneAnswer | None]:
    def solve(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
        named = _find(scene, match["p"])
        if named is None or abs(getattr(named[0], axis) - SIDE // 2) < CLEAR:
            return None
        return SceneAnswer(words[getattr(named[0], axis) > SIDE // 2], "position", subskill)

    return solve


def _same(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
    if len(scene.items) != 2:
        return None
    first, second = (getattr(item, match["a"]) for item in scene.items)
    return SceneAnswer(YES_NO[first != second], "same", match["a"])


def _relation(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
    first, second = _find(scene, match["p"]), _find(scene, match["q"])
    axis, sign = BESIDE[match["r"]]
    if first is None or second is None:
        return None
    distance = sign * (_at(first[0], axis) - _at(second[0], axis))
    return None if abs(distance) < CLEAR else SceneAnswer(YES_NO[distance < 0], "relation", ("beside", "over")[axis])


def _neighbour(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
    reference, (axis, sign) = _find(scene, match["q"]), BESIDE[match["r"]]
    if reference is None:
        return None
    distances = {id(item): sign * (_at(item, axis) - _at(reference[0], axis)) for item in scene.items}
    beyond = [item for item in scene.items if distances[id(item)] > 0]
    if len(beyond) != 1 or distances[id(beyond[0])] < CLEAR:
        return None
    return SceneAnswer(getattr(beyond[0], match["a"]), "relation", "neighbour")


def _extreme(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
    axis, sign = EXTREMES[match["w"]]
    along = sorted(scene.items, key=lambda item: sign * _at(item, axis))
    if len(along) > 1 and sign * (_at(along[-1], axis) - _at(along[-2], axis)) < CLEAR:
        return None
    return SceneAnswer(getattr(along[-1], match["a"]), "extreme", ("side", "height")[axis])


def _at(item: Item, axis: int) -> int:
    return (item.x, item.y)[axis]


def _odd(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
    counts = Counter(getattr(item, match["a"]) for item in scene.items)
    single = [value for value, count in counts.items() if count == 1]
    return SceneAnswer(single[0], "odd_one_out", match["a"]) if len(single) == 1 and len(scene.items) > 2 else None


def _odd_size(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
    counts = Counter(item.size for item in scene.items)
    odd = [item for item in scene.items if counts[item.size] == 1]
    return SceneAnswer(odd[0].colour, "odd_one_out", "size") if len(odd) == 1 and len(scene.items) > 2 else None


def _most(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
    ranked = Counter(getattr(item, match["a"]) for item in scene.items).most_common(2)
    if len(ranked) > 1 and ranked[0][1] == ranked[1][1]:
        return None
    return SceneAnswer(ranked[0][0], "majority", match["a"])


def _next(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
    in_rows = sorted(scene.items, key=lambda item: (item.row, item.column))
    shown = [getattr(item, match["a"]) for item in in_rows]
    for period in range(2, len(shown) // 2 + 1):
        if all(a == b for a, b in zip(shown, shown[period:], strict=False)) and len(set(shown[:period])) == period:
            subskill = {(2, "colour"): "colour", (2, "shape"): "shape", (3, "colour"): "three_colours"}
            return SceneAnswer(shown[len(shown) - period], "pattern", subskill.get((period, match["a"]), ""))
    return None


# Charts


def _chart_extreme(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
    chart, word = scene.chart, match["w"]
    if chart is None or chart.kind != {"bar": "bar", "slice": "pie"}[match["k"]]:
        return None
    best = (max if word in ("highest", "largest") else min)(chart.values)
    if chart.values.count(best) > 1:
        return None
    subskill = word if word in (("highest", "lowest") if chart.kind == "bar" else ("largest", "smallest")) else ""
    return SceneAnswer(chart.colours[chart.values.index(best)], f"{chart.kind}_chart", subskill)


def _chart_count(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
    chart = scene.chart
    if chart is None or chart.kind != {"bars": "bar", "slices": "pie"}[match["k"]]:
        return None
    return SceneAnswer(str(len(chart.values)), f"{chart.kind}_chart", "count")


def _value(scene: Scene, colour: str, kind: str) -> int | None:
    chart = scene.chart
    if chart is None or chart.kind != kind or colour not in chart.colours:
        return None
    return chart.values[chart.colours.index(colour)]


def _pie_half(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
    value = _value(scene, match["c"], "pie")
    return None if value is None else SceneAnswer(YES_NO[value <= PIE_PARTS // 2], "pie_chart", "half")


def _bars(subskill: str) -> Callable[[Scene, re.Match[str]], SceneAnswer | None]:
    def solve(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
        values = [_value(scene, colour, "bar") for colour in match.groups()]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        result = known[0] - known[1] if subskill == "difference" else sum(known)
        return SceneAnswer(str(result), "bar_values", subskill) if result >= 0 else None

    return solve


def _line(scene: Scene, match: re.Match[str]) -> SceneAnswer | None:
    chart, groups = scene.chart, match.groupdict()
    if chart is None or chart.kind != "line":
        return None
    values: Sequence[int] = chart.values
    if groups.get("o"):
        place = ORDINALS.index(match["o"])
        return SceneAnswer(str(values[place]), "line_chart", "point") if place < len(values) else None
    if groups.get("w"):
        best = (max if match["w"] == "highest" else min)(values)
        return SceneAnswer(ORDINALS[values.index(best)], "line_chart", "peak") if values.count(best) == 1 else None
    steps = [b - a for a, b in itertools.pairwise(values)]
    if not (all(step > 0 for step in steps) or all(step < 0 for step in steps)):
        return None
    return SceneAnswer(TRENDS[steps[0] < 0], "line_chart", "trend")


_P, _Q = "(?P<p>[a-z ]+?)", "(?P<q>[a-z ]+?)"
_R, _W = f"(?P<r>{'|'.join(BESIDE)})", f"(?P<w>{'|'.join(EXTREMES)})"
_C = f"({'|'.join(COLOUR_NAMES)})"
_A = "(?P<a>colour|shape)"
Solver = Callable[[Scene, re.Match[str]], SceneAnswer | None]
_SHAPE_TEMPLATES: list[tuple[re.Pattern[str], Solver]] = [
    (re.compile(pattern), solve)
    for pattern, solve in (
        (f"what (?P<a>colour) is the {_W} shape", _extreme),
        (f"which (?P<a>shape) is the {_W} one", _extreme),
        (f"what (?P<a>colour) is the shape {_R} the {_Q}", _neighbour),
        (f"which (?P<a>shape) is {_R} the {_Q}", _neighbour),
        ("what colour is the shape that differs in size", _odd_size),
        (f"(?:what colour is|which colour does|name the colour of) the {_P}(?: have)?", _ask_attribute("colour")),
        ("what shape is it|which shape is in the picture|name the shape", _ask_attribute("shape")),
        (f"which {_A} is (?:there only once|the odd one out)", _odd),
        (f"which {_A} is (?:the most common|there most often)", _most),
        (f"(?:the shapes go on in this way. )?which {_A} comes next(?: in the row)?", _next),
        (f"(?:(?:what is|name) the {_P} shape)", _ask_attribute("shape")),
        (f"which shape is {_P}", _ask_attribute("shape")),
        (f"(?:is there|does the picture show|can you see) an? {_P}", _exists),
        (f"how many {_P} and {_Q} are there together", _combine("sum")),
        (f"how many more {_P} than {_Q} are there", _combine("difference")),
        (f"are there more {_P} than {_Q}", _combine("more")),
        (f"all {_P} are taken away. how many shapes are left", _combine("left_over")),
        (f"how many shapes are not {_P}", _count_others),
        (f"(?:how many|count the|what is the number of) {_P}(?: are there)?", _count),
        (f"(?:is|on which side is) the {_P},? (?:on the )?left or (?:on the )?right", _half("x", ("left", "right"), "side")),
        (f"(?:is|where is) the {_P},? (?:at the )?top or (?:at the )?bottom", _half("y", ("top", "bottom"), "height")),
        (f"(?:is the|what size is the) {_P},? large or small", _ask_attribute("size")),
        ("(?:do the two have the same|are both of the same) (?P<a>colour|shape|size)", _same),
        ("is the (?P<a>colour|shape|size) of the two the same", _same),
        (f"(?:is|does) the {_P} (?:lie )?{_R} the {_Q}", _relation),
    )
]  # fmt: skip
_CHART_TEMPLATES: list[tuple[re.Pattern[str], Solver]] = [
    (re.compile(pattern), solve)
    for pattern, solve in (
        ("(?:what colour is the|name the colour of the) (?P<w>highest|lowest|largest|smallest) (?P<k>bar|slice)", _chart_extreme),
        ("which (?P<k>bar|slice) is the (?P<w>highest|lowest|largest|smallest)", _chart_extreme),
        ("(?:how many|count the|what is the number of) (?P<k>bars|slices)(?: are there)?", _chart_count),
        (f"is the (?P<c>{'|'.join(COLOUR_NAMES)}) slice more than half of the pie", _pie_half),
        (f"(?:how high is|what is the value of) the {_C} bar", _bars("value")),
        (f"what do the {_C} bar and the {_C} bar add up to", _bars("sum")),
        (f"how much higher is the {_C} bar than the {_C} bar", _bars("difference")),
        ("is the line rising or falling|does the line go up or down, rising or falling", _line),
        ("which point of the line is the (?P<w>highest|lowest), counted from the left", _line),
        (f"what is the value of the (?P<o>{'|'.join(ORDINALS)}) point of the line", _line),
    )
]  # fmt: skip
