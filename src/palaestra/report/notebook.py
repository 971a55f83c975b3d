"""Results in notebooks: a result shows its main metrics and a curve, and `palaestra.show(result)` its whole report."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

from palaestra.core.errors import RunError
from palaestra.report.figures import PageFigure
from palaestra.report.page import render_comparison, render_with_figures

_BOX = re.compile(
    r'<p class="name">(?P<name>.*?)</p>\s*<p class="big">(?P<big>.*?)</p>\s*'
    r'(?:<p class="detail">(?P<detail>.*?)</p>)?',
    re.DOTALL,
)
"""A main metric of a report: its name, its value and its interval."""


@dataclass(frozen=True, slots=True)
class InlineReport:
    """A report that a notebook shows in the output of a cell.

    Arguments:
        page: the report, one HTML page.
        height: of the frame, in pixels.
    """

    title: str
    page: str
    height: int

    def _repr_html_(self) -> str:
        # The frame keeps the styles of the page and of the notebook apart, and runs no script.
        return (
            f'<iframe title="{escape(self.title)}" srcdoc="{escape(self.page)}" sandbox="allow-popups" '
            f'style="width:100%;height:{self.height}px;border:1px solid #8888"></iframe>'
        )

    def __repr__(self) -> str:
        return f"InlineReport({self.title!r}); a notebook shows the page"


def show(result: object, height: int = 720) -> InlineReport:
    """Show the report of a result, or of the folder of a run, in the output of a notebook's cell.

    Arguments:
        result: what `teach`, `train`, `research`, `evaluate`, `compare`, a study or a bench returned, or a folder.
        height: of the frame, in pixels.

    Raises:
        RunError: the folder has no run, is damaged, or its recipe has no report.

    Example:
        >>> palaestra.show(palaestra.teach(teacher="skill_tree"))       # doctest: +SKIP
    """
    title, page, _ = _render(result)
    return InlineReport(title or "comparison", page, height)


def draw_result(result: object) -> str:
    """Draw the main metrics of a result and its first curve as HTML that needs no style sheet."""
    folder, page, figures = _render(result)
    boxes = "".join(
        '<div style="display:inline-block;vertical-align:top;margin:0 28px 8px 0">'
        f'<div style="font-size:12px;opacity:.75">{box["name"]}</div>'
        f'<div style="font-size:22px;font-weight:600">{box["big"]}</div>'
        f'<div style="font-size:12px;opacity:.75">{box["detail"] or ""}</div></div>'
        for box in _BOX.finditer(page)
    )
    picture = ""
    for figure in figures[:1]:
        data = base64.b64encode(figure.write("svg")).decode()
        label = escape(figure.plot.label)
        picture = f'<img alt="{label}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'
    name = f"<code>{escape(folder)}</code>" if folder else ""
    return f"<div><div>{boxes}</div>{picture}<div>{name}</div></div>"


def _render(result: object) -> tuple[str, str, list[PageFigure]]:
    """Return the folder of a result, empty for a comparison, its page and its figures."""
    from palaestra.recipes.evaluate.compare import CompareResult

    if isinstance(result, CompareResult):
        return "", render_comparison(result), []
    folder = getattr(result, "folder", result)
    if not isinstance(folder, str | Path):
        raise RunError(f"expected a result or the folder of a run; got {type(result).__name__}")
    return str(folder), *render_with_figures(Path(folder))
