"""`palaestra research`: one run, a bench, the task list, and a task for any MCP client."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from palaestra.cli.options import from_settings
from palaestra.cli.standings import figure, standings_tables
from palaestra.cli.terminal import INTERRUPTED, quiet
from palaestra.core.errors import RunError, SettingsError
from palaestra.core.events import Event
from palaestra.recipes.progress import RunProgress, plain_console
from palaestra.runs.ledger import describe_cost

app = typer.Typer(
    invoke_without_command=True, subcommand_metavar="[bench|tasks|mcp]", add_completion=False,
    help="Run an agent on a research task.",
)  # fmt: skip
console = plain_console()
NAMED = ("task", "agent", "seed")
OF_THE_AGENT = (
    "agent", "model", "max_cost", "max_calls", "max_tokens", "call_timeout", "context", "answer_tokens", "temperature", "top_p", "tools",
    "parser", "history", "format_errors", "format_penalty", "cache", "device",
)  # fmt: skip
"""Settings that do not apply to an MCP client, which is the agent itself."""
SILENT = "0 messages: the agent wrote nothing; its score is that of the starter files"

Out = Annotated[str, typer.Option("--out", help="The run folder; by default a new one below runs/.")]
BenchOut = Annotated[str, typer.Option("--out", help="The folder of the bench. Repeat it to continue a stopped bench.")]
Tasks = Annotated[str, typer.Option("--tasks", help="Comma-separated tasks, or all.")]
Agents = Annotated[str, typer.Option("--agents", help="Comma-separated agents: baseline,model:NAME,script:FILE.")]
SeedCount = Annotated[int, typer.Option("--seeds", help="Runs of every agent on every task, with different seeds.")]
FirstSeed = Annotated[int, typer.Option("--seed", help="The first seed.")]
Workers = Annotated[int, typer.Option("--workers", help="Parallel runs.")]
TotalCost = Annotated[
    float,
    typer.Option("--total-cost", help="Maximum dollars of all runs together (--max-cost is per run); 0: no limit."),
]


class ResearchProgress(RunProgress):
    """Draws the steps of an episode: a bar, and a line per step."""

    def __call__(self, event: Event) -> None:
        from palaestra.recipes.research.settings import NOTE
        from palaestra.recipes.research.summary import is_silent

        if event.phase == NOTE:
            self._tell(f"note: {event.data['text']}")
            return
        if event.phase in ("step", "play again"):
            self._say(event)
        elif event.phase == "bench":
            summary = event.data["summary"]
            score = "no score" if summary["best_submission"] is None else f"{summary['best_submission']:.4g}"
            name = f"{event.data['task']}, {event.data['agent']}, seed {event.data['seed']}"
            silent = ", 0 messages" if is_silent(summary) else ""
            self._tell(f"{event.done}/{event.total} {name}: {score} (baseline {summary['baseline']:.4g}){silent}")
        elif event.phase.startswith("stop"):
            self._tell(event.phase)
        super().__call__(event)

    def _say(self, event: Event) -> None:
        lines = [line for line in str(event.data["action"]).splitlines() if line.strip()]
        shown = (lines[0][:70] if lines else "no readable action") + (" ..." if len(lines) > 1 else "")
        if lines and lines[0].startswith("validate") and event.data["attempts"]:
            shown += f": {event.data['attempts'][-1]:.4g}"
        parts = [shown] if event.data["spoke"] else []
        if event.data["stop_reason"] not in ("", "submitted"):
            parts.append("ended: " + describe_end(event.data))
        again = " (again)" if event.phase == "play again" else ""
        self._tell(f"{event.done}/{event.total}{again} {'; '.join(parts)}")


def describe_end(data: Mapping[str, Any]) -> str:
    """Describe why an episode ended: the reason and its note."""
    reason = str(data["stop_reason"]).replace("_", " ")
    return f"{reason}: {data['note']}" if data["note"] else reason


def describe_validations(summary: Mapping[str, Any]) -> str:
    """Describe how many scores the best validation was chosen from."""
    handed_in = len(summary["attempts"]) - summary["validations"]
    return f"{summary['validations']}" + (f", and {handed_in} submitted" if handed_in else "")


def finish(result: Any) -> None:
    """Print the result of a research run and write its report."""
    from palaestra.recipes.research.summary import is_silent
    from palaestra.report import write_report

    s = result.summary
    table = Table(box=None, show_header=False, pad_edge=False)
    better = f"{s['metric']}, {s['direction']} is better"
    for name, value in (
        ("submission, test split", f"{figure(s['best_submission'])} ({better})"),
        ("baseline, test split", figure(s["baseline"])),
        ("best validation", f"{figure(s['best_attempt'])} of {describe_validations(s)}; baseline {figure(s['baseline_validation'])}"),
        ("ended", describe_end(s)),
    ):  # fmt: skip
        table.add_row(name, value)
    console.print(table)
    if is_silent(s):
        console.print(SILENT, soft_wrap=True, highlight=False)
    if s.get("replayed"):
        message = f"{s['replayed']} steps were replayed after an interruption; {s['different']} of them printed different output"
        console.print(message, soft_wrap=True, highlight=False)
    again = f" ({s['calls_again']} repeated)" if s.get("calls_again") else ""
    console.print(
        f"{s['steps']} messages, {s['validations']} validations, {s['calls']} calls{again}, {s['prompt_tokens']} tokens in, "
        f"{s['completion_tokens']} out, {s['seconds']:.0f} s, {describe_cost(s)}; report: {write_report(result.folder)}",
        soft_wrap=True,
    )
    console.print(f"run: {result.folder}", soft_wrap=True)
    if s["stop_reason"] == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if s["failure"]:
        raise RunError(f"the run failed: {s['failure']['cause']}: {s['failure']['message']}")


def finish_bench(result: Any) -> None:
    """Print the standings of a bench and write its report."""
    from palaestra.report import write_report

    if result.standings is not None:
        for table in standings_tables(result.standings, console.width, result.silent):
            console.print(table, highlight=False)
    console.print(f"{len(result.episodes)} runs; report: {write_report(result.folder)}", soft_wrap=True)
    console.print(f"bench: {result.folder}", soft_wrap=True)
    failures = [episode.summary["failure"] for episode in result.episodes if episode.summary]
    if failures and all(failures):
        first = failures[0]
        raise RunError(f"all {len(failures)} runs failed; the first with {first['cause']}: {first['message']}")


def _research(settings: Any, caller: typer.Context, out: Out = "") -> None:
    """Run an agent on a research task in a sandbox and compare its submission with the baseline."""
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
    if agent.interactive:
        finish(research.research(settings, out=out))
        return
    with ResearchProgress(console) as progress:
        result = research.research(settings, out=out, listener=progress)
    finish(result)


def _bench(
    settings: Any,
    tasks: Tasks,
    agents: Agents,
    seeds: SeedCount = 1,
    seed: FirstSeed = 0,
    workers: Workers = 1,
    total_cost: TotalCost = 0.0,
    out: BenchOut = "",
) -> None:
    """Run tasks x agents x seeds and compare the agents by performance profiles. A stopped bench can be continued."""
    from dataclasses import replace

    from palaestra.recipes.research.bench import bench

    quiet()
    with ResearchProgress(console) as progress:
        result = bench(
            replace(settings, seed=seed), tasks=_tasks(tasks, settings.mlgym), agents=_names(agents), seeds=seeds, workers=workers,
            total_cost=total_cost, out=out, listener=progress,
        )  # fmt: skip
    finish_bench(result)


def _tasks(text: str, mlgym: str) -> list[str]:
    from palaestra.research.tasks.task import task_names

    if text.strip() != "all":
        return _names(text)
    return _of_checkout(mlgym) if mlgym else task_names()


def _of_checkout(mlgym: str) -> list[str]:
    from palaestra.research.mlgym import mlgym_names

    names = mlgym_names(mlgym)
    if not names:
        raise SettingsError(f"{mlgym} is not an MLGym checkout: configs/tasks contains no tasks")
    return names


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@app.command("tasks")
def tasks(
    mlgym: Annotated[str, typer.Option(help="List the tasks of this MLGym checkout instead.")] = "",
    measure: Annotated[
        bool, typer.Option(help="Measure the baseline and reference of each task; takes minutes.")
    ] = False,
    only: Annotated[str, typer.Option(help="Comma-separated tasks.")] = "",
    write: Annotated[
        str, typer.Option(help="With --measure: replace the table in this Markdown page, for example docs/tasks.md.")
    ] = "",
) -> None:
    """List the research tasks with their metrics and, if measured on this machine, their baselines."""
    from palaestra.research.tasks.task import load_task, task_names
    from palaestra.research.workspace.baseline import read_baseline

    if mlgym and (measure or only):
        raise SettingsError("--measure and --only apply to built-in tasks; leave out --mlgym")
    if write and not measure:
        raise SettingsError("--write needs --measure")
    if mlgym:
        for name in _of_checkout(mlgym):
            console.print(f"  {name}", highlight=False)
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
    from palaestra.recipes.research.task_table import MeasuredTask, format_table, measure_tasks, replace_table

    def tell(row: MeasuredTask) -> None:
        scores = f"baseline {row.baseline.test.score:.4g}, reference {row.reference.test.score:.4g}"
        console.print(f"{row.task.name}: {scores}", highlight=False)

    quiet()
    table = format_table(measure_tasks(names, tell))
    if write:
        replace_table(Path(write), table)
    else:
        console.print(table, highlight=False, soft_wrap=True)


def _mcp(settings: Any, out: Out = "") -> None:
    """Serve a task over the Model Context Protocol on stdin and stdout. Progress goes to stderr."""
    from palaestra.recipes.research.mcp_server import serve_research
    from palaestra.report import write_report

    quiet()
    result = serve_research(settings, out=out, ended=lambda result: write_report(result.folder))
    s = result.summary
    line = (
        f"{s['stop_reason']}: {figure(s['best_submission'])} (baseline {figure(s['baseline'])}); run: {result.folder}"
    )
    with suppress(OSError):  # The client may have closed stderr.
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def register(parent: typer.Typer) -> None:
    """Add the commands below `palaestra research`."""
    from palaestra.recipes.research.settings import ResearchSettings

    app.callback(invoke_without_command=True)(from_settings(ResearchSettings, _research))
    app.command("bench")(from_settings(ResearchSettings, _bench, without=NAMED))
    app.command("mcp")(from_settings(ResearchSettings, _mcp, without=OF_THE_AGENT))
    parent.add_typer(app, name="research", rich_help_panel="Measure")


def resume_bench(folder: Path) -> None:
    """Continue a stopped bench."""
    from palaestra.recipes.research import bench

    with ResearchProgress(console) as progress:
        result = bench.resume(folder, listener=progress)
    finish_bench(result)
