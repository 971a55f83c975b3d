"""The `summary.json` of a `teach` run: accuracies, gain, rewards, lessons, failures and costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise

from palaestra.core.errors import EngineError, PalaestraError, WriterError
from palaestra.core.records import Attempt, FailureCause, Json, Split, Values
from palaestra.core.statistics import (
    Gain,
    Mean,
    first_failures,
    measure_changes,
    measure_gain,
    rate_interval,
    report_on,
)
from palaestra.engines.base import is_remote
from palaestra.engines.budget import Prices
from palaestra.envs.lesson.env import REHEARSAL
from palaestra.recipes.runs import summarize_gain, to_percent
from palaestra.recipes.teach.settings import TASK_WRITER, TeachSettings
from palaestra.recipes.teach.skills import DISCOVERY, summarize_discovery
from palaestra.runs.provenance import describe_cost
from palaestra.runs.run import Run
from palaestra.tasks.group import divide_attempts
from palaestra.teachers.tree.records import skill_rewards

LESSON, VERIFICATION = "/lesson", "/verification"
"""Suffixes of the phases of a round's calls in the ledger."""
CALLING = (LESSON, VERIFICATION, DISCOVERY)
"""Suffixes of the phases whose model calls may cost money."""
MODELS = ("writer", "planner", "discover", "verifier")
"""Settings that name a model whose calls may cost money."""
PERMANENT = {FailureCause.CONTEXT_LENGTH, FailureCause.REFUSED, FailureCause.MALFORMED}
"""Failures that recur if the same request is sent again. All others are transient."""


def summarize_run(
    run: Run,
    settings: TeachSettings,
    rounds: int,
    examples: int,
    kept: int,
    weights_sha256: str,
    error: PalaestraError | None = None,
) -> Json:
    """Summarize a finished run. A run that ended with an error has `null` for the accuracy after it and the gain.

    Arguments:
        kept: the round whose student is kept.
        weights_sha256: the hash of its weights.
    """
    before = run.store.attempts(f"0/{Split.TEST}")
    after = run.store.attempts(f"{kept}/{Split.TEST}") if error is None else []
    failures: Counter[str] = Counter()
    messages: dict[str, str] = {}
    for phase in run.store.phases():
        attempts = run.store.attempts(phase)
        failures.update(report_on(attempts).failures)
        messages = first_failures(attempts) | messages
    total, discovery = run.store.total(), summarize_discovery(run)
    lessons, calls = add_up(list(run.store.deliveries(Delivery).values())), count_calls(run)
    by_skill, rewards, taught = {}, measure_rewards(run, 0, rounds), Counter[str]()
    for parts in run.store.allocation().values():
        for (skill, _), count in parts.items():
            taught[skill] += count
    rehearsed = Counter(a.problem.skill for a in run.store.outcomes(REHEARSAL) if a.correct)
    changes = {change.skill: change for change in measure_changes(before, after)}
    for skill in sorted({*(attempt.problem.skill for attempt in before), *discovery.get("categories", ())}):
        first, last = ([a for a in attempts if a.problem.skill == skill] for attempts in (before, after))
        by_skill[skill] = {
            **summarize_gain(first, last),
            **{name: getattr(changes.get(skill), name, None) for name in ("p_value", "adjusted")},
            "examples": taught[skill],
            "rehearsed": rehearsed[skill],
            "rewards": _list_rewards(rewards.get(skill, ()) if skill else ()),
        }
    # The text is the same for all errors of a kind, so that runs can be counted by it.
    cause = "the writer failed" if isinstance(error, WriterError | EngineError) else "the lesson could not be taught"
    return {
        "recipe": "teach",
        **({} if error is None else {"failed": cause, "error": str(error)}),
        "task": settings.task,
        "student": settings.student,
        "teacher": settings.teacher,
        "seed": settings.seed,
        **summarize_gain(before, after),
        "fell": [change.skill for change in changes.values() if change.fell],
        "rounds": rounds,
        "kept_round": kept,
        "examples": examples,
        "rehearsed": rehearsed.total(),
        "rewards": _list_rewards(rewards[""]),
        "failures": dict(failures),
        "first_failures": messages,
        "seconds": round(total.seconds, 1),
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "cost": total.money,
        **summarize_delivery(lessons),
        "calls": calls,
        "unmeasured_calls": lessons.unmeasured,
        "unpriced": list_unpriced(run.settings) if calls else [],
        **({"discovery": discovery} if discovery else {}),
        **_summarize_tasks(run, settings, before, after),
        **({"test_rounds": _list_rounds(run, Split.TEST)} if settings.test_every_round else {}),
        "weights_sha256": weights_sha256,
        "by_skill": by_skill,
    }


def _summarize_tasks(run: Run, settings: TeachSettings, before: Sequence[Attempt], after: Sequence[Attempt]) -> Json:
    """Test results and validation accuracies by task, for a run with several tasks."""
    if not settings.validation_tasks and not settings.test_tasks:
        return {}
    first, second = divide_attempts(before, settings.task), divide_attempts(after, settings.task)
    validation = divide_attempts(run.store.attempts(f"0/{Split.VALIDATION}"), settings.task)
    return {
        "test_tasks": {name: summarize_gain(attempts, second.get(name, ())) for name, attempts in first.items()},
        "validation_tasks": {name: _list_rounds(run, Split.VALIDATION, name) for name in validation},
    }


def _list_rounds(run: Run, split: Split, task: str = "") -> list[Json]:
    """Accuracy with interval, counts and failures after each evaluated round, optionally of one task only."""
    rows = []
    sizes = {round_: sum(parts.values()) for round_, parts in run.store.allocation().items()}
    for round_ in sorted(int(p.split("/")[0]) for p in run.store.phases() if p.endswith(f"/{split}")):
        attempts: Sequence[Attempt] = run.store.attempts(f"{round_}/{split}")
        if task:
            attempts = divide_attempts(attempts, run.settings["task"]).get(task, [])
        report = report_on(attempts, split)
        row: Json = {"round": round_, "examples": sum(n for r, n in sizes.items() if r <= round_)}
        row |= {name: to_percent(getattr(report, name)) for name in ("accuracy", "low", "high")}
        rows.append(row | {"problems": report.count, "correct": report.correct, "failures": dict(report.failures)})
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
            metrics |= {name: gain.points / 100, f"{name}_low": gain.low / 100, f"{name}_high": gain.high / 100}
            metrics[f"{name}_count"] = gain.count
    run.store.add_metrics(round_, metrics)


def measure_rewards(run: Run, first: int, last: int) -> dict[str, tuple[Gain, ...]]:
    """The gain on validation problems of each round after `first`, in points, by skill; `""` is all problems."""
    rounds = [run.store.attempts(f"{round_}/{Split.VALIDATION}") for round_ in range(first, last + 1)]
    whole = tuple(measure_gain(before, after) for before, after in pairwise(rounds))
    return skill_rewards(rounds) | {"": whole}


def _list_rewards(gains: tuple[Gain, ...]) -> list[Json]:
    """Rewards in points; `null` if no problem was scored both times."""
    rows = []
    for round_, gain in enumerate(gains, 1):
        values = {"points": gain.points, "low": gain.low, "high": gain.high}
        rounded = {name: round(value, 2) if gain.count else None for name, value in values.items()}
        rows.append({"round": round_, **rounded, "problems": gain.count})
    return rows


# Lessons


def count_calls(run: Run) -> int:
    """Count the calls of writer, planner and discovery. The student's own answers do not count."""
    return sum(cost.calls for phase, cost in run.store.costs().items() if phase.endswith(CALLING))


def list_unpriced(settings: Values) -> list[str]:
    """List the remote models of a run without a known price."""
    names = {str(settings.get(name) or "") for name in MODELS} - {"", TASK_WRITER}
    return [name for name in sorted(names) if is_remote(name) and Prices.load().find(name) is None]


def describe_changes(summary: Values) -> str:
    """Name the skills that fell beyond chance, or the lower ones that did not; empty without a gain."""
    rows = {skill: row for skill, row in summary["by_skill"].items() if row.get("adjusted") is not None}
    if not rows:
        return ""
    test = f"(exact test, corrected for {len(rows)} skills)"
    if summary["fell"]:
        interval = "{gain:+.1f} [{gain_low:+.1f}, {gain_high:+.1f}]"
        names = (f"{skill or 'no skill'} {interval.format(**rows[skill])}" for skill in summary["fell"])
        return f"fell: {', '.join(names)} points {test}"
    lower = sorted((row["gain"], skill) for skill, row in rows.items() if row["gain"] < 0)
    names = (f"{skill or 'no skill'} {gain:+.1f}" for gain, skill in lower)
    rest = f"; lower, within chance: {', '.join(names)}" if lower else ""
    return f"fell: no skill beyond chance {test}{rest}"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The outcome of one lesson's order.

    Arguments:
        ordered: examples that the teacher was asked for.
        delivered: examples that were taught: written, and not dropped by a check.
        dropped: examples that a check dropped, counted by check and reason.
        withheld: examples on which a check failed.
        failures: failed calls of the writer and unusable data, counted by cause.
        messages: the first message of each cause.
        asked_again: how often missing examples were ordered again.
        unmeasured: calls without a token count. They are not part of the cost.
        verified: delivered examples whose answer was verified, counted by method.
        examined: written examples whose answer was verified or found to be wrong.
        wrong: those of them with a wrong answer. They are dropped.
        skills: results of the check `skill`, counted: as ordered, one skill instead of another, or not recognized.
    """

    ordered: int = 0
    delivered: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    withheld: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    messages: Mapping[str, str] = field(default_factory=dict)
    asked_again: int = 0
    unmeasured: int = 0
    verified: Mapping[str, int] = field(default_factory=dict)
    examined: int = 0
    wrong: int = 0
    skills: Mapping[str, int] = field(default_factory=dict)

    @property
    def unverified(self) -> int:
        """The number of delivered examples whose answer was not verified."""
        return self.delivered - sum(self.verified.values())

    @property
    def error_rate(self) -> Mean | None:
        """An estimate of the fraction of wrong answers among the unverified examples, with its 95 % interval.

        It is the fraction among the examined examples of the same writer; `None` if none were examined.
        """
        return rate_interval([1.0] * self.wrong + [0.0] * (self.examined - self.wrong)) if self.examined else None

    @property
    def is_transient(self) -> bool:
        """Whether some failures are transient, so that resuming the run later may help."""
        return any(FailureCause(cause) not in PERMANENT for cause in self.failures)

    def explain(self) -> str:
        """Explain in one line why examples are missing; empty if there is no known cause."""
        parts = list(_describe_losses(self.dropped, self.withheld))
        if self.failures:
            first = next(iter(self.messages.values()), "")
            first = f" (first failure: {first})" if first else ""
            parts.insert(0, f"writer failures: {describe_counts(self.failures)}{first}")
        return " ".join("; ".join(parts).split())


def add_up(deliveries: Sequence[Delivery]) -> Delivery:
    """Add up the counts of several deliveries."""
    sums: Json = {}
    for name in (f.name for f in fields(Delivery)):
        values = [getattr(delivery, name) for delivery in deliveries]
        if name == "messages":
            sums[name] = {cause: text for messages in reversed(values) for cause, text in messages.items()}
        elif name in ("dropped", "failures", "verified", "skills"):
            sums[name] = dict(sorted(sum(map(Counter, values), Counter[str]()).items()))
        else:
            sums[name] = sum(values)
    return Delivery(**sums)


def describe_counts(counts: Mapping[str, int]) -> str:
    """Describe counts by name in one line.

    >>> describe_counts({"malformed": 2, "refused": 1})
    'malformed 2, refused 1'
    """
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _describe_losses(dropped: Mapping[str, int], withheld: int) -> Iterator[str]:
    if dropped:
        yield f"dropped by checks: {describe_counts(dropped)}"
    if withheld:
        yield f"withheld because a check failed to run: {withheld}"


def summarize_delivery(delivery: Delivery) -> Json:
    """The part of a `summary.json` about a delivery; `Delivery` is read back by `read_delivery`."""
    rate = delivery.error_rate if delivery.unverified else None
    ends = {"": "value", "_low": "low", "_high": "high"}
    return {
        "ordered": delivery.ordered,
        "delivered": delivery.delivered,
        "dropped": dict(delivery.dropped),
        "withheld": delivery.withheld,
        "writer_failures": dict(delivery.failures),
        "ordered_again": delivery.asked_again,
        "verification": {
            "verified": dict(delivery.verified),
            "unverified": delivery.unverified,
            "examined": delivery.examined,
            "wrong": delivery.wrong,
            **{f"error_rate{end}": to_percent(getattr(rate, name, None)) for end, name in ends.items()},
        },
        "skills_written": dict(delivery.skills),
    }


def read_delivery(summary: Values) -> Delivery:
    """Read the delivery of a summary. Summaries of earlier versions have no verification."""
    verification = summary.get("verification", {})
    return Delivery(
        **{name: summary[name] for name in ("ordered", "delivered", "dropped", "withheld")},
        failures=summary["writer_failures"],
        asked_again=summary["ordered_again"],
        skills=summary.get("skills_written", {}),
        **{name: verification[name] for name in ("verified", "examined", "wrong") if name in verification},
    )


def describe_lessons(summary: Values) -> Iterator[str]:
    """Describe the lessons of a summary, one line per fact. The last line is the cost of the calls."""
    ordered, delivered, again = summary["ordered"], summary["delivered"], summary["ordered_again"]
    short = f", {ordered - delivered} fewer than were ordered" if delivered < ordered else ""
    more = f"; missing examples were ordered again {again} times" if again else ""
    yield f"examples: {ordered} ordered, {delivered} delivered{short}{more}"
    yield from _describe_losses(summary["dropped"], summary["withheld"])
    yield _describe_verification(summary["verification"])
    if summary["skills_written"]:
        yield f"skills of written examples: {describe_counts(summary['skills_written'])}"
    if summary["writer_failures"]:
        yield f"writer failures: {describe_counts(summary['writer_failures'])}"
    if summary["calls"]:
        yield f"calls: {summary['calls']}, {describe_cost(summary)}"


def _describe_verification(verification: Values) -> str:
    """Describe how the answers of the taught examples were verified, and the errors to expect in the others."""
    methods = f"verified answers: {describe_counts(verification['verified']) or 'none'}"
    if not verification["unverified"]:
        return methods
    estimate = "unknown (no answer of this writer was examined; see --verify)"
    if verification["error_rate"] is not None:
        rate, low, high = (verification[f"error_rate{end}"] for end in ("", "_low", "_high"))
        examined = f"(wrong answers among the {verification['examined']} examined)"
        estimate = f"{rate:.1f} % [{low:.1f}, {high:.1f}] {examined}"
    return f"{methods}; not verified: {verification['unverified']}, estimated error rate {estimate}"
