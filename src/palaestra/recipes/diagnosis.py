"""Find what went wrong in a run: the known diseases of training, each with its number, threshold and remedy.

`palaestra diagnose RUN` prints the findings. They are also warnings on the run's page and at the end of training.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean

from palaestra.core.records import Json, Score, Split
from palaestra.core.registry import load_reference
from palaestra.core.tables import load_table
from palaestra.runs.run import Run

_LAST = 0.3
"""The fraction of the iterations at the end of a run that a finding is about."""
_MAX_KL = 0.5
"""Nats per action that an update may move the policy by."""
_MIN_ITERATIONS = 3
"""Fewer iterations show no trend."""
_SETTINGS = {name: f"palaestra.recipes.{name}.settings:{name.title()}Settings" for name in ("train", "teach")}
"""The settings by recipe. A page of one recipe does not load the other."""
_OPTION = re.compile(r"--([a-z-]+)")


@dataclass(frozen=True, slots=True)
class Disease:
    """A known way in which a run does not learn; `docs/diagnose.md` lists all of them.

    Arguments:
        symptom: what a user sees in the report or the metrics.
        threshold: what the number that shows it is compared with.
        meaning: what follows from it.
        advice: what to try, most of it options as `--name`.
    """

    symptom: str
    threshold: str
    meaning: str
    advice: Sequence[str]


DISEASES = {name: Disease(**row) for name, row in load_table(__file__, "diseases").items()}
"""The diseases by name."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Something in a run that keeps it from learning, or its result from being clear.

    Arguments:
        name: the disease, a word for tables and tests.
        measured: the number that shows it, in a sentence.
        threshold: what the number is compared with.
        meaning: what follows from it.
        advice: what to try, most of it options as `--name`.
    """

    name: str
    measured: str
    threshold: str
    meaning: str
    advice: Sequence[str]

    def __str__(self) -> str:
        *others, last = self.advice
        advice = f"{', '.join(others)} or {last}" if others else last
        return f"{self.name.replace('_', ' ')}: {self.measured} ({self.threshold}). {self.meaning} Try {advice}."


def _find(name: str, measured: str, *advice: str) -> Diagnosis:
    """Describe a disease that a run has. `advice` replaces that of the disease by one with the values of the run."""
    disease = DISEASES[name]
    return Diagnosis(name, measured, disease.threshold, disease.meaning, advice or disease.advice)


def diagnose(run: Run) -> list[Diagnosis]:
    """Find the diseases of a run of `train` or `teach`, finished or not."""
    if run.recipe not in ("train", "teach"):
        return []
    summary = run.summary or {}
    findings = [*_check_gain(run.settings, summary), *_check_answers(run)]
    if run.recipe == "train":
        curves = Curves({i: row for i, row in run.store.metrics().items() if i > 0})
        for check in _TRAIN_CHECKS:
            findings += check(curves, run.settings, summary)
    options = _list_options(run)
    return [
        replace(finding, advice=tuple(text for text in finding.advice if options.issuperset(_OPTION.findall(text))))
        for finding in findings
    ]


def _list_options(run: Run) -> set[str]:
    """The options that have an effect on a run."""
    settings = run.settings
    names = {
        f.name.replace("_kwargs", "_option")
        for f in fields(load_reference(_SETTINGS[run.recipe]))
        if not f.metadata.get("policies") or settings.get("policy") in f.metadata["policies"]
    }
    if run.recipe == "teach":
        names -= {"epochs", "learning_rate"} if settings.get("learning") == "practice" else {"student_option"}
    return {name.replace("_", "-") for name in (*names, *settings.get("hyperparameters", ()))}


class Curves:
    """The metrics of the iterations of a run, by name."""

    def __init__(self, table: Mapping[int, Mapping[str, float]]) -> None:
        self.table = dict(sorted(table.items()))

    def get(self, name: str) -> list[float]:
        return [row[name] for row in self.table.values() if name in row and not math.isnan(row[name])]

    def first(self, name: str) -> float:
        """The mean over the first iterations; NaN without values."""
        values = self.get(name)
        return fmean(values[: max(1, round(_LAST * len(values)))]) if values else math.nan

    def last(self, name: str) -> float:
        """The mean over the last iterations; NaN without values."""
        values = self.get(name)
        return fmean(values[-max(1, round(_LAST * len(values))) :]) if values else math.nan

    def rise(self, name: str = "reward") -> float:
        """How far a mean rose between the first and the last iterations, in standard errors of the difference."""
        values = self.get(name)
        part = max(2, round(_LAST * len(values)))
        if len(values) < 2 * part:
            return 0.0
        first, last = values[:part], values[-part:]
        variance = sum((v - fmean(half)) ** 2 / (part - 1) / part for half in (first, last) for v in half)
        return (fmean(last) - fmean(first)) / math.sqrt(variance) if variance else 0.0

    @property
    def is_solved(self) -> bool:
        """Whether nearly all rewards of the last iterations are the best that the run has seen."""
        best = max(self.get("reward_max"), default=math.nan)
        return self.last("reward") >= best - 0.05 * max(1e-9, best - min(self.get("reward_min"), default=best))

    @property
    def episodes(self) -> float:
        return sum(self.get("episodes"))


def _check_variance(curves: Curves, settings: Json, summary: Json) -> Iterator[Diagnosis]:
    equal, fraction = str(summary.get("equal_returns") or ""), curves.last("frac_reward_zero_std")
    if equal:
        yield _find("equal_rewards", equal)
    # A small model is sure of its answers: 50 to 88 % of the groups are equal in runs of nano that learn.
    elif fraction > 0.9 and not curves.is_solved:
        yield _find("no_variance_in_groups", f"{fraction:.0%} of the groups have equal rewards")


def _check_responses(curves: Curves, settings: Json, summary: Json) -> Iterator[Diagnosis]:
    truncated = curves.last("truncated")
    if truncated > 0.5:
        yield _find(
            "truncation",
            f"{truncated:.0%} of the last responses were cut at the token limit",
            f"a larger --max-tokens (now {settings.get('max_tokens')})",
            "a reward for short responses",
        )
    malformed = sum(curves.get("tools/malformed"))
    if curves.episodes and malformed > 0.3 * curves.episodes:
        yield _find(
            "unreadable_calls", f"{malformed:.0f} tool calls in {curves.episodes:.0f} episodes could not be read"
        )
    failures = sum(curves.get("failures"))
    if failures > max(2.0, 0.02 * (curves.episodes + failures)):
        yield _find(
            "failed_episodes",
            f"{failures:.0f} of {curves.episodes + failures:.0f} episodes failed: {summary.get('failures') or 'see the log'}",
        )


def _check_policy(curves: Curves, settings: Json, summary: Json) -> Iterator[Diagnosis]:
    first, last = curves.first("entropy"), curves.last("entropy")
    if first > 0.1 and last < 0.05 * first and not curves.is_solved and curves.rise() < 2:
        yield _find(
            "entropy_collapse", f"entropy fell from {first:.3g} to {last:.3g} nats, and the reward did not rise"
        )
    updates = curves.get("approx_kl")
    late, worst = curves.last("approx_kl"), max(updates, default=0.0)
    if late > _MAX_KL or worst > 10 * _MAX_KL:
        yield _find(
            "kl_explosion",
            f"the last updates moved the policy by {late:.2g} nats per action on average, one by {worst:.2g}",
        )
    # With a learning rate of 0 an update cannot move the policy: any divergence is drift, about half the squared difference.
    unchanged = settings.get("hyperparameters", {}).get("learning_rate") == 0
    drift = math.sqrt(2 * max(0.0, curves.last("approx_kl"))) if unchanged else 0.0
    difference = max(drift, curves.last("sampling_logprob_difference"))
    if difference > 0.1 and not settings.get("max_staleness"):
        yield _find(
            "sampling_drift", f"the log-probs of sampling and of training differ by {difference:.2g} nats on average"
        )


def _check_learning_rate(curves: Curves, settings: Json, summary: Json) -> Iterator[Diagnosis]:
    values = settings.get("hyperparameters", {})
    rate = values.get("learning_rate", 0.0)
    clipped, kl = curves.last("clip_fraction"), curves.get("approx_kl")
    # The ratio of a whole response is a product over its tokens, so it leaves the range in healthy runs too.
    by_response = settings.get("algorithm") == "rloo" or values.get("importance_sampling_level") == "sequence"
    if clipped > 0.4 and not (by_response and (curves.is_solved or curves.rise() > 2)):
        yield _find(
            "learning_rate_too_high",
            f"{clipped:.0%} of the probability ratios are clipped",
            f"--learning-rate {rate / 5:.1g}" if rate else "a smaller --learning-rate",
            "fewer --n-epochs",
        )
    moves = [abs(value) for value in kl]
    still = len(moves) >= _MIN_ITERATIONS and max(moves) < 1e-6 and not clipped
    with_gradient = curves.last("grad_norm") > 0 and not summary.get("equal_returns")
    if still and with_gradient and values.get("n_epochs", 1) > 1:
        yield _find(
            "learning_rate_too_low",
            f"no update moved the policy by more than {max(moves):.1g} nats",
            f"--learning-rate {rate * 10:.1g}" if rate else "a larger --learning-rate",
        )


def _check_success(curves: Curves, settings: Json, summary: Json) -> Iterator[Diagnosis]:
    gain, high = summary.get("gain"), summary.get("gain_high")
    if gain is not None and high is not None and gain <= 0 and curves.rise() > 4 and summary.get("unit") == "percent":
        yield _find(
            "reward_without_success",
            f"the reward rose from {curves.first('reward'):.3g} to {curves.last('reward'):.3g}, the held-out accuracy by {gain:+.1f} points",
        )


def _check_gain(settings: Json, summary: Json) -> Iterator[Diagnosis]:
    gain, low, high = (summary.get(name) for name in ("gain", "gain_low", "gain_high"))
    percent = summary.get("unit") == "percent"
    if gain is not None and low is not None and high is not None:
        unit = "points" if percent else summary.get("unit", "")
        if high < 0:
            yield _find(
                "worse_than_before", f"the held-out result changed by {gain:+.3g} [{low:.3g}, {high:.3g}] {unit}"
            )
        elif percent and low <= 0 and (high - low) / 2 > 8:
            count = int(summary.get("problems") or 0)
            factor = ((high - low) / 2 / 5) ** 2
            sizes = {name: math.ceil(factor * (settings.get(name) or 0)) for name in ("evaluation", "test")}
            yield _find(
                "evaluation_too_small",
                f"the gain is {gain:+.1f} [{low:.1f}, {high:.1f}] points from {count} problems",
                *(
                    f"--{name} {size}: about {math.ceil(count * factor)} problems for an interval of 5 points"
                    for name, size in sizes.items()
                ),
            )
    if fell := summary.get("fell"):
        yield _find("forgetting", f"{len(fell)} of the skills fell beyond chance: {', '.join(map(str, fell))}")


def _check_answers(run: Run) -> Iterator[Diagnosis]:
    """Count the answers of the last evaluation in which the scorer found none."""
    rounds = [int(phase.split("/")[0]) for phase in run.store.phases() if phase.endswith(f"/{Split.TEST}")]
    attempts = run.store.attempts(f"{max(rounds)}/{Split.TEST}") if rounds else []
    read = [
        a.outcome.evidence["extracted"]
        for a in attempts
        if isinstance(a.outcome, Score) and "extracted" in a.outcome.evidence
    ]
    fraction = sum(not text for text in read) / max(1, len(read))
    if fraction > 0.3:
        yield _find(
            "unreadable_answers",
            f"no answer could be read in {fraction:.0%} of the last {len(read)} held-out responses",
            # In `teach`, --max-tokens limits the writer.
            *(a for a in DISEASES["unreadable_answers"].advice if run.recipe == "train" or "--max-tokens" not in a),
        )


_TRAIN_CHECKS: tuple[Callable[[Curves, Json, Json], Iterator[Diagnosis]], ...] = (
    _check_variance,
    _check_responses,
    _check_policy,
    _check_learning_rate,
    _check_success,
)
