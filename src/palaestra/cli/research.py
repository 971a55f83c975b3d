"""`palaestra research`: one run, a bench, the tasks, and a task for any client of MCP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from palaestra.cli.options import from_settings
from palaestra.cli.progress import RunProgress, quiet
from palaestra.core.errors import SettingsError
from palaestra.core.events import Event

app = typer.Typer(
    invoke_without_command=True, subcommand_metavar="[bench|tasks|mcp]", add_completion=False,
    help="An agent works on a research task.",
)  # fmt: skip
console = Console()
NAMED = ("task", "agent", "seed")
INTERRUPTED = 130
"""The exit code of a command that was stopped by Ctrl-C."""

Out = Annotated[str, typer.Option("--out", help="The run folder; a new one below runs/ if not given.")]
BenchOut = Annotated[str, typer.Option("--out", help="The folder of the bench; one that was stopped goes on.")]
Tasks = Annotated[
    str, typer.Option("--tasks", help="The tasks, with commas between them; all: every one that there is.")
]
Agents = Annotated[
    str, typer.Option("--agents", help="The agents, with commas between them: baseline,model:nano,script:FILE.")
]
SeedCount = Annotated[
    int, typer.Option("--seeds", help="Runs of every agent on every task, each with a seed of its own.")
]
FirstSeed = Annotated[int, typer.Option("--seed", help="The first of these seeds.")]
Workers = Annotated[int, typer.Option("--workers", help="Runs that go on side by side.")]
TotalCost = Annotated[
    float,
    typer.Option("--total-cost", help="Most dollars of all runs together, where --max-cost is for each; 0: no limit."),
]


class ResearchProgress(RunProgress):
    """Draws the steps of an episode: a bar, and a line for every step."""

    def __call__(self, event: Event) -> None:
        if event.phase in ("step", "play again"):
            self._say(event)
        elif event.phase == "bench":
            summary = event.figures["summary"]
            score = "no score" if summary["best_submission"] is None else f"{summary['best_submission']:.4g}"
            name = f"{event.figures['task']}, {event.figures['agent']}, seed {event.figures['seed']}"
            self._tell(f"{event.done}/{event.total} {name}: {score} (baseline {summary['baseline']:.4g})")
        super().__call__(event)

    def _say(self, event: Event) -> None:
        lines = [line for line in str(event.figures["action"]).splitlines() if line.strip()]
        shown = (lines[0][:70] if lines else "no action that can be read") + (" ..." if len(lines) > 1 else "")
        if lines and lines[0].startswith("validate") and event.figures["attempts"]:
            shown += f": {event.figures['attempts'][-1]:.4g}"
        again = " (again)" if event.phase == "play again" else ""
        self._tell(f"{event.done}/{event.total}{again} {shown}")

    def _tell(self, text: str) -> None:
        if self._live:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._line(text)


def finish(result: Any) -> None:
    """Print what a run of research has come to, and write its report."""
    from palaestra.report import write_report

    s = result.summary
    table = Table(box=None, show_header=False, pad_edge=False)
    better = f"{s['metric']}, {s['direction']} is better"
    for name, value in (
        ("submission, test split", f"{_figure(s['best_submission'])} ({better})"),
        ("baseline, test split", _figure(s["baseline"])),
        ("best validation", f"{_figure(s['best_attempt'])} of {len(s['attempts'])}, baseline {_figure(s['baseline_validation'])}"),
        ("ended", s["stop_reason"].replace("_", " ") + (f": {s['note']}" if s["note"] else "")),
    ):  # fmt: skip
        table.add_row(name, value)
    console.print(table)
    if s["failure"]:
        said = f"failed: {s['failure']['cause']}: {s['failure']['message']}"
        console.print(said, soft_wrap=True, highlight=False, markup=False)
    console.print(
        f"{s['steps']} steps, {s['validations']} validations, {s['prompt_tokens']} tokens in, {s['completion_tokens']} out, "
        f"{s['seconds']:.0f} s, ${s['cost']:.2f}; report: {write_report(result.folder)}",
        soft_wrap=True,
    )
    console.print(f"run: {result.folder}", soft_wrap=True)
    if s["stop_reason"] == "interrupted":
        raise typer.Exit(INTERRUPTED)


def finish_bench(result: Any) -> None:
    """Print the standings of a bench, and write its report."""
    from palaestra.report import write_report

    if result.standings is not None:
        for table in standings_tables(result.standings):
            console.print(table)
    console.print(f"{len(result.episodes)} runs; report: {write_report(result.folder)}", soft_wrap=True)
    console.print(f"bench: {result.folder}", soft_wrap=True)


def standings_tables(standings: Any) -> list[Table]:
    """The best submission of every method on every task, and the areas under the profiles."""
    from palaestra.report.profiles import area_interval
    from palaestra.research.scores import Measure

    profile = standings.profile(Measure.SUBMISSION)
    style: dict[str, Any] = {"title_justify": "left", "box": None, "padding": (0, 2, 0, 0), "pad_edge": False, "header_style": "underline"}  # fmt: skip
    scores = Table(title=f"best submission of {standings.k}, test split", **style)
    scores.add_column("task", no_wrap=True)
    for method in standings.methods:
        scores.add_column(method, justify="right", overflow="fold")
    for task in standings.tasks:
        cells = [profile.cell(task, method) for method in standings.methods]
        scores.add_row(task, *(_figure(cell.score) + ("*" if cell.ratio == 1.0 else "") for cell in cells))
    areas = Table(title=f"area under the performance profile, of at most {standings.limit:.1f}", **style)
    for column in ("method", "submission", "95 %", "best attempt", "95 %", "feasible"):
        areas.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    attempts = standings.profile(Measure.ATTEMPT)
    for area in sorted(profile.areas, key=lambda one: -one.area):
        other = attempts.area(area.method)
        areas.add_row(
            area.method, f"{area.area:.3f}", area_interval(area), f"{other.area:.3f}", area_interval(other),
            f"{area.feasible} of {len(standings.tasks)}",
        )  # fmt: skip
    return [scores, areas]


def _figure(score: float | None) -> str:
    return "none" if score is None else f"{score:.5g}"


def _research(settings: Any, caller: typer.Context, out: Out = "") -> None:
    """An agent works on a research task in a sandbox; what it hands in is scored against the baseline."""
    from palaestra.recipes import research

    if caller.invoked_subcommand is not None:
        given = [name for name, value in caller.params.items() if value not in (None, "", [], ())]
        if given:
            raise SettingsError(
                f"options of {caller.invoked_subcommand} stand behind it; got --{given[0].replace('_', '-')} before it"
            )
        return
    research.check(settings)
    quiet()
    if settings.agent.partition(":")[0] == "human":
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
    """Play tasks x agents x seeds, and compare the agents by performance profiles; can be stopped and goes on."""
    from dataclasses import replace

    from palaestra.recipes.bench import bench

    quiet()
    with ResearchProgress(console) as progress:
        result = bench(
            replace(settings, seed=seed), tasks=_tasks(tasks, settings.mlgym), agents=_names(agents), seeds=seeds, workers=workers,
            total_cost=total_cost, out=out, listener=progress,
        )  # fmt: skip
    finish_bench(result)


def _tasks(text: str, mlgym: str) -> list[str]:
    from palaestra.research.mlgym import mlgym_names
    from palaestra.research.task import task_names

    if text.strip() != "all":
        return _names(text)
    return mlgym_names(mlgym) if mlgym else task_names()


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@app.command("tasks")
def tasks(
    mlgym: Annotated[str, typer.Option(help="A checkout of MLGym, whose tasks are listed instead.")] = "",
    measure: Annotated[
        bool, typer.Option(help="Make and judge baseline and reference of each; takes minutes.")
    ] = False,
    only: Annotated[str, typer.Option(help="Measure these alone, with commas between them.")] = "",
    write: Annotated[str, typer.Option(help="The page of Markdown whose table is replaced, docs/tasks.md.")] = "",
) -> None:
    """The research tasks: what is measured, and the baseline where this machine has measured it."""
    from palaestra.research.baseline import kept_baseline
    from palaestra.research.mlgym import mlgym_names
    from palaestra.research.task import load_task, task_names

    if measure:
        _measure([name for name in only.split(",") if name] or task_names(), write)
        return
    if mlgym:
        for name in mlgym_names(mlgym):
            console.print(f"  {name}", highlight=False)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="underline")
    for column in ("task", "metric", "better", "baseline", "title"):
        table.add_column(column, no_wrap=column != "title", justify="right" if column == "baseline" else "left")
    for name in task_names():
        task = load_task(name)
        measured = kept_baseline(task)
        baseline = "-" if measured is None else f"{measured.test.score:.5g}"
        table.add_row(name, task.metric.name, task.metric.direction.value, baseline, task.title)
    console.print(table)


def _measure(names: list[str], write: str) -> None:
    from palaestra.recipes.task_table import MeasuredTask, measure_tasks, put_into, table_of

    def tell(one: MeasuredTask) -> None:
        scores = f"baseline {one.baseline.test.score:.4g}, reference {one.reference.test.score:.4g}"
        console.print(f"{one.task.name}: {scores}", highlight=False)

    quiet()
    table = table_of(measure_tasks(names, tell))
    if write:
        put_into(Path(write), table)
    else:
        console.print(table, markup=False, highlight=False, soft_wrap=True)


@app.command("mcp")
def mcp(
    task: Annotated[str, typer.Option("--task", help="A name of `palaestra research tasks`, or a folder.")],
    steps: Annotated[int, typer.Option(help="Most calls; 0: as many as the task allows.")] = 0,
    sandbox: Annotated[str, typer.Option(help="Where the workspace is.")] = "bubblewrap",
    memory: Annotated[str, typer.Option(help="A file in which notes outlive the episode.")] = "",
    mlgym: Annotated[str, typer.Option(help="A checkout of MLGym; the task is then one of its.")] = "",
) -> None:
    """Serve a task over the Model Context Protocol on stdin and stdout; what came of it goes to stderr."""
    from palaestra.recipes.research import ResearchSettings, task_of
    from palaestra.research.mcp import serve_task

    loaded = task_of(ResearchSettings(task=task, mlgym=mlgym))
    info = serve_task(loaded, max_turns=steps, sandbox=sandbox, memory=memory)
    said = f"{info.get('stop_reason', '')}: {_figure(info.get('score'))} (baseline {_figure(info.get('baseline'))})"
    Console(stderr=True).print(said, markup=False, highlight=False, soft_wrap=True)


def register(parent: typer.Typer) -> None:
    """Put the commands below `palaestra research`."""
    from palaestra.recipes.research import ResearchSettings

    app.callback(invoke_without_command=True)(from_settings(ResearchSettings, _research))
    app.command("bench")(from_settings(ResearchSettings, _bench, without=NAMED))
    parent.add_typer(app, name="research")


def resume_bench(folder: Path) -> None:
    """Go on with a bench that was stopped."""
    from palaestra.recipes import bench

    with ResearchProgress(console) as progress:
        result = bench.resume(folder, listener=progress)
    finish_bench(result)
