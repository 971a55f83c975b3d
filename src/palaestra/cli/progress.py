"""Progress of a run on a terminal; plain lines where there is none."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text, TextType

from palaestra.core.events import NOTICE, Event
from palaestra.core.records import Report
from palaestra.engines.retry import AGAIN, WAITING


class RunProgress:
    """Draws events: a bar for the phase at work, and accuracy by skill for every round so far.

    On a terminal it is one live picture. Elsewhere each phase that ends prints one line.
    """

    def __init__(self, console: Console, rounds: int = 0) -> None:
        self.console, self.rounds = console, rounds
        self._bar = Progress(
            TextColumn("{task.description:<28}", markup=False), BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[data]}", markup=False), console=console,
        )  # fmt: skip
        self._task = self._bar.add_task("starting", total=None, data="")
        self._phase = ""
        self._reports: dict[int, Report] = {}
        self._examples = 0
        self._live = (
            Live(self._bar, console=console, refresh_per_second=2, transient=True) if console.is_terminal else None
        )
        self._start = time.monotonic()

    def __enter__(self) -> RunProgress:
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
            self._tell(event.data["text"])
            return
        report = event.data.get("report")
        if isinstance(report, Report):
            self._line(f"round {event.round}: {event.phase}: {rate(report)}")
            if report.name == "validation":
                self._reports[event.round] = report
                if self._live:  # The bar draws itself anew; the table only when there is something new in it.
                    self._live.update(Group(self._bar, self._table()))
        elif event.phase == AGAIN:
            wait = event.data["seconds"]
            when = f"{wait:.0f} s" if wait >= 10 else f"{wait:.1f} s"
            self._tell(f"{event.data['reason']}; asked again in {when} (call {event.done} of at most {event.total})")
            return
        elif event.phase == WAITING:
            waiting = event.data
            calls = "a call has" if waiting["calls"] == 1 else f"{waiting['calls']} calls have"
            waited = f"had no answer for {waiting['seconds']:.0f} s"
            self._tell(f"{waiting['model']}: {calls} {waited}; still waiting, at most {waiting['limit']:g} s")
            return
        elif event.phase == "lesson":
            self._examples += event.done
            self._line(f"round {event.round}: lesson of {event.done} examples")
        elif event.phase == "train" and event.done == event.total:
            self._line(
                f"round {event.round}: trained on {event.data['examples']} examples, loss {event.data['loss']:.3f}"
            )
        elif event.phase == "pretrain" and event.done % 100 == 0:
            self._line(f"step {event.done} of {event.total}, loss {event.data.get('loss', float('nan')):.3f}")
        if not self._live:
            return
        name = event.phase if not self.rounds else f"round {event.round}/{self.rounds}  {event.phase.split('/')[-1]}"
        if name != self._phase:
            self._bar.reset(self._task, description=name, total=event.total or None, data="")
            self._phase = name
        loss = event.data.get("loss")
        data = f"loss {loss:.3f}" if isinstance(loss, float) else ""
        self._bar.update(self._task, completed=event.done, total=event.total or None, data=data)

    def _line(self, text: str) -> None:
        if not self._live:
            self._print(f"[{time.monotonic() - self._start:6.1f} s] {text}")

    def _tell(self, text: str) -> None:
        """A line that is worth reading on a terminal too, above the live picture."""
        if self._live:
            self._print(text)
        else:
            self._line(text)

    def _print(self, text: str) -> None:
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


def _cell(report: Report, name: str) -> TextType:
    part = report if name == "all" else report.slice(name)
    if part.accuracy is None:
        return "failed"
    shade = "green" if part.accuracy >= 0.8 else "yellow" if part.accuracy >= 0.4 else "red"
    return Text(f"{100 * part.accuracy:.0f} %", shade)


def rate(report: Report) -> str:
    """A rate with its interval, its count and its failures."""
    failures = f", {report.failure_count} failures" if report.failure_count else ""
    if report.accuracy is None:
        return f"nothing scored{failures}"
    return (
        f"{100 * report.accuracy:.1f} % [{100 * report.low:.1f}, {100 * report.high:.1f}] of {report.count}{failures}"
    )


def quiet() -> None:
    """Only our own progress on the terminal: transformers' bars and advice stay out of it.

    It reads these variables when it is imported, which takes seconds and is not done for this.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if "transformers" in sys.modules:
        from transformers.utils import logging

        logging.disable_progress_bar()
