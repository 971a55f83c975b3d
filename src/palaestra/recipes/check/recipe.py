"""`palaestra check`: whether an environment, a task or a research task can be trusted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palaestra.core.errors import SettingsError, UnknownNameError
from palaestra.core.records import Listener, ignore
from palaestra.recipes.check import contract, control, dialogue, failures, floors, leaks, problems, research, scorer  # noqa: F401  (they register checks)
from palaestra.recipes.check.records import ENV_CHECKS, LEVELS, CheckStatus, EnvCheck, SubjectReport
from palaestra.recipes.check.runner import list_applicable, run_checks
from palaestra.recipes.check.subjects import Subject, make_subject
from palaestra.recipes.check.submissions import estimate_evaluation


def check(
    source: object,
    *,
    level: int = 3,
    budget: float = 0.0,
    only: str | Sequence[str] = (),
    is_task: bool = False,
    options: Mapping[str, Any] | None = None,
    oracle: Callable[..., Any] | None = None,
    seed: int = 0,
    listener: Listener = ignore,
) -> SubjectReport:
    """Check an environment, a task or a research task.

    Arguments:
        source: the id of an environment, `file.py:Class`, a research task or its folder; also a class, an instance or a
            task object.
        level: 1 contract, 2 scorer, 3 leaks and floors, 4 learnability; each includes those below.
        budget: maximum seconds; 0 for no limit.
        only: run these check ids only, with the checks that they depend on.
        is_task: `source` is the name of a task.
        options: arguments of the environment or the task.
        oracle: returns the right answer of a problem, or of an environment after its reset: a text, or one per turn.
        seed: the first seed of the episodes.

    Example:
        >>> report = check("CartPole-v1", level=1)
        >>> str(report.verdict)
        'pass'
    """
    subject = make_subject(source, is_task=is_task, options=options, oracle=oracle, seed=seed)
    return check_subject(subject, level=level, budget=budget, only=only, listener=listener)


def check_subject(
    subject: Subject, *, level: int, budget: float, only: str | Sequence[str] = (), listener: Listener = ignore
) -> SubjectReport:
    """Check a subject that `make_subject` has made."""
    start = time.monotonic()
    results, stopped = run_checks(subject, plan_checks(subject, level, only), budget=budget, listener=listener)
    # A check of two parts does not appear as skipped for the part that the subject lacks.
    names = {result.check_id for result in results if result.status is not CheckStatus.SKIP}
    kept = [result for result in results if result.status is not CheckStatus.SKIP or result.check_id not in names]
    return SubjectReport(subject.name, level, tuple(kept), time.monotonic() - start, subject.seed, stopped)


def plan_checks(subject: Subject, level: int, only: str | Sequence[str] = ()) -> list[EnvCheck]:
    """The checks that a call runs, in order.

    Raises:
        SettingsError: there is no such level.
        UnknownNameError: `only` names no check.
    """
    if level not in LEVELS:
        raise SettingsError(f"level: expected {', '.join(map(str, LEVELS))}; got {level!r}")
    if level >= 4:
        from palaestra.recipes.check import learnability  # noqa: F401
    names = [only] if isinstance(only, str) else list(only)
    known = {check.check_id for check in ENV_CHECKS}
    for name in names:
        if name not in known:
            raise UnknownNameError("check", name, known)
    checks = list_applicable(subject, sorted((c for c in ENV_CHECKS if c.level <= level), key=lambda c: c.level))
    needed = set(names)
    for check in reversed(checks):
        if check.check_id in needed:
            needed.update(check.after)
    return [check for check in checks if not names or check.is_gate or check.check_id in needed]


def describe_plan(checks: Sequence[EnvCheck], subject: Subject) -> list[str]:
    """One line per level: its checks, and the seconds that they take for an environment with steps of 1 ms.

    The evaluations of a research task are added, with the time that one takes if this machine has measured its baseline.
    """
    lines = []
    for level, name in LEVELS.items():
        if rows := [check for check in checks if check.level == level]:
            lines.append(f"level {level}, {name}: {len(rows)} checks, up to {sum(c.seconds for c in rows):.0f} s")
            if evaluations := sum(check.evaluations for check in rows):
                seconds, is_measured = estimate_evaluation(subject)
                each = "about" if is_measured else "with a limit of"
                lines[-1] += f", and up to {evaluations} evaluations of submissions, {each} {seconds:.2g} s each"
    return lines
