"""The health of a training run on a terminal: one panel that says whether it learns, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text, TextType

from palaestra.cli.progress import rate
from palaestra.core.events import NOTICE, Event
from palaestra.core.records import Report

BARS = "▁▂▃▄▅▆▇█"


class TrainProgress:
    """Draws the events of a training run: a bar, and the metrics of the last iteration.

    On a terminal it is one live picture. Elsewhere each iteration prints one line.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar = Progress(
            TextColumn("{task.description:<12}", markup=False), BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn(),
            TimeRemainingColumn(), console=console,
        )  # fmt: skip
        self._task = self._bar.add_task("starting", total=None)
        self._live = (
            Live(self._bar, console=console, refresh_per_second=2, transient=True) if console.is_terminal else None
        )
        self._start = time.monotonic()
        self._rewards: list[float] = []
        self._metrics: dict[str, float] = {}
        self._held_out = ""

    def __enter__(self) -> TrainProgress:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        if event.phase == NOTICE:
            self._print(event.data["text"])
            return
        report = event.data.get("report")
        if isinstance(report, Report):
            self._held_out = f"held-out accuracy after {event.round}: {rate(report)}"
            self._line(self._held_out)
        elif event.phase == "evaluation" and "test_failures" in event.data and "test_accuracy" not in event.data:
            self._held_out = f"held-out reward after {event.round}: {_held_out(event.data)}"
            self._line(self._held_out)
        elif event.phase == "iteration":
            self._metrics = dict(event.data)
            self._rewards.append(self._metrics.get("reward", float("nan")))
            self._line(f"iteration {event.done}/{event.total}: {_one_line(self._metrics)}")
        if not self._live:
            return
        if event.phase in ("collect", "learn", "iteration"):
            self._bar.update(self._task, description=event.phase, completed=event.done, total=event.total or None)
        else:
            self._bar.update(self._task, description=event.phase.split("/")[-1])
        if event.phase in ("iteration", "evaluation"):
            self._live.update(Group(self._bar, *([self._panel()] if self._metrics else [self._held_out])))

    def _line(self, text: str) -> None:
        if not self._live:
            self._print(f"[{time.monotonic() - self._start:6.1f} s] {text}")

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, emoji=False, highlight=False)

    def _panel(self) -> Table:
        f = self._metrics
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        for name, value in panel(f):
            table.add_row(name, value)
        table.add_row("reward so far", spark(self._rewards))
        if self._held_out:
            table.add_row("held out", self._held_out)
        return table


def panel(f: Mapping[str, float]) -> list[tuple[str, TextType]]:
    """The rows of the panel, those that there are metrics for."""
    rows: list[tuple[str, TextType]] = []
    if "reward" in f:
        interval = f"[{f['reward_low']:.3f}, {f['reward_high']:.3f}] of {f['reward_count']:.0f} episodes"
        rows.append(("reward", f"{f['reward']:.3f} {interval}"))
    if "recent_return" in f:
        rows.append(("last 100 episodes", f"{f['recent_return']:.2f}"))
    spent = {name.removeprefix("seconds_"): v for name, v in f.items() if name.startswith("seconds_")}
    speed = (
        f"{f['tokens_per_second']:.0f} tokens/s"
        if "tokens_per_second" in f
        else f"{f.get('steps_per_second', 0):.0f} steps/s"
    )
    rows.append(("seconds", "  ".join(f"{name} {v:.2f}" for name, v in spent.items()) + f"   {speed}"))
    moved = [("KL of the update", "approx_kl", "{:.4f}"), ("KL to the reference", "reference_kl", "{:.3f} nats a response"),
             ("clipped", "clip_fraction", "{:.1%}"), ("entropy", "entropy", "{:.3f} nats"),
             ("explained variance", "explained_variance", "{:.2f}"),
             ("groups without variance", "groups_without_variance", "{:.0%}"),
             ("length", "length", "{:.1f}"), ("cut at the limit", "truncated", "{:.0%}"),
             ("gradient norm", "grad_norm", "{:.2f}")]  # fmt: skip
    rows += [(title, form.format(f[name])) for title, name, form in moved if name in f]
    if f.get("failures"):
        rows.append(("failures", Text.assemble((f"{f['failures']:.0f}", "red"), " in this iteration")))
    return rows


def spark(values: list[float], width: int = 50) -> str:
    """A line of bars, the last `width` values.

    >>> spark([0.0, 0.5, 1.0])
    '▁▄█  0.000 to 1.000'
    """
    known = [v for v in values[-width:] if v == v]
    if not known:
        return ""
    low, high = min(known), max(known)
    step = (high - low) or 1.0
    drawn = "".join(BARS[int((len(BARS) - 1) * (v - low) / step)] for v in known)
    return f"{drawn}  {low:.3f} to {high:.3f}"


def outcome_table(summary: Mapping[str, Any]) -> Table | Text:
    """What a run achieved, with intervals; one line for a run that had nothing to learn from."""
    nothing = summary.get("nothing_learned", "")
    if nothing and "gain" not in summary and not summary["failures"]:
        return Text(f"{summary['algorithm']} in {summary['env']}: {nothing}")
    table = Table(
        title=f"{summary['algorithm']} in {summary['env']}",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        caption=nothing or None,
        caption_justify="left",
    )
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("of", justify="right")
    accuracy = "gain" in summary
    unit, many = ("accuracy in %", "problems") if accuracy else ("reward", "episodes")
    for title, name in (("held out, before", "test_before"), ("held out, after", "test_after")):
        failed = summary.get(f"{name}_failures")
        if summary.get(name) is not None:
            count = summary.get("problems" if accuracy else f"{name}_episodes", summary.get("test_episodes"))
            told = f", {failed:.0f} failed" if failed else ""
            table.add_row(f"{title}: {unit}", f"{summary[name]:.2f}", _pair(summary, name), f"{count:.0f} {many}{told}")
        elif failed:
            table.add_row(f"{title}: {unit}", "not known", "", f"0 {many}, {failed:.0f} failed")
    if accuracy and (baseline := summary.get("majority")):
        rate = f"{100 * baseline['count'] / baseline['total']:.2f}"
        table.add_row(f"majority class {baseline['answer']}".rstrip(), rate, "", f"{baseline['total']} problems")
    if accuracy:
        told = f"{summary['problems']} problems"
        table.add_row("gain in points", f"{summary['gain']:+.2f}", _pair(summary, "gain", "+"), told)
    elif "test_gain" in summary:
        gain = summary["test_gain"]
        table.add_row("gain, paired", "not known" if gain is None else f"{gain:+.3f}", _pair(summary, "test_gain", "+"),
                      f"{summary['test_gain_episodes']} {many}")  # fmt: skip
    if summary.get("return") is not None:
        table.add_row("training, last iteration", f"{summary['return']:.3f}", _pair(summary, "return"),
                      f"{summary['return_episodes']:.0f} episodes")  # fmt: skip
    if summary.get("recent_return") is not None:
        table.add_row("training, last 100 episodes", f"{summary['recent_return']:.2f}", "", "100 episodes")
    return table


def reward_table(model: Any) -> Table:
    """Accuracy and calibration of a reward model on held-out comparisons, before and after."""
    metrics = model.metrics
    table = Table(title="held-out comparisons", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("", "before", "after"):
        table.add_column(column, justify="left" if not column else "right")
    before, after = metrics["before"], metrics["after"]
    for name, value in after.items():
        if isinstance(value, (int, float)):
            known = before.get(name) if before else None
            table.add_row(name, "-" if known is None else f"{known:.4g}", f"{value:.4g}")
    return table


def _held_out(f: Mapping[str, float]) -> str:
    """A held-out reward with its interval, its count and its failures."""
    failed = f", {f['test_failures']:.0f} failed" if f["test_failures"] else ""
    if "test_reward" not in f:
        return f"not known, no episode counted{failed}"
    interval = f"[{f['test_reward_low']:.3f}, {f['test_reward_high']:.3f}]"
    return f"{f['test_reward']:.3f} {interval} of {f['test_count']:.0f} episodes{failed}"


def _pair(summary: Mapping[str, Any], name: str, sign: str = "") -> str:
    low, high = summary.get(f"{name}_low"), summary.get(f"{name}_high")
    return "" if low is None or high is None else f"{low:{sign}.2f} to {high:{sign}.2f}"


def _one_line(f: Mapping[str, float]) -> str:
    parts = []
    if "reward" in f:
        parts.append(
            f"reward {f['reward']:.3f} [{f['reward_low']:.3f}, {f['reward_high']:.3f}] of {f['reward_count']:.0f}"
        )
    for name, title in (
        ("approx_kl", "kl"),
        ("clip_fraction", "clipped"),
        ("entropy", "entropy"),
        ("length", "length"),
    ):
        if name in f:
            parts.append(f"{title} {f[name]:.3f}")
    if f.get("truncated"):
        parts.append(f"cut at the limit {f['truncated']:.0%}")
    speed = [
        f"{f[name]:.0f} {unit}"
        for name, unit in (("tokens_per_second", "tokens/s"), ("steps_per_second", "steps/s"))
        if name in f
    ]
    failed = [f"{f['failures']:.0f} failed"] if f.get("failures") else []
    return ", ".join(parts + speed + failed)
