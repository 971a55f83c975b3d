"""The figures of a page as SVG and PNG files, and its tables as CSV and LaTeX files."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

from markupsafe import Markup, escape

from palaestra.core.errors import MissingExtraError, RunError
from palaestra.report.svg import Legend, Plot, circle, element, number, polyline, text
from palaestra.runs.files import storage_errors, write_bytes

FORMATS = ("svg", "png", "csv", "tex")
_ZOOM = 2.0
"""Pixels of a PNG per unit of the figure."""
FigureGroup = tuple[str, str, Sequence[Plot | None]]
"""The id of a section, a title, and the plots below it."""
_TABLES = re.compile(
    r'<section id="([^"]+)"|<h[1-3][^>]*>(.*?)</h[1-3]>|<summary[^>]*>(.*?)</summary>|(<table\b.*?</table>)', re.DOTALL
)
"""The tables of a page and the names above them. Texts of models are escaped, so they contain none of these tags."""
_CELL = re.compile(r"<t[dh]\b([^>]*)>(.*?)</t[dh]>", re.DOTALL)
_BREAK = re.compile(r"<svg\b.*?</svg>|</?(?:br|code|dd|div|dt|li|p|span|summary)\b[^>]*>", re.DOTALL)
"""Pictures, and tags that separate words."""
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "−": "$-$", "–": "--", "\xa0": "~", "→": r"$\to$", "·": r"$\cdot$", "±": r"$\pm$", "…": r"\dots{}", "●": r"$\bullet$",
    "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageFigure:
    """A plot of a page.

    Arguments:
        name: the name of its file, for example `curves-1`.
        title: the heading above it.
    """

    formats: ClassVar = ("svg", "png")
    name: str
    title: str
    plot: Plot

    def write(self, kind: str) -> bytes:
        """The content of a file of this format."""
        return self.write_png() if kind == "png" else self.write_svg().encode()

    def write_svg(self) -> str:
        """The figure as a file of its own, in the light colors."""
        plot = self.plot
        legend, bottom = _place_legend(plot.legend, plot.width, plot.height)
        width, height = number(plot.width), number(bottom)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(plot.label)}"><style>{_read_style()}</style>'
            f'<rect width="100%" height="100%" fill="#ffffff"/>{plot.content}{legend}</svg>\n'
        )

    def write_png(self) -> bytes:
        """The figure in pixels.

        Raises:
            MissingExtraError: resvg is not installed.
        """
        try:
            import resvg_py
        except ImportError as error:
            raise MissingExtraError("resvg-py", "figures", "figures as PNG") from error
        return bytes(resvg_py.svg_to_bytes(svg_string=self.write_svg(), zoom=_ZOOM, sans_serif_family="DejaVu Sans"))


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of a page.

    Arguments:
        markup: the element, which is read when the table is written: most tables of a page are never saved.
    """

    formats: ClassVar = ("csv", "tex")
    name: str
    title: str
    markup: str

    @property
    def rows(self) -> list[list[str]]:
        """The texts of the cells, without columns that have none, such as those of pictures."""
        rows: list[list[str]] = []
        for row in self.markup.split("<tr")[1:]:
            rows.append([])
            for attributes, content in _CELL.findall(row):
                span = re.search(r'colspan="(\d+)"', attributes)
                words = " ".join(Markup(_BREAK.sub(" ", content)).striptags().split())
                rows[-1] += [words, *[""] * (int(span[1]) - 1 if span else 0)]
        width = max(map(len, rows))
        kept = [column for column in range(width) if any(column < len(row) and row[column] for row in rows)]
        return [[row[column] if column < len(row) else "" for column in kept] for row in rows]

    def write(self, kind: str) -> bytes:
        """The content of a file of this format."""
        return (self.write_csv() if kind == "csv" else self.write_latex()).encode()

    def write_csv(self) -> str:
        """The table with its head, as it stands in the page."""
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerows(self.rows)
        return stream.getvalue()

    def write_latex(self) -> str:
        """A `tabular` with the rules of the package booktabs."""
        rows, head = self.rows, self.markup.partition("</thead>")
        lines = [" & ".join(map(_escape_latex, row)) + r" \\" for row in rows]
        if count := head[0].count("<tr") if head[1] else 0:
            lines.insert(count, r"\midrule")
        body = [rf"\begin{{tabular}}{{{'l' * len(rows[0])}}}", r"\toprule", *lines, r"\bottomrule", r"\end{tabular}"]
        return "\n".join([*body, ""])


def _escape_latex(words: str) -> str:
    r"""Write a text so that LaTeX prints it.

    >>> _escape_latex("50 % of a_b: −1")
    '50 \\% of a\\_b: $-$1'
    """
    return "".join(_LATEX.get(character, character) for character in words)


def name_figures(groups: Iterable[FigureGroup]) -> list[PageFigure]:
    """Name the plots of a page by their sections: `curves-1`, `curves-2`."""
    counts: Counter[str] = Counter()
    figures = []
    for section, title, plots in groups:
        for plot in filter(None, plots):
            counts[section] += 1
            figures.append(PageFigure(f"{section}-{counts[section]}", title, plot))
    return figures


def find_tables(page: str) -> list[PageTable]:
    """Find the tables of a rendered page. They are named by their sections: `skills-1`."""
    counts: Counter[str] = Counter()
    section = title = "page"
    tables = []
    for name, heading, summary, markup in _TABLES.findall(page):
        if name:
            section = name
        elif _CELL.search(markup):
            counts[section] += 1
            tables.append(PageTable(f"{section}-{counts[section]}", title, markup))
        elif not markup:
            title = Markup(heading or summary).striptags()
    return tables


def write_parts(parts: Iterable[PageFigure | PageTable], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write figures and tables into `folder`, each in the formats that apply to it.

    Raises:
        RunError: a format is unknown.
        MissingExtraError: a PNG is asked for and resvg is not installed.
        StorageError: a file cannot be written.
    """
    if unknown := [name for name in formats if name not in FORMATS]:
        raise RunError(f"unknown format {unknown[0]!r}; formats: {', '.join(FORMATS)}")
    paths = []
    for part in parts:
        for kind in formats:
            if kind in part.formats:
                path = folder / f"{part.name}.{kind}"
                with storage_errors(path, f"writing {path.name}"):
                    folder.mkdir(parents=True, exist_ok=True)
                    write_bytes(path, part.write(kind))
                paths.append(path)
    return paths


def _draw_mark(mark: str) -> Markup:
    """Draw a mark of a legend, 34 by 12, which a page draws with its style sheet."""
    if isinstance(mark, Markup):
        return mark
    *kind, color = sorted(mark.split(), key=lambda name: name[0] == "s")
    if "dot" in kind:
        return circle((28, 6), 4, f"mark {color}")
    if "block" in kind:
        return element("rect", x=22, y=0, width=12, height=12, class_=f"bar {color}")
    return polyline([(12, 6), (34, 6)], f"line {color}", "6 3" if "dashed" in kind else "")


def _place_legend(legend: Legend, width: float, top: float) -> tuple[Markup, float]:
    """Place the entries in rows below a figure. Returns them with the bottom of the last row."""
    parts: list[Markup] = []
    x, y = 0.0, top + 6
    for mark, words in legend:
        size = 46 + 6.6 * len(words)
        if x and x + size > width:
            x, y = 0.0, y + 18
        place = f"translate({number(x)} {number(y)})"
        parts.append(element("g", _draw_mark(mark), text(40, 10, words), transform=place))
        x += size
    return Markup("").join(parts), y + 18 if legend else top


@cache
def _read_style() -> str:
    """The rules of the style sheet for pictures, with the light colors in place of their names."""
    sheet = (files("palaestra.report") / "templates" / "style.css").read_text(encoding="utf-8")
    colors = dict(re.findall(r"(--[\w-]+): ([^;]+);", sheet.split("@media", 1)[0]))
    rules = re.findall(
        r"^(?:svg[ .][^{]*|\.a\d|\.unknown[^{]*) \{.*$", sheet.split("@media (max-width", 1)[0], re.MULTILINE
    )
    style = re.sub(r"var\((--[\w-]+)\)", lambda name: colors[name[1]], "\n".join(rules))
    # Names of fonts that programs without the fonts of a browser know.
    return 'text { font-family: system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }\n' + style
