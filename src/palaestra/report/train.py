"""The page of a train run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from palaestra.core.records import Attempt, Split, Trajectory
from palaestra.core.statistics import report_on
from palaestra.recipes.train.settings import TrainSettings
from palaestra.report.appendix import Appendix, CostRow, make_appendix
from palaestra.report.charts import (
    BARS,
    NOISY,
    MetricPoint,
    Metrics,
    Panel,
    Series,
    average_neighbours,
    bar_chart,
    line_chart,
    metric_points,
    rate_axis,
    small_chart,
    span,
)
from palaestra.report.formatting import (
    counts,
    interval,
    percent,
    plain,
    plural,
    points,
    points_interval,
    share,
    shorten,
)
from palaestra.report.samples import LONGEST, SampleGroup, compare_attempts
from palaestra.report.teach import SkillRow, make_skill_row, make_skill_rows
from palaestra.runs.ledger import LedgerTotal
from palaestra.runs.run import Run

PHASES = {
    "model": "the policy acts", "environment": "environment: steps and rewards", "reference": "log-probs of the reference",
    "update": "learning", "evaluate": "held-out evaluation",
}  # fmt: skip
COSTS = {"load": "loading", "train": "collecting and learning", "test": "held-out evaluation", "rest": "the rest"}


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """The seconds of a part of the work; `class_` is its colour in the chart, empty where it is not in it."""

    name: str
    class_: str
    seconds: float
    share: float


def is_phase(name: str) -> bool:
    return name.startswith("seconds_")


def seconds_by_phase(table: Metrics, ledger: float) -> tuple[float, tuple[PhaseRow, ...]]:
    """All seconds, and where they went, in the order in which the work is done."""
    sums: dict[str, float] = {}
    for row in table.values():
        for name, value in row.items():
            if is_phase(name):
                sums[name.removeprefix("seconds_")] = sums.get(name.removeprefix("seconds_"), 0.0) + value
    order = sorted(sums, key=lambda name: (list(PHASES).index(name) if name in PHASES else len(PHASES), name))
    # The ledger of a run that goes on lacks what is booked at its end.
    total = max(ledger, sum(sums.values()))
    rows, colour = [], 0
    for name in order:
        colour += name != "evaluate"
        class_ = "" if name == "evaluate" else f"s{(colour - 1) % 6 + 1}"
        rows.append(PhaseRow(PHASES.get(name, name), class_, sums[name], sums[name] / total if total else 0.0))
    rest = total - sum(sums.values())
    if rows and rest > 0:
        rows.append(PhaseRow("the rest: loading, checkpoints, the store", "", rest, rest / total))
    return total, tuple(rows)


def phase_chart(trained: Metrics, phases: Sequence[PhaseRow]) -> Markup | None:
    keys = {words: name for name, words in PHASES.items()}
    names = {f"seconds_{keys.get(row.name, row.name)}": row.class_ for row in phases if row.class_}
    if not names or not trained:
        return None
    label = "seconds of an iteration by phase; in all " + ", ".join(
        f"{row.name} {row.seconds:.1f}" for row in phases if row.class_
    )
    return bar_chart(trained, names, "seconds an iteration", label)


def costs_by_kind(appendix: Appendix) -> Appendix:
    """The costs of all iterations together: a row each would be hundreds."""
    sums: dict[str, LedgerTotal] = {}
    for row in appendix.costs:
        kind = COSTS.get(row.phase.rpartition("/")[2], row.phase)
        known = sums.get(kind)
        sums[kind] = row.total if known is None else _add_totals(known, row.total)
    seconds = appendix.total.seconds
    costs = tuple(CostRow(kind, total, total.seconds / seconds if seconds else 0.0) for kind, total in sums.items())
    return replace(appendix, costs=costs)


def _add_totals(first: LedgerTotal, second: LedgerTotal) -> LedgerTotal:
    return LedgerTotal(*(getattr(first, n) + getattr(second, n) for n in LedgerTotal.__dataclass_fields__))


SHARES = ("clip_fraction", "groups_without_variance", "truncated")
"""Metrics from 0 to 1 that are shown in percent."""


@dataclass(frozen=True, slots=True)
class HealthMetric:
    """One figure of the health panel."""

    name: str
    last: str
    meaning: str
    picture: Markup


def health_panel(trained: Metrics, settings: Mapping[str, Any]) -> tuple[HealthMetric, ...]:
    """The metrics that there are; one that the last iteration lacks says at which iteration it was taken."""
    language = settings.get("policy") == "lm"
    hyperparameters: Mapping[str, Any] = settings.get("hyperparameters", {})
    unit = "token" if language else "decision"
    shown = [
        ("approx_kl", "KL of the update", f"nats a {unit}, new policy from the one that collected", "target_kl"),
        ("reference_kl", "KL to the reference", "nats a response", ""),
        ("clip_fraction", "Clip fraction", "% of ratios outside the clipping range", ""),
        ("entropy", "Entropy", f"nats a {unit}", ""),
        ("explained_variance", "Explained variance", "of returns by the critic; 1 is all, below 0 worse than none", ""),
        (
            "groups_without_variance",
            "Groups without variance",
            "% whose rewards are all alike: nothing to learn from",
            "",
        ),
        ("length", "Response length" if language else "Episode length", "tokens" if language else "steps", ""),
        ("turns", "Turns", "messages of the model an episode", ""),
        ("truncated", "Cut at the limit", f"% of {'messages' if metric_points(trained, 'turns') else 'responses'}", ""),
        ("grad_norm", "Gradient norm", "before clipping", "max_grad_norm"),
    ]
    last, metrics = max(trained, default=0), []
    for name, title, meaning, level in shown:
        values = metric_points(trained, name)
        if not values:
            continue
        shares = name in SHARES
        limit = hyperparameters.get(level)
        limit = float(limit) if isinstance(limit, int | float) and limit > 0 else math.nan
        if not math.isnan(limit):
            meaning += f"; limit {plain(limit)}"
        drawn = [replace(r, value=100 * r.value) for r in values] if shares else values
        written = (share if shares else plain)(values[-1].value)
        if values[-1].iteration < last:
            written += f" at {values[-1].iteration}"
        metrics.append(HealthMetric(title, written, meaning, small_chart(drawn, last, title, limit)))
    return tuple(metrics)


LISTED = 60
"""Iterations that the table of metrics lists; of more, some at even distances."""


@dataclass(frozen=True, slots=True)
class Box:
    """One figure of the headline with the lines below it."""

    name: str
    big: str
    details: tuple[str, ...]
    main: bool = False


@dataclass(frozen=True, slots=True)
class IterationRow:
    """An iteration in metrics; what it does not have is `None`."""

    iteration: int
    decisions: float | None
    episodes: float | None
    failures: float | None
    reward: MetricPoint | None
    test: MetricPoint | None
    gold: MetricPoint | None


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """A kept episode of a language model: what it was asked, what it said and what that brought."""

    prompt: str
    response: str
    reward: float
    stop: str
    tokens: int
    logprob: float | None
    failure: str


@dataclass(frozen=True, slots=True)
class TrainPage:
    """Everything on the page of a train run. Pictures are there only where there is something to draw."""

    ended: bool
    stopped_early: bool
    under_way: tuple[tuple[int, int], ...]
    env: str
    learner: str
    language: bool
    algorithm: str
    grouped: bool
    seed: int
    iterations: int
    planned: int
    decisions: int
    episodes: int
    failures: int
    test_failures: int
    test_asked: int
    weights_sha256: str
    boxes: tuple[Box, ...]
    verdict: str
    reward: Markup | None
    recent: bool
    held_out: bool
    accuracy: Markup | None
    path: Markup | None
    proxy_gold: Markup | None
    gold: tuple[MetricPoint, MetricPoint] | None
    path_averaged: bool
    rows: tuple[IterationRow, ...]
    health: tuple[HealthMetric, ...]
    phases: tuple[PhaseRow, ...]
    phase_chart: Markup | None
    seconds: float
    speed: Markup | None
    speed_mean: float | None
    episodes_to_read: tuple[tuple[int, tuple[EpisodeRow, ...]], ...]
    asked: bool
    overall: SkillRow
    skills: tuple[SkillRow, ...]
    axis: Markup
    samples: tuple[SampleGroup, ...]
    appendix: Appendix

    bars: int = BARS
    noisy: int = NOISY

    @property
    def unit(self) -> str:
        return "tokens" if self.language else "steps"


def train_page(run: Run) -> TrainPage:
    """Read what a train run has done so far."""
    # The summary is written last: asked for first, it cannot promise what the store does not hold yet.
    summary = run.summary
    settings, table = run.settings, run.store.metrics()
    trained = {iteration: row for iteration, row in table.items() if iteration > 0}
    done = max(trained, default=0)
    language = settings.get("policy") == "lm"
    # An evaluation has its seconds once it has ended; what it asked before that is no result.
    asked = {int(p.split("/")[0]): run.store.attempts(p) for p in run.store.phases() if p.endswith(f"/{Split.TEST}")}
    whole = {iteration: part for iteration, part in asked.items() if "seconds_evaluate" in table.get(iteration, {})}
    before, after = whole.get(0, []), whole[max(whole)] if max(whole, default=0) else []
    overall, appendix = make_skill_row("all skills", before, after, 0), costs_by_kind(make_appendix(run, TrainSettings))
    reward, test = metric_points(trained, "reward"), metric_points(table, "test_reward", count="test_count")
    proxy, gold = (
        average_neighbours(metric_points(trained, "reward", along="reference_kl")),
        metric_points(table, "gold_reward"),
    )
    recent = [] if language else metric_points(trained, "recent_return")
    if asked:
        boxes, verdict = _task_headline(overall, max(whole, default=0))
    else:
        boxes, verdict = _headline(reward, test, table, _read_paired_gain(summary or {}))
    nothing = str((summary or {}).get("nothing_learned", ""))
    if nothing:
        verdict = f"{nothing[0].upper()}{nothing[1:]}."
        failed = bool(summary and summary.get("failures"))
        boxes = (
            boxes if asked or failed else (Box("Change", "none", (f"after {plural(done, 'iteration')}",), main=True),)
        )
    seconds, phases = seconds_by_phase(table, appendix.total.seconds)
    speed = metric_points(trained, "tokens_per_second" if language else "steps_per_second")
    decisions = sum(row.get("decisions", 0.0) for row in trained.values())
    working = sum(v for row in trained.values() for n, v in row.items() if is_phase(n) and n != "seconds_evaluate")
    test_failures = sum(report_on(part).failure_count for part in whole.values())
    test_failures += int(sum(row.get("test_failures", 0.0) for row in table.values()))
    return TrainPage(
        ended=summary is not None,
        stopped_early=bool(summary and summary.get("stopped_early")),
        under_way=tuple((i, len(part)) for i, part in asked.items() if i not in whole),
        env=str(settings.get("env", "")),
        learner=str(settings.get("model" if language else "policy", "")).rstrip("/").rsplit("/", 1)[-1],
        language=language,
        algorithm=_name_algorithm(settings),
        grouped=any("groups_without_variance" in row for row in trained.values()),
        seed=int(settings.get("seed", 0)),
        iterations=done,
        planned=int(settings.get("iterations", 0)),
        decisions=round(decisions),
        episodes=round(sum(row.get("episodes", 0.0) for row in trained.values())),
        failures=round(sum(row.get("failures", 0.0) for row in trained.values())),
        test_failures=test_failures,
        test_asked=sum(len(part) for part in whole.values()) + _test_episodes(table),
        weights_sha256=str((summary or {}).get("weights_sha256", "")),
        boxes=boxes,
        verdict=verdict,
        reward=_reward_chart(reward, test, recent),
        recent=bool(recent),
        held_out=bool(test),
        accuracy=_accuracy_chart(whole),
        path=_path_chart(table, proxy) if proxy else None,
        proxy_gold=_proxy_gold_chart(reward, gold) if gold else None,
        gold=(max(gold, key=lambda r: r.value), gold[-1]) if gold else None,
        path_averaged=len(proxy) < len(metric_points(trained, "reward", along="reference_kl")),
        rows=_iteration_rows(table),
        health=health_panel(trained, settings),
        phases=phases,
        phase_chart=phase_chart(trained, phases),
        seconds=seconds,
        speed=_speed_chart(speed, "tokens a second" if language else "steps a second"),
        speed_mean=decisions / working if working else None,
        episodes_to_read=_read_episodes(run, done) if language else (),
        asked=bool(asked),
        overall=overall,
        skills=make_skill_rows(sorted({attempt.problem.skill for attempt in before} - {""}), before, after, {}),
        axis=rate_axis(),
        samples=compare_attempts(before, after) if after else (),
        appendix=appendix,
    )


# The headline


def _task_headline(overall: SkillRow, last: int) -> tuple[tuple[Box, ...], str]:
    before, after, gain = overall.before, overall.after, overall.gain
    boxes = (
        Box("Held-out before", percent(before), (interval(before), counts(before))),
        Box("Held-out after", percent(after), (interval(after), counts(after), *_describe_iteration(last))),
        Box(
            "Gain in points",
            points(gain),
            (points_interval(gain), f"on {plural(gain.count, 'problem')} scored both times")
            if gain
            else ("not measured yet",),
            main=True,
        ),
    )
    return boxes, _verdict(gain.low, gain.high) if gain and gain.count else ""


def _headline(
    reward: Sequence[MetricPoint], test: Sequence[MetricPoint], table: Metrics, paired: MetricPoint | None
) -> tuple[tuple[Box, ...], str]:
    """The held-out reward before and after; of a run without evaluations, the reward of its first and last iteration.

    Arguments:
        paired: the change over the same episodes, where the run has measured it.
    """
    evaluations = [
        iteration for iteration, row in sorted(table.items()) if "test_reward" in row or "test_failures" in row
    ]
    before, after = (
        (evaluations[0] if evaluations and evaluations[0] == 0 else None),
        (evaluations[-1] if evaluations and evaluations[-1] > 0 else None),
    )
    known = {reading.iteration: reading for reading in test}
    first, last = known.get(0), known.get(after) if after else None
    names = ("Held-out reward before", "Held-out reward after")
    if not evaluations:
        first, last = (reward[0], reward[-1]) if reward else (None, None)
        names = ("Reward, first iteration", "Reward, last iteration")
    change, how = paired, f"paired over {plural(paired.count or 0, 'episode')}" if paired else ""
    if change is None and first and last and first is not last:
        change, how = _difference(first, last), "the two taken as independent"
    if change is None:
        why = "not measured yet" if before is None or after is None else "not known"
        moved = Box("Change", plain(None), (why,), main=True)
    else:
        moved = Box("Change", _format_change(change), (span(change), *([] if change.low is None else [how])), main=True)
    boxes = (
        _box(names[0], first, _explain_missing(table, before)),
        _box(names[1], last, _explain_missing(table, after)),
        moved,
    )
    if change is None or change.low is None or change.high is None:
        return boxes, ""
    return boxes, _verdict(change.low, change.high)


def _read_paired_gain(summary: Mapping[str, Any]) -> MetricPoint | None:
    """The change over the same held-out episodes, which only a whole run of turns has."""
    if summary.get("gain") is None or "gain_episodes" not in summary:
        return None
    low, high = summary["gain_low"], summary["gain_high"]
    last = int(summary["iterations"])
    return MetricPoint(last, last, summary["gain"], low, high, int(summary["gain_episodes"]))


def _explain_missing(table: Metrics, evaluation: int | None) -> str:
    """Why there is no reward of an evaluation; `None` where it has not been made."""
    if evaluation is None:
        return "not measured yet"
    failed = round(table[evaluation].get("test_failures", 0.0))
    return f"not known: {plural(failed, 'episode')} failed, and no other was played" if failed else "not known"


def _box(name: str, reading: MetricPoint | None, why: str) -> Box:
    if reading is None:
        return Box(name, plain(None), (why,))
    count = () if reading.count is None else (f"mean of {plural(reading.count, 'episode')}",)
    return Box(name, plain(reading.value), (span(reading), *count, *_describe_iteration(reading.iteration)))


def _format_change(change: MetricPoint) -> str:
    """A change with its sign, and with no more decimals than its interval gives a meaning to."""
    written = plain(change.value, max(abs(change.low or 0.0), abs(change.high or 0.0)))
    return f"+{written}" if change.value > 0 else written


def _verdict(low: float, high: float) -> str:
    if low > 0:
        return "The interval lies above 0."
    if high < 0:
        return "The interval lies below 0: the policy got worse."
    return "The interval contains 0: this run by itself does not show a change."


def _difference(first: MetricPoint, last: MetricPoint) -> MetricPoint:
    """How far the mean has moved, where the reward of a single held-out episode is not known: nothing is paired."""
    moved = last.value - first.value
    if first.low is None or first.high is None or last.low is None or last.high is None:
        return MetricPoint(last.iteration, last.x, moved)
    half = math.hypot((first.high - first.low) / 2, (last.high - last.low) / 2)
    return MetricPoint(last.iteration, last.x, moved, moved - half, moved + half)


def _describe_iteration(iteration: int) -> tuple[str, ...]:
    return (f"after iteration {iteration}",) if iteration else ()


def _name_algorithm(settings: Mapping[str, Any]) -> str:
    name, variant = str(settings.get("algorithm", "")), str(settings.get("hyperparameters", {}).get("variant", ""))
    name = variant if name == "grpo" and variant else name
    return {"dr_grpo": "Dr. GRPO"}.get(name, name.upper())


def _test_episodes(table: Metrics) -> int:
    rows = [row for row in table.values() if "test_reward" in row or "test_failures" in row]
    return round(sum(row.get("test_count", 0.0) + row.get("test_failures", 0.0) for row in rows))


# Charts


def _reward_chart(
    reward: Sequence[MetricPoint], test: Sequence[MetricPoint], recent: Sequence[MetricPoint]
) -> Markup | None:
    if not reward and not test:
        return None
    series = [
        Series("training", reward, "s1"),
        Series("mean of the last 100 episodes", recent, "s6", "dashed"),
        Series("held-out", test, "s2", "marks"),
    ]
    return line_chart([Panel("reward of an episode", series)], "iteration", "reward by iteration")


def _accuracy_chart(whole: Mapping[int, Sequence[Attempt]]) -> Markup | None:
    points = []
    for iteration, attempts in sorted(whole.items()):
        report = report_on(attempts)
        if report.accuracy is not None:
            points.append(
                MetricPoint(
                    iteration, iteration, 100 * report.accuracy, 100 * report.low, 100 * report.high, report.count
                )
            )
    if not points:
        return None
    panel = Panel("held-out accuracy (%)", [Series("held-out accuracy", points, "s2", "marks")])
    return line_chart([panel], "iteration", "held-out accuracy by iteration")


def _path_chart(table: Metrics, proxy: Sequence[MetricPoint]) -> Markup:
    """Training and held-out reward over the divergence that they were bought with; below it the gold reward."""
    test = metric_points(table, "test_reward", along="test_reference_kl", count="test_count")
    gold = average_neighbours(metric_points(table, "gold_reward", along="reference_kl"))
    panels = [
        Panel(
            "reward" if not gold else "proxy reward",
            [Series("training", proxy, "s1", "path"), Series("held-out", test, "s2", "marks")],
        )
    ]
    if gold:
        panels.append(Panel("gold reward", [Series("gold", gold, "s3", "path")]))
    return line_chart(
        panels, "KL to the reference (nats a response)", "reward against the divergence from the reference"
    )


def _proxy_gold_chart(reward: Sequence[MetricPoint], gold: Sequence[MetricPoint]) -> Markup:
    panels = [Panel("proxy reward", [Series("proxy", reward, "s1")])] if reward else []
    panels.append(Panel("gold reward", [Series("gold", gold, "s3")]))
    return line_chart(panels, "iteration", "proxy and gold reward by iteration")


def _speed_chart(speed: Sequence[MetricPoint], y_label: str) -> Markup | None:
    return (
        line_chart([Panel(y_label, [Series(y_label, speed, "s6")], from_zero=True)], "iteration", "speed by iteration")
        if speed
        else None
    )


# Iterations and episodes


def _iteration_rows(table: Metrics) -> tuple[IterationRow, ...]:
    def by_iteration(name: str, count: str = "") -> dict[int, MetricPoint]:
        return {reading.iteration: reading for reading in metric_points(table, name, count=count)}

    reward, gold = by_iteration("reward"), by_iteration("gold_reward")
    test = by_iteration("test_reward", "test_count") | by_iteration("test_accuracy", "test_count")
    order = sorted(table)
    step = math.ceil(len(order) / LISTED)
    kept = {iteration for k, iteration in enumerate(order) if k % max(1, step) == 0 or iteration in test} | set(
        order[-1:]
    )
    return tuple(
        IterationRow(
            i, table[i].get("total_decisions"), table[i].get("episodes"), table[i].get("failures"), reward.get(i),
            test.get(i), gold.get(i),
        )
        for i in order
        if i in kept
    )  # fmt: skip


def _read_episodes(run: Run, done: int) -> tuple[tuple[int, tuple[EpisodeRow, ...]], ...]:
    """The episodes that were kept of the first, a middle and the last iteration."""
    chosen = sorted({1, (1 + done) // 2, done}) if done else []
    kept = [(iteration, tuple(map(_read_episode, run.store.trajectories(iteration)))) for iteration in chosen]
    return tuple((iteration, episodes) for iteration, episodes in kept if episodes)


def _read_episode(trajectory: Trajectory) -> EpisodeRow:
    info: Mapping[str, Any] = trajectory.infos[0] if trajectory.infos else {}
    chosen = [
        logprob
        for segment in trajectory.segments
        for logprob, own in zip(segment.logprobs, segment.chosen, strict=True)
        if own
    ]
    return EpisodeRow(
        prompt=shorten(str(info.get("prompt", "")), LONGEST),
        response=shorten(str(info.get("response", "")), LONGEST),
        reward=trajectory.total_reward,
        stop=str(info.get("stop_reason", "")),
        tokens=len(chosen),
        logprob=math.fsum(chosen) / len(chosen) if chosen else None,
        failure=str(info.get("failure", "")),
    )
