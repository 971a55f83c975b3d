"""Format numbers for a page: with unit, sign and interval."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from markupsafe import Markup, escape

from palaestra.core.records import Report, Values
from palaestra.core.statistics import Gain, Mean
from palaestra.runs.provenance import describe_cost

NOTHING = "–"
"""Text for a missing number."""


def percent(rate: Report | Mean | None) -> str:
    """Format an accuracy, or a mean of values from 0 to 1.

    >>> percent(Report("all", 0.5, 0.3, 0.7, 10, 5)), percent(Mean(0.25, 0.1, 0.5, 8)), percent(None)
    ('50.0 %', '25.0 %', '–')
    """
    if rate is None or not rate.count:
        return NOTHING
    return f"{100 * ((rate.accuracy or 0.0) if isinstance(rate, Report) else rate.value):.1f} %"


def interval(rate: Report | Mean | None) -> str:
    """Format the 95 % interval of `percent`.

    >>> interval(Report("all", 0.5, 0.3, 0.7, 10, 5))
    '30.0–70.0 %'
    """
    return NOTHING if rate is None or not rate.count else f"{100 * rate.low:.1f}–{100 * rate.high:.1f} %"


def chance(p_value: float | None) -> str:
    """Format a p-value with three decimals.

    >>> chance(0.0312), chance(0.00001), chance(1.0)
    ('p = 0.031', 'p < 0.001', 'p = 1.000')
    """
    if p_value is None:
        return NOTHING
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def counts(report: Report | None) -> str:
    """Format the counts of a report: right, scored, failed.

    >>> counts(Report("all", 0.5, 0.3, 0.7, 10, 5, {"engine": 2}))
    '5 of 10 right, 2 failed'
    """
    if report is None:
        return NOTHING
    failed = f", {report.failure_count} failed" if report.failure_count else ""
    baseline = f"; majority class {majority(report)}" if report.majority else ""
    return f"{report.correct} of {report.count} right{failed}{baseline}"


def majority(report: Report | None) -> str:
    """Format the majority class baseline of a report.

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
    """Format a number with one decimal, its sign and a true minus character.

    >>> format_signed(-3.25), format_signed(2.0), format_signed(-0.01)
    ('−3.2', '+2.0', '0.0')
    """
    text = f"{value:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def points(change: Gain | Mean | None) -> str:
    """Format a change in points with its sign.

    >>> points(Mean(2.0, 1.0, 3.0, 5)), points(Gain(-1.5, -3.0, 0.0, 8)), points(None)
    ('+2.0', '−1.5', '–')
    """
    if change is None or not change.count:
        return NOTHING
    return format_signed(change.points if isinstance(change, Gain) else change.value)


def points_interval(change: Gain | Mean | None) -> str:
    """Format the 95 % interval of `points`. The mean of a single value has none.

    >>> points_interval(Mean(2.0, -1.0, 5.0, 5)), points_interval(Mean(2.0, 0.0, 0.0, 1))
    ('−1.0 to +5.0', 'no interval')
    """
    if change is None or not change.count:
        return NOTHING
    if isinstance(change, Mean) and change.count == 1:
        return "no interval"
    return f"{format_signed(change.low)} to {format_signed(change.high)}"


def whole(value: float) -> str:
    """Format a count with separated thousands.

    >>> whole(1234567).split()
    ['1', '234', '567']
    """
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def clock(value: float) -> str:
    """Format a duration in hours, minutes and seconds: the same unit for every row of a column.

    >>> clock(12.34), clock(139.3), clock(36_620)
    ('0:00:12', '0:02:19', '10:10:20')
    """
    minutes, rest = divmod(int(value), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def short_path(text: str) -> str:
    """Shorten absolute paths: relative to the current folder or, with a tilde, to the home folder.

    >>> short_path(f"{Path.cwd()}/data/a.jsonl"), short_path("palaestra/CoT-v0"), short_path("/far/away")
    ('data/a.jsonl', 'palaestra/CoT-v0', '/far/away')
    >>> short_path(f"script:{Path.cwd()}/a.txt")
    'script:a.txt'
    """
    for folder, name in ((Path.cwd(), ""), (Path.home(), "~/")):
        text = re.sub(rf"(^|[:= ]){re.escape(str(folder))}/", rf"\1{name}", text)
    return text


def mark_code(text: str) -> Markup:
    """Set what stands in backticks as code. Everything else is escaped.

    >>> mark_code("call `reset` & <b>")
    Markup('call <code>reset</code> &amp; &lt;b&gt;')
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def seconds(value: float) -> str:
    """Format a duration in seconds, minutes or hours.

    >>> seconds(12.34), seconds(139.3), seconds(7320)
    ('12.3 s', '2 min 19 s', '2 h 2 min')
    """
    if value < 60:
        return f"{value:.1f} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"


def dollars(value: float) -> str:
    """Format an amount in US dollars. Amounts below a cent keep two digits.

    >>> dollars(0), dollars(0.00123), dollars(12.5)
    ('$0.00', '$0.0012', '$12.50')
    """
    return describe_cost({"cost": value})


def causes(failures: dict[str, int]) -> str:
    """Format counts by name as one phrase.

    >>> causes({"engine": 2, "scorer": 1}), causes({})
    ('engine 2, scorer 1', 'none')
    """
    return ", ".join(f"{cause} {count}" for cause, count in failures.items()) or "none"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun.

    >>> plural(1, "round"), plural(3, "round")
    ('1 round', '3 rounds')
    """
    return f"{whole(count)} {noun}" + ("" if count == 1 else "s")


def shorten(text: str, characters: int) -> str:
    """Cut a text to at most `characters`. An ellipsis marks the cut.

    >>> shorten("multiplication", 8)
    'multipl…'
    """
    return text if len(text) <= characters else text[: characters - 1] + "…"


def phase_name(phase: str) -> str:
    """Describe a phase of the store or the ledger.

    >>> phase_name("2/train"), phase_name("0/test"), phase_name("load")
    ('round 2: training', 'start: test', 'load')
    """
    round_, slash, what = phase.partition("/")
    if not slash:
        return phase
    what = {"train": "training"}.get(what, what)
    return f"start: {what}" if round_ == "0" else f"round {round_}: {what}"


def plain(value: float | None, size: float = 0.0) -> str:
    """Format a number with at least three digits. A larger `size` determines the number of decimals.

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
        # A number that is rounded to 0 has no sign.
        written = written if float(written) else written.lstrip("-")
    return written.replace("-", "−")


def format_span(low: float, high: float) -> str:
    """Format an interval; both ends have the decimals of the larger one.

    >>> format_span(-0.05, 0.75)
    '−0.050 to 0.750'
    """
    size = max(abs(low), abs(high))
    return f"{plain(low, size)} to {plain(high, size)}"


def mean_span(mean: Values) -> str:
    """Format a mean with its interval. Without episodes, or with one, values are `None`.

    >>> mean_span({"value": 0.5, "low": 0.25, "high": 0.75}), mean_span({"value": 2.0, "low": None, "high": None})
    ('0.500 [0.250, 0.750]', '2.00')
    """
    value, low, high = mean["value"], mean["low"], mean["high"]
    if value is None or low is None or high is None:
        return plain(value)
    size = max(abs(low), abs(high))
    return f"{plain(value, size)} [{plain(low, size)}, {plain(high, size)}]"


def describe_unscored(part: Values) -> list[str]:
    """Describe the episodes of a rescoring that have only one of the two values."""
    lines = [f"{plural(count, 'episode')} without a new value: {reason}" for reason, count in part["unscored"].items()]
    return [f"{plural(part['new'], 'episode')} had no value and got one", *lines] if part["new"] else lines


def share(value: float | None) -> str:
    """Format a fraction from 0 to 1 in percent.

    >>> share(0.125), share(1.0)
    ('12.5 %', '100 %')
    """
    return NOTHING if value is None else f"{100 * value:.1f}".removesuffix(".0").replace("-", "−") + " %"


def tick_words(values: Sequence[float]) -> Callable[[float], str]:
    """Return the formatter of the ticks of an axis, with as many decimals as the ticks need.

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
        digits = max(0, math.floor(math.log10(max(map(abs, values)))) + decimals)
        return lambda value: f"{value:.{digits}e}".replace("-", "−") if value else "0"
    return lambda value: (whole(value) if decimals == 0 else f"{value:.{decimals}f}").replace("-", "−")
