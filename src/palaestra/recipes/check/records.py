"""What a check returns, the registry of checks, and the report of all of them.

A check is one function and one registration. It examines one part of a subject, for example its environment or its
scorer. Its id follows OpenEnv's RFC 008 where that names the same test.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeVar

from palaestra.core.errors import PalaestraError
from palaestra.core.records import Values
from palaestra.core.tables import load_table
from palaestra.core.text import clean
from palaestra.runs.files import from_json

T = TypeVar("T", bound=Callable[[Any], "CheckFinding"])
SCHEMA_VERSION = "1"
"""Version of the JSON report, as in RFC 008."""
DEFAULT_LEVEL = 3
"""The level of a command that names none."""
LEVELS = {1: "contract", 2: "scorer", 3: "leaks and floors", 4: "learnability"}
Part = Literal["env", "answers", "problems", "research", "trial"]
"""What a check examines: the Gymnasium environment, the rewards of texts, a task's problems, a research task, or a short
run of our own learner."""


CHECK_END = ContextVar("CHECK_END", default=float("inf"))
"""The time of `time.monotonic` at which the running check is ended."""


def count_seconds_left() -> float:
    """The seconds that the running check may still take, for checks that choose how much they do."""
    return CHECK_END.get() - time.monotonic()


class CheckStatus(StrEnum):
    """The result of a check."""

    PASS = "pass"
    FAIL = "fail"
    WARN = "warn"
    """A property that is a fault in most environments, but not in all."""
    SKIP = "skip"
    """The check does not apply, or a check that it depends on has failed. The summary says which."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """What a check found.

    Arguments:
        summary: one sentence.
        evidence: what was observed, for example two differing rewards.
        measured: the numbers behind the status.
        seed: the seed of an episode that shows the fault.
        remedy: how to mend it, if the check's own remedy does not fit.
    """

    status: CheckStatus
    summary: str
    evidence: tuple[str, ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    remedy: str = ""


def report_pass(summary: str, **measured: Any) -> CheckFinding:
    return CheckFinding(CheckStatus.PASS, summary, measured=measured)


def report_fail(
    summary: str, *evidence: str, seed: int | None = None, remedy: str = "", **measured: Any
) -> CheckFinding:
    return CheckFinding(CheckStatus.FAIL, summary, evidence, measured, seed, remedy)


def report_warn(summary: str, *evidence: str, seed: int | None = None, **measured: Any) -> CheckFinding:
    return CheckFinding(CheckStatus.WARN, summary, evidence, measured, seed)


def report_skip(summary: str) -> CheckFinding:
    return CheckFinding(CheckStatus.SKIP, summary)


class CheckEndedError(PalaestraError):
    """Raised inside a check to end it with a finding, for example by a helper that plays an episode."""

    def __init__(self, finding: CheckFinding) -> None:
        super().__init__(finding.summary)
        self.finding = finding


class FaultError(CheckEndedError):
    """Ends a check as failed."""

    def __init__(self, summary: str, *evidence: str, seed: int | None = None) -> None:
        super().__init__(report_fail(summary, *evidence, seed=seed))


class InapplicableError(CheckEndedError):
    """Ends a check as skipped: it does not apply to the subject."""

    def __init__(self, summary: str) -> None:
        super().__init__(report_skip(summary))


@dataclass(frozen=True, slots=True)
class EnvCheck:
    """A registered check.

    Arguments:
        part: the part of the subject that it examines. `function` takes it, and returns a `CheckFinding`.
        remedy: how to mend what it finds.
        after: ids of checks without which this one says nothing. It is skipped if one of them failed.
        is_gate: all checks after this one are skipped if it fails.
        seconds: what it costs at most with an environment of 1 ms steps, for the plan that is printed beforehand.
        evaluations: how often it evaluates a submission of a research task at most; their time is added.
    """

    check_id: str
    part: Part
    title: str
    function: Callable[[Any], CheckFinding]
    level: int
    remedy: str
    after: Sequence[str] = ()
    seconds: float = 2.0
    is_gate: bool = False
    evaluations: int = 0


ENV_CHECKS: list[EnvCheck] = []
"""Every check, in the order in which they run."""


_ROWS: Mapping[Part, Mapping[str, Values]] = load_table(__file__, "checks")
"""The fields of each check, by part and id."""


def env_check(part: Part, check_id: str) -> Callable[[T], T]:
    """Register a check of `checks.yaml`. The first line of the function's docstring is its title."""

    def register(function: T) -> T:
        title = (function.__doc__ or check_id).strip().splitlines()[0].rstrip(".")
        ENV_CHECKS.append(EnvCheck(check_id, part, title, function, **_ROWS[part][check_id]))
        return function

    return register


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """The result of one check on one subject.

    Arguments:
        reproduction: a command that runs this check again.
        remediation: how to mend the fault; empty if it passed.
    """

    check_id: str
    level: int
    title: str
    status: CheckStatus
    summary: str
    evidence: tuple[str, ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)
    reproduction: str = ""
    remediation: str = ""
    seconds: float = 0.0

    def describe(self) -> list[str]:
        """Lines about a fault: what was found, the evidence, the command that shows it again, and the remedy."""
        lines = [*(f"evidence: {text}" for text in self.evidence), f"again: {self.reproduction}"]
        head = f"{self.status} {self.check_id}: {self.summary}"
        return [head, *(f"  {line}" for line in lines), f"  mend: {self.remediation}"]


@dataclass(frozen=True, slots=True)
class SubjectReport:
    """The report of `palaestra check`.

    Arguments:
        target: the environment, task or folder as the user named it.
        level: the highest level that ran.
        stopped: why checks are missing, for example because the budget was spent; empty otherwise.
    """

    target: str
    level: int
    results: tuple[CheckRecord, ...]
    seconds: float = 0.0
    seed: int = 0
    stopped: str = ""

    @property
    def verdict(self) -> CheckStatus:
        """The worst status. A report without a single check that passed is a warning."""
        statuses = {result.status for result in self.results}
        if CheckStatus.FAIL in statuses:
            return CheckStatus.FAIL
        return (
            CheckStatus.WARN if CheckStatus.WARN in statuses or CheckStatus.PASS not in statuses else CheckStatus.PASS
        )

    def get(self, check_id: str) -> CheckRecord:
        """Return the result of a check; raises `KeyError` if it did not run."""
        for result in self.results:
            if result.check_id == check_id:
                return result
        raise KeyError(f"no result of check '{check_id}'; there are {', '.join(r.check_id for r in self.results)}")

    def with_status(self, *statuses: str) -> list[CheckRecord]:
        """Return the results with one of these statuses."""
        return [result for result in self.results if result.status in statuses]

    def to_json(self) -> str:
        """Return the report in the layout of RFC 008."""
        data = {
            "report_schema_version": SCHEMA_VERSION,
            "target": self.target,
            "lane": "local",
            "level": self.level,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "stopped": self.stopped,
            "results": [asdict(result) for result in self.results],
            "verdict": self.verdict,
        }
        # An infinite number, which JSON does not have, becomes a text.
        plain = json.loads(json.dumps(data, default=str), parse_constant=str)
        return json.dumps(clean(plain), indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> SubjectReport:
        """Read a report that `to_json` wrote. Raises `ValueError` if it is damaged."""
        return from_json(cls, text)


def to_record(check: EnvCheck, finding: CheckFinding, command: str, seconds: float) -> CheckRecord:
    """Combine a check with what it found."""
    is_fault = finding.status in (CheckStatus.FAIL, CheckStatus.WARN)
    return CheckRecord(
        check.check_id,
        check.level,
        check.title,
        finding.status,
        finding.summary,
        tuple(text if len(text) <= 600 else f"{text[:600]}..." for text in finding.evidence),
        dict(finding.measured),
        write_reproduction(command, check, finding.seed) if is_fault else "",
        (finding.remedy or check.remedy) if is_fault else "",
        seconds,
    )


def write_reproduction(command: str, check: EnvCheck, seed: int | None) -> str:
    """Narrow a command, or a call in Python, to one check and the seed that shows the fault."""
    values = {"level": check.level if check.level > DEFAULT_LEVEL else None, "only": check.check_id, "seed": seed}
    given = {name: value for name, value in values.items() if value is not None}
    if command.startswith("palaestra.check("):
        return f"{command[:-1]}, {', '.join(f'{name}={value!r}' for name, value in given.items())})"
    return command + "".join(f" --{name} {value}" for name, value in given.items())
