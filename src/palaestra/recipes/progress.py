"""Progress of a run: a live display on a terminal, plain lines in pipes and notebooks.

Recipes emit `Event`s. The classes here draw them, for the command line and for Python calls alike.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text, TextType

from palaestra.core.errors import MissingExtraError
from palaestra.core.records import NOTICE, Event, Json, Listener, Report, ignore, notice
from palaestra.core.tables import load_table
from palaestra.core.text import mask, mask_settings
from palaestra.engines.openai_endpoint import RETRY, WAITING
from palaestra.recipes.settings import to_plain

if TYPE_CHECKING:
    from palaestra.recipes.train.settings import TrainSettings
    from palaestra.runs.run import Run

SWITCH = "PALAESTRA_PROGRESS"
"""The environment variable that disables the progress display of Python calls if it is 0."""
HEARTBEAT = 10.0
"""Without a terminal: seconds without output after which the current phase is printed."""
ITERATION_SECONDS = 1.0
"""Without a terminal: minimum seconds between the lines of two iterations."""
BARS = "▁▂▃▄▅▆▇█"
METRICS = load_table(__file__, "metrics")
"""How metrics are shown: in the lines of this display, on axes of charts, and in the panel of a report."""
TRACKERS = ("tensorboard", "wandb", "trackio")
"""The settings that enable a tracker; each is also the name of its package and of its extra."""


class MaskingConsole(Console):
    """Masks secrets in texts and cells of tables before they are wrapped."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(mask(text), **options)


def plain_console(*, stderr: bool = False) -> Console:
    """Return a console that prints text verbatim, without markup and emoji names (`:x:`).

    Output that goes to a pipe or a file is not wrapped, unless `COLUMNS` sets a width.
    """
    console = MaskingConsole(stderr=stderr, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = MaskingConsole(stderr=stderr, markup=False, emoji=False, width=1000)
    return console


@contextmanager
def show_progress(
    listener: Listener | None, progress: bool | Console, display: Callable[[Console], RunProgress]
) -> Iterator[Listener]:
    """Yield the listener of a Python call: the caller's own, or one that draws on stderr.

    Arguments:
        listener: the caller's listener; if it is given, nothing is drawn.
        progress: the console to draw on, or whether to draw on stderr; then the environment variable
            `PALAESTRA_PROGRESS=0` turns drawing off, too.
        display: makes the display, for example `TrainProgress`.
    """
    if listener is not None:
        yield listener
    elif not progress or (progress is True and os.environ.get(SWITCH) == "0"):
        yield ignore
    else:
        with display(plain_console(stderr=True) if progress is True else progress) as drawing:
            yield drawing


def log_events(run: Run, listener: Listener) -> Listener:
    """Return a listener that also writes the events to the log of a run, as the lines of a plain display."""
    stream: Any = run.log
    # In a notebook rich would display the lines of every console, also of one that writes to a file.
    console = MaskingConsole(file=stream, force_terminal=False, force_jupyter=False, width=1000)
    rounds = run.settings.get("rounds", 0)
    lines = TrainProgress(console) if run.recipe == "train" else RunProgress(console, rounds)
    if run.summary is None:
        run.log.add(f"{run.recipe} starts in process {os.getpid()} on {platform.node()}")

    def listen(event: Event) -> None:
        lines(event)
        listener(event)

    return listen


def announce_start(recipe: str, folder: Path | str, **settings: str) -> Event:
    """Return the notice that a run starts with: the recipe, its main settings and the run folder.

    >>> announce_start("train", "runs/a", model="nano", environment="palaestra/CoT-v0").data["text"]
    'train: model nano, environment palaestra/CoT-v0, folder runs/a'
    """
    facts = {**settings, "folder": str(folder)}
    return notice(
        f"{recipe}: " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items() if value)
    )


class RunProgress:
    """Draws events: a bar for the current phase, and accuracy by skill for every round so far.

    On a terminal it is one live display. Elsewhere each phase that ends prints one line, and a long phase prints a line
    every few seconds.

    Arguments:
        rounds: the number of rounds, for titles; 0 for recipes without rounds.
    """

    def __init__(self, console: Console, rounds: int = 0) -> None:
        self.console, self.rounds = console, rounds
        self._bar = Progress(
            TextColumn("{task.description:<28}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[data]}", markup=False),
            console=console,
        )
        self._task = self._bar.add_task("starting", total=None, data="")
        self._phase = ""
        self._reports: dict[int, Report] = {}
        self._examples = 0
        self._live = (
            Live(self._bar, console=console, refresh_per_second=2, transient=True) if console.is_terminal else None
        )
        self._start = self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        if "text" in event.data:
            self._tell(event.data["text"])
        if event.phase == NOTICE:
            return
        if event.phase == RETRY:
            wait = event.data["seconds"]
            when = f"{wait:.0f} s" if wait >= 10 else f"{wait:.1f} s"
            self._tell(f"{event.data['reason']}; retrying in {when} (call {event.done} of at most {event.total})")
        elif event.phase == WAITING:
            waiting = event.data
            count, seconds = waiting["calls"], waiting["seconds"]
            waited = f"no answer to {count} call{'s' if count > 1 else ''} for {seconds:.0f} s"
            self._tell(f"{waiting['model']}: {waited}; still waiting, at most {waiting['limit']:g} s")
        else:
            self._draw(event)
            self._beat(event)

    def _draw(self, event: Event) -> None:
        """Draw one step of the run."""
        report = event.data.get("report")
        if isinstance(report, Report):
            self._line(f"round {event.round}: {event.phase}: {rate(report)}")
            if report.name == "validation":
                self._reports[event.round] = report
                self._show(self._table())
        elif event.phase == "lesson":
            self._examples += event.done
            self._line(f"round {event.round}: lesson of {event.done} examples")
        elif event.phase == "train" and event.done == event.total:
            self._line(
                f"round {event.round}: trained on {event.data['examples']} examples, loss {event.data['loss']:.3f}"
            )
        elif event.phase == "pretrain" and event.done % 100 == 0:
            self._line(f"step {event.done} of {event.total}, loss {event.data.get('loss', float('nan')):.3f}")
        if self._live:
            self._update_bar(event)

    def _update_bar(self, event: Event) -> None:
        name = event.phase if not self.rounds else f"round {event.round}/{self.rounds}  {event.phase.split('/')[-1]}"
        if name != self._phase:
            self._bar.reset(self._task, description=name, total=event.total or None, data="")
            self._phase = name
        loss = event.data.get("loss")
        data = f"loss {loss:.3f}" if isinstance(loss, float) else ""
        data = f"{event.data['tokens']} tokens" if "tokens" in event.data else data
        self._bar.update(self._task, completed=event.done, total=event.total or None, data=data)

    def _beat(self, event: Event) -> None:
        """Without a terminal, print the current phase if no line has been printed for a while."""
        if not self._live and time.monotonic() - self._last_line >= HEARTBEAT:
            part = f": {event.done} of {event.total}" if event.total else ""
            tokens = f", {event.data['tokens']} tokens of the next" if "tokens" in event.data else ""
            self._line(f"{event.phase}{part}{tokens}")

    def _show(self, content: RenderableType) -> None:
        """Draw `content` below the bar."""
        if self._live:
            self._live.update(Group(self._bar, content))

    def _line(self, text: str) -> None:
        """Print a line if there is no terminal."""
        if not self._live:
            self._print(f"[{time.monotonic() - self._start:6.1f} s] {text}")

    def _tell(self, text: str) -> None:
        """Print a line; on a terminal, above the live display."""
        if self._live:
            self._print(text)
        else:
            self._line(text)

    def _print(self, text: str) -> None:
        self._last_line = time.monotonic()
        self.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table(
            title=f"validation accuracy by round ({self._examples} examples so far)", title_justify="left", box=None
        )
        table.add_column("skill")
        for round_ in self._reports:
            table.add_column("before" if round_ == 0 else f"round {round_}", justify="right")
        first = next(iter(self._reports.values()))
        for name in ["all", *(part.name for part in first.slices)]:
            table.add_row(name, *(_cell(report, name) for report in self._reports.values()))
        return table


class TrainProgress(RunProgress):
    """Draws the events of a training run: a bar, and a panel with the metrics of the last iteration."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._rewards: list[float] = []
        self._metrics: dict[str, float] = {}
        self._held_out = ""
        self._last_iteration = -ITERATION_SECONDS

    def _draw(self, event: Event) -> None:
        report = event.data.get("report")
        if isinstance(report, Report):
            self._held_out = f"held-out accuracy after {event.round}: {rate(report)}"
            self._line(self._held_out)
        elif event.phase == "evaluation" and "test_failures" in event.data and "test_accuracy" not in event.data:
            self._held_out = f"held-out reward after {event.round}: {_describe_held_out(event.data)}"
            self._line(self._held_out)
        elif event.phase == "iteration":
            self._metrics = dict(event.data)
            self._rewards.append(self._metrics.get("reward", float("nan")))
            now = time.monotonic() - self._start
            if event.done in (1, event.total) or now - self._last_iteration >= ITERATION_SECONDS:
                shown = ", ".join(f"{title} {value}" for title, value in list_metrics(self._metrics))
                self._line(f"iteration {event.done}/{event.total}: {shown}")
                self._last_iteration = now
        if not self._live:
            return
        if event.phase in ("collect", "learn", "iteration"):
            self._bar.update(self._task, description=event.phase, completed=event.done, total=event.total or None)
        else:
            self._bar.update(self._task, description=event.phase.split("/")[-1])
        if event.phase in ("iteration", "evaluation"):
            self._show(self._panel() if self._metrics else self._held_out)

    def _panel(self) -> Table:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        for name, value in list_metrics(self._metrics):
            table.add_row(name, value)
        spent = {name.removeprefix("seconds_"): v for name, v in self._metrics.items() if name.startswith("seconds_")}
        table.add_row("seconds", "  ".join(f"{name} {v:.2f}" for name, v in spent.items()))
        table.add_row("reward so far", spark(self._rewards))
        if self._held_out:
            table.add_row("held out", self._held_out)
        return table


def list_metrics(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the titles and values of the metrics of an iteration."""
    rows = [(title, form.format(metrics[name])) for name, title, form in METRICS["lines"] if name in metrics]
    if "reward" in metrics:
        rows[0] = ("reward", f"{_format_interval(metrics, 'reward')} of {metrics['reward_count']:.0f}")
    if metrics.get("failures"):
        rows.append(("failures", f"{metrics['failures']:.0f}"))
    return rows


def spark(values: list[float], width: int = 50) -> str:
    """Return the last `width` values as a line of bars.

    >>> spark([0.0, 0.5, 1.0])
    '▁▄█  0.000 to 1.000'
    """
    known = [v for v in values[-width:] if v == v]
    if not known:
        return ""
    low, high = min(known), max(known)
    step = (high - low) or 1.0
    bars = "".join(BARS[int((len(BARS) - 1) * (v - low) / step)] for v in known)
    return f"{bars}  {low:.3f} to {high:.3f}"


def rate(report: Report) -> str:
    """Return an accuracy with its interval, count and failures."""
    failures = f", {report.failure_count} failures" if report.failure_count else ""
    if report.accuracy is None:
        return f"nothing scored{failures}"
    return (
        f"{100 * report.accuracy:.1f} % [{100 * report.low:.1f}, {100 * report.high:.1f}] of {report.count}{failures}"
    )


def _cell(report: Report, name: str) -> TextType:
    part = report if name == "all" else report.slice(name)
    if part.accuracy is None:
        return "failed"
    shade = "green" if part.accuracy >= 0.8 else "yellow" if part.accuracy >= 0.4 else "red"
    return Text(f"{100 * part.accuracy:.0f} %", shade)


def _describe_held_out(metrics: Mapping[str, float]) -> str:
    """Return a held-out reward with its interval, count and failures."""
    failed = f", {metrics['test_failures']:.0f} failed" if metrics["test_failures"] else ""
    if "test_reward" not in metrics:
        return f"unknown, no episode was scored{failed}"
    return f"{_format_interval(metrics, 'test_reward')} of {metrics['test_count']:.0f} episodes{failed}"


def _format_interval(metrics: Mapping[str, float], name: str) -> str:
    """Format a mean with its interval. The mean of a single value has none.

    >>> _format_interval({"reward": 1.0, "reward_low": -math.inf, "reward_high": math.inf}, "reward")
    '1.000'
    """
    low, high = metrics[f"{name}_low"], metrics[f"{name}_high"]
    return f"{metrics[name]:.3f}" + (f" [{low:.3f}, {high:.3f}]" if math.isfinite(high - low) else "")


def check_trackers(settings: TrainSettings) -> None:
    """Raise if the package of an enabled tracker is not installed.

    Raises:
        MissingExtraError: names the install command.
    """
    for name in TRACKERS:
        if getattr(settings, name) and find_spec(name) is None:
            raise MissingExtraError(name, name, f"the setting '{name}'")


class Trackers:
    """Logs metrics to the trackers that the settings enable.

    The event files of TensorBoard are in `tensorboard/` of the run folder, those of Weights & Biases in `wandb/`. Weights &
    Biases and trackio are configured by their own environment variables (`WANDB_MODE`, `TRACKIO_DIR`, ...). A resumed run
    continues its entry in both.

    Arguments:
        run_id: the unique id of the run.
    """

    def __init__(self, folder: Path, settings: TrainSettings, run_id: str) -> None:
        self.tensorboard: Any = None
        self._online: list[Any] = []
        name, config = folder.resolve().name, mask_settings(to_plain(settings))
        if settings.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.tensorboard = SummaryWriter(str(folder / "tensorboard"))
        options: Json = {"config": config, "resume": "allow"}
        if project := settings.wandb:
            import wandb

            self._online.append(wandb.init(project=project, dir=str(folder), name=name, id=run_id, **options))
        if project := settings.trackio:
            import trackio

            self._online.append(trackio.init(project=project, name=f"{name}-{run_id[:8]}", embed=False, **options))

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        if self.tensorboard is not None:
            for name, value in metrics.items():
                self.tensorboard.add_scalar(name, value, iteration)
        for tracker in self._online:
            tracker.log(dict(metrics), step=iteration)

    def close(self) -> None:
        if self.tensorboard is not None:
            self.tensorboard.close()
        for tracker in self._online:
            tracker.finish()
