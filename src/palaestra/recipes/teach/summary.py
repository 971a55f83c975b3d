"""What a `teach` run came to: accuracies, gain, lessons, failures and costs, as in its `summary.json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import PalaestraError
from palaestra.core.records import Attempt, Split
from palaestra.core.statistics import first_failures, measure_gain, report_on
from palaestra.recipes.teach.lesson_summary import name_failure, summarize_lessons
from palaestra.recipes.teach.rewards import plain_rewards, rewards_of
from palaestra.recipes.teach.skills import discovered
from palaestra.runs.records import to_data
from palaestra.runs.run import Run

if TYPE_CHECKING:
    from palaestra.recipes.teach.recipe import TeachSettings


def summarize_run(
    run: Run,
    settings: TeachSettings,
    rounds: int,
    examples: int,
    kept: int,
    weights_sha256: str,
    error: PalaestraError | None = None,
) -> dict[str, Any]:
    """The figures of a run that has ended; one that ended with an error has no accuracy after it, and no gain."""
    before = run.store.attempts(f"0/{Split.TEST}")
    after = run.store.attempts(f"{kept}/{Split.TEST}") if error is None else []
    failures: dict[str, int] = {}
    messages: dict[str, str] = {}
    for phase in run.store.phases():
        attempts = run.store.attempts(phase)
        for cause, count in report_on(attempts).failures.items():
            failures[cause] = failures.get(cause, 0) + count
        messages = first_failures(attempts) | messages
    total, discovery = run.store.total(), discovered(run)
    by_skill, rewards = {}, rewards_of(run, 0, rounds)
    for skill in sorted({*(attempt.problem.skill for attempt in before), *discovery.get("categories", ())}):
        by_skill[skill] = _figures(_of(before, skill), _of(after, skill)) | {
            "examples": sum(
                n for parts in run.store.allocation().values() for (s, _), n in parts.items() if s == skill
            ),
            "rewards": plain_rewards(rewards.get(skill, ()) if skill else ()),
        }
    return {
        "recipe": "teach",
        **({} if error is None else {"failed": name_failure(error), "error": str(error)}),
        "task": settings.task,
        "student": settings.student,
        "teacher": settings.teacher,
        "seed": settings.seed,
        **_figures(before, after),
        "rounds": rounds,
        "kept_round": kept,
        "examples": examples,
        "rewards": plain_rewards(rewards[""]),
        "failures": failures,
        "first_failures": messages,
        "seconds": round(total.seconds, 1),
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "cost": total.money,
        **summarize_lessons(run),
        **({"discovery": discovery} if discovery else {}),
        **_by_task(run, settings, before, after),
        **({"test_rounds": measured_rounds(run, Split.TEST)} if settings.test_every_round else {}),
        "weights_sha256": weights_sha256,
        "by_skill": by_skill,
    }


def _by_task(run: Run, settings: TeachSettings, before: Sequence[Attempt], after: Sequence[Attempt]) -> dict[str, Any]:
    """Test figures and validation accuracies by task, where a run has several."""
    from palaestra.tasks.group import divide_attempts

    if not settings.validation_tasks and not settings.test_tasks:
        return {}
    first, second = divide_attempts(before, settings.task), divide_attempts(after, settings.task)
    validation = divide_attempts(run.store.attempts(f"0/{Split.VALIDATION}"), settings.task)
    return {
        "test_tasks": {name: _figures(attempts, second.get(name, ())) for name, attempts in first.items()},
        "validation_tasks": {name: measured_rounds(run, Split.VALIDATION, name) for name in validation},
    }


def measured_rounds(run: Run, split: Split, task: str = "") -> list[dict[str, Any]]:
    """Accuracy with interval, counts and failures after each round that was measured; of one task only, if given."""
    from palaestra.tasks.group import divide_attempts

    rows = []
    sizes = {round_: sum(parts.values()) for round_, parts in run.store.allocation().items()}
    phases = run.store.phases()
    for round_ in sorted(int(p.split("/")[0]) for p in phases if p.endswith(f"/{split}")):
        attempts: Sequence[Attempt] = run.store.attempts(f"{round_}/{split}")
        if task:
            attempts = divide_attempts(attempts, run.settings["task"]).get(task, [])
        report, taught = report_on(attempts, split), sum(n for r, n in sizes.items() if r <= round_)
        rows.append(
            {
                "round": round_,
                "examples": taught,
                "accuracy": _points(report.accuracy),
                "low": _points(report.low),
                "high": _points(report.high),
                "problems": report.count,
                "correct": report.correct,
                "failures": dict(report.failures),
            }
        )
    return rows


def _of(attempts: Sequence[Attempt], skill: str) -> list[Attempt]:
    return [attempt for attempt in attempts if attempt.problem.skill == skill]


def _figures(before: Sequence[Attempt], after: Sequence[Attempt]) -> dict[str, Any]:
    """Before, after and gain in points, with intervals, on the same problems."""
    first, second, gain = report_on(before), report_on(after), measure_gain(before, after)

    return {
        "test_before": _points(first.accuracy),
        "test_before_low": _points(first.low),
        "test_before_high": _points(first.high),
        "test_after": _points(second.accuracy),
        "test_after_low": _points(second.low),
        "test_after_high": _points(second.high),
        "gain": round(gain.points, 2) if gain.count else None,
        "gain_low": round(gain.low, 2) if gain.count else None,
        "gain_high": round(gain.high, 2) if gain.count else None,
        "problems": gain.count,
        "majority": None if first.majority is None else to_data(first.majority),
    }


def _points(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 2)
