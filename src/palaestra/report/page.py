"""Write `report.html` of a run, a study, a bench, a check or a comparison."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from palaestra.core.errors import RunError
from palaestra.core.records import Json
from palaestra.core.registry import load_reference
from palaestra.recipes.diagnosis import diagnose
from palaestra.report import formatting
from palaestra.report.charts import span, table_behind
from palaestra.report.figures import FORMATS, PageFigure, find_tables, name_figures, write_parts
from palaestra.report.formatting import short_path
from palaestra.report.notes import read_notes
from palaestra.runs.files import read_json, storage_errors, write_text
from palaestra.runs.log import read_failure, read_log
from palaestra.runs.provenance import describe_cost
from palaestra.runs.run import Run, is_running
from palaestra.version import __version__

if TYPE_CHECKING:
    from palaestra.recipes.check.records import SubjectReport
    from palaestra.recipes.evaluate.compare import CompareResult

_RECIPES = ("evaluate", "teach", "train", "research")
"""The recipes with a report. The page of each is imported when it is needed, and with it the recipe."""
STUDY, BENCH, CHECK, RESCORE = "study.json", "bench.json", "check.json", "rescore.json"
"""The files with the plan of a study and of a bench, with the report of a check, and with the last rescoring of a run."""
_LOG_LINES = 12
"""Lines of the log on the page of a run that has not ended."""
_MIN_CONTENTS = 4
"""Minimum sections of a page with a table of contents."""
_DATA = re.compile(r' data-chart="[^"]*"')
"""The values of a chart for the script of the viewer, which reports do not have."""
_SECTIONS = re.compile(r'<section id="([^"]+)">\s*<h2>(.*?)</h2>', re.DOTALL)


def write_report(folder: str | Path) -> Path:
    """Write `report.html` into the folder of a run, a study, a bench or a check and return its path.

    The page needs no network and no other file. The report of a running run shows the results so far. A teach run also
    gets its lessons as `lessons.jsonl`. The page of a study or a bench links to the reports of its runs, which are
    written too.

    Raises:
        RunError: the folder has no run, is damaged, or its recipe has no report.
        StorageError: the page cannot be written.

    Example:
        >>> write_report(Path("runs/teach-20250101-120000"))      # doctest: +SKIP
        PosixPath('runs/teach-20250101-120000/report.html')
    """
    folder = Path(folder)
    template, page = read_page(folder)
    _write_runs(page.get("run_folders", ()))
    if template == "teach":
        from palaestra.recipes.export.tables import write_lessons

        with Run.open(folder, read_only=True) as run:
            write_lessons(run)
    path = folder / "report.html"
    write_text(path, _render(template, page, folder.resolve().name))
    return path


def read_page(folder: Path, with_texts: bool = True) -> tuple[str, Json]:
    """Return the name of the template for the folder of a run, a study, a bench or a check, and what it shows.

    Arguments:
        with_texts: whether a page has whole conversations; the viewer has a page of its own for them.

    Raises:
        RunError: the folder has no run, is damaged, or its recipe has no report.
    """
    if (folder / STUDY).exists():
        from palaestra.recipes.teach.study import read_study
        from palaestra.report.teach import study_page

        return "study", study_page(read_study(folder))
    if (folder / BENCH).exists():
        from palaestra.recipes.research.bench import read_bench
        from palaestra.report.bench import bench_page

        return "bench", bench_page(read_bench(folder))
    if is_check(folder):
        from palaestra.report.check import check_page, read_check_report

        return "check", check_page(read_check_report(folder / CHECK))
    with Run.open(folder, read_only=True) as run:
        if run.recipe not in _RECIPES:
            known = ", ".join(_RECIPES)
            raise RunError(f"recipe {run.recipe!r} has no report ({folder}); recipes with a report: {known}")
        make_page = load_reference(f"palaestra.report.{run.recipe}:{run.recipe}_page")
        options = {"with_texts": with_texts} if run.recipe == "research" else {}
        return run.recipe, {**make_page(run, **options), **_read_end(run)}


def is_check(folder: Path) -> bool:
    """Whether a folder has the report of a check, and no run."""
    return os.path.lexists(folder / CHECK) and not os.path.lexists(folder / "settings.json")


def _read_end(run: Run) -> Json:
    """Read why a run failed, the last lines of its log, what keeps it from learning, the user's notes, and its rescoring."""
    error = str((run.summary or {}).get("error") or "")
    failure = read_failure(run.folder, error) if error or run.summary is None else None
    lines = read_log(run.folder)[-_LOG_LINES:] if run.summary is None or failure else []
    diagnoses = [] if failure else diagnose(run)
    resume = "" if failure or run.summary is not None or is_running(run.folder) else short_path(str(run.folder))
    state = {"failure": failure, "log": lines, "resume": resume, "diagnoses": diagnoses}
    rescored = read_json(run.folder / RESCORE) if os.path.lexists(run.folder / RESCORE) else None
    return {**state, "notes": read_notes(run.folder, run.settings), "rescored": rescored}


def write_comparison(result: CompareResult, path: Path) -> Path:
    """Write the comparison of two runs as one page to `path`.

    Raises:
        StorageError: the page cannot be written.
    """
    write_text(path, render_comparison(result))
    return path


def render_comparison(result: CompareResult) -> str:
    """The comparison of two runs as one HTML page."""
    from palaestra.report.evaluate import compare_page

    names = f"{result.first.folder.resolve().name} and {result.second.folder.resolve().name}"
    return _render("compare", compare_page(result), names)


def write_leaderboard(folder: str | Path, path: str | Path) -> Path:
    """Write the leaderboard of the research runs below a folder as one page.

    Raises:
        RunError: there is no finished research run.
        StorageError: the page cannot be written.
    """
    from palaestra.recipes.research.leaderboard import read_leaderboard

    board, path = read_leaderboard(folder), Path(path)
    page = {"tasks": board.tasks, "rows": board.rows, "unfinished": board.unfinished}
    write_text(path, _render("leaderboard", page, Path(folder).resolve().name))
    return path


def write_check_report(report: SubjectReport, path: Path) -> Path:
    """Write the report of a check: as a page to a file that ends in `.html`, as a badge to `.svg`, otherwise as JSON.

    Raises:
        StorageError: the file cannot be written.
    """
    from palaestra.report.check import check_page, draw_badge

    match path.suffix:
        case ".html":
            content = _render("check", check_page(report), path.stem)
        case ".svg":
            content = draw_badge(report)
        case _:
            content = report.to_json()
    with storage_errors(path, f"writing {path.name}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, content)
    return path


def render_with_figures(folder: Path) -> tuple[str, list[PageFigure]]:
    """Render the current report of a run, a study or a bench as one HTML page. Returns it with its figures.

    Raises:
        RunError: the folder has no run, is damaged, or its recipe has no report.
    """
    template, page = read_page(folder)
    return _render(template, page, folder.resolve().name), name_figures(page.get("figures", ()))


def write_figures(folder: str | Path, target: str | Path | None = None, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the figures (SVG, PNG) and the tables (CSV, LaTeX) of a report as files and return their paths.

    Arguments:
        folder: of a run, a study or a bench.
        target: the folder to write into; `None`: `figures` in `folder`.
        formats: some of svg, png, csv and tex.

    Raises:
        RunError: the folder has no run, is damaged, its recipe has no report, or a format is unknown.
        MissingExtraError: a PNG is asked for and resvg is not installed.
        StorageError: a file cannot be written.
    """
    folder = Path(folder)
    page, figures = render_with_figures(folder)
    target = Path(target) if target is not None else folder / "figures"
    return write_parts([*figures, *find_tables(page)], target, formats)


def _render(template: str, page: Json, folder: str) -> str:
    html = make_environment().get_template(f"{template}.html.j2").render(page=page, folder=folder, version=__version__)
    return add_contents(_DATA.sub("", html))


def add_contents(html: str) -> str:
    """Add links to the sections of a long page below its header."""
    sections = [(name, Markup(title).striptags()) for name, title in _SECTIONS.findall(html)]
    if len(sections) < _MIN_CONTENTS:
        return html
    links = (Markup('<a href="#{}">{}</a>').format(*section) for section in sections)
    contents = Markup('<nav class="contents" aria-label="On this page">{}</nav>').format(Markup(" ").join(links))
    return html.replace("</header>", f"</header>\n{contents}", 1)


def _write_runs(folders: Iterable[Path]) -> None:
    """Write the reports of runs, except those of ended runs whose report is newer than their summary."""
    for folder in folders:
        page, summary = folder / "report.html", folder / "summary.json"
        current = page.exists() and summary.exists() and page.stat().st_mtime >= summary.stat().st_mtime
        if (folder / "settings.json").exists() and not current:
            write_report(folder)


@cache
def make_environment(*packages: str) -> Environment:
    """The environment of the templates. Templates of `packages` replace those of the same name."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in (*packages, "palaestra.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Every function of the module is a filter.
    environment.filters |= {name: function for name, function in vars(formatting).items() if isfunction(function)}
    environment.filters |= {"span": span, "table_behind": table_behind, "cost": describe_cost, "shell_join": shlex.join}
    return environment
