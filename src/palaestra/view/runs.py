"""The list of runs below a folder: what each is, how far it is, and its main metric."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from palaestra.core.errors import RunError
from palaestra.core.records import Json
from palaestra.core.text import clean, clean_text
from palaestra.recipes.runs import PERCENT
from palaestra.report.check import describe_verdict, read_check_report
from palaestra.report.formatting import format_span, plain, short_path
from palaestra.report.notes import NOTES, read_notes
from palaestra.report.page import BENCH, CHECK, RESCORE, STUDY, is_check
from palaestra.report.parts import describe_learner
from palaestra.runs.files import read_json
from palaestra.runs.log import TRACEBACK, read_failure
from palaestra.runs.provenance import read_provenance
from palaestra.runs.run import is_running
from palaestra.runs.store import Store

Status = Literal["running", "ended", "failed", "stopped"]
TRAJECTORIES = "trajectories"
"""The recipe of a run that was read from files in formats of other systems."""
_MAX_DEPTH = 4
"""Maximum depth of a run folder below the folder that is shown."""
_MAX_POINTS = 60
"""Maximum points of a sparkline."""
_MAIN_METRICS = {
    "test_accuracy": "accuracy (%)",
    "test_reward": "held-out reward",
    "reward": "training reward",
    "recent_return": "recent return",
}
"""The metrics of a train run that are its main metric until it has ended, the first that exists, with their names."""
_MAIN_COLUMNS = tuple(f"{name}{end}" for name in _MAIN_METRICS for end in ("", "_low", "_high"))
"""These metrics and the ends of their intervals."""
_CURVES = {
    "train": "SELECT value FROM metrics WHERE name='reward' AND iteration > 0 ORDER BY iteration",
    "teach": "SELECT AVG(correct) FROM attempts WHERE phase LIKE '%/validation' AND correct IS NOT NULL "
    "GROUP BY phase ORDER BY CAST(phase AS INTEGER)",
}
"""The curve that a sparkline shows, by recipe."""
_PROGRESS = {
    "train": ("iterations", "SELECT COALESCE(MAX(iteration), 0) FROM metrics"),
    "teach": ("rounds", "SELECT MAX(0, COUNT(DISTINCT phase) - 1) FROM attempts WHERE phase LIKE '%/validation'"),
    "evaluate": ("planned", "SELECT COUNT(*) FROM attempts"),
    "research": ("steps", "SELECT COALESCE(MAX(position), 0) FROM steps"),
}
"""By recipe: the setting with the planned steps, and how many are done."""

_WORKED = "SELECT COALESCE(SUM(seconds), 0) FROM ledger WHERE phase != 'load'"


@dataclass(frozen=True, slots=True)
class RunCard:
    """One row of the list.

    Arguments:
        id: the path of the folder below the root; it names the run in URLs.
        kind: the recipe, or `study`, `bench` or `check`.
        subject: what was learned or asked, for example the environment or the task.
        figure: the main number with the ends of its interval; `None` if there is none yet.
        spark: the training curve.
        done, planned: the finished and the planned iterations, rounds, answers or messages; 0 if unknown.
        left: the seconds that a running run still needs, about; `None` if unknown.
        settings: the settings as stored.
        name, notes: what the user called the run, and wrote about it.
        problem: why the run failed, or why the folder cannot be read; empty otherwise.
    """

    id: str
    folder: Path
    kind: str
    status: Status
    subject: str = ""
    model: str = ""
    method: str = ""
    figure: tuple[float, float | None, float | None] | None = None
    figure_name: str = ""
    spark: tuple[float, ...] = ()
    done: int = 0
    planned: int = 0
    left: float | None = None
    started: str = ""
    seconds: float = 0.0
    money: float = 0.0
    host: str = ""
    tags: tuple[str, ...] = ()
    settings: Json = field(default_factory=dict)
    name: str = ""
    notes: str = ""
    problem: str = ""

    @property
    def label(self) -> str:
        """The path of the folder, after the name if there is one."""
        return f"{self.name} ({self.id})" if self.name else self.id

    @property
    def result(self) -> str:
        """The main metric with its interval, in words; empty without one."""
        if self.figure is None:
            return ""
        return f"{self.figure_name} {self.figure_value}" + (
            f" ({self.figure_interval})" if self.figure_interval else ""
        )

    @property
    def figure_value(self) -> str:
        """The main metric with the decimals of its interval."""
        return "–" if self.figure is None else plain(self.figure[0], max(abs(end or 0.0) for end in self.figure))

    @property
    def figure_interval(self) -> str:
        """The interval of the main metric; empty without one."""
        if self.figure is None or self.figure[1] is None or self.figure[2] is None:
            return ""
        return format_span(self.figure[1], self.figure[2])


class RunIndex:
    """Finds runs and remembers their cards until their files change.

    Arguments:
        roots: folders with runs below them, or run folders.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = [root.resolve() for root in roots]
        self._cards: dict[Path, tuple[tuple[int, ...], RunCard]] = {}

    @cached_property
    def base(self) -> Path:
        """The folder that ids are relative to."""
        parents = [root.parent if _is_run(root) else root for root in self.roots]
        return Path(os.path.commonpath(parents))

    @property
    def is_empty(self) -> bool:
        """Whether there is no run."""
        return next(self._find_folders(), None) is None

    def cards(self) -> list[RunCard]:
        """All runs, the newest first."""
        cards = [self._read(folder) for folder in dict.fromkeys(self._find_folders())]
        return sorted(cards, key=lambda card: (card.started, card.id), reverse=True)

    def find(self, run_id: str) -> RunCard | None:
        """The run called `run_id`; `None` if the list has none of that name."""
        folder = next((folder for folder in self._find_folders() if self._name(folder) == run_id), None)
        return None if folder is None else self._read(folder)

    def _name(self, folder: Path) -> str:
        return _clean_line(folder.relative_to(self.base).as_posix())

    def _find_folders(self) -> Iterator[Path]:
        seen: set[tuple[int, int]] = set()
        for root in self.roots:
            yield from _find_runs(root, _MAX_DEPTH, seen)

    def _read(self, folder: Path) -> RunCard:
        state = file_state(folder)
        known = self._cards.get(folder)
        # A running run may die without writing to a file.
        if known is None or known[0] != state or known[1].status == "running":
            self._cards[folder] = known = state, read_card(folder, self._name(folder))
        return known[1]


def file_state(folder: Path) -> tuple[int, ...]:
    """Numbers that change when a run writes something."""
    state: list[int] = []
    base = str(folder)  # Joining paths takes longer than reading their state.
    files = ("settings.json", "store.sqlite", "store.sqlite-wal", "summary.json")
    for name in (*files, TRACEBACK, NOTES, STUDY, BENCH, CHECK, RESCORE):
        try:
            status = os.stat(f"{base}/{name}")
            # A reader of an ended run makes an empty -wal for a moment.
            state += [status.st_mtime_ns, status.st_size] if status.st_size else [0, 0]
        except OSError:
            state += [0, 0]
    return tuple(state)


def read_card(folder: Path, run_id: str) -> RunCard:
    """Read what the list shows of one folder. A damaged folder, whatever is wrong with it, is a row that says so."""
    try:
        for kind, plan in (("study", STUDY), ("bench", BENCH)):
            if os.path.lexists(folder / plan):
                if not isinstance(read_json(folder / plan), dict):
                    raise RunError(f"{plan} is not an object")
                subject, noted = _clean_line(folder.name), read_notes(folder)
                card = RunCard(run_id, folder, kind, "ended", subject=subject, started=_read_start(folder))
                return replace(card, name=noted.name, notes=noted.text)
        return _read_check(folder, run_id) if is_check(folder) else _read_run(folder, run_id)
    except Exception as error:  # A folder of somebody else can be damaged in any way.
        reason = _clean_line(str(error).strip().partition("\n")[0] or type(error).__name__, 500)
        return RunCard(run_id, folder, "unreadable", "failed", started=_read_start(folder), problem=reason)


def _read_check(folder: Path, run_id: str) -> RunCard:
    report, noted = read_check_report(folder / CHECK), read_notes(folder)
    return RunCard(
        run_id,
        folder,
        "check",
        "ended",
        subject=_clean_line(short_path(report.target)),
        method=describe_verdict(report),
        started=_read_start(folder),
        seconds=_read_finite(report.seconds),
        name=_clean_line(noted.name),
        notes=noted.text,
    )


def _read_run(folder: Path, run_id: str) -> RunCard:
    stored = read_json(folder / "settings.json")
    if not isinstance(stored, dict) or not isinstance(stored.get("settings"), dict):
        raise RunError("settings.json has no settings")
    settings, summary, provenance = clean(stored["settings"]), _read_summary(folder), read_provenance(folder)
    status, noted = _read_status(folder, summary), read_notes(folder, settings)
    failure = read_failure(folder, str(summary.get("error") or "")) if status == "failed" else None
    card = RunCard(
        run_id,
        folder,
        _clean_line(stored["recipe"]),
        status,
        subject=_clean_line(short_path(settings.get("env") or settings.get("task") or "")),
        model=_clean_line(describe_learner(settings)),
        method=_clean_line(settings.get("teacher") or settings.get("algorithm") or ""),
        started=_read_start(folder, provenance),
        host=_clean_line(provenance["started"].get("host", "")) if provenance else "",
        tags=tuple(map(_clean_line, settings.get("tags", ()))),
        settings=settings,
        name=_clean_line(noted.name),
        notes=noted.text,
        problem=_clean_line(short_path(failure.cause), 500) if failure else "",
    )
    return _add_results(card, summary)


def _clean_line(value: object, length: int = 200) -> str:
    """Return a value as one line of text that UTF-8 can encode, cut to a length."""
    text = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", "\N{REPLACEMENT CHARACTER}", clean_text(str(value)))
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _read_finite(value: Any) -> float:
    """Return a number of a run. Raises `ValueError` if it is infinite or not a number."""
    if not math.isfinite(number := float(value)):
        raise ValueError(f"a result of the run is {number}; expected a finite number")
    return number


def _add_results(card: RunCard, summary: Json) -> RunCard:
    store = Store(card.folder / "store.sqlite", read_only=True)
    try:
        total, metrics = store.total(), store.metrics(*_MAIN_COLUMNS) if card.kind == "train" else {}
        curve = [_read_finite(value) for (value,) in store.select(_CURVES[card.kind])] if card.kind in _CURVES else []
        card = _add_progress(card, store)
    finally:
        store.close()
    name = next((name for name in _MAIN_METRICS if any(name in row for row in metrics.values())), "")
    course = [(row[name], row.get(f"{name}_low"), row.get(f"{name}_high")) for row in metrics.values() if name in row]
    figure, figure_name = _main_metric(summary)
    if figure is None and course:
        figure, figure_name = course[-1], _MAIN_METRICS[name]
    if figure is not None:
        value, *ends = figure
        low, high = (None if end is None else _read_finite(end) for end in ends)
        figure = _read_finite(value), low, high
    seconds, money = _read_finite(summary.get("seconds") or total.seconds), _read_finite(total.money)
    shown = (*curve[: -1 : max(1, -(-len(curve) // _MAX_POINTS))], *curve[-1:])
    return replace(card, figure=figure, figure_name=figure_name, spark=shown, seconds=seconds, money=money)


def _add_progress(card: RunCard, store: Store) -> RunCard:
    """Add how far a run is, and how long it still takes."""
    if card.kind not in _PROGRESS:
        return card
    setting, count = _PROGRESS[card.kind]
    done, planned = int(store.select(count)[0][0]), int(card.settings.get(setting) or store.planned)
    working = card.status == "running" and 0 < done <= planned
    left = _read_finite(store.select(_WORKED)[0][0]) * (planned - done) / done if working else None
    return replace(card, done=done, planned=planned, left=left)


def _main_metric(summary: Json) -> tuple[tuple[float, float | None, float | None] | None, str]:
    """The gain of a run that learned, or the result of one that measured, with its name and unit."""
    unit = str(summary.get("unit") or "score")
    is_rate = unit == PERCENT
    names = {
        "gain": "accuracy gain (points)" if is_rate else f"gain in {unit}",
        "after": "accuracy (%)" if is_rate else unit,
    }
    for key, name in names.items():
        if isinstance(summary.get(key), int | float):
            return (summary[key], summary.get(f"{key}_low"), summary.get(f"{key}_high")), _clean_line(name)
    return None, ""


def _read_status(folder: Path, summary: Json) -> Status:
    if summary:
        return "failed" if summary.get("error") else "ended"
    if os.path.lexists(folder / TRACEBACK):
        return "failed"
    return "running" if is_running(folder) else "stopped"


def _read_summary(folder: Path) -> Json:
    if not os.path.lexists(folder / "summary.json"):
        return {}
    summary = read_json(folder / "summary.json")
    if not isinstance(summary, dict):
        raise ValueError("summary.json is not an object")
    return summary


def _read_start(folder: Path, provenance: Json | None = None) -> str:
    """When the run was started, in UTC; without its provenance, when its first file was written."""
    if provenance and provenance["started"].get("time"):
        return _clean_line(provenance["started"]["time"]).replace("T", " ").removesuffix("Z")
    for name in ("settings.json", STUDY, BENCH, CHECK):
        with suppress(OSError, ValueError, OverflowError):  # No such file, or a time out of range.
            return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime((folder / name).lstat().st_mtime))
    return ""


def _is_run(folder: Path) -> bool:
    return any(os.path.lexists(folder / name) for name in ("settings.json", STUDY, BENCH, CHECK))


def _find_runs(folder: Path, depth: int, seen: set[tuple[int, int]]) -> Iterator[Path]:
    """Run folders in `folder`. The runs of a study or a bench are below it.

    Arguments:
        seen: the folders so far. Each is searched once, so that links in a circle end.
    """
    try:
        status = folder.stat()
        if (place := (status.st_dev, status.st_ino)) in seen:
            return
        seen.add(place)
        # Links come last: a run is listed under the name of its own folder.
        entries = sorted(os.scandir(folder), key=lambda entry: (entry.is_symlink(), entry.name))
    except OSError:
        return
    if _is_run(folder):
        yield folder
        if os.path.lexists(folder / "settings.json"):
            return
    for entry in entries if depth else ():
        # Also a link to nothing, which is no folder.
        if not entry.name.startswith(".") and os.path.isdir(entry.path):
            yield from _find_runs(Path(entry.path), depth - 1, seen)
