"""The `summary.json` of a `teach` run: accuracies, gain, rewards, lessons, failures and costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from palaestra.core.errors import EngineError, PalaestraError, WriterError
from palaestra.core.records import Attempt, Split
from palaestra.core.statistics import Gain, first_failures, measure_changes, measure_gain, report_on
from palaestra.recipes.summary import summarize_gain, to_percent
from palaestra.recipes.teach.lessons import LESSON, VERIFICATION, Delivery, add_up, describe_counts
from palaestra.recipes.teach.settings import TASK_WRITER, TeachSettings
from palaestra.recipes.teach.skills import DISCOVERY, summarize_discovery
from palaestra.runs.ledger import describe_cost
from palaestra.runs.run import Run

CALLING = (LESSON, VERIFICATION, DISCOVERY)
"""Suffixes of the phases whose model calls may cost money."""
MODELS = ("writer", "planner", "discover", "verifier")
"""Settings that name a model whose calls may cost money."""


def summarize_run(
    run: Run,
    settings: TeachSettings,
    rounds: int,
    examples: int,
    kept: int,
    weights_sha256: str,
    error: PalaestraError | None = None,
) -> dict[str, Any]:
    """Summarize a finished run. A run that ended with an error has `null` for the accuracy after it and the gain.

    Arguments:
        kept: the round whose student is kept.
        weights_sha256: the hash of its weights.
    """
    before = run.store.attempts(f"0/{Split.TEST}")
    after = run.store.attempts(f"{kept}/{Split.TEST}") if error is None else []
    failures: dict[str, int] = {}
    messages: dict[str, str] = {}
    for phase in run.store.phases():
        attempts = run.store.attempts(phase)
        for cause, count in report_on(attempts).failures.items():
            failures[cause] = failures.get(cause, 0) + count
        messages = first_failures(attempts) | messages
    total, discovery = run.store.total(), summarize_discovery(run)
    by_skill, rewards = {}, measure_rewards(run, 0, rounds)
    changes = {change.skill: change for change in measure_changes(before, after)}
    for skill in sorted({*(attempt.problem.skill for attempt in before), *discovery.get("categories", ())}):
        change = changes.get(skill)
        by_skill[skill] = summarize_gain(_select(before, skill), _select(after, skill)) | {
            "p_value": None if change is None else change.p_value,
            "adjusted": None if change is None else change.adjusted,
            "examples": sum(
                n for parts in run.store.allocation().values() for (s, _), n in parts.items() if s == skill
            ),
            "rewards": _list_rewards(rewards.get(skill, ()) if skill else ()),
        }
    return {
        "recipe": "teach",
        **({} if error is None else {"failed": _name_failure(error), "error": str(error)}),
        "task": settings.task,
        "student": settings.student,
        "teacher": settings.teacher,
        "seed": settings.seed,
        **summarize_gain(before, after),
        "fell": [change.skill for change in changes.values() if change.fell],
        "rounds": rounds,
        "kept_round": kept,
        "examples": examples,
        "rewards": _list_rewards(rewards[""]),
        "failures": failures,
        "first_failures": messages,
        "seconds": round(total.seconds, 1),
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "cost": total.money,
        **_summarize_lessons(run),
        **({"discovery": discovery} if discovery else {}),
        **_summarize_tasks(run, settings, before, after),
        **({"test_rounds": _list_rounds(run, Split.TEST)} if settings.test_every_round else {}),
        "weights_sha256": weights_sha256,
        "by_skill": by_skill,
    }


def _select(attempts: Sequence[Attempt], skill: str) -> list[Attempt]:
    return [attempt for attempt in attempts if attempt.problem.skill == skill]


def _name_failure(error: PalaestraError) -> str:
    """Why a run has no gain. The text is the same for all errors of a kind, so that runs can be counted by it."""
    return "the writer failed" if isinstance(error, WriterError | EngineError) else "the lesson could not be taught"


def _summarize_tasks(
    run: Run, settings: TeachSettings, before: Sequence[Attempt], after: Sequence[Attempt]
) -> dict[str, Any]:
    """Test results and validation accuracies by task, for a run with several tasks."""
    from palaestra.tasks.group import divide_attempts

    if not settings.validation_tasks and not settings.test_tasks:
        return {}
    first, second = divide_attempts(before, settings.task), divide_attempts(after, settings.task)
    validation = divide_attempts(run.store.attempts(f"0/{Split.VALIDATION}"), settings.task)
    return {
        "test_tasks": {name: summarize_gain(attempts, second.get(name, ())) for name, attempts in first.items()},
        "validation_tasks": {name: _list_rounds(run, Split.VALIDATION, name) for name in validation},
    }


def _list_rounds(run: Run, split: Split, task: str = "") -> list[dict[str, Any]]:
    """Accuracy with interval, counts and failures after each evaluated round, optionally of one task only."""
    from palaestra.tasks.group import divide_attempts

    rows = []
    sizes = {round_: sum(parts.values()) for round_, parts in run.store.allocation().items()}
    phases = run.store.phases()
    for round_ in sorted(int(p.split("/")[0]) for p in phases if p.endswith(f"/{split}")):
        attempts: Sequence[Attempt] = run.store.attempts(f"{round_}/{split}")
        if task:
            attempts = divide_attempts(attempts, run.settings["task"]).get(task, [])
        report = report_on(attempts, split)
        rows.append(
            {
                "round": round_,
                "examples": sum(n for r, n in sizes.items() if r <= round_),
                "accuracy": to_percent(report.accuracy),
                "low": to_percent(report.low),
                "high": to_percent(report.high),
                "problems": report.count,
                "correct": report.correct,
                "failures": dict(report.failures),
            }
        )
    return rows


# Rewards


def store_rewards(run: Run, round_: int) -> None:
    """Add the rewards of a finished round to the metrics of the store: `reward`, and `reward/SKILL` for each skill.

    Each is the change of validation accuracy, from -1 to 1. `_low`, `_high` and `_count` are its interval and the number of
    problems that were scored both times. Without such problems nothing is stored.
    """
    if round_ in run.store.metrics():
        return
    metrics: dict[str, float] = {}
    for skill, (gain,) in measure_rewards(run, round_ - 1, round_).items():
        name = f"reward/{skill}" if skill else "reward"
        if gain.count:
            metrics |= {
                name: gain.points / 100, f"{name}_low": gain.low / 100, f"{name}_high": gain.high / 100,
                f"{name}_count": gain.count,
            }  # fmt: skip
    run.store.add_metrics(round_, metrics)


def measure_rewards(run: Run, first: int, last: int) -> dict[str, tuple[Gain, ...]]:
    """The gain on validation problems of each round after `first`, in points, by skill; `""` is all problems."""
    from palaestra.teachers.tree.records import skill_rewards

    rounds = [run.store.attempts(f"{round_}/{Split.VALIDATION}") for round_ in range(first, last + 1)]
    whole = tuple(measure_gain(before, after) for before, after in pairwise(rounds))
    return skill_rewards(rounds) | {"": whole}


def _list_rewards(gains: tuple[Gain, ...]) -> list[dict[str, Any]]:
    """Rewards in points; `null` if no problem was scored both times."""
    return [
        {
            "round": round_,
            "points": round(gain.points, 2) if gain.count else None,
            "low": round(gain.low, 2) if gain.count else None,
            "high": round(gain.high, 2) if gain.count else None,
            "problems": gain.count,
        }
        for round_, gain in enumerate(gains, 1)
    ]


# Lessons


def _summarize_lessons(run: Run) -> dict[str, Any]:
    """Count the ordered, delivered and lost examples by cause, and list the models without a known price."""
    total, calls = add_up(list(run.store.deliveries(Delivery).values())), count_calls(run)
    return {
        "ordered": total.ordered,
        "delivered": total.delivered,
        "dropped": dict(total.dropped),
        "withheld": total.withheld,
        "writer_failures": dict(total.failures),
        "ordered_again": total.asked_again,
        "verification": summarize_verification(total),
        "skills_written": dict(total.skills),
        "calls": calls,
        "unmeasured_calls": total.unmeasured,
        "unpriced": list_unpriced(run.settings) if calls else [],
    }


def summarize_verification(delivery: Delivery) -> dict[str, Any]:
    """The taught examples by how their answers were verified, and the estimated error rate of the others in percent."""
    rate = delivery.error_rate if delivery.unverified else None
    return {
        "verified": dict(delivery.verified),
        "unverified": delivery.unverified,
        "examined": delivery.examined,
        "wrong": delivery.wrong,
        "error_rate": None if rate is None else to_percent(rate.value),
        "error_rate_low": None if rate is None else to_percent(rate.low),
        "error_rate_high": None if rate is None else to_percent(rate.high),
    }


def count_calls(run: Run) -> int:
    """Count the calls of writer, planner and discovery. The student's own answers do not count."""
    return sum(cost.calls for phase, cost in run.store.costs().items() if phase.endswith(CALLING))


def list_unpriced(settings: Mapping[str, Any]) -> list[str]:
    """List the remote models of a run without a known price."""
    from palaestra.engines.base import is_remote
    from palaestra.engines.budget import Prices

    names = {str(settings.get(name) or "") for name in MODELS} - {"", TASK_WRITER}
    remote = sorted(name for name in names if is_remote(name))
    prices = Prices.load() if remote else None
    return [name for name in remote if prices is not None and prices.find(name) is None]


def describe_verification(summary: Mapping[str, Any]) -> Iterator[str]:
    """Describe how the answers and skills of the taught examples were verified, and the errors to expect in the others."""
    verification = summary["verification"]
    methods = describe_counts(verification["verified"]) or "none"
    rest = ""
    if verification["unverified"]:
        rest = f"; not verified: {verification['unverified']}, estimated error rate "
        rest += (
            f"{verification['error_rate']:.1f} % [{verification['error_rate_low']:.1f}, {verification['error_rate_high']:.1f}] (wrong "
            f"answers among the {verification['examined']} examined)"
            if verification["error_rate"] is not None
            else "unknown (no answer of this writer was examined; see --verify)"
        )
    yield f"verified answers: {methods}{rest}"
    if summary["skills_written"]:
        yield f"skills of written examples: {describe_counts(summary['skills_written'])}"


def describe_changes(summary: Mapping[str, Any]) -> str:
    """Name the skills that fell beyond chance, or the lower ones that did not; empty without a gain."""
    rows = {skill: row for skill, row in summary["by_skill"].items() if row.get("adjusted") is not None}
    if not rows:
        return ""
    if summary["fell"]:
        names = (
            f"{skill or 'no skill'} {rows[skill]['gain']:+.1f} [{rows[skill]['gain_low']:+.1f}, "
            f"{rows[skill]['gain_high']:+.1f}]"
            for skill in summary["fell"]
        )
        return f"fell: {', '.join(names)} points (exact test, corrected for {len(rows)} skills)"
    lower = sorted((row["gain"], skill) for skill, row in rows.items() if row["gain"] < 0)
    names = (f"{skill or 'no skill'} {gain:+.1f}" for gain, skill in lower)
    rest = f"; lower, within chance: {', '.join(names)}" if lower else ""
    return f"fell: no skill beyond chance (exact test, corrected for {len(rows)} skills){rest}"


def describe_lessons(summary: Mapping[str, Any]) -> Iterator[str]:
    """Describe the lessons of a summary, one line per fact. The last line is the cost of the calls."""
    ordered, delivered = summary["ordered"], summary["delivered"]
    short = f", {ordered - delivered} fewer than were ordered" if delivered < ordered else ""
    again = (
        f"; missing examples were ordered again {summary['ordered_again']} times" if summary["ordered_again"] else ""
    )
    yield f"examples: {ordered} ordered, {delivered} delivered{short}{again}"
    if summary["dropped"]:
        yield f"dropped by checks: {describe_counts(summary['dropped'])}"
    if summary["withheld"]:
        yield f"withheld because a check failed to run: {summary['withheld']}"
    yield from describe_verification(summary)
    if summary["writer_failures"]:
        yield f"writer failures: {describe_counts(summary['writer_failures'])}"
    if summary["calls"]:
        yield f"calls: {summary['calls']}, {describe_cost(summary)}"
