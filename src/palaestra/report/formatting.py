"""Numbers as a reader wants them: with their unit, their sign and their interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from palaestra.core.records import Report
from palaestra.core.statistics import Gain, Mean
from palaestra.runs.ledger import describe_cost

NOTHING = "–"
"""Stands where there is no figure, as opposed to a figure of 0."""


def percent(report: Report | None) -> str:
    """The accuracy of a report.

    >>> percent(Report("all", 0.5, 0.3, 0.7, 10, 5))
    '50.0 %'
    """
    return NOTHING if report is None or report.accuracy is None else f"{100 * report.accuracy:.1f} %"


def interval(report: Report | None) -> str:
    """The 95 % interval of a report in percent.

    >>> interval(Report("all", 0.5, 0.3, 0.7, 10, 5))
    '30.0–70.0 %'
    """
    if report is None or report.accuracy is None:
        return NOTHING
    return f"{100 * report.low:.1f}–{100 * report.high:.1f} %"


def mean_percent(mean: Mean) -> str:
    """A rate that is a mean over problems.

    >>> mean_percent(Mean(0.5, 0.3, 0.7, 10))
    '50.0 %'
    """
    return f"{100 * mean.value:.1f} %" if mean.count else NOTHING


def mean_interval(mean: Mean) -> str:
    """Its 95 % interval in percent."""
    return f"{100 * mean.low:.1f}–{100 * mean.high:.1f} %" if mean.count else NOTHING


def chance(p_value: float | None) -> str:
    """A p-value, as finely as it means anything.

    >>> chance(0.0312), chance(0.00001), chance(1.0)
    ('p = 0.031', 'p < 0.001', 'p = 1.000')
    """
    if p_value is None:
        return NOTHING
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def counts(report: Report | None) -> str:
    """How many were right of how many that were scored, and beside that how many failed.

    >>> counts(Report("all", 0.5, 0.3, 0.7, 10, 5, {"engine": 2}))
    '5 of 10 right, 2 failed'
    """
    if report is None:
        return NOTHING
    failed = f", {report.failure_count} failed" if report.failure_count else ""
    baseline = f"; majority class {majority(report)}" if report.majority else ""
    return f"{report.correct} of {report.count} right{failed}{baseline}"


def majority(report: Report | None) -> str:
    """What always giving the most common answer would score.

    >>> from palaestra.core.records import Majority
    >>> majority(Report("all", 0.5, 0.3, 0.7, 10, 5, majority=Majority("true", 6, 10)))
    '60.0 % (true, 6 of 10)'
    """
    if report is None or report.majority is None:
        return NOTHING
    baseline = report.majority
    answer = f"{baseline.answer}, " if baseline.answer else ""
    return f"{100 * baseline.count / baseline.total:.1f} % ({answer}{baseline.count} of {baseline.total})"


def format_signed(value: float) -> str:
    """A number with its sign, and a real minus.

    >>> format_signed(-3.25), format_signed(2.0), format_signed(-0.01)
    ('−3.2', '+2.0', '0.0')
    """
    text = f"{value:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def format_signed_mean(mean: Mean | None) -> str:
    """A mean in points with its sign.

    >>> format_signed_mean(Mean(2.0, 1.0, 3.0, 5)), format_signed_mean(None)
    ('+2.0', '–')
    """
    return NOTHING if mean is None or not mean.count else format_signed(mean.value)


def format_signed_interval(mean: Mean | None) -> str:
    """The 95 % interval of a mean in points; one value has none.

    >>> format_signed_interval(Mean(2.0, -1.0, 5.0, 5)), format_signed_interval(Mean(2.0, 0.0, 0.0, 1))
    ('−1.0 to +5.0', 'no interval')
    """
    if mean is None or not mean.count:
        return NOTHING
    return f"{format_signed(mean.low)} to {format_signed(mean.high)}" if mean.count > 1 else "no interval"


def points(gain: Gain | None) -> str:
    """A gain in points, or a dash where no problem was scored both times."""
    return NOTHING if gain is None or gain.count == 0 else format_signed(gain.points)


def points_interval(gain: Gain | None) -> str:
    """The 95 % interval of a gain in points."""
    return NOTHING if gain is None or gain.count == 0 else f"{format_signed(gain.low)} to {format_signed(gain.high)}"


def whole(value: float) -> str:
    """A count with its thousands apart.

    >>> whole(1234567).split()
    ['1', '234', '567']
    """
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def seconds(value: float) -> str:
    """A duration: tenths of a second, and above that minutes or hours.

    >>> seconds(12.34), seconds(139.3), seconds(7320)
    ('12.3 s', '2 min 19 s', '2 h 2 min')
    """
    if value < 60:
        return f"{value:.1f} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"


def dollars(value: float) -> str:
    """An amount of money; small amounts keep their first figures.

    >>> dollars(0), dollars(0.00123), dollars(12.5)
    ('$0.00', '$0.0012', '$12.50')
    """
    return f"${value:.2g}" if 0 < value < 0.01 else f"${value:,.2f}"


def causes(failures: dict[str, int]) -> str:
    """Failures by cause as one phrase.

    >>> causes({"engine": 2, "scorer": 1}), causes({})
    ('engine 2, scorer 1', 'none')
    """
    return ", ".join(f"{cause} {count}" for cause, count in failures.items()) or "none"


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "round"), plural(3, "round")
    ('1 round', '3 rounds')
    """
    return f"{whole(count)} {noun}" + ("" if count == 1 else "s")


def shorten(text: str, characters: int) -> str:
    """At most `characters` of a text, the cut marked.

    >>> shorten("multiplication", 8)
    'multipl…'
    """
    return text if len(text) <= characters else text[: characters - 1] + "…"


def phase_name(phase: str) -> str:
    """A phase of the store or ledger in words.

    >>> phase_name("2/train"), phase_name("0/test"), phase_name("load")
    ('round 2: training', 'start: test', 'load')
    """
    round_, slash, what = phase.partition("/")
    if not slash:
        return phase
    what = {"train": "training"}.get(what, what)
    return f"start: {what}" if round_ == "0" else f"round {round_}: {what}"


def plain(value: float | None, size: float = 0.0) -> str:
    """A number of any size with three figures or more; written like one of `size`, if that is larger.

    >>> plain(0.57039), plain(460.75), plain(-3.2437), plain(0.0), plain(0.00002)
    ('0.570', '460.8', '−3.24', '0', '2.0e−05')
    >>> plain(-0.0009, 0.1)
    '−0.001'
    """
    if value is None:
        return NOTHING
    size = max(size, abs(value))
    if size == 0 or size >= 1000:
        written = whole(value)
    elif size < 0.001:
        written = f"{value:.1e}"
    else:
        written = f"{value:.{1 if size >= 100 else 2 if size >= 1 else 3 if size >= 0.1 else 4}f}"
        # Rounded to nothing, a number has no sign.
        written = written if float(written) else written.lstrip("-")
    return written.replace("-", "−")


def share(value: float | None) -> str:
    """A share from 0 to 1 in percent.

    >>> share(0.125), share(1.0)
    ('12.5 %', '100 %')
    """
    return NOTHING if value is None else f"{100 * value:.1f}".removesuffix(".0").replace("-", "−") + " %"


def tick_words(values: Sequence[float]) -> Callable[[float], str]:
    """How the ticks of an axis are written: all with the decimals that tell them apart.

    >>> [tick_words([0.0, 0.005])(value) for value in (0.0, 0.005)]
    ['0.000', '0.005']
    >>> tick_words([0.0, 5000.0])(5000.0)
    '5k'
    """
    step = min((b - a for a, b in pairwise(values)), default=1.0)
    if step >= 1000:
        return lambda value: f"{value / 1000:g}k".replace("-", "−") if value else "0"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    if decimals > 4:
        return lambda value: f"{value:.0e}".replace("-", "−") if value else "0"
    return lambda value: (whole(value) if decimals == 0 else f"{value:.{decimals}f}").replace("-", "−")


FILTERS: dict[str, Callable[..., Any]] = {
    "percent": percent,
    "majority": majority,
    "interval": interval,
    "mean_percent": mean_percent,
    "mean_interval": mean_interval,
    "chance": chance,
    "counts": counts,
    "signed": format_signed,
    "signed_mean": format_signed_mean,
    "signed_interval": format_signed_interval,
    "points": points,
    "points_interval": points_interval,
    "whole": whole,
    "seconds": seconds,
    "dollars": dollars,
    "cost": describe_cost,
    "causes": causes,
    "plural": plural,
    "phase_name": phase_name,
    "plain": plain,
    "share": share,
}
