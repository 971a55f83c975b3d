"""Start and summarize the run of a recipe.

The summaries of all recipes share these keys:

before, after               the result before and after learning
gain, gain_low, gain_high   the paired difference on the same problems, with its 95 % interval
unit                        the unit of these numbers
seconds                     the time of stored work

A key is `null` if it does not apply: an evaluation has no `before`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from palaestra.core.errors import PalaestraError
from palaestra.core.records import Attempt, Json, Listener, Values
from palaestra.core.registry import Registry
from palaestra.core.statistics import measure_gain, report_on
from palaestra.executors.base import open_executor
from palaestra.recipes.progress import RunProgress, show_progress
from palaestra.recipes.settings import INLINE, ExecutorSettings, build, load_run_settings, to_plain
from palaestra.runs.files import to_data
from palaestra.runs.provenance import record_provenance
from palaestra.runs.run import Run, new_folder

if TYPE_CHECKING:
    from rich.console import Console

    from palaestra.core.records import Engine
    from palaestra.tasks.base import Task
    from palaestra.tasks.evaluate import EvaluationWorkers

SHARED_KEYS = ("before", "after", "gain", "gain_low", "gain_high", "unit")
"""The keys that a summary has even if they do not apply; `seconds` always applies."""
RESULT_VIEWS = Registry("result view", "palaestra.result_views")
"""Functions that draw a result."""
PERCENT = "percent"
"""The unit of accuracies. A gain is a difference of them, in percentage points."""
OpenRun = Callable[[], AbstractContextManager[Run]]
"""Opens the run that a recipe writes to: creates it, or returns one that is resumed."""
S = TypeVar("S")


class NotebookResult:
    """Base class of results that show themselves in notebooks."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """The main metrics and a curve; `None`, and a notebook shows the `repr`, if the run is not there any more."""
        try:
            return str(RESULT_VIEWS.get("html")(self))
        except PalaestraError:
            return None


class RecipeResult(NotebookResult):
    """Base class of the results of recipes, with a short `repr`. Numbers that do not apply are `None`."""

    __slots__ = ()
    folder: Path
    summary: Json

    @property
    def before(self) -> float | None:
        """The result before learning, in `unit`."""
        return self._get("before")

    @property
    def after(self) -> float | None:
        """The result after learning, or of an evaluation."""
        return self._get("after")

    @property
    def gain(self) -> float | None:
        """The mean paired difference on the same held-out problems: percentage points for the unit percent."""
        return self._get("gain")

    @property
    def gain_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the gain."""
        low, high = self._get("gain_low"), self._get("gain_high")
        return None if low is None or high is None else (low, high)

    @property
    def unit(self) -> str:
        return str(self.summary.get("unit") or "")

    @property
    def curve(self) -> Any:
        """The metrics by iteration (`train`) or by round (`teach`): a `pandas.DataFrame`, or a list without pandas."""
        with Run.open(self.folder, read_only=True) as run:
            rows = [{"iteration": number, **metrics} for number, metrics in sorted(run.store.metrics().items())]
        rows = rows or [dict(row) for row in self.summary.get("rounds", ()) if isinstance(row, Mapping)]
        try:
            from pandas import DataFrame  # type: ignore[import-untyped]
        except ImportError:
            return rows
        return DataFrame(rows)

    def _get(self, name: str) -> float | None:
        value = self.summary.get(name)
        return None if value is None else float(value)

    def __repr__(self) -> str:
        """Return the main numbers and the folder.

        >>> from dataclasses import make_dataclass
        >>> Result = make_dataclass("Result", ["folder", "summary"], bases=(RecipeResult,), repr=False)
        >>> Result("runs/a", {"before": 50.0, "after": 75.5, "gain": 25.5, "unit": "percent", "seconds": 9})
        Result(before=50.0, after=75.5, gain=25.5, unit='percent', folder='runs/a')
        """
        names = ("before", "after", "gain", "unit")
        numbers = {name: self.summary[name] for name in names if self.summary.get(name) is not None}
        values = {**numbers, "folder": str(self.folder)}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def summarize_gain(before: Sequence[Attempt], after: Sequence[Attempt]) -> Json:
    """Accuracy before and after in percent and the gain in points, with 95 % intervals, on the same problems."""
    first, second, gain = report_on(before), report_on(after), measure_gain(before, after)
    return {
        **name_interval("before", *map(to_percent, (first.accuracy, first.low, first.high))),
        **name_interval("after", *map(to_percent, (second.accuracy, second.low, second.high))),
        **name_interval("gain", *(round(x, 2) if gain.count else None for x in (gain.points, gain.low, gain.high))),
        "unit": PERCENT,
        "problems": gain.count,
        "majority": None if first.majority is None else to_data(first.majority),
    }


def name_interval(name: str, value: float | None, low: float | None, high: float | None) -> Json:
    """A number and its interval as `name`, `name_low` and `name_high`."""
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def to_percent(rate: float | None) -> float | None:
    """Convert a rate from 0 to 1 to percent, with two decimals."""
    return None if rate is None else round(100 * rate, 2)


def record_run(run: Run, *models: str) -> None:
    """Write `provenance.json` of a run that starts, or add an entry for a run that is resumed.

    Arguments:
        models: names of models; services and empty names are left out.
    """
    summary = run.summary
    # A resumed run that had ended with an error is no longer finished.
    ended = summary is not None and not summary.get("error")
    record_provenance(run.folder, hash_models(*models), ended=ended)


def hash_models(*names: str) -> Json:
    """The hashes of local models by name; `None` for files that cannot be found or read."""
    from palaestra.engines.base import is_remote, strip_scheme
    from palaestra.models.registry import hash_model

    return {name: hash_model(strip_scheme(name)) for name in dict.fromkeys(names) if name and not is_remote(name)}


@contextmanager
def start_run(
    recipe: str,
    out: str | Path,
    listener: Listener | None,
    progress: bool,
    display: Callable[[Console], RunProgress] = RunProgress,
) -> Iterator[tuple[Path, Listener]]:
    """Yield the folder of a new run, which does not exist yet, and the listener of its events.

    Arguments:
        out: the folder; empty: a new one below `runs/`.
        listener, progress, display: see `show_progress`.

    Raises:
        RunError: the folder is not empty.
    """
    folder = Path(out) if out else new_folder(recipe)
    Run.check_new(folder)
    with show_progress(listener, progress, display) as shown:
        yield folder, shown


def change_settings(
    kind: type[S], run: Run, changes: Values, prepare: Callable[[S], None] = lambda settings: None
) -> S:
    """Load the settings of a run that is resumed, and store them with the changes.

    Arguments:
        prepare: called with the settings so far if the changes are valid, before they are stored.
    """
    settings = load_run_settings(kind, run)
    if changes:
        changed = build(kind, {**to_plain(settings), **changes})
        prepare(settings)
        settings = changed
        run.write_settings(to_plain(settings))
    return settings


@contextmanager
def open_workers(
    settings: ExecutorSettings,
    make_tasks: Callable[[], Mapping[str, Task]],
    make_engine: Callable[[], Engine] | None,
    listener: Listener,
) -> Iterator[EvaluationWorkers | None]:
    """Open the executor of the settings; `None` to evaluate in this process.

    Arguments:
        make_engine: makes the engine of a worker; `None` if workers only score.
    """
    from palaestra.tasks.evaluate import EvaluationWorkers

    if settings.executor == INLINE:
        yield None
        return
    with (
        open_executor(settings.executor) as executor,
        EvaluationWorkers.open(executor, settings.resources, make_tasks, make_engine, listener) as workers,
    ):
        yield workers
