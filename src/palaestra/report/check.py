"""The report of `palaestra check` as a page, a badge or JSON."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from palaestra.core.errors import RunError
from palaestra.core.records import Json
from palaestra.recipes.check.records import LEVELS, CheckRecord, CheckStatus, SubjectReport
from palaestra.report.svg import element, text
from palaestra.runs.files import read_text

_COLORS = {
    CheckStatus.PASS: ("#2f7d32", "#fff"),
    CheckStatus.FAIL: ("#c0342b", "#fff"),
    CheckStatus.WARN: ("#e5b32a", "#1a1d21"),
}
"""The background and the text of a badge."""
_NARROW, _WIDE = frozenset(" ,.:;'|()[]!-/fijlrt"), frozenset("mwMW%@")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]")
"""Characters that XML does not allow, and line ends."""


def read_check_report(path: Path) -> SubjectReport:
    """Read the JSON of a report from a file.

    Raises:
        RunError: the file is damaged, or is something else.
    """
    try:
        return SubjectReport.from_json(read_text(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        text = f"{path} is not a report of `palaestra check`: {where and f'{where}: '}{first['msg'].lower()}"
        raise RunError(text) from error


def check_page(report: SubjectReport) -> Json:
    """Show the results of a check: faults first, then every level, then what did not run."""
    rows = [_make_row(number, result) for number, result in enumerate(report.results)]
    by_status = {status: [row for row in rows if row["result"].status is status] for status in CheckStatus}
    levels = []
    ran = [row for row in rows if row not in by_status[CheckStatus.SKIP]]
    for number in sorted({row["result"].level for row in ran}):
        own = [row for row in ran if row["result"].level == number]
        seconds = sum(row["result"].seconds for row in own)
        levels.append({"number": number, "title": LEVELS.get(number, ""), "rows": own, "seconds": seconds})
    return {
        "report": report,
        "faults": by_status[CheckStatus.FAIL] + by_status[CheckStatus.WARN],
        "counts": {status: len(group) for status, group in by_status.items()},
        "ran": len(ran),
        "levels": levels,
        "missing": _list_missing(report),
    }


def _list_missing(report: SubjectReport) -> dict[str, list[str]]:
    """The reasons why checks did not run, each with the checks or levels."""
    reasons: dict[str, list[str]] = {report.stopped: ["the rest"]} if report.stopped else {}
    for result in report.with_status(CheckStatus.SKIP):
        reasons.setdefault(result.summary, []).append(result.check_id)
    for number, name in LEVELS.items():
        if number > report.level:
            reasons[f"not asked for: --level {number}"] = [f"level {number}, {name}"]
    return reasons


def _make_row(number: int, result: CheckRecord) -> Json:
    measured = [
        (name.replace("_", " "), _format(value)) for name, value in result.measured.items() if value is not None
    ]
    is_fault = result.status in (CheckStatus.FAIL, CheckStatus.WARN)
    return {"id": f"check-{number}", "result": result, "measured": measured, "is_fault": is_fault}


def _format(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def describe_verdict(report: SubjectReport) -> str:
    """The words of the badge.

    >>> describe_verdict(SubjectReport("MyEnv-v0", 3, ()))
    'level 3, no check ran'
    """
    counts = {status: len(report.with_status(status)) for status in CheckStatus}
    ran = len(report.results) - counts[CheckStatus.SKIP]
    checks = f"{ran} check{'s' if ran != 1 else ''}"
    if counts[CheckStatus.FAIL]:
        return f"level {report.level} failed, {counts[CheckStatus.FAIL]} of {checks}"
    if not ran:
        return f"level {report.level}, no check ran"
    if report.stopped:
        return f"level {report.level} not finished, {checks}"
    if counts[CheckStatus.WARN]:
        return f"level {report.level}, {counts[CheckStatus.WARN]} of {checks} warned"
    return f"level {report.level} passed, {checks}"


def draw_badge(report: SubjectReport) -> str:
    """Draw the verdict as an SVG badge. It is yellow if a check warned, or the budget ended the checks."""
    verdict = CheckStatus.WARN if report.stopped and report.verdict is CheckStatus.PASS else report.verdict
    name, words = "palaestra check", describe_verdict(report)
    left, right = (round(_measure(part)) + 12 for part in (name, words))
    background, color = _COLORS[verdict]
    parts = [
        element("title", _CONTROL.sub("\N{REPLACEMENT CHARACTER}", f"{name} {report.target}: {words}")),
        element("rect", width=left + right, height=20, rx=3, fill="#4a4f57"),
        element("path", d=f"M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3H{left}z", fill=background),
        # The text has its width in every font.
        *(
            text(start + 6, 14, part, fill=fill, textLength=width - 12, lengthAdjust="spacingAndGlyphs")
            for start, width, part, fill in ((0, left, name, "#fff"), (left, right, words, color))
        ),
    ]
    return element(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg", width=left + right, height=20, role="img",
        font_family="Verdana, DejaVu Sans, Geneva, sans-serif", font_size=11,
    )  # fmt: skip


def _measure(words: str) -> float:
    """The width of a text in DejaVu Sans at 11 pixels, about."""
    return sum(3.6 if letter in _NARROW else 10.0 if letter in _WIDE else 6.7 for letter in words)
