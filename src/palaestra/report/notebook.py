"""Results in notebooks: a result shows its main figures and a curve, and `palaestra.view(result)` its whole report."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from palaestra.core.errors import RunError
from palaestra.recipes.evaluate.compare import CompareResult
from palaestra.report.figures import find_parts
from palaestra.report.page import render_comparison, render_page

BOX = re.compile(
    r'<p class="name">(?P<name>.*?)</p>\s*<p class="big">(?P<big>.*?)</p>\s*(?:<p class="detail">(?P<detail>.*?)</p>)?', re.DOTALL
)  # fmt: skip
"""A main figure of a report: its name, its value and its interval."""


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


def view(result: Any, height: int = 720) -> InlineReport:
    """Show the report of a result, or of the folder of a run, in the output of a notebook's cell.

    Arguments:
        result: what `teach`, `train`, `research`, `evaluate`, `compare`, a study or a bench returned, or a folder.
        height: of the frame, in pixels.

    Raises:
        RunError: the folder has no run, is damaged, or its recipe has no report.

    Example:
        >>> palaestra.view(palaestra.teach(teacher="skill_tree"))       # doctest: +SKIP
    """
    title = "comparison" if isinstance(result, CompareResult) else str(_find_folder(result))
    return InlineReport(title, _render(result), height)


def draw_result(result: Any) -> str:
    """Draw the main figures of a result and its first curve as HTML that needs no style sheet."""
    page = _render(result)
    boxes = "".join(
        '<div style="display:inline-block;vertical-align:top;margin:0 28px 8px 0">'
        f'<div style="font-size:12px;opacity:.75">{box["name"]}</div>'
        f'<div style="font-size:22px;font-weight:600">{box["big"]}</div>'
        f'<div style="font-size:12px;opacity:.75">{box["detail"] or ""}</div></div>'
        for box in BOX.finditer(page)
    )
    figures, _ = find_parts(page)
    picture = ""
    if figures:
        data = base64.b64encode(figures[0].write_svg().encode()).decode()
        picture = (
            f'<img alt="{escape(figures[0].label)}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'
        )
    name = "" if isinstance(result, CompareResult) else f"<code>{escape(str(_find_folder(result)))}</code>"
    return f"<div><div>{boxes}</div>{picture}<div>{name}</div></div>"


def _render(result: Any) -> str:
    return render_comparison(result) if isinstance(result, CompareResult) else render_page(_find_folder(result))


def _find_folder(result: Any) -> Path:
    folder = getattr(result, "folder", result)
    if not isinstance(folder, str | Path):
        raise RunError(f"expected a result or the folder of a run; got {type(result).__name__}")
    return Path(folder)
