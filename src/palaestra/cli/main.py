"""The command `palaestra`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from traceback import print_exception
from typing import Annotated, Any

import typer
from rich.table import Table

from palaestra import __version__
from palaestra.cli import research as research_commands
from palaestra.cli.export import export
from palaestra.cli.listing import KINDS, list_entries
from palaestra.cli.options import TrainCommand, from_settings
from palaestra.cli.serve import serve
from palaestra.cli.terminal import (
    INTERRUPTED,
    TRACEBACK,
    Commands,
    StoppedError,
    console,
    explain,
    mask_output,
    quiet,
    say,
)
from palaestra.cli.view import view
from palaestra.core.errors import RunError, SettingsError, UnknownNameError
from palaestra.core.events import ignore
from palaestra.core.interrupts import raise_on_sigterm
from palaestra.core.ranks import read_launch_rank
from palaestra.recipes.executor_settings import INLINE
from palaestra.recipes.progress import RunProgress, TrainProgress, plain_console

LEARN, MEASURE, RUNS, LOOK = "Learn", "Measure", "Runs", "Available"
"""The panels of `palaestra --help`."""

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train, teach and evaluate language models in Gymnasium environments.",
    epilog="Start with `palaestra teach`, then `palaestra list`. Each command has `--help`.",
)
models_app = typer.Typer(invoke_without_command=True, help="List the registered models, or download one.")
app.add_typer(models_app, name="models", rich_help_panel=LOOK)
app.command(rich_help_panel=MEASURE)(serve)
app.command(rich_help_panel=RUNS)(view)
app.command(rich_help_panel=LOOK)(export)

Out = Annotated[
    str, typer.Option("--out", help="The run folder; a new one below runs/ if not given.", rich_help_panel="Run")
]
Learners = Annotated[
    int,
    typer.Option(
        help="Train with this many processes on a Ray cluster (RAY_ADDRESS, or this machine).",
        rich_help_panel="Cluster",
    ),
]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


def _finish_teach(result: Any) -> None:
    from palaestra.cli.tables import gain_table, test_rounds_table
    from palaestra.recipes.teach.summary import describe_changes, describe_lessons
    from palaestra.report import write_report

    console.print(gain_table(result.summary))
    if "test_rounds" in result.summary:
        console.print(test_rounds_table(result.summary["test_rounds"]))
    page = write_report(result.folder)
    s = result.summary
    failures = sum(s["failures"].values())
    for line in (describe_changes(s), *describe_lessons(s)):
        if line:
            say(line)
    if s["kept_round"] != s["rounds"]:
        kept = f"round {s['kept_round']}" if s["kept_round"] else "the untaught student"
        say(f"kept: {kept}, the best on validation")
    say(f"{s['rounds']} rounds, {s['examples']} examples, {failures} failures, {s['seconds']:.0f} s; report: {page}")
    say(f"run: {result.folder}")
    if s["gain"] is None:
        raise RunError(f"no gain could be measured: {_causes(s)}")


def _finish_evaluate(result: Any) -> None:
    from palaestra.cli.tables import further_metrics, report_table
    from palaestra.report import write_report
    from palaestra.runs.ledger import describe_cost

    s = result.summary
    console.print(report_table(result.report, "answers" if s["samples"] > 1 else "problems"))
    for line in further_metrics(s):
        say(line)
    say(
        f"{s['problems']} problems, {s['prompt_tokens']} tokens in, {s['completion_tokens']} out, {s['seconds']:.0f} s, "
        f"{describe_cost(s)}; report: {write_report(result.folder)}"
    )
    say(f"run: {result.folder}")
    if result.report.accuracy is None:
        raise RunError(f"no answer could be scored: {_causes(s)}")


def _causes(summary: Mapping[str, Any]) -> str:
    """Describe the failures by cause: the count, and the message of the first."""
    messages = summary["first_failures"]
    return "; ".join(f"{count} x {cause}: {messages.get(cause, '')}" for cause, count in summary["failures"].items())


def _teach(
    settings: Any,
    out: Out = "",
    seeds: Annotated[int, typer.Option(help="Run a study of this many seeds.", rich_help_panel="Run")] = 1,
    grid: Mapping[str, list[str]] | None = None,
) -> None:
    """Teach a student in rounds and measure the gain on a test split.

    Several seeds, or several values separated by commas (--teacher a,b --state on,off), run a study. The runs of a
    study are distributed by --executor; in a single run, the workers score answers and write with a local writer.
    """
    from palaestra.recipes.teach import recipe as teach

    if seeds != 1 or grid:
        _study(settings, out, seeds, grid or {})
        return
    quiet()
    with RunProgress(console, settings.rounds) as progress:
        result = teach.teach(settings, out=out, listener=progress)
    _finish_teach(result)


def _study(settings: Any, out: str, seeds: int, grid: Mapping[str, list[str]]) -> None:
    from palaestra.cli.tables import study_table
    from palaestra.recipes.teach.study import study
    from palaestra.report import write_report
    from palaestra.runs.run import new_folder

    quiet()
    folder = Path(out) if out else new_folder("study")
    try:
        with RunProgress(console, settings.rounds) as progress:
            result = study(
                replace(settings, executor=INLINE),
                grid,
                seeds,
                out=folder,
                executor=settings.executor,
                resources=settings.resources,
                listener=progress,
            )
    except KeyboardInterrupt as error:
        error.add_note(f"the same command, with --out {folder}")
        raise
    console.print(study_table(result))
    for note in result.notes:
        say(f"note: {note}")
    say(f"report: {write_report(result.folder)}")
    say(f"study: {result.folder}")
    if result.failed:
        total = sum(len(row.runs) for row in result.rows)
        raise RunError(
            f"{result.failed} of {total} runs failed; the same command with --out {result.folder} tries them again"
        )


def _evaluate(settings: Any, out: Out = "") -> None:
    """Measure the accuracy of a model on a task, by skill, with intervals."""
    from palaestra.recipes.evaluate import recipe as evaluate

    quiet()
    with RunProgress(console) as progress:
        result = evaluate.evaluate(settings, out=out, listener=progress)
    _finish_evaluate(result)


def _finish_train(result: Any) -> None:
    from palaestra.cli.tables import outcome_table
    from palaestra.report import write_report

    console.print(outcome_table(result.summary))
    s = result.summary
    failures = sum(s["failures"].values())
    say(
        f"{s['iterations']} iterations, {s['episodes']} episodes, {s['decisions']} decisions, {failures} failures, "
        f"{s['seconds']:.0f} s; report: {write_report(result.folder)}"
    )
    say(f"model: {result.folder / 'model'}")
    say(f"run: {result.folder}")


def _train(settings: Any, out: Out = "", learners: Learners = 0) -> None:
    """Train a policy in an environment by reinforcement learning: PPO, GRPO, RLOO or REINFORCE."""
    from palaestra.recipes.train import recipe as train

    quiet()
    if read_launch_rank() > 0:
        train.train(settings, listener=ignore)
        return
    train.check(settings)
    with TrainProgress(console) as progress:
        if learners:
            from palaestra.recipes.train.learners import train_on_ray

            result = train_on_ray(settings, learners, out=out, listener=progress)
        else:
            result = train.train(settings, out=out, listener=progress)
    _finish_train(result)


def _train_reward(settings: Any) -> None:
    """Train a reward model on comparisons and measure its accuracy and calibration."""
    from palaestra.cli.tables import reward_table
    from palaestra.recipes.train.reward_model import train_reward

    quiet()
    with RunProgress(console) as progress:
        model = train_reward(settings=settings, listener=progress)
    console.print(reward_table(model))
    if model.folder is not None:
        say(f"model: {model.folder}")


def _pretrain(settings: Any) -> None:
    """Train the embedded model `nano` or `nano-vlm` from scratch."""
    from palaestra.cli.tables import report_table
    from palaestra.recipes.train.pretrain import pretrain

    quiet()
    with RunProgress(console) as progress:
        report = pretrain(settings, listener=progress)
    console.print(report_table(report))
    say(f"checkpoint: {settings.out}")


def _register() -> None:
    from palaestra.recipes.evaluate.settings import EvaluateSettings
    from palaestra.recipes.teach.settings import STUDY_SETTINGS, TeachSettings
    from palaestra.recipes.train.pretrain import PretrainSettings
    from palaestra.recipes.train.reward_model import RewardSettings
    from palaestra.recipes.train.settings import TrainSettings, make_settings

    train = from_settings(TrainSettings, _train, build_settings=make_settings)
    app.command("train", cls=TrainCommand, rich_help_panel=LEARN)(train)
    app.command("train-reward", rich_help_panel=LEARN)(from_settings(RewardSettings, _train_reward))
    app.command("teach", rich_help_panel=LEARN)(from_settings(TeachSettings, _teach, several=STUDY_SETTINGS))
    app.command("evaluate", rich_help_panel=MEASURE)(from_settings(EvaluateSettings, _evaluate))
    app.command("pretrain", rich_help_panel=LEARN)(from_settings(PretrainSettings, _pretrain))
    research_commands.register(app)


_register()


@app.command(rich_help_panel=RUNS)
def resume(
    run: Folder,
    seed: Annotated[int | None, typer.Option(help="Raises an error if it is not the seed of the run.")] = None,
    max_cost: Annotated[float | None, typer.Option(help="A new cost limit in dollars (teach, evaluate).")] = None,
    max_calls: Annotated[int | None, typer.Option(help="A new limit on model calls (teach).")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="A new limit on the tokens of these calls (teach).")] = None,
    categories: Annotated[
        int | None, typer.Option(help="A new number of discovered skills, before the first lesson (teach).")
    ] = None,
    executor: Annotated[
        str | None, typer.Option(help="Another executor, for example a new cluster (train, teach, evaluate, bench).")
    ] = None,
    parallel: Annotated[
        str | None, typer.Option(metavar="ddp|fsdp", help="Another way to use several processes (train).")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Another device, for example cpu (train).")] = None,
    learners: Learners = 0,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Run the code that the run names, although you have not started it on this machine."
        ),
    ] = False,
) -> None:
    """Resume a run that was stopped or killed. The result is the same as without the interruption."""
    from palaestra.recipes.research import bench
    from palaestra.recipes.resume import resume as resume_run
    from palaestra.runs.run import Run

    quiet()
    options = {
        "max_cost": max_cost, "max_calls": max_calls, "max_tokens": max_tokens, "categories": categories, "executor": executor,
        "parallel": parallel, "device": device,
    }  # fmt: skip
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if (run / bench.PLAN).exists():
        with RunProgress(console) as progress:
            result = resume_run(run, listener=progress, trust=trust, **changes)
        research_commands.finish_bench(result)
        return
    with Run.open(run, read_only=True) as opened:
        recipe, settings = opened.recipe, opened.settings
    if seed is not None and seed != settings.get("seed"):
        raise SettingsError(f"expected the run's seed {settings.get('seed')}; got --seed {seed}; leave --seed out")
    if read_launch_rank() > 0:
        resume_run(run, listener=ignore, trust=trust, **changes)
        return
    with TrainProgress(console) if recipe == "train" else RunProgress(console, settings.get("rounds", 0)) as progress:
        if learners:
            from palaestra.recipes.train.learners import resume_on_ray

            result = resume_on_ray(run, learners, listener=progress, trust=trust, **changes)
        else:
            result = resume_run(run, listener=progress, trust=trust, **changes)
    finish = {"teach": _finish_teach, "evaluate": _finish_evaluate, "train": _finish_train}
    finish.get(recipe, research_commands.finish)(result)


@app.command(rich_help_panel=RUNS)
def report(
    run: Folder,
    figures: Annotated[
        list[str] | None,
        typer.Option(
            "--figures",
            metavar="FORMAT",
            help="Also write the figures (svg, png) or the tables (csv, tex) as files. May be repeated.",
        ),
    ] = None,
) -> None:
    """Write report.html of a run, a study or a bench, finished or not."""
    from palaestra.report import write_figures, write_report

    say(f"report: {write_report(run)}")
    if figures:
        paths = write_figures(run, formats=figures)
        say(f"figures: {len(paths)} files in {run / 'figures'}" if paths else "figures: the report has none of these")
    say(f"run: {run}")


@app.command(rich_help_panel=MEASURE)
def compare(
    first: Folder,
    second: Folder,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the comparison as an HTML page to this file.")
    ] = None,
) -> None:
    """Compare two runs on the same problems, with a paired test."""
    from palaestra.cli.tables import comparison_table
    from palaestra.recipes.evaluate.compare import compare as compare_runs
    from palaestra.report import write_comparison

    result = compare_runs(first, second)
    console.print(comparison_table(result))
    for note in result.notes:
        say(f"note: {note}")
    if out is not None:
        say(f"page: {write_comparison(result, out)}")


@app.command("list", rich_help_panel=LOOK)
def list_(kind: Annotated[str, typer.Argument(help=f"One of {', '.join(KINDS)}; all if not given.")] = "") -> None:
    """List tasks, skills, teachers, students, models, environments, algorithms and more."""
    if kind and kind not in KINDS:
        raise UnknownNameError("kind", kind, KINDS)
    for name in (kind,) if kind else KINDS:
        table = Table(title=name, title_justify="left", box=None, show_header=False)
        for entry, description in list_entries(name).items():
            table.add_row(f"  {entry}", description)
        console.print(table)


@models_app.callback(invoke_without_command=True)
def models(context: typer.Context) -> None:
    """List the registered models, or download one."""
    if context.invoked_subcommand is None:
        models_list()
        console.print("Download one with `palaestra models get NAME`; use one with --model or --student.")


@models_app.command("list")
def models_list() -> None:
    """List the registered models and whether each is on this machine."""
    from palaestra.engines.models import MODELS, is_available

    table = Table(box=None, show_header=False)
    for name, description in MODELS.items():
        table.add_row(name, "installed" if is_available(name) else "not downloaded", description)
    console.print(table)
    console.print(
        "A folder with a transformers checkpoint, or a hub id such as owner/name, can also be used as a model."
    )


@models_app.command("get")
def models_get(name: Annotated[str, typer.Argument(help="A registered name or a hub id.")]) -> None:
    """Download a model, verify it and print its folder."""
    from palaestra.engines.models import get

    quiet()
    with RunProgress(console) as progress:
        where = get(name, progress)
    say(f"model: {where}")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    traceback: Annotated[
        bool, typer.Option(TRACEBACK, help="Print the traceback of an error. Every command accepts this option.")
    ] = False,
) -> None:
    if version:
        console.print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        sys.stdout.write(f"{context.get_help()}\n")


def main() -> None:
    """Run the command. An error is one line. The exit code is 2 if a user can fix it, otherwise 1.

    `--traceback`, anywhere in the command line, prints the traceback before that line.
    """
    raise_on_sigterm()
    mask_output()
    arguments = [argument for argument in sys.argv[1:] if argument != TRACEBACK]
    show = len(arguments) < len(sys.argv) - 1
    try:
        # In standalone mode Typer prints its own errors in a box.
        status = app(arguments, prog_name="palaestra", standalone_mode=False)
    except StoppedError as stopped:
        _end(str(stopped), stopped.status)
    except (KeyboardInterrupt, typer.Abort):
        _end("stopped", INTERRUPTED)
    except Exception as error:
        if show:
            print_exception(error)
        _end(*explain(error))
    else:
        sys.exit(status if isinstance(status, int) else 0)


def _end(message: str, status: int) -> None:
    if number := read_launch_rank():
        import torch.distributed

        if not torch.distributed.is_initialized():
            sys.exit(status)  # Rank 0 fails in the same way and prints the error.
        message = f"rank {number}: {message}"
    plain_console(stderr=True).print(message, highlight=False, soft_wrap=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
