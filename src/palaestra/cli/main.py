"""The command `palaestra`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from traceback import print_exception
from typing import Annotated

import typer
from rich.table import Table
from typer.core import TyperGroup

from palaestra import __version__
from palaestra.cli import recipes
from palaestra.cli.check import check
from palaestra.cli.data import data
from palaestra.cli.doctor import doctor
from palaestra.cli.export import export
from palaestra.cli.listing import KINDS, list_entries
from palaestra.cli.new import new
from palaestra.cli.options import document, make_completion
from palaestra.cli.recipes import Learners
from palaestra.cli.serve import serve
from palaestra.cli.terminal import (
    LOOK,
    MEASURE,
    RUNS,
    START,
    TRACEBACK,
    Commands,
    StoppedError,
    add_lazy_command,
    console,
    explain,
    mask_output,
    quiet,
    say,
)
from palaestra.cli.view import view
from palaestra.core.errors import SettingsError, UnknownNameError
from palaestra.core.process import raise_on_sigterm, read_launch_rank
from palaestra.core.records import Json
from palaestra.core.registry import load_reference
from palaestra.interrupts import INTERRUPTED
from palaestra.recipes.progress import RunProgress, TrainProgress, plain_console

app = typer.Typer(
    cls=Commands,
    pretty_exceptions_enable=False,
    help="Train, teach and evaluate language models in Gymnasium environments.",
    epilog="Start with `palaestra doctor` and `palaestra teach`, then `palaestra list`. Each command has `--help`.",
)
models_app = typer.Typer(invoke_without_command=True, help="List the registered models, or download one.")


app.add_typer(models_app, name="models", rich_help_panel=LOOK)
app.command(rich_help_panel=MEASURE)(check)
app.command(rich_help_panel=MEASURE)(serve)
app.command(rich_help_panel=RUNS)(view)
app.command(rich_help_panel=START)(doctor)
app.command(rich_help_panel=START)(new)
app.command(rich_help_panel=START)(data)
app.command(rich_help_panel=LOOK)(export)
recipes.register(app)

_FINISH = {
    "TrainResult": "palaestra.cli.recipes:finish_train",
    "TeachResult": "palaestra.cli.recipes:finish_teach",
    "EvaluateResult": "palaestra.cli.recipes:finish_evaluate",
    "ResearchResult": "palaestra.cli.research:finish",
    "BenchResult": "palaestra.cli.research:finish_bench",
}
"""What prints the result of a resumed run, as `module:name`."""
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


@app.command(rich_help_panel=RUNS)
@document
def resume(
    run: Folder,
    seed: int | None = None,
    max_cost: float | None = None,
    max_calls: int | None = None,
    max_tokens: int | None = None,
    categories: int | None = None,
    executor: str | None = None,
    parallel: Annotated[str | None, typer.Option(metavar="ddp|fsdp")] = None,
    device: str | None = None,
    rollout_servers: str | None = None,
    learners: Learners = 0,
    trust: Annotated[bool, typer.Option("--trust")] = False,
) -> None:
    """Resume a run that was stopped or killed. The result is the same as without the interruption.

    Arguments:
        seed: Raises an error if it is not the seed of the run.
        max_cost: A new cost limit in dollars (teach, evaluate).
        max_calls: A new limit on model calls (teach).
        max_tokens: A new limit on the tokens of these calls (teach).
        categories: A new number of discovered skills, before the first lesson (teach).
        executor: Another executor, for example a new cluster (train, teach, evaluate, bench).
        parallel: Another way to use several processes (train).
        device: Another device, for example cpu (train).
        rollout_servers: Other servers that sample the rollouts (train).
        trust: Run the code that the run names, although you have not started it on this machine.
    """
    from palaestra.recipes.resume import resume as resume_run
    from palaestra.runs.run import Run

    options: Json = {"max_cost": max_cost, "max_calls": max_calls, "max_tokens": max_tokens}
    options |= {"categories": categories, "executor": executor, "parallel": parallel, "device": device}
    options |= {"rollout_servers": rollout_servers}
    changes = {name: value for name, value in options.items() if value is not None}
    quiet()
    if seed is not None:
        with Run.open(run, read_only=True) as opened:
            known = opened.settings.get("seed")
        if seed != known:
            raise SettingsError(f"expected the run's seed {known}; got --seed {seed}; leave --seed out")
    if learners:
        from palaestra.recipes.train.learners import resume_on_ray

        with TrainProgress(console) as progress:
            result = resume_on_ray(run, learners, listener=progress, trust=trust, **changes)
    else:
        result = resume_run(run, progress=console, trust=trust, **changes)
    if read_launch_rank() == 0:
        load_reference(_FINISH[type(result).__name__])(result)


@app.command(rich_help_panel=RUNS)
@document
def report(run: Folder, figures: Annotated[list[str] | None, typer.Option(metavar="FORMAT")] = None) -> None:
    """Write report.html of a run, a study or a bench, finished or not.

    Arguments:
        figures: Also write the figures (svg, png) or the tables (csv, tex) as files. May be repeated.
    """
    from palaestra.report import write_figures, write_report

    say(f"report: {write_report(run)}")
    if figures:
        paths = write_figures(run, formats=figures)
        say(f"figures: {len(paths)} files in {run / 'figures'}" if paths else "figures: the report has none of these")
    say(f"run: {run}")


@app.command(rich_help_panel=RUNS)
def diagnose(run: Folder) -> None:
    """Find what keeps a run from learning, with the number, the threshold and the option to try."""
    from palaestra.cli.recipes import print_warnings
    from palaestra.runs.run import Run

    with Run.open(run, read_only=True) as opened:
        if not print_warnings(opened):
            say("no known problem found")


@app.command(rich_help_panel=MEASURE)
@document
def compare(first: Folder, second: Folder, out: Path | None = None) -> None:
    """Compare two runs on the same problems, with a paired test.

    Arguments:
        out: Write the comparison as an HTML page to this file.
    """
    from palaestra.cli.terminal import comparison_table
    from palaestra.recipes.evaluate.compare import compare as compare_runs
    from palaestra.report import write_comparison

    result = compare_runs(first, second)
    console.print(comparison_table(result))
    for note in result.notes:
        say(f"note: {note}")
    if out is not None:
        say(f"page: {write_comparison(result, out)}")


@app.command(rich_help_panel=MEASURE)
@document
def rescore(
    run: Folder,
    reward: Annotated[list[str] | None, typer.Option(metavar="FILE.py:FUNCTION")] = None,
    reward_weight: list[float] | None = None,
    scorer: str = "",
    episode: Annotated[str, typer.Option(metavar="NAME")] = "",
    trust: Annotated[bool, typer.Option("--trust")] = False,
    json_: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Score the stored episodes of a run with another reward or scorer, and compare with the old values. Samples nothing.

    Arguments:
        reward: A reward function as of `palaestra train`, several times.
        reward_weight: The weight of each reward.
        scorer: A scorer: number, judge:MODEL, FILE.py:FUNCTION, ...; by default the run's own, as it is now.
        episode: Only this episode, with its texts.
        trust: Run the code that the run names, although you have not started it on this machine.
        json_: Print the result with all values as JSON.
    """
    from palaestra.cli.terminal import rescoring_tables
    from palaestra.recipes.evaluate.rescore import rescore as rescore_run
    from palaestra.recipes.evaluate.rescore import write_rescoring
    from palaestra.report import write_report

    quiet()
    with RunProgress(plain_console(stderr=True)) as progress:
        result = rescore_run(
            run,
            reward=reward or None,
            reward_weights=reward_weight or (),
            scorer=scorer,
            episode=episode,
            trust=trust,
            listener=progress,
        )
    if json_:
        typer.echo(json.dumps(result.to_data(), indent=1))
        return
    options = [
        *(f"--reward {shlex.quote(name)}" for name in reward or ()),
        f"--scorer {shlex.quote(scorer)}" if scorer else "",
    ]
    options += [f"--reward-weight {weight:g}" for weight in reward_weight or ()]
    command = " ".join(("palaestra rescore", shlex.quote(str(run)), *filter(None, options), "--episode"))
    for part in rescoring_tables(result, command, texts=bool(episode)):
        console.print(part, soft_wrap=isinstance(part, str), highlight=False)
    if not episode:
        write_rescoring(result)
        say(f"report: {write_report(run)}")


def _build_research() -> TyperGroup:
    from palaestra.cli.research import build_commands

    return build_commands()


add_lazy_command(app, "research", MEASURE, "Run an agent on a research task.", _build_research)


@app.command("list", rich_help_panel=LOOK)
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help=f"One of {', '.join(KINDS)}; all if not given.", autocompletion=lambda incomplete: list(KINDS)
        ),
    ] = "",
) -> None:
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
    from palaestra.models.registry import MODELS, is_available

    table = Table(box=None, show_header=False)
    for name, description in MODELS.items():
        table.add_row(name, "installed" if is_available(name) else "not downloaded", description)
    console.print(table)
    console.print(
        "A folder with a transformers checkpoint, or a hub id such as owner/name, can also be used as a model."
    )


@models_app.command("get")
@document
def models_get(name: Annotated[str, typer.Argument(autocompletion=make_completion("models"))]) -> None:
    """Download a model, verify it and print its folder.

    Arguments:
        name: A registered name or a hub id.
    """
    from palaestra.models.registry import get

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
