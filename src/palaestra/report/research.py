"""The page of a research run: scores and the whole conversation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from palaestra.core.records import Json, Message
from palaestra.core.tables import load_table
from palaestra.envs.turn.base import transcript
from palaestra.recipes.research.episode_player import is_silent
from palaestra.recipes.research.settings import ResearchSettings
from palaestra.report.charts import MetricPoint, Panel, Series, line_chart
from palaestra.report.formatting import plain, short_path, shorten
from palaestra.report.parts import make_appendix
from palaestra.report.svg import Plot
from palaestra.research.workspace.workspace import Step
from palaestra.runs.browse import read_light_steps
from palaestra.runs.run import Run

_OPEN = 3
"""Number of steps at the end of a conversation that are expanded when the page opens."""
_SHORT = 90
FOLDERS = re.compile(r":/(?!/)(?:.*/)?(?=[^/]+$)")
"""The folders of an absolute path in an agent's name, but not those of a URL."""
REASONS: Mapping[str, str] = load_table(__file__, "words")["reasons"]
_OUTCOMES: Mapping[str, str] = load_table(__file__, "words")["outcomes"]


def research_page(run: Run, with_texts: bool = True) -> Json:
    """Read the episodes of a research run so far.

    Arguments:
        with_texts: whether the page has the conversations; otherwise it links to them.
    """
    # The summary is written last. Read it first, so that the store contains everything that it mentions.
    summary = run.summary
    store = run.store
    episodes: dict[int, list[Step]] = {
        number: store.steps(Step, number) if with_texts else read_light_steps(store, Step, number)
        for number in store.episodes()
    }
    kept = int(summary["kept_episode"]) if summary else max(episodes, default=0)
    first = next((dict(steps[0].info) for steps in episodes.values() if steps), {})
    ahead = None
    if summary and summary["best_submission"] is not None:
        ahead = _is_better(summary["best_submission"], summary["baseline"], summary["direction"])
    agent = str(run.settings.get("agent", ""))
    shown = [_make_episode(number, steps, number == kept) for number, steps in episodes.items()]
    for episode in shown:
        result = ": the result" if episode["kept"] and summary else ""
        episode["title"] = f"Episode {episode['number'] + 1}{result}" if len(shown) > 1 else "Episode"
    return {
        "ended": summary is not None,
        "task": (summary or first).get("task", run.settings.get("task", "")),
        "agent": short_path(agent),
        "title": FOLDERS.sub(":", agent),
        "seed": run.settings.get("seed", 0),
        "start": first,
        "summary": summary,
        "reasons": REASONS,
        "outcome": _OUTCOMES[(summary or {}).get("outcome", "")],
        "ahead": ahead,
        "silent": summary is not None and is_silent(summary),
        "with_texts": with_texts,
        "episodes": shown,
        "steps": sum(step.message is not None for steps in episodes.values() for step in steps),
        "failures": (summary or {}).get("failures", {}),
        "appendix": make_appendix(run, ResearchSettings),
        "figures": [(f"episode-{e['number']}", e["title"], [e["chart"]]) for e in shown],
    }


def validation_chart(steps: Sequence[Step]) -> Plot | None:
    """Draw the validation scores of an episode by message, with the best so far and the baseline."""
    first, points = steps[0].info, list_validations(steps)
    if not points or "baseline_validation" not in first:
        return None
    baseline, last = float(first["baseline_validation"]), max(step.position for step in steps)
    best, stairs = points[0].value, [points[0]]
    for point in points:
        stairs.append(MetricPoint(0, point.x, best))
        if _is_better(point.value, best, str(first.get("direction", "higher"))):
            best = point.value
            stairs.append(point)
    stairs.append(MetricPoint(0, last, best))
    level = [MetricPoint(0, x, baseline) for x in (0, max(last, 1))]
    values = [baseline, *(point.value for point in points)]
    pad = 0.12 * (max(values) - min(values)) or 0.1 * abs(max(values)) or 1.0
    series = [
        Series("", level, "s6", "line", labels=[f"baseline {plain(baseline)}"], dashes="4 4"),
        Series("", stairs, "thin s1", "line"),
        Series("", points, "s1", "points", column="validation score"),
    ]
    panel = Panel(f"{first.get('metric', 'score')}, validation split", series, (min(values) - pad, max(values) + pad))
    label = f"validations: {', '.join(plain(point.value) for point in points)}; baseline {plain(baseline)}"
    return line_chart([panel], "message", label)


def list_validations(steps: Sequence[Step]) -> list[MetricPoint]:
    """The validation scores of an episode, by message."""
    return [
        MetricPoint(step.position, step.position, score, title=f"message {step.position}: {plain(score)}")
        for step in steps
        for score in map(float, step.info.get("validated") or ())
    ]


def _make_episode(number: int, steps: Sequence[Step], kept: bool) -> Json:
    end = steps[-1]
    turns = [step for step in steps if step.position]
    return {
        "number": number,
        "kept": kept,
        "score": end.info.get("score"),
        "stop_reason": end.stop_reason,
        "note": end.note or (end.failure.message if end.failure is not None else ""),
        "opening": [_make_message(message) for message in steps[0].observation],
        "turns": [_make_turn(step, place >= len(turns) - _OPEN) for place, step in enumerate(turns)],
        "chart": validation_chart(steps),
    }


def _make_turn(step: Step, is_open: bool) -> Json:
    first = next((line for line in step.action.splitlines() if line.strip()), "")
    messages = (*((step.message,) if step.message is not None else ()), *step.observation)
    return {
        "step": step,
        "line": shorten(first or ("no readable action" if step.message is not None else "ended from outside"), _SHORT),
        "messages": [_make_message(message) for message in messages],
        "validated": [float(score) for score in step.info.get("validated") or ()],
        "open": is_open,
    }


def _make_message(message: Message) -> dict[str, str]:
    return {"role": message.role, "text": transcript(message)}


def _is_better(score: float, other: float, direction: str) -> bool:
    return score > other if direction == "higher" else score < other
