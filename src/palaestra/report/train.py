"""The page of a train run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from palaestra.core.records import Json, Split, Trajectory
from palaestra.core.statistics import report_on
from palaestra.core.tables import load_table
from palaestra.recipes.progress import METRICS
from palaestra.recipes.train.mixture import name_environments
from palaestra.recipes.train.settings import TrainSettings
from palaestra.report.charts import (
    NOISY,
    MetricPoint,
    Metrics,
    Panel,
    Series,
    average_neighbors,
    line_chart,
    metric_points,
    small_chart,
    span,
)
from palaestra.report.formatting import (
    NOTHING,
    counts,
    interval,
    percent,
    plain,
    plural,
    points,
    points_interval,
    share,
    short_path,
)
from palaestra.report.parts import (
    compare_attempts,
    describe_learner,
    make_appendix,
    make_skill_row,
    make_skill_rows,
    truncate,
)
from palaestra.report.svg import Legend, Plot, rate_axis
from palaestra.runs.browse import find_trajectory_keys
from palaestra.runs.provenance import LedgerTotal
from palaestra.runs.run import Run

_MAX_SAMPLES = 4
"""Maximum sample episodes of an iteration."""
_MAX_LISTED = 60
"""Maximum iterations in the table of metrics; if there are more, evenly spaced ones are listed."""
_PHASES: Mapping[str, str] = load_table(__file__, "words")["phases"]
_LIMITS = {"approx_kl": "target_kl", "grad_norm": "max_grad_norm"}
"""Metrics with the hyperparameters that limit them."""
_COSTS: Mapping[str, str] = load_table(__file__, "words")["costs"]
_SHARES = ("clip_fraction", "frac_reward_zero_std", "truncated")
"""Metrics from 0 to 1 that are shown in percent."""


def train_page(run: Run) -> Json:
    """Read the iterations of a train run so far."""
    # The summary is written last. Read it first, so that the store contains everything that it mentions.
    ended, summary = run.summary is not None, run.summary or {}
    settings, table = run.settings, run.store.metrics()
    trained = {iteration: row for iteration, row in table.items() if iteration > 0}
    several = settings.get("environments", ())
    done, language = max(trained, default=0), settings.get("policy") == "lm"
    # An evaluation has its seconds once it has ended; before that, it is left out.
    asked = {int(p.split("/")[0]): run.store.attempts(p) for p in run.store.phases() if p.endswith(f"/{Split.TEST}")}
    whole = {iteration: part for iteration, part in asked.items() if "seconds_evaluate" in table.get(iteration, {})}
    last = max(whole, default=0)
    before, after = whole.get(0, []), whole[last] if last else []
    overall = make_skill_row("all skills", before, after)
    reward, test = metric_points(trained, "reward"), metric_points(table, "test_reward", count="test_count")
    gold, path = metric_points(table, "gold_reward"), metric_points(trained, "reward", along="reference_kl")
    recent = [] if language else metric_points(trained, "recent_return")
    boxes, verdict = _task_headline(overall, last) if asked else _reward_headline(reward, test, table, summary)
    if equal_returns := str(summary.get("equal_returns", "")):
        verdict = f"{equal_returns[0].upper()}{equal_returns[1:]}."
        if not asked and not summary.get("failures"):
            boxes = [_make_box("Change of the return", "none", f"after {plural(done, 'iteration')}")]
    appendix = _sum_costs(make_appendix(run, TrainSettings))
    seconds, phases = _seconds_by_phase(table, appendix["total"].seconds)
    unit = "tokens" if language else "steps"
    actions = _sum_metric(trained, "actions")
    working = sum(v for row in trained.values() for n, v in row.items() if _is_phase(n) and n != "seconds_evaluate")
    episodes, failures = _sum_metric(trained, "episodes"), _sum_metric(trained, "failures")
    measured = {k: row for k, row in table.items() if "test_reward" in row or "test_failures" in row}
    test_failures = _sum_metric(measured, "test_failures")
    played = _sum_metric(measured, "test_count") + test_failures
    health = _health_panel(trained, settings)
    divergence = "Proxy against gold" if gold else "Reward against divergence"
    charts: dict[str, Plot | None] = {
        "reward": _reward_chart(reward, test, recent) if reward or test else None,
        "environments": _environment_chart(table) if several else None,
        "accuracy": _accuracy_chart(table),
        "proxy_gold": _proxy_gold_chart(reward, gold) if gold else None,
        "path": _path_chart(table, path, bool(test)) if path else None,
    }
    return {
        "ended": ended,
        "stopped_early": summary.get("stopped_early", False),
        "under_way": [(i, len(part)) for i, part in asked.items() if i not in whole],
        "env": " + ".join(name_environments(several)) if several else short_path(str(settings.get("env", ""))),
        "learner": describe_learner(settings),
        "language": language,
        "unit": unit,
        "algorithm": _name_algorithm(settings),
        "grouped": any("frac_reward_zero_std" in row for row in trained.values()),
        "seed": settings.get("seed", 0),
        "iterations": done,
        "planned": settings.get("iterations", 0),
        "actions": actions,
        "episodes": episodes,
        "failures": failures,
        "test_failures": test_failures + sum(report_on(part).failure_count for part in whole.values()),
        "test_asked": played + sum(len(part) for part in whole.values()),
        "weights_sha256": summary.get("weights_sha256", ""),
        "boxes": boxes,
        "verdict": verdict,
        **charts,
        "figures": (
            ("reward", "Reward", [charts["reward"], charts["accuracy"]]),
            ("environments", "Environments", [charts["environments"]]),
            ("divergence", divergence, [charts["proxy_gold"], charts["path"]]),
            ("health", "Training metrics", [item["picture"] for item in health]),
        ),
        "path_averaged": len(average_neighbors(path)) < len(path),
        "gold": (max(gold, key=lambda r: r.value), gold[-1]) if gold else None,
        "rows": _iteration_rows(table),
        "health": health,
        "noisy": done > NOISY,
        "phases": phases,
        "seconds": seconds,
        "speed_mean": actions / working if working else None,
        "episodes_to_read": _read_episodes(run, done) if language else [],
        "asked": bool(asked),
        "overall": overall,
        "skills": make_skill_rows({attempt.problem.skill for attempt in before} - {""}, before, after),
        "axis": rate_axis(),
        "samples": compare_attempts(before, after) if after else [],
        "appendix": appendix,
    }


def _sum_metric(table: Metrics, name: str) -> int:
    return round(sum(row.get(name, 0.0) for row in table.values()))


def _name_algorithm(settings: Json) -> str:
    name, variant = str(settings.get("algorithm", "")), str(settings.get("hyperparameters", {}).get("variant", ""))
    name = variant if name == "grpo" and variant else name
    return {"dr_grpo": "Dr. GRPO"}.get(name, name.upper())


# The headline


def _make_box(name: str, big: str, *details: str) -> Json:
    return {"name": name, "big": big, "details": details}


def _task_headline(overall: Json, last: int) -> tuple[list[Json], str]:
    before, after, gain = overall["before"], overall["after"], overall["gain"]
    scored = [points_interval(gain), f"on {plural(gain.count, 'problem')} scored both times"] if gain else []
    boxes = [
        _make_box("Held-out before", percent(before), interval(before), counts(before)),
        _make_box("Held-out after", percent(after), interval(after), counts(after), *_describe_iteration(last)),
        _make_box("Gain in points", points(gain), *(scored or ["not measured yet"])),
    ]
    return boxes, _verdict(gain.low, gain.high) if gain and gain.count else ""


def _reward_headline(
    reward: Sequence[MetricPoint], test: Sequence[MetricPoint], table: Metrics, summary: Json
) -> tuple[list[Json], str]:
    """Show the held-out reward before and after; without evaluations, the reward of the first and last iteration."""
    evaluations = [i for i, row in sorted(table.items()) if "test_reward" in row or "test_failures" in row]
    before = 0 if 0 in evaluations else None
    after = max((i for i in evaluations if i), default=None)
    known = {point.iteration: point for point in test}
    first, last = known.get(0), known.get(after) if after else None
    names = ("Held-out reward before", "Held-out reward after")
    if not evaluations:
        first, last = (reward[0], reward[-1]) if reward else (None, None)
        names = ("Reward, first iteration", "Reward, last iteration")
    change, how = None, ""
    if summary.get("gain") is not None and "gain_episodes" in summary:
        # Only an ended run of turns measures the change over the same episodes.
        change = MetricPoint(0, 0, summary["gain"], summary["gain_low"], summary["gain_high"])
        how = f"paired over {plural(summary['gain_episodes'], 'episode')}"
    elif first and last and first is not last:
        change, how = _difference(first, last), "the two assumed to be independent"
    if change is None:
        why = "not measured yet" if before is None or after is None else "unknown"
        moved = _make_box("Change", NOTHING, why)
    else:
        moved = _make_box("Change", _format_change(change), span(change), *([] if change.low is None else [how]))
    boxes = [_reward_box(names[0], first, table, before), _reward_box(names[1], last, table, after), moved]
    if change is None or change.low is None or change.high is None:
        return boxes, ""
    return boxes, _verdict(change.low, change.high)


def _reward_box(name: str, point: MetricPoint | None, table: Metrics, evaluation: int | None) -> Json:
    """Show a reward, or why it is missing. `evaluation` is its iteration, `None` before it."""
    if point is not None:
        count = [] if point.count is None else [f"mean of {plural(point.count, 'episode')}"]
        return _make_box(name, plain(point.value), span(point), *count, *_describe_iteration(point.iteration))
    if evaluation is None:
        return _make_box(name, NOTHING, "not measured yet")
    failed = round(table[evaluation].get("test_failures", 0.0))
    why = f"unknown: {plural(failed, 'episode')} failed, none was scored" if failed else "unknown"
    return _make_box(name, NOTHING, why)


def _format_change(change: MetricPoint) -> str:
    """Format a change with its sign and with the decimals of its interval."""
    written = plain(change.value, max(abs(change.low or 0.0), abs(change.high or 0.0)))
    return f"+{written}" if change.value > 0 else written


def _verdict(low: float, high: float) -> str:
    if low > 0:
        return "The interval is above 0."
    if high < 0:
        return "The interval is below 0: the policy got worse."
    return "The interval contains 0: this run alone does not show a change."


def _difference(first: MetricPoint, last: MetricPoint) -> MetricPoint:
    """Return the change of the mean. The rewards of single held-out episodes are unknown, so they are not paired."""
    moved = last.value - first.value
    if first.low is None or first.high is None or last.low is None or last.high is None:
        return MetricPoint(last.iteration, last.x, moved)
    half = math.hypot((first.high - first.low) / 2, (last.high - last.low) / 2)
    return MetricPoint(last.iteration, last.x, moved, moved - half, moved + half)


def _describe_iteration(iteration: int) -> list[str]:
    return [f"after iteration {iteration}"] if iteration else []


# Charts


def _reward_chart(reward: Sequence[MetricPoint], test: Sequence[MetricPoint], recent: Sequence[MetricPoint]) -> Plot:
    series = [
        Series("training", reward, "s1"),
        Series("mean of the last 100 episodes", recent, "s6", "line", dashes="6 4"),
        Series("held-out", test, "s2", "marks"),
    ]
    marks = (
        (reward, "s1", "training, with its 95\xa0% interval"),
        (recent, "s6 dashed", "mean of the last 100 episodes"),
        (test, "dot s2", "held-out, with its 95\xa0% interval"),
    )
    legend = tuple((mark, words) for points, mark, words in marks if points)
    panel = Panel("reward of an episode", series)
    return line_chart([panel], "iteration", "reward by iteration", table=False, legend=legend)


def _accuracy_chart(table: Metrics) -> Plot | None:
    points = metric_points(table, "test_accuracy", count="test_count")
    panel = Panel("held-out accuracy (%)", [Series("held-out accuracy", points, "s2", "marks")])
    return line_chart([panel], "iteration", "held-out accuracy by iteration", table=False) if points else None


def _path_chart(table: Metrics, path: Sequence[MetricPoint], held_out: bool) -> Plot:
    """Draw training and held-out reward over the divergence from the reference; below it the gold reward."""
    test = metric_points(table, "test_reward", along="test_reference_kl", count="test_count")
    gold = metric_points(table, "gold_reward", along="reference_kl")
    series = [_path_series("training", path, "s1"), Series("held-out", test, "s2", "marks")]
    panels = [Panel("proxy reward" if gold else "reward", series)]
    legend: Legend = (("s1", "training"), *((("dot s2", "held-out"),) if held_out else ()))
    if gold:
        panels.append(Panel("gold reward", [_path_series("gold", gold, "s3")]))
        legend += (("s3", "gold"),)
    label = "reward against the divergence from the reference"
    return line_chart(panels, "KL to the reference (nats per response)", label, legend=legend)


def _path_series(name: str, points: Sequence[MetricPoint], class_: str) -> Series:
    shown = average_neighbors(points)
    labels = [str(point.iteration) if point in (shown[0], shown[-1]) else "" for point in shown]
    return Series(name, shown, class_, "path", labels=labels)


def _proxy_gold_chart(reward: Sequence[MetricPoint], gold: Sequence[MetricPoint]) -> Plot:
    panels = [Panel("proxy reward", [Series("proxy", reward, "s1")])] if reward else []
    panels.append(Panel("gold reward", [Series("gold", gold, "s3")]))
    legend = (("s1", "proxy: the training reward"), ("s3", "gold: the intended reward"))
    return line_chart(panels, "iteration", "proxy and gold reward by iteration", table=False, legend=legend)


def _health_panel(trained: Metrics, settings: Json) -> list[Json]:
    """Show the metrics that exist. A metric that the last iteration lacks is shown with its iteration."""
    language = settings.get("policy") == "lm"
    words = {"unit": "action", "episode": "Episode", "steps": "steps"}
    if language:
        words = {"unit": "token", "episode": "Response", "steps": "tokens"}
    words["answers"] = "messages" if metric_points(trained, "turns") else "responses"
    by_skill = sorted({name for row in trained.values() for name in row if name.startswith("groups/")})
    shown = [
        (name, title.format(**words, skill=name.partition("/")[2]), meaning.format(**words))
        for row, title, meaning in METRICS["panel"]
        for name in (by_skill if row == "groups/" else [row])
    ]
    last, metrics = max(trained, default=0), []
    for name, title, meaning in shown:
        values = metric_points(trained, name)
        if not values:
            continue
        limit = settings.get("hyperparameters", {}).get(_LIMITS.get(name)) or math.nan
        if not math.isnan(limit):
            meaning += f"; limit {plain(limit)}"
        is_share = name in _SHARES or name.startswith("groups")
        written = (share if is_share else plain)(values[-1].value)
        if values[-1].iteration < last:
            written += f" at {values[-1].iteration}"
        drawn = [replace(r, value=100 * r.value) for r in values] if is_share else values
        picture = small_chart(drawn, last, title, limit)
        metrics.append({"name": title, "last": written, "meaning": meaning, "picture": picture, "points": drawn})
    return metrics


# Iterations and episodes


def _environment_chart(table: Metrics) -> Plot | None:
    """The training and held-out rewards of each environment of a run with several."""
    names = sorted({name.partition("/")[2] for row in table.values() for name in row if name.startswith("episodes/")})
    panels = []
    for name in names:
        reward = metric_points(table, f"reward/{name}", count=f"episodes/{name}")
        test = metric_points(table, f"test_reward/{name}", count=f"test_count/{name}")
        panels.append(Panel(name, [Series("training", reward, "s1"), Series("held-out", test, "s2", "marks")]))
    legend = (("s1", "training"), ("s2", "held-out"))
    return line_chart(panels, "iteration", "reward by environment", legend=legend) if panels else None


def _iteration_rows(table: Metrics) -> list[Json]:
    def by_iteration(name: str, count: str = "") -> dict[int, MetricPoint]:
        return {point.iteration: point for point in metric_points(table, name, count=count)}

    reward, gold = by_iteration("reward"), by_iteration("gold_reward")
    test = by_iteration("test_reward", "test_count") | by_iteration("test_accuracy", "test_count")
    order = sorted(table)
    step = max(1, math.ceil(len(order) / _MAX_LISTED))
    return [
        {"iteration": i, "metrics": table[i], "reward": reward.get(i), "test": test.get(i), "gold": gold.get(i)}
        for k, i in enumerate(order)
        if k % step == 0 or i in test or i == order[-1]
    ]


def _read_episodes(run: Run, done: int) -> list[tuple[int, list[Json]]]:
    """Read some stored episodes of the first, a middle and the last iteration."""
    chosen = sorted({1, (1 + done) // 2, done}) if done else []
    kept = []
    for iteration in chosen:
        keys = find_trajectory_keys(run.store, iteration=iteration)
        # The episodes of a group are alike.
        stored = [(k, run.store.trajectory(i, k)) for i, k in keys[:: -(-len(keys) // _MAX_SAMPLES) or 1]]
        kept.append((iteration, [{"position": k, **_read_episode(t)} for k, t in stored if t is not None]))
    return [(iteration, episodes) for iteration, episodes in kept if episodes]


def _read_episode(trajectory: Trajectory) -> Json:
    info = dict(trajectory.infos[0]) if trajectory.infos else {}
    chosen = [
        logprob
        for segment in trajectory.segments
        for logprob, own in zip(segment.logprobs, segment.chosen, strict=True)
        if own
    ]
    return {
        "prompt": truncate(str(info.get("prompt", ""))),
        "response": truncate(str(info.get("response", ""))),
        "reward": trajectory.total_reward,
        "stop": info.get("stop_reason", ""),
        "tokens": len(chosen),
        "logprob": math.fsum(chosen) / len(chosen) if chosen else None,
        "failure": info.get("failure", ""),
    }


# Time and costs


def _is_phase(name: str) -> bool:
    return name.startswith("seconds_")


def _seconds_by_phase(table: Metrics, ledger: float) -> tuple[float, list[Json]]:
    """Return all seconds, and the seconds of each phase in the order of the work."""
    names = {name for row in table.values() for name in row if _is_phase(name)}
    sums = {name: math.fsum(row.get(name, 0.0) for row in table.values()) for name in names}
    order = [f"seconds_{name}" for name in _PHASES]
    # The ledger of a running run lacks the costs that are recorded at its end.
    total = max(ledger, sum(sums.values()))
    rows: list[Json] = []
    for name in sorted(sums, key=lambda name: (order.index(name) if name in order else len(order), name)):
        words = name.removeprefix("seconds_")
        rows.append({"name": _PHASES.get(words, words), "seconds": sums[name]})
    rest = total - sum(sums.values())
    if rows and rest > 0:
        rows.append({"name": "the rest: loading, checkpoints, the store", "seconds": rest})
    return total, rows


def _sum_costs(appendix: Json) -> Json:
    """Add up the costs of all iterations, which would fill hundreds of rows."""
    sums: dict[str, LedgerTotal] = {}
    for row in appendix["costs"]:
        kind = _COSTS.get(row["phase"].rpartition("/")[2], row["phase"])
        known, total = sums.get(kind, LedgerTotal()), row["total"]
        sums[kind] = LedgerTotal(*(getattr(known, n) + getattr(total, n) for n in LedgerTotal.__dataclass_fields__))
    return {**appendix, "costs": [{"phase": kind, "total": total, "unpriced": False} for kind, total in sums.items()]}
