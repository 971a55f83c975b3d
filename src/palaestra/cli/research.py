"""`palaestra research`: one run, a bench, the task list, and a task for any MCP client."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from palaestra.cli.options import (
    ExecutorName,
    WorkerCpus,
    WorkerGpus,
    WorkerMemory,
    document,
    from_settings,
    split_examples,
)
from palaestra.cli.terminal import console, quiet, say
from palaestra.core.errors import RunError, SettingsError
from palaestra.interrupts import INTERRUPTED
from palaestra.recipes.progress import RunProgress
from palaestra.recipes.settings import INLINE, ExecutorSettings
from palaestra.runs.provenance import describe_cost

if TYPE_CHECKING:
    from palaestra.recipes.research.bench import BenchResult
    from palaestra.recipes.research.recipe import ResearchResult

NAMED = ("task", "agent", "seed")
OF_THE_AGENT = (
    "model", "max_cost", "max_calls", "max_tokens", "call_timeout", "context", "answer_tokens", "temperature", "top_p",
    "agent", "tools", "parser", "history", "format_errors", "format_penalty", "cache", "device",
)  # fmt: skip
"""Settings that do not apply to an MCP client, which is the agent itself."""
SILENT = "0 messages: the agent wrote nothing; its score is that of the starter files"

Out = Annotated[str, typer.Option(help="The run folder; by default a new one below runs/.")]


def finish(result: ResearchResult) -> None:
    """Print the result of a research run and write its report."""
    from palaestra.cli.terminal import format_score
    from palaestra.recipes.research.episode_player import describe_departure, describe_end, is_silent
    from palaestra.report import write_report

    s = result.summary
    table = Table(box=None, show_header=False, pad_edge=False)
    better = f"{s['metric']}, {s['direction']} is better"
    submitted = len(s["attempts"]) - s["validations"]
    scores = f"{s['validations']}" + (f", and {submitted} submitted" if submitted else "")
    best = f"{format_score(s['best_attempt'])} of {scores}; baseline {format_score(s['baseline_validation'])}"
    table.add_row("submission, test split", f"{format_score(s['best_submission'])} ({better})")
    table.add_row("baseline, test split", format_score(s["baseline"]))
    table.add_row("best validation", best)
    table.add_row("reward", "none" if s["reward"] is None else f"{s['reward']:.4g} ({s['outcome']})")
    table.add_row("ended", describe_end(s["stop_reason"], s["note"]))
    console.print(table)
    if is_silent(s):
        say(SILENT)
    if (replay := s.get("replay")) is not None:
        say(f"replay: {replay['identical']} of {replay['steps']} steps are as recorded")
        if replay["first_departure"] is not None:
            say(describe_departure(replay["first_departure"], replay["reason"]))
    if s.get("replayed"):
        say(
            f"{s['replayed']} steps were replayed after an interruption; {s['different']} of them printed different output"
        )
    again = f" ({s['calls_again']} repeated)" if s.get("calls_again") else ""
    say(
        f"{s['steps']} messages, {s['validations']} validations, {s['calls']} calls{again}, {s['prompt_tokens']} tokens in, "
        f"{s['completion_tokens']} out, {s['seconds']:.0f} s, {describe_cost(s)}; report: {write_report(result.folder)}"
    )
    say(f"run: {result.folder}")
    if s["stop_reason"] == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if s["failure"]:
        raise RunError(f"the run failed: {s['failure']['cause']}: {s['failure']['message']}")


def finish_bench(result: BenchResult) -> None:
    """Print the standings of a bench and write its report."""
    from palaestra.cli.terminal import standings_tables
    from palaestra.report import write_report

    if result.standings is not None:
        for table in standings_tables(result.standings, console.width, result.silent):
            console.print(table, highlight=False)
    say(f"{len(result.episodes)} runs; report: {write_report(result.folder)}")
    say(f"bench: {result.folder}")
    failures = [episode.summary["failure"] for episode in result.episodes if episode.summary]
    if failures and all(failures):
        first = failures[0]
        raise RunError(f"all {len(failures)} runs failed; the first with {first['cause']}: {first['message']}")


def _research(settings: Any, caller: typer.Context, out: Out = "") -> None:
    """Run an agent on a research task in a sandbox and compare its submission with the baseline.

    Examples:
        palaestra research --task grid_maze --agent baseline
        palaestra research --model openai:gpt-4o-mini --max-cost 1
        palaestra research bench --tasks all --agents baseline,reference
    """
    from palaestra.recipes.research import recipe as research

    if caller.invoked_subcommand is not None:
        given = [name for name, value in caller.params.items() if value not in (None, "", [], ())]
        if given:
            raise SettingsError(
                f"put the options of {caller.invoked_subcommand} after its name; got --{given[0].replace('_', '-')} before it"
            )
        return
    agent = research.check(settings)
    quiet()
    if agent.interactive:  # The agent uses the terminal.
        finish(research.run_research(settings, out=out, progress=False))
        return
    with RunProgress(console) as progress:
        result = research.run_research(settings, out=out, listener=progress)
    finish(result)


@document
def _bench(
    settings: Any,
    tasks: str,
    agents: str,
    seeds: int = 1,
    seed: int = 0,
    workers: int = 1,
    total_cost: float = 0.0,
    executor: ExecutorName = INLINE,
    worker_cpus: WorkerCpus = 1.0,
    worker_gpus: WorkerGpus = 0.0,
    worker_memory: WorkerMemory = 0.0,
    out: str = "",
) -> None:
    """Run tasks x agents x seeds and compare the agents by performance profiles. A stopped bench can be continued.

    Arguments:
        tasks: Comma-separated tasks, or all.
        agents: Comma-separated agents: baseline,model:NAME,script:FILE.
        seeds: Runs of every agent on every task, with different seeds.
        seed: The first seed.
        workers: Parallel runs.
        total_cost: Maximum dollars of all runs together (--max-cost is per run); 0: no limit.
        out: The folder of the bench. Repeat it to continue a stopped bench.
    """
    from palaestra.recipes.research.bench import bench

    quiet()
    cluster = ExecutorSettings(executor, worker_cpus, worker_gpus, worker_memory)
    with RunProgress(console) as progress:
        result = bench(
            replace(settings, seed=seed),
            tasks=_tasks(tasks, settings.mlgym),
            agents=_names(agents),
            seeds=seeds,
            workers=workers,
            total_cost=total_cost,
            executor=executor,
            resources=cluster.resources,
            out=out,
            listener=progress,
        )
    finish_bench(result)


def _tasks(text: str, mlgym: str) -> list[str]:
    from palaestra.research.tasks.task import task_names

    if text.strip() != "all":
        return _names(text)
    return _of_checkout(mlgym) if mlgym else task_names()


def _of_checkout(mlgym: str) -> list[str]:
    from palaestra.integrations.mlgym import mlgym_names

    names = mlgym_names(mlgym)
    if not names:
        raise SettingsError(f"{mlgym} is not an MLGym checkout: configs/tasks contains no tasks")
    return names


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@document
def tasks(mlgym: str = "", measure: bool = False, only: str = "", write: str = "") -> None:
    """List the research tasks with their metrics and, if measured on this machine, their baselines.

    Arguments:
        mlgym: List the tasks of this MLGym checkout instead.
        measure: Measure the baseline and reference of each task; takes minutes.
        only: Comma-separated tasks.
        write: With --measure: replace the table in this Markdown page, for example docs/tasks.md.
    """
    from palaestra.research.tasks.task import load_task, task_names
    from palaestra.research.workspace.workspace import read_baseline

    if mlgym and (measure or only):
        raise SettingsError("--measure and --only apply to built-in tasks; leave out --mlgym")
    if write and not measure:
        raise SettingsError("--write needs --measure")
    if mlgym:
        for name in _of_checkout(mlgym):
            say(f"  {name}")
        return
    if measure:
        _measure(_names(only) or task_names(), write)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="underline")
    for column in ("task", "metric", "better", "baseline", "title"):
        table.add_column(column, no_wrap=column != "title", justify="right" if column == "baseline" else "left")
    for name in _names(only) or task_names():
        task = load_task(name)
        measured = read_baseline(task)
        baseline = "-" if measured is None else f"{measured.test.score:.5g}"
        table.add_row(name, task.metric.name, task.metric.direction.value, baseline, task.title)
    console.print(table)


def _measure(names: list[str], write: str) -> None:
    from palaestra.recipes.research.recipe import MeasuredTask, format_table, measure_tasks, replace_table

    def tell(row: MeasuredTask) -> None:
        scores = f"baseline {row.baseline.test.score:.4g}, reference {row.reference.test.score:.4g}"
        say(f"{row.task.name}: {scores}")

    quiet()
    table = format_table(measure_tasks(names, tell))
    if write:
        replace_table(Path(write), table)
    else:
        say(table)


@document
def leaderboard(folder: Annotated[Path, typer.Argument()], out: Path = Path("leaderboard.html")) -> None:
    """Write a page that compares all research runs below a folder: agents by tasks, intervals, costs and audit.

    Arguments:
        folder: The folder with the runs, for example runs.
        out: The HTML page.
    """
    from palaestra.report import write_leaderboard

    say(f"leaderboard: {write_leaderboard(folder, out)}")


def _mcp(settings: Any, out: Out = "") -> None:
    """Serve a task over the Model Context Protocol on stdin and stdout. Progress goes to stderr."""
    from palaestra.cli.terminal import format_score
    from palaestra.recipes.research.mcp_server import serve_research
    from palaestra.report import write_report

    quiet()
    result = serve_research(settings, out=out, ended=lambda result: write_report(result.folder))
    s = result.summary
    line = f"{s['stop_reason']}: {format_score(s['best_submission'])} ({s['outcome']}; baseline {format_score(s['baseline'])}); run: {result.folder}"
    with suppress(OSError):  # The client may have closed stderr.
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def build_commands() -> TyperGroup:
    """Build `palaestra research` with its subcommands."""
    from palaestra.recipes.research.settings import ResearchSettings

    app = typer.Typer(
        name="research",
        invoke_without_command=True,
        subcommand_metavar="[bench|leaderboard|tasks|mcp]",
        add_completion=False,
        help="Run an agent on a research task.",
        epilog=split_examples(_research)[1],
    )
    app.callback(invoke_without_command=True)(from_settings(ResearchSettings, _research))
    app.command("tasks")(tasks)
    app.command("leaderboard")(leaderboard)
    app.command("bench")(from_settings(ResearchSettings, _bench, without=NAMED))
    app.command("mcp")(from_settings(ResearchSettings, _mcp, without=OF_THE_AGENT))
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return group
