"""The keys that the summaries of all recipes share.

before, after               the result before and after learning
gain, gain_low, gain_high   the paired difference on the same problems, with its 95 % interval
unit                        the unit of these numbers
seconds                     the time of stored work

A key is `null` if it does not apply: an evaluation has no `before`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import PalaestraError
from palaestra.core.plugins import load_reference
from palaestra.core.records import Attempt
from palaestra.core.statistics import measure_gain, report_on
from palaestra.runs.files import to_data
from palaestra.runs.provenance import record_provenance

if TYPE_CHECKING:
    from palaestra.runs.run import Run


SHARED_KEYS = ("before", "after", "gain", "gain_low", "gain_high", "unit")
"""The keys that a summary has even if they do not apply; `seconds` always applies."""
PERCENT = "percent"
"""The unit of accuracies. A gain is a difference of them, in percentage points."""


class NotebookResult:
    """Base class of results that show themselves in notebooks."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """The main figures and a curve; `None`, and a notebook shows the `repr`, if the run is not there any more."""
        try:
            # The report is a layer above, so it is named by its module.
            return str(load_reference("palaestra.report.notebook:draw_result")(self))
        except PalaestraError:
            return None


class RecipeResult(NotebookResult):
    """Base class of the results of recipes, with a short `repr`."""

    __slots__ = ()
    folder: Path
    summary: dict[str, Any]

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


def summarize_gain(before: Sequence[Attempt], after: Sequence[Attempt]) -> dict[str, Any]:
    """Accuracy before and after in percent and the gain in points, with 95 % intervals, on the same problems."""
    first, second, gain = report_on(before), report_on(after), measure_gain(before, after)
    return {
        "before": to_percent(first.accuracy),
        "before_low": to_percent(first.low),
        "before_high": to_percent(first.high),
        "after": to_percent(second.accuracy),
        "after_low": to_percent(second.low),
        "after_high": to_percent(second.high),
        "gain": round(gain.points, 2) if gain.count else None,
        "gain_low": round(gain.low, 2) if gain.count else None,
        "gain_high": round(gain.high, 2) if gain.count else None,
        "unit": PERCENT,
        "problems": gain.count,
        "majority": None if first.majority is None else to_data(first.majority),
    }


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


def hash_models(*names: str) -> dict[str, Any]:
    """The hashes of local models by name; `None` for files that cannot be found or read."""
    from palaestra.engines.base import is_remote, strip_scheme
    from palaestra.engines.models import hash_model

    return {name: hash_model(strip_scheme(name)) for name in dict.fromkeys(names) if name and not is_remote(name)}
