"""`palaestra`: the command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from palaestra import __version__
from palaestra.cli.options import from_settings
from palaestra.core.errors import PalaestraError, UnknownNameError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Language models learn inside Gymnasium environments.",
)
models_app = typer.Typer(no_args_is_help=True, help="The model shelf.")
app.add_typer(models_app, name="models")

Out = Annotated[str, typer.Option("--out", help="The run folder; a new one below runs/ if not given.")]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
console = Console()


def _quiet() -> None:
    """Only our own progress on the terminal: transformers' bars and advice stay out of it."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    logging.disable_progress_bar()


def _finish_teach(result: Any) -> None:
    from palaestra.cli.progress import gain_table
    from palaestra.report import write_report

    console.print(gain_table(result.summary))
    page = write_report(result.folder)
    s = result.summary
    failures = sum(s["failures"].values())
    console.print(
        f"{s['rounds']} rounds, {s['examples']} examples, {failures} failures, {s['seconds']:.0f} s; report: {page}",
        soft_wrap=True,
    )
    console.print(f"run: {result.folder}", soft_wrap=True)


def _finish_evaluate(result: Any) -> None:
    from palaestra.cli.progress import report_table
    from palaestra.report import write_report

    console.print(report_table(result.report))
    console.print(f"{result.summary['seconds']:.0f} s; report: {write_report(result.folder)}", soft_wrap=True)
    console.print(f"run: {result.folder}", soft_wrap=True)


def _teach(settings: Any, out: Out = "") -> None:
    """A teacher teaches a student, round by round; the gain is measured on a test split."""
    from palaestra.cli.progress import RunProgress
    from palaestra.recipes import teach

    teach.check(settings)
    _quiet()
    with RunProgress(console, settings.rounds) as progress:
        result = teach.teach(settings, out=out, listener=progress)
    _finish_teach(result)


def _evaluate(settings: Any, out: Out = "") -> None:
    """Ask a model the problems of a task; accuracy by skill with intervals."""
    from palaestra.cli.progress import RunProgress
    from palaestra.recipes import evaluate

    evaluate.check(settings)
    _quiet()
    with RunProgress(console) as progress:
        result = evaluate.evaluate(settings, out=out, listener=progress)
    _finish_evaluate(result)


def _pretrain(settings: Any) -> None:
    """Train the embedded student `nano` from scratch and write its model card."""
    from palaestra.cli.progress import RunProgress, report_table
    from palaestra.recipes.pretrain import pretrain

    _quiet()
    with RunProgress(console) as progress:
        report = pretrain(settings, listener=progress)
    console.print(report_table(report))
    console.print(f"checkpoint: {settings.out}", soft_wrap=True)


def _register() -> None:
    from palaestra.recipes.evaluate import EvaluateSettings
    from palaestra.recipes.pretrain import PretrainSettings
    from palaestra.recipes.teach import TeachSettings

    app.command("teach")(from_settings(TeachSettings, _teach))
    app.command("evaluate")(from_settings(EvaluateSettings, _evaluate))
    app.command("pretrain")(from_settings(PretrainSettings, _pretrain))


_register()


@app.command()
def resume(
    run: Folder, seed: Annotated[int | None, typer.Option(help="Must be the run's own seed, if given.")] = None
) -> None:
    """Go on with a run that was stopped, with the same result as if it had not been."""
    from palaestra.cli.progress import RunProgress
    from palaestra.core.errors import RunError, SettingsError
    from palaestra.recipes import evaluate, teach
    from palaestra.runs.run import Run

    with Run.open(run) as opened:
        if seed is not None and seed != opened.settings.get("seed"):
            raise SettingsError(
                f"the run was started with seed {opened.settings.get('seed')}; got --seed {seed}; leave it out"
            )
        if opened.recipe not in ("teach", "evaluate"):
            raise RunError(f"the run folder is damaged: it names an unknown recipe '{opened.recipe}'")
        _quiet()
        with RunProgress(console, int(opened.settings.get("rounds", 0))) as progress:
            result: Any = (teach if opened.recipe == "teach" else evaluate).resume(opened, listener=progress)
    (_finish_teach if opened.recipe == "teach" else _finish_evaluate)(result)


@app.command()
def report(run: Folder) -> None:
    """Write report.html of a run, also of one that is still going on."""
    from palaestra.report import write_report

    console.print(f"report: {write_report(run)}", soft_wrap=True)
    console.print(f"run: {run}", soft_wrap=True)


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help="tasks, teachers, models, engines, environments or skills.")] = "",
) -> None:
    """What there is: tasks, their skills, teachers, models, engines and environments."""
    from gymnasium import registry

    from palaestra.engines.base import ENGINES
    from palaestra.engines.shelf import SHELF
    from palaestra.tasks.base import TASKS, make_task
    from palaestra.teachers.base import TEACHERS

    environments = {
        name: str(spec.entry_point) for name, spec in registry.items() if "palaestra" in str(spec.entry_point)
    }
    skills = {
        f"{t}: {skill}": ", ".join(parts) for t in TASKS.names() for skill, parts in make_task(t).skills().items()
    }
    kinds = {
        "tasks": TASKS.descriptions(), "skills": skills, "teachers": TEACHERS.descriptions(),
        "models": SHELF, "engines": ENGINES.descriptions(), "environments": environments,
    }  # fmt: skip
    if kind and kind not in kinds:
        raise UnknownNameError("kind", kind, kinds)
    for name, entries in kinds.items():
        if kind in ("", name):
            table = Table(title=name, title_justify="left", box=None, show_header=False)
            for entry, description in entries.items():
                table.add_row(f"  {entry}", description)
            console.print(table)


@models_app.command("list")
def models_list() -> None:
    """The models of the shelf, and whether they are on this machine."""
    from palaestra.engines.shelf import SHELF, is_here

    table = Table(box=None, show_header=False)
    for name, description in SHELF.items():
        table.add_row(name, "here" if is_here(name) else "not fetched", description)
    console.print(table)
    console.print("Any folder with a transformers checkpoint, or a hub id such as owner/name, is a model too.")


@models_app.command("get")
def models_get(name: Annotated[str, typer.Argument(help="A name of the shelf, or a hub id.")]) -> None:
    """Fetch a model, check it, and say where it lies."""
    from palaestra.cli.progress import RunProgress
    from palaestra.engines.shelf import get

    _quiet()
    with RunProgress(console) as progress:
        where = get(name, progress)
    console.print(f"model: {where}", soft_wrap=True)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        console.print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command. Errors that a user can act on are one line and exit code 2."""
    try:
        app()
    except PalaestraError as error:
        Console(stderr=True).print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; what was done is saved, go on with: palaestra resume RUN", markup=False)
        sys.exit(130)


if __name__ == "__main__":
    main()
