"""Terminal output of the commands: masked text and tables."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from palaestra.core.errors import PalaestraError
from palaestra.core.process import Terminated, read_launch_rank
from palaestra.core.records import Json, Report
from palaestra.core.registry import describe_origin
from palaestra.core.settings import short_repr
from palaestra.core.statistics import Comparison, Mean
from palaestra.core.text import mask
from palaestra.interrupts import INTERRUPTED
from palaestra.recipes.progress import plain_console
from palaestra.recipes.runs import PERCENT
from palaestra.report.formatting import describe_unscored, majority, mean_span

if TYPE_CHECKING:
    from palaestra.recipes.evaluate.compare import CompareResult
    from palaestra.recipes.evaluate.rescore import RescoreResult
    from palaestra.recipes.teach.study import StudyResult
    from palaestra.research.standings.standings import Area, Standings

TERMINATED = 143
"""The exit code of a command that was stopped by SIGTERM."""
TRACEBACK = "--traceback"
"""The option of every command that prints the traceback of an error."""

START, LEARN, MEASURE, RUNS, LOOK = "Start", "Learn", "Measure", "Runs", "Available"
PANELS = (START, LEARN, MEASURE, RUNS, LOOK)
"""The panels of `palaestra --help`, in the order of use."""
BUILDERS: dict[str, Callable[[], TyperCommand | TyperGroup]] = {}
"""The commands that are built when they are called, by name."""

console = plain_console()
GAP = 2
"""Columns between two table columns."""
NAMES = range(20, 9, -1)
"""Candidate widths of a method's name; the one that needs the fewest tables is used."""
SILENT = "°"


def say(text: str) -> None:
    """Print a line of text verbatim, without wrapping."""
    console.print(text, soft_wrap=True, highlight=False)


class MaskingStream:
    """A text stream that masks secrets in everything that is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(mask(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def mask_output() -> None:
    """Mask secrets in everything that this process prints: tables, errors, tracebacks, warnings and logs."""
    sys.stdout, sys.stderr = MaskingStream(sys.stdout), MaskingStream(sys.stderr)


def explain(error: Exception) -> tuple[str, int]:
    """Return an error as one line, and its exit code.

    Errors of Palaestra and Typer, which a user can fix, have exit code 2. Any other error has exit code 1; its line
    names the type, the line of the user's code that caused it, if any, and where to find the traceback.
    """
    if isinstance(error, PalaestraError):
        return f"error: {error}", 2
    if hasattr(error, "format_message"):  # A usage error of Typer.
        return f"error: {' '.join(error.format_message().split())}; see palaestra --help", 2
    message = " ".join(str(error).split())
    kind = f"{type(error).__name__}: {message}" if message else type(error).__name__
    stored = next((note for note in getattr(error, "__notes__", ()) if note.startswith("traceback: ")), "")
    origin = describe_origin(error)
    whose = "" if origin else "; this is a bug in Palaestra"
    return f"error: {kind}{origin}{whose}; {stored or f'show the traceback with {TRACEBACK}'}", 1


class StoppedError(Exception):
    """A command was stopped by Ctrl-C or SIGTERM. The message says how to resume, if anything was stored.

    Arguments:
        interrupt: the interrupt. Its notes say how to resume; the last one, of the outermost caller, is used.
    """

    def __init__(self, interrupt: KeyboardInterrupt) -> None:
        self.status = TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED
        notes: list[str] = getattr(interrupt, "__notes__", [])
        super().__init__(f"stopped; the work so far is saved. Continue with: {notes[-1]}" if notes else "stopped")


class Commands(TyperGroup):
    """A group of commands that passes interrupts on to `main`; Typer would exit without a message.

    A `sys.exit` in a user's code becomes an error, because exit code 0 would hide that the command did not finish.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        panels = {name: getattr(command, "rich_help_panel", None) for name, command in self.commands.items()}
        return sorted(super().list_commands(ctx), key=lambda name: PANELS.index(panels[name] or LOOK))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name in BUILDERS:
            command = BUILDERS[name]()
            if ctx.resilient_parsing:  # A shell completes every option.
                for part in (command, *getattr(command, "commands", {}).values()):
                    show_options(part.params)
        return name, command, rest

    def make_context(self, *args: Any, **extra: Any) -> Any:
        try:
            return super().make_context(*args, **extra)
        except KeyboardInterrupt as error:
            raise StoppedError(error) from error

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise StoppedError(error) from error
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # The reader of our output is gone, for example `head`.
                raise
            raise PalaestraError(
                f"the command was ended by sys.exit({short_repr(error.code)}){describe_origin(error)}"
            ) from error


def show_options(parameters: Iterable[Any]) -> None:
    """Show options that `--help` hides because they are not usual."""
    for parameter in parameters:
        parameter.hidden = parameter.name == "hyperparameters"


def add_lazy_command(
    app: typer.Typer, name: str, panel: str, text: str, build: Callable[[], TyperCommand | TyperGroup]
) -> None:
    """Add a command to an app of `Commands`. Its options are made by `build` when it is called.

    Arguments:
        text: what `palaestra --help` says about it.
    """

    def call() -> None: ...

    app.command(name, help=text, rich_help_panel=panel)(call)
    BUILDERS[name] = build


def quiet() -> None:
    """Turn off the progress bars and advice of transformers; only our own progress is shown.

    The environment variables are read when transformers is imported; it is not imported for this.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if "transformers" in sys.modules:
        from transformers.utils import logging

        logging.disable_progress_bar()


def announce_loading() -> None:
    """Print that torch is being imported, which takes seconds, unless it has been imported."""
    if "torch" not in sys.modules and read_launch_rank() == 0:
        say("loading torch")


def make_table(title: str | None, first: str, *columns: str) -> Table:
    """Make an empty table: a column of names on the left, and numbers on the right."""
    table = Table(
        title=title, title_justify="left", box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="underline"
    )
    table.add_column(first, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def report_table(report: Report, counted: str = "problems") -> Table:
    """Make the table of accuracy by skill with intervals; `counted` names what is counted."""
    parts = (*report.slices, report)
    closed = ("majority class",) if any(part.majority for part in parts) else ()
    title = f"accuracy on {report.name}, 95 % intervals"
    table = make_table(title, "skill", "accuracy", "interval", *closed, counted, "failures")
    for part in parts:
        table.add_row(
            "all" if part is report else part.name,
            "-" if part.accuracy is None else f"{100 * part.accuracy:.1f} %",
            f"{100 * part.low:.0f} to {100 * part.high:.0f}",
            *((majority(part),) if closed else ()),
            str(part.count),
            str(part.failure_count),
            style="bold" if part is report else None,
        )
    return table


def gain_table(summary: Json) -> Table:
    """Make the table of test accuracy before and after by skill, narrow enough for 80 columns."""
    counts = sorted({row["problems"] for row in summary["by_skill"].values()})
    each = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    title = f"test accuracy in % with 95 % intervals, {summary['problems']} problems ({each} per skill)"
    closed = any(row.get("majority") for row in (*summary["by_skill"].values(), summary))
    columns = ("data", "before", "after", "gain in points", *(("majority class",) if closed else ()))
    table = make_table(title, "skill", *columns)
    tasks = {f"task {name}": row | {"examples": "-"} for name, row in summary.get("test_tasks", {}).items()}
    for name, row in {**summary["by_skill"], **tasks, "all": summary}.items():
        digits = 1 if name == "all" or name in tasks else 0
        gain = "-"
        if row["gain"] is not None:
            gain = f"{row['gain']:+.{digits}f} [{row['gain_low']:+.{digits}f}, {row['gain_high']:+.{digits}f}]"
        if name == next(iter(tasks), "all"):
            table.add_row()
        cells = (str(row["examples"]), _interval(row, "before"), _interval(row, "after"))
        baseline = (_majority(row.get("majority")),) if closed else ()
        table.add_row(name, *cells, gain, *baseline, style="bold" if name == "all" else None)
    return table


def test_rounds_table(rows: Sequence[Json]) -> Table:
    """Make the table of test accuracy after every round."""
    table = make_table("test accuracy in % after every round", "round", "data", "accuracy", "problems", "failures")
    for row in rows:
        accuracy = "-" if row["accuracy"] is None else f"{row['accuracy']:.1f} [{row['low']:.1f}, {row['high']:.1f}]"
        failures = sum(row["failures"].values())
        table.add_row(str(row["round"]), str(row["examples"]), accuracy, str(row["problems"]), str(failures))
    return table


def _majority(baseline: Json | None) -> str:
    return f"{100 * baseline['count'] / baseline['total']:.0f} of {baseline['total']}" if baseline else "-"


def _interval(row: Json, name: str) -> str:
    if row[name] is None:
        return "-"
    return f"{row[name]:.0f} [{row[f'{name}_low']:.0f}, {row[f'{name}_high']:.0f}]"


def further_metrics(summary: Json) -> Iterator[str]:
    """Yield a line for each metric beside the accuracy: pass@k, levels, types, outcomes, failures."""
    for name, mean in summary["measures"].items():
        if mean["count"]:
            yield f"{name}: {100 * mean['value']:.1f} % [{100 * mean['low']:.1f}, {100 * mean['high']:.1f}] of {mean['count']}"
    for cut, parts in summary["cuts"].items():
        rates = (f"{p['name']} {100 * p['accuracy']:.1f} % of {p['count']}" for p in parts if p["count"])
        yield f"by {cut}: {', '.join(rates)}"
    for title, counts in (("answers", summary["outcomes"]), ("failures", summary["failures"])):
        if counts:
            kinds = (f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
            yield f"{title}: {', '.join(kinds)}"
    if summary["truncated"]:
        yield f"answers truncated at {summary['max_tokens']} tokens or at the model's context: {summary['truncated']}"


def comparison_table(result: CompareResult) -> Table:
    """Make the table of two runs by skill, with the difference, its interval and its p-value."""
    first, second = result.first.folder.resolve().name, result.second.folder.resolve().name
    parts = (*result.comparison.parts, result.comparison)
    closed = ("majority class",) if any(part.first.majority for part in parts) else ()
    title = f"accuracy in % of {first} (first) and {second} (second), paired, 95 % intervals"
    table = make_table(title, "skill", "first", "second", "difference in points", "p", "problems", *closed)
    for part in parts:
        is_whole = part is result.comparison
        if is_whole and len(parts) > 1:
            table.add_row()
        baseline = (majority(part.first),) if closed else ()
        table.add_row(*_format_comparison(part), *baseline, style="bold" if is_whole else None)
    return table


def _format_comparison(part: Comparison) -> tuple[str, ...]:
    gain = part.gain
    return (
        part.name,
        *("-" if r.accuracy is None else f"{100 * r.accuracy:.1f}" for r in (part.first, part.second)),
        f"{gain.points:+.1f} [{gain.low:+.1f}, {gain.high:+.1f}]",
        _chance(part.p_value),
        str(gain.count),
    )


def rescoring_tables(result: RescoreResult, command: str, texts: bool = False) -> Iterator[Table | str]:
    """Make the tables of a rescoring: old and new means by source, and the most changed episodes.

    Arguments:
        command: shows one episode, with its name at the end.
        texts: show the whole texts of the episodes instead of their names.
    """
    title = f"{result.folder.resolve().name} rescored by {result.scorer}; means with 95 % intervals"
    table = make_table(title, "source", "before", "after", "difference", "episodes", "rose", "fell", "correlation")
    data = result.to_data()
    for part in data["parts"]:
        means = (mean_span(part[name]) for name in ("before", "after", "change"))
        counts = (str(part[name]) for name in ("count", "rose", "fell"))
        table.add_row(
            part["source"], *means, *counts, "-" if part["correlation"] is None else f"{part['correlation']:.2f}"
        )
    yield table
    yield from describe_unscored(data["parts"][-1])
    if texts:
        for episode in result.episodes:
            yield f"\nPROMPT\n{episode.prompt}\n\nRESPONSE\n{episode.response}"
        return
    if result.most_changed:
        table = make_table("the most changed episodes", "before", "after", "difference")
        table.add_column("look at it with", overflow="fold")
        for episode in result.most_changed:
            values = (f"{episode.before:.4g}", f"{episode.after:.4g}", f"{episode.change:+.4g}")
            table.add_row(*values, f"{command} {shlex.quote(episode.name)}")
        yield table


def study_table(result: StudyResult) -> Table:
    """Make the table of a study: each arm's gain over the seeds, and its difference from the first arm."""
    rows = result.rows
    paid = any(row.cost["calls"] for row in rows)
    title = f"gain in points over {len(result.seeds)} seeds, 95 % t intervals; ahead: difference from {rows[0].name}, paired by seed (p: t-test)"
    columns = ("gain", "ahead", "p", "ordered", "data", "time", *(("calls", "cost") if paid else ()))
    table = make_table(title, "arm", *columns)
    chances = {pair.second: pair.p_value for pair in result.pairs if pair.first == rows[0].name}
    for row in rows:
        cells = [str(row.lessons.ordered), str(row.examples), f"{row.cost['seconds']:.0f} s"]
        if paid:
            unpriced = row.unpriced and not row.cost["cost"]
            cells += [f"{row.cost['calls']:.0f}", "unpriced" if unpriced else f"${row.cost['cost']:.2f}"]
        gain = "no gain" if row.without_gain and not row.gain.count else _mean(row.gain)
        table.add_row(row.name, gain, _mean(row.ahead), _chance(chances.get(row.name)), *cells)
        for task, gain_there in row.tasks.items():
            table.add_row(f"  task {task}", _mean(gain_there))
    return table


def _chance(p_value: float | None) -> str:
    if p_value is None:
        return "-"
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"


def _mean(mean: Mean | None) -> str:
    if mean is None or not mean.count:
        return "-"
    value = mean.value if round(mean.value, 1) else 0.0  # Avoid a negative zero.
    return f"{value:+.1f}" + (f" [{mean.low:+.1f}, {mean.high:+.1f}]" if mean.count > 1 else "")


def outcome_table(summary: Json) -> Table | Text:
    """Make the table of a training run's rewards or accuracy; one line for a run whose returns were all equal."""
    equal_returns = summary.get("equal_returns", "")
    accuracy = summary["unit"] == PERCENT
    title = f"{summary['algorithm']} in {summary['env']}"
    if equal_returns and not accuracy and not summary["failures"]:
        return Text(f"{title}: {equal_returns}")
    table = make_table(title, "", "value", "95 % interval", "of")
    table.caption, table.caption_justify = equal_returns or None, "left"
    unit, many = ("accuracy in %", "problems") if accuracy else ("reward", "episodes")
    for title, name in (("held out, before", "before"), ("held out, after", "after")):
        failed = summary.get(f"{name}_failures")
        if summary.get(name) is not None:
            count = summary["problems" if accuracy else f"{name}_episodes"]
            note = f", {failed:.0f} failed" if failed else ""
            table.add_row(f"{title}: {unit}", f"{summary[name]:.2f}", _pair(summary, name), f"{count:.0f} {many}{note}")
        elif failed:
            table.add_row(f"{title}: {unit}", "not known", "", f"0 {many}, {failed:.0f} failed")
    if accuracy and (baseline := summary.get("majority")):
        rate = f"{100 * baseline['count'] / baseline['total']:.2f}"
        table.add_row(f"majority class {baseline['answer']}".rstrip(), rate, "", f"{baseline['total']} problems")
    if accuracy or "gain_episodes" in summary:
        title, digits, count = ("gain in points", 2, "problems") if accuracy else ("gain, paired", 3, "gain_episodes")
        table.add_row(title, _describe_gain(summary, digits), _pair(summary, "gain", "+"), f"{summary[count]} {many}")
    for name, part in summary.get("environments", {}).items():
        change = " -> ".join("?" if part[end] is None else f"{part[end]:.2f}" for end in ("before", "after"))
        table.add_row(
            f"{name}: {change}", _describe_gain(part), _pair(part, "gain", "+"), f"{part['gain_episodes']} episodes"
        )
    if summary.get("return") is not None:
        value, episodes = f"{summary['return']:.3f}", f"{summary['return_episodes']:.0f} episodes"
        table.add_row("training, last iteration", value, _pair(summary, "return"), episodes)
    if summary.get("recent_return") is not None:
        table.add_row("training, last 100 episodes", f"{summary['recent_return']:.2f}", "", "100 episodes")
    return table


def _describe_gain(summary: Json, digits: int = 3) -> str:
    return "not known" if summary["gain"] is None else f"{summary['gain']:+.{digits}f}"


def reward_table(before: Json | None, after: Json) -> Table:
    """Make the table of a reward model's accuracy and calibration on held-out comparisons, before and after training."""
    table = make_table("held-out comparisons", "", "before", "after")
    for name, value in after.items():
        if isinstance(value, (int, float)):
            known = before.get(name) if before else None
            table.add_row(name, "-" if known is None else f"{known:.4g}", f"{value:.4g}")
    return table


def _pair(summary: Json, name: str, sign: str = "") -> str:
    low, high = summary.get(f"{name}_low"), summary.get(f"{name}_high")
    return "" if low is None or high is None else f"{low:{sign}.2f} to {high:{sign}.2f}"


def standings_tables(
    standings: Standings, width: int, silent: Callable[[str, str], bool] = lambda task, method: False
) -> list[Table | str]:
    """Return tables of every method's best submission on every task, split to fit `width`, and the table of areas.

    Long names are wrapped; numbers are not.

    Arguments:
        silent: whether a method wrote nothing on a task.
    """
    from palaestra.research.standings.standings import Measure

    submissions, attempts = standings.profile(Measure.SUBMISSION), standings.profile(Measure.ATTEMPT)
    columns: dict[str, list[str]] = {method: [] for method in standings.methods}
    for cell in submissions.cells:
        marks = ("*" if cell.ratio == 1.0 else "") + (SILENT if silent(cell.task, cell.method) else "")
        columns[cell.method].append(format_score(cell.score) + marks)
    tasks = min(max(map(len, ("task", *standings.tasks))), width // 2)
    numbers = {method: max(map(len, cells)) for method, cells in columns.items()}
    choices = [{m: max(most, min(len(m), name)) for m, most in numbers.items()} for name in NAMES]
    widths = min(choices, key=lambda choice: len(_group_methods(choice, width - tasks)))
    tables: list[Table | str] = []
    for methods in _group_methods(widths, width - tasks):
        title = None if tables else f"best submission of {standings.k}, test split; * marks the best of a task"
        scores = make_table(title, "task")
        scores.columns[0].width = tasks
        for method in methods:
            scores.add_column(method, justify="right", width=widths[method], overflow="fold")
        for place, task in enumerate(standings.tasks):
            scores.add_row(task, *(columns[method][place] for method in methods))
        tables.append(scores)
    if any(SILENT in cell for cells in columns.values() for cell in cells):
        tables.append(f"{SILENT} 0 messages: the agent wrote nothing; its score is that of the starter files")
    title = f"area under the performance profile, at most {standings.limit:.1f}"
    areas = make_table(title, "method", "submission, 95 %", "best attempt, 95 %", "feasible")
    for area in sorted(submissions.areas, key=lambda area: -area.area):
        feasible = f"{area.feasible} of {len(standings.tasks)}"
        areas.add_row(area.method, _format_area(area), _format_area(attempts.area(area.method)), feasible)
    return [*tables, areas]


def format_score(score: float | None) -> str:
    return "none" if score is None else f"{score:.5g}"


def _group_methods(widths: dict[str, int], room: int) -> list[list[str]]:
    """Group methods that fit side by side, at least one per group."""
    groups: list[list[str]] = []
    left = 0
    for method, width in widths.items():
        if not groups or width + GAP > left:
            groups.append([])
            left = room
        groups[-1].append(method)
        left -= width + GAP
    return groups


def _format_area(area: Area) -> str:
    interval = "" if area.low is None or area.high is None else f" [{area.low:.3f}, {area.high:.3f}]"
    return f"{area.area:.3f}{interval}"
