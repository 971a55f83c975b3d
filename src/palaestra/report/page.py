"""From a run folder to `report.html`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from palaestra.core.errors import RunError
from palaestra.recipes.evaluate.compare import CompareResult
from palaestra.recipes.research.bench import PLAN as BENCH
from palaestra.recipes.research.bench import read_bench
from palaestra.recipes.teach.run_folder import write_lessons
from palaestra.recipes.teach.study import PLAN, read_study
from palaestra.report.bench import bench_page
from palaestra.report.charts import span
from palaestra.report.compare import compare_page
from palaestra.report.evaluate import evaluate_page
from palaestra.report.formatting import FILTERS
from palaestra.report.research import research_page
from palaestra.report.study import study_page
from palaestra.report.teach import teach_page
from palaestra.report.train import train_page
from palaestra.runs.files import write_text
from palaestra.runs.run import Run
from palaestra.version import __version__

_PAGES: dict[str, Callable[[Run], Any]] = {
    "evaluate": evaluate_page, "teach": teach_page, "train": train_page, "research": research_page,
}  # fmt: skip


def write_report(folder: str | Path) -> Path:
    """Write `report.html` into the folder of a run, a study or a bench and return its path.

    A teach run also gets its lessons as `lessons.jsonl`.

    The page needs no network and no other file. The run may still be going on: then the page shows
    what there is, and says that the run has not ended. The page of a study or a bench leads to those of its runs,
    which are written too.

    Raises:
        RunError: the folder holds no run, is damaged, or its recipe has no report.
        StorageError: the page cannot be written.

    Example:
        >>> write_report(Path("runs/teach-20250101-120000"))      # doctest: +SKIP
        PosixPath('runs/teach-20250101-120000/report.html')
    """
    folder = Path(folder)
    if (folder / PLAN).exists():
        return _write_study(folder)
    if (folder / BENCH).exists():
        return _write_bench(folder)
    with Run.open(folder, read_only=True) as run:
        if run.recipe not in _PAGES:
            raise RunError(
                f"there is no report for recipe {run.recipe!r} ({folder}); there is one for: {', '.join(_PAGES)}"
            )
        page = _PAGES[run.recipe](run)
        if run.recipe == "teach":
            write_lessons(run)
        template = _environment().get_template(f"{run.recipe}.html.j2")
        text = template.render(page=page, folder=folder.resolve().name, version=__version__)
    path = folder / "report.html"
    write_text(path, text)
    return path


def _write_study(folder: Path) -> Path:
    result = read_study(folder)
    for row in result.rows:
        for seed in result.seeds:
            run = result.run_folder(row, seed)
            if (run / "settings.json").exists() and not _is_current(run):
                write_report(run)
    template = _environment().get_template("study.html.j2")
    path = folder / "report.html"
    write_text(path, template.render(page=study_page(result), folder=folder.resolve().name, version=__version__))
    return path


def _write_bench(folder: Path) -> Path:
    result = read_bench(folder)
    for episode in result.episodes:
        if (episode.folder / "settings.json").exists() and not _is_current(episode.folder):
            write_report(episode.folder)
    template = _environment().get_template("bench.html.j2")
    path = folder / "report.html"
    write_text(path, template.render(page=bench_page(result), folder=folder.resolve().name, version=__version__))
    return path


def _is_current(folder: Path) -> bool:
    """Whether a run has ended and its report was written after that."""
    page, summary = folder / "report.html", folder / "summary.json"
    return page.exists() and summary.exists() and page.stat().st_mtime >= summary.stat().st_mtime


def write_comparison(result: CompareResult, path: Path) -> Path:
    """Write the comparison of two runs as one page to `path`.

    Raises:
        StorageError: the page cannot be written.
    """
    template = _environment().get_template("compare.html.j2")
    names = f"{result.first.folder.resolve().name} and {result.second.folder.resolve().name}"
    write_text(path, template.render(page=compare_page(result), folder=names, version=__version__))
    return path


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("palaestra.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS | {"span": span})
    return environment
