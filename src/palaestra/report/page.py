"""Write `report.html` of a run, a study, a bench or a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from palaestra.core.errors import RunError
from palaestra.recipes.evaluate.compare import CompareResult
from palaestra.recipes.research.bench import PLAN as BENCH
from palaestra.recipes.research.bench import read_bench
from palaestra.recipes.teach.recipe import write_lessons
from palaestra.recipes.teach.study import PLAN, read_study
from palaestra.report.bench import bench_page
from palaestra.report.charts import span, table_behind
from palaestra.report.evaluate import compare_page, evaluate_page
from palaestra.report.figures import FORMATS, write_parts
from palaestra.report.formatting import FILTERS
from palaestra.report.research import research_page
from palaestra.report.teach import study_page, teach_page
from palaestra.report.train import train_page
from palaestra.runs.files import write_text
from palaestra.runs.run import Run
from palaestra.version import __version__

_PAGES: dict[str, Callable[[Run], dict[str, Any]]] = {
    "evaluate": evaluate_page, "teach": teach_page, "train": train_page, "research": research_page,
}  # fmt: skip


def write_report(folder: str | Path) -> Path:
    """Write `report.html` into the folder of a run, a study or a bench and return its path.

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
    if (folder / PLAN).exists():
        study = read_study(folder)
        _write_runs(study.run_folder(row, seed) for row in study.rows for seed in study.seeds)
    elif (folder / BENCH).exists():
        _write_runs(episode.folder for episode in read_bench(folder).episodes)
    template, page = read_page(folder)
    if template == "teach":
        with Run.open(folder, read_only=True) as run:
            write_lessons(run)
    path = folder / "report.html"
    write_text(path, _render(template, page, folder.resolve().name))
    return path


def read_page(folder: Path, with_texts: bool = True) -> tuple[str, dict[str, Any]]:
    """Return the name of the template for the folder of a run, a study or a bench, and what it shows.

    Arguments:
        with_texts: whether a page has whole conversations; the viewer has a page of its own for them.

    Raises:
        RunError: the folder has no run, is damaged, or its recipe has no report.
    """
    if (folder / PLAN).exists():
        return "study", study_page(read_study(folder))
    if (folder / BENCH).exists():
        return "bench", bench_page(read_bench(folder))
    with Run.open(folder, read_only=True) as run:
        if run.recipe not in _PAGES:
            raise RunError(
                f"recipe {run.recipe!r} has no report ({folder}); recipes with a report: {', '.join(_PAGES)}"
            )
        if run.recipe == "research":
            return run.recipe, research_page(run, with_texts)
        return run.recipe, _PAGES[run.recipe](run)


def write_comparison(result: CompareResult, path: Path) -> Path:
    """Write the comparison of two runs as one page to `path`.

    Raises:
        StorageError: the page cannot be written.
    """
    write_text(path, render_comparison(result))
    return path


def render_comparison(result: CompareResult) -> str:
    """The comparison of two runs as one HTML page."""
    names = f"{result.first.folder.resolve().name} and {result.second.folder.resolve().name}"
    return _render("compare", compare_page(result), names)


def render_page(folder: Path) -> str:
    """The report of a run, a study or a bench as it is at the moment, as one HTML page.

    Raises:
        RunError: the folder has no run, is damaged, or its recipe has no report.
    """
    template, page = read_page(folder)
    return _render(template, page, folder.resolve().name)


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
    return write_parts(render_page(folder), Path(target) if target is not None else folder / "figures", formats)


def _render(template: str, page: dict[str, Any], folder: str) -> str:
    return make_environment().get_template(f"{template}.html.j2").render(page=page, folder=folder, version=__version__)


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
    environment.filters.update(FILTERS | {"span": span, "table_behind": table_behind})
    return environment
