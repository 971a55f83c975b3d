"""The figures of a page as SVG and PNG, and its tables as CSV and LaTeX.

They are taken from the rendered page, so every figure and every table of every page can be saved.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup, escape

from palaestra.core.errors import MissingExtraError, RunError
from palaestra.report.svg import circle, element, number, polyline, text
from palaestra.runs.files import storage_errors, write_bytes

FORMATS = ("svg", "png", "csv", "tex")
ZOOM = 2.0
"""Pixels of a PNG per unit of the figure."""
PARTS = re.compile(
    r"""<section\ id="(?P<section>[^"]+)" | <h[1-3][^>]*>(?P<heading>.*?)</h[1-3]> | <summary[^>]*>(?P<summary>.*?)</summary>
    | <figcaption>(?P<caption>.*?)</figcaption> | <p\ class="legend[^>]*>(?P<legend>.*?)</p> | <table\b.*?</table> | <svg\b.*?</svg>""",
    re.VERBOSE | re.DOTALL,
)
"""The parts of a page. Texts of models are escaped, so they contain none of these tags."""
BREAKING = ("br", "code", "dd", "div", "dt", "li", "p", "span", "summary")
"""Tags within a cell that separate words."""
KEY = re.compile(r'<span[^>]*>(?:<i class="(?P<style>[^"]*)"></i>|(?P<sample><svg.*?</svg>))(?P<words>[^<]*)</span>')
"""An entry of a legend: a mark and its meaning."""
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "−": "$-$", "–": "--", "\xa0": "~", "→": r"$\to$", "·": r"$\cdot$", "±": r"$\pm$", "…": r"\dots{}", "●": r"$\bullet$",
    "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageFigure:
    """A chart of a page.

    Arguments:
        name: the name of its file, for example `curves-1`.
        title: the heading above it.
        label: what it shows, in words.
        svg: the element as it stands in the page, without a style of its own.
        legend: the marks of its legend, as SVG elements of 34 by 12, with their meanings.
    """

    name: str
    title: str
    label: str
    svg: str
    legend: tuple[tuple[str, str], ...] = ()

    @property
    def formats(self) -> tuple[str, ...]:
        return ("svg", "png")

    def write(self, kind: str) -> bytes:
        """The content of a file of this format."""
        return self.write_png() if kind == "png" else self.write_svg().encode()

    def write_svg(self) -> str:
        """The figure as a file of its own, in the light colours."""
        opening, rest = self.svg.removesuffix("</svg>").split(">", 1)
        width, height = (float(size) for size in re.findall(r' (?:width|height)="([^"]+)"', opening))
        entries, bottom = _place_legend(self.legend, width, height)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {number(width)} {number(bottom)}" width="{number(width)}" '
            f'height="{number(bottom)}" role="img" aria-label="{escape(self.label)}"><style>{_read_style()}</style>'
            f'<rect width="100%" height="100%" fill="#ffffff"/>{rest}{entries}</svg>\n'
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
        return bytes(resvg_py.svg_to_bytes(svg_string=self.write_svg(), zoom=ZOOM, sans_serif_family="DejaVu Sans"))


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of a page. It is read when it is written: a page may have thousands of rows, and most are never saved.

    Arguments:
        markup: the element as it stands in the page.
    """

    name: str
    title: str
    markup: str

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The texts of the cells."""
        return _read_table(self.markup)[0]

    @property
    def head(self) -> int:
        """Number of rows at the top with the names of the columns."""
        return _read_table(self.markup)[1]

    @property
    def formats(self) -> tuple[str, ...]:
        return ("csv", "tex")

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
        width = len(self.rows[0])
        lines = [" & ".join(map(escape_latex, row)) + r" \\" for row in self.rows]
        body = [
            r"\toprule",
            *lines[: self.head],
            *([r"\midrule"] if self.head else []),
            *lines[self.head :],
            r"\bottomrule",
        ]
        return "\n".join([rf"\begin{{tabular}}{{{'l' * width}}}", *body, r"\end{tabular}", ""])


def escape_latex(words: str) -> str:
    r"""Write a text so that LaTeX prints it.

    >>> escape_latex("50 % of a_b: −1")
    '50 \\% of a\\_b: $-$1'
    """
    return "".join(LATEX.get(character, character) for character in words)


def find_parts(page: str) -> tuple[list[PageFigure], list[PageTable]]:
    """Find the figures and the tables of a rendered page. Pictures within tables are not figures."""
    figures: list[PageFigure] = []
    tables: list[PageTable] = []
    section = title = "page"
    explained = 0
    for part in PARTS.finditer(page):
        markup = part[0]
        if part["section"]:
            section, explained = part["section"], len(figures)
        elif markup.startswith("<svg"):
            opening = markup.split(">", 1)[0]
            if 'class="chart' in opening:
                count = sum(figure.name.startswith(f"{section}-") for figure in figures)
                label = re.search(r'aria-label="([^"]*)"', opening)
                figures.append(
                    PageFigure(f"{section}-{count + 1}", title, _read_text(label[1] if label else ""), markup)
                )
        elif part["legend"] or part["caption"]:
            # A legend explains the figures of its section that no other explains; a caption is that of its own figure.
            legend = _read_legend(part["legend"] or part["caption"])
            for place in range(explained, len(figures)):
                figures[place] = replace(figures[place], legend=legend)
            explained = len(figures)
        elif markup.startswith("<table"):
            count = sum(table.name.startswith(f"{section}-") for table in tables)
            if re.search("<t[dh][ >]", markup):
                tables.append(PageTable(f"{section}-{count + 1}", title, markup))
        else:
            title = _read_text(part["heading"] or part["summary"] or "")
    return figures, tables


def write_parts(page: str, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the figures and the tables of a rendered page into `folder`, each in the formats that apply to it.

    Raises:
        RunError: a format is unknown.
        MissingExtraError: a PNG is asked for and resvg is not installed.
        StorageError: a file cannot be written.
    """
    if unknown := [name for name in formats if name not in FORMATS]:
        raise RunError(f"unknown format {unknown[0]!r}; formats: {', '.join(FORMATS)}")
    paths = []
    for part in (part for parts in find_parts(page) for part in parts):
        for kind in formats:
            if kind in part.formats:
                path = folder / f"{part.name}.{kind}"
                with storage_errors(path, f"writing {path.name}"):
                    folder.mkdir(parents=True, exist_ok=True)
                    write_bytes(path, part.write(kind))
                paths.append(path)
    return paths


@lru_cache(maxsize=4)
def _read_table(markup: str) -> tuple[tuple[tuple[str, ...], ...], int]:
    """The texts of the cells, and the number of rows of the head."""
    reader = _TableReader()
    reader.feed(markup)
    return _drop_empty_columns(reader.rows), reader.head


def _read_legend(markup: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (entry["sample"] or _draw_mark(entry["style"]), _read_text(entry["words"])) for entry in KEY.finditer(markup)
    )


def _draw_mark(style: str) -> str:
    """Draw the mark of a legend that the page draws with its style sheet."""
    colour = next((name for name in style.split() if re.fullmatch(r"s\d", name)), "s6")
    if "dot" in style:
        return circle((28, 6), 4, f"mark {colour}")
    if "block" in style:
        return element("rect", x=22, y=0, width=12, height=12, class_=f"bar {colour}")
    return polyline([(12, 6), (34, 6)], f"line {colour}", "6 3" if "dashed" in style else "")


def _place_legend(legend: Sequence[tuple[str, str]], width: float, top: float) -> tuple[Markup, float]:
    """Place the entries in rows below a figure. Returns them with the bottom of the last row."""
    parts: list[Markup] = []
    x, y = 0.0, top + 6
    for mark, words in legend:
        size = 46 + 6.6 * len(words)
        if x and x + size > width:
            x, y = 0.0, y + 18
        parts.append(element("g", Markup(mark), text(40, 10, words), transform=f"translate({number(x)} {number(y)})"))
        x += size
    return Markup("").join(parts), y + 18 if legend else top


@cache
def _read_style() -> str:
    """The rules of the style sheet for pictures, with the light colours in place of their names."""
    sheet = (files("palaestra.report") / "templates" / "style.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"(--[\w-]+): ([^;]+);", sheet.split("@media", 1)[0]))
    rules = re.findall(
        r"^(?:svg[ .][^{]*|\.a\d|\.unknown[^{]*) \{.*$", sheet.split("@media (max-width", 1)[0], re.MULTILINE
    )
    style = re.sub(r"var\((--[\w-]+)\)", lambda name: colours[name[1]], "\n".join(rules))
    # Names of fonts that programs without the fonts of a browser know.
    return 'text { font-family: system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }\n' + style


def _drop_empty_columns(rows: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Leave out the columns without a text: those of pictures."""
    width = max(map(len, rows), default=0)
    kept = [column for column in range(width) if any(row[column : column + 1] not in ([], [""]) for row in rows)]
    return tuple(tuple(row[column] if column < len(row) else "" for column in kept) for row in rows if kept)


class _TableReader(HTMLParser):
    """Reads the texts of a table's cells. Pictures are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.head = 0
        self._cell: list[str] | None = None
        self._span = 1
        self._in_head = self._in_picture = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "thead":
            self._in_head = True
        elif tag == "svg":
            self._in_picture = True
        elif tag == "tr":
            self.rows.append([])
            self.head += self._in_head
        elif tag in ("td", "th"):
            self._cell, self._span = [], int(dict(attributes).get("colspan") or 1)
        elif tag in BREAKING and self._cell is not None:
            self._cell.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag == "thead":
            self._in_head = False
        elif tag == "svg":
            self._in_picture = False
        elif tag in BREAKING and self._cell is not None:
            self._cell.append(" ")
        elif tag in ("td", "th") and self._cell is not None:
            self.rows[-1] += [" ".join("".join(self._cell).split()), *[""] * (self._span - 1)]
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None and not self._in_picture:
            self._cell.append(data)


class _TextReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _read_text(markup: str) -> str:
    reader = _TextReader()
    reader.feed(markup)
    reader.close()
    return " ".join("".join(reader.texts).split())
