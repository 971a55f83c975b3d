"""Pieces of SVG as pure functions. Colours and fonts are classes; the style sheet decides them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

Point = tuple[float, float]


def number(value: float) -> str:
    """A coordinate with at most two decimals, which is finer than a screen.

    >>> number(3.0), number(1 / 3)
    ('3', '0.33')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


def element(tag: str, *children: str, **attributes: str | float) -> Markup:
    """One element. Text and attributes are escaped; `Markup` children go in as they are.

    An attribute's underscores become hyphens, and one at its end is dropped (`class_`).

    >>> element("text", "a < b", x=1.5, class_="label", text_anchor="end")
    Markup('<text x="1.5" class="label" text-anchor="end">a &lt; b</text>')
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(
            name.rstrip("_").replace("_", "-"), value if isinstance(value, str) else number(value)
        )
        for name, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(tag, written, Markup("").join(escape(child) for child in children))


def drawing(width: float, height: float, label: str, *children: str, class_: str = "") -> Markup:
    """A whole picture that scales with its place; `label` is what a screen reader says."""
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {number(width)} {number(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
        class_=class_,
    )


def text(
    x: float, y: float, content: str, class_: str = "", anchor: str = "start", **attributes: str | float
) -> Markup:
    """Text at a point; `anchor` is start, middle or end."""
    return element("text", content, x=x, y=y, text_anchor=anchor, class_=class_, **attributes)


def line(start: Point, end: Point, class_: str) -> Markup:
    return element("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], class_=class_)


def circle(centre: Point, radius: float, class_: str, title: str = "") -> Markup:
    hint = (element("title", title),) if title else ()
    return element("circle", *hint, cx=centre[0], cy=centre[1], r=radius, class_=class_)


def polyline(points: Sequence[Point], class_: str, **attributes: str | float) -> Markup:
    return element("polyline", points=_pairs(points), class_=class_, **attributes)


def polygon(points: Sequence[Point], class_: str) -> Markup:
    return element("polygon", points=_pairs(points), class_=class_)


def _pairs(points: Sequence[Point]) -> str:
    return " ".join(f"{number(x)},{number(y)}" for x, y in points)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low` to `high` onto the stretch from `start` to `end`.

    >>> Scale(0, 100, 10, 210)(50)
    110.0
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values from `low` to `high`, about so many of them.

    >>> ticks(0, 76, 4)
    [0.0, 20.0, 40.0, 60.0]
    """
    rough = (high - low) / max(1, about)
    if rough <= 0:
        return [low]
    magnitude = 10 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(k * step) for k in range(first, last + 1)]
