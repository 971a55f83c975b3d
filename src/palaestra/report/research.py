"""What the page of a run of research shows: its scores, and everything that was said and done."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from palaestra.core.records import Message
from palaestra.envs.turn.base import transcript
from palaestra.recipes.research.settings import ResearchSettings
from palaestra.recipes.research.summary import is_silent
from palaestra.report.appendix import Appendix, make_appendix
from palaestra.report.charts import FOOT, LEFT, PLOT, RIGHT, TOP, WIDTH, frame
from palaestra.report.formatting import plain, shorten, tick_words
from palaestra.report.svg import Scale, circle, drawing, polyline, text, ticks
from palaestra.research.workspace.step_record import Step
from palaestra.runs.run import Run

OPEN = 3
"""Steps at the end of a conversation that are open when the page is; the others are folded."""
SHORT = 90
FOLDERS = re.compile(r":/(?!/)(?:.*/)?(?=[^/]+$)")
"""The folders of an absolute path in an agent's name, and not those of an address."""
REASONS = {
    "submitted": "the agent handed its work in",
    "attempts": "every validation was used up, and the last submission could not be judged",
    "gave_up": "the agent stopped, and handed nothing in",
    "steps": "the limit of messages was reached",
    "time": "the limit of time was reached",
    "cost": "the agent's model has spent what it may",
    "context": "the conversation no longer fits the agent's model",
    "format": "too many messages in a row could not be read",
    "failed": "something around the agent broke: there is no score",
    "interrupted": "somebody stopped it",
}


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """A message of the conversation, as text."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class TranscriptTurn:
    """One step: a line that stands for it, and what was said."""

    number: int
    line: str
    message: TranscriptMessage | None
    observed: tuple[TranscriptMessage, ...]
    validated: str
    step: Step
    open: bool


@dataclass(frozen=True, slots=True)
class EpisodePart:
    """One episode."""

    number: int
    kept: bool
    score: str
    stop_reason: str
    meaning: str
    note: str
    opening: tuple[TranscriptMessage, ...]
    turns: tuple[TranscriptTurn, ...]
    chart: Markup | None


@dataclass(frozen=True, slots=True)
class ResearchPage:
    """Everything on the page of a run of research."""

    ended: bool
    task: str
    agent: str
    title: str
    """The agent without the folders of its file."""
    model: str
    seed: int
    figures: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    meaning: str
    ahead: bool | None
    silent: bool
    """Whether the agent said nothing: a score is then that of what the task begins with."""
    episodes: tuple[EpisodePart, ...]
    steps: int
    failures: dict[str, int]
    appendix: Appendix


def research_page(run: Run) -> ResearchPage:
    """Read what has happened in a run so far."""
    # The summary is written last: asked for first, it cannot promise what the store does not hold yet.
    summary = run.summary
    episodes = {number: run.store.steps(Step, number) for number in run.store.episodes()}
    kept = int(summary["kept_episode"]) if summary else max(episodes, default=0)
    first = next((dict(steps[0].info) for steps in episodes.values() if steps), {})
    ahead = None
    if summary and summary["best_submission"] is not None:
        ahead = _better(summary["best_submission"], summary["baseline"], summary["direction"])
    agent = str(run.settings.get("agent", ""))
    return ResearchPage(
        ended=summary is not None,
        task=str((summary or first).get("task", run.settings.get("task", ""))),
        agent=agent,
        title=FOLDERS.sub(":", agent),
        model=str((summary or {}).get("model", "")),
        seed=int(run.settings.get("seed", 0)),
        figures=first,
        summary=summary,
        meaning=REASONS.get(str((summary or {}).get("stop_reason", "")), ""),
        ahead=ahead,
        silent=summary is not None and is_silent(summary),
        episodes=tuple(_episode(number, steps, number == kept, len(episodes)) for number, steps in episodes.items()),
        steps=sum(step.message is not None for steps in episodes.values() for step in steps),
        failures=dict((summary or {}).get("failures", {})),
        appendix=make_appendix(run, ResearchSettings),
    )


def validation_chart(steps: Sequence[Step]) -> Markup | None:
    """The scores of an episode's validations by message, against the baseline's; `None` without any."""
    points = [(step.position, float(score)) for step in steps for score in (step.info.get("validated") or ())]
    first = steps[0].info
    if not points or "baseline_validation" not in first:
        return None
    baseline, most = float(first["baseline_validation"]), max(step.position for step in steps)
    values = [baseline, *(score for _, score in points)]
    low, high = min(values), max(values)
    pad = 0.12 * (high - low) or 0.1 * abs(high) or 1.0
    x, y = Scale(0, max(most, 1), LEFT, WIDTH - RIGHT), Scale(low - pad, high + pad, TOP + PLOT, TOP)
    x_ticks = [tick for tick in ticks(0, max(most, 1), 6) if tick == round(tick)]
    y_ticks = ticks(y.low, y.high, 5)
    parts = frame(
        x, y, x_ticks, y_ticks, "message", f"{first.get('metric', 'score')}, validation split", TOP + PLOT + FOOT - 8,
        tick_words(x_ticks), tick_words(y_ticks),
    )  # fmt: skip
    parts.append(polyline([(x.start, y(baseline)), (x.end, y(baseline))], "line s6", stroke_dasharray="4 4"))
    parts.append(text(x.end, y(baseline) - 6, f"baseline {plain(baseline)}", "value halo", "end"))
    best, stairs = points[0][1], [(x(points[0][0]), y(points[0][1]))]
    for place, score in points:
        stairs.append((x(place), stairs[-1][1]))
        if _better(score, best, str(first.get("direction", "higher"))):
            best = score
            stairs.append((x(place), y(best)))
    stairs.append((x.end, stairs[-1][1]))
    parts.append(polyline(stairs, "line thin s1"))
    parts += [circle((x(place), y(score)), 4, "mark s1", f"message {place}: {plain(score)}") for place, score in points]
    label = f"validations: {', '.join(plain(score) for _, score in points)}; baseline {plain(baseline)}"
    return drawing(WIDTH, TOP + PLOT + FOOT, label, *parts, class_="chart")


def _episode(number: int, steps: Sequence[Step], kept: bool, several: int) -> EpisodePart:
    end = steps[-1]
    score = end.info.get("score")
    turns = [step for step in steps if step.position]
    return EpisodePart(
        number=number,
        kept=kept,
        score=plain(None if score is None else float(score)),
        stop_reason=end.stop_reason.replace("_", " "),
        meaning=REASONS.get(end.stop_reason, ""),
        note=end.note or (end.failure.message if end.failure is not None else ""),
        opening=tuple(_make_message(message) for message in steps[0].observation),
        turns=tuple(_make_turn(step, place >= len(turns) - OPEN) for place, step in enumerate(turns)),
        chart=validation_chart(steps),
    )


def _make_turn(step: Step, open_: bool) -> TranscriptTurn:
    first = next((line for line in step.action.splitlines() if line.strip()), "")
    line = first or ("no readable action" if step.message is not None else "ended from outside")
    scores = ", ".join(plain(float(score)) for score in step.info.get("validated") or ())
    return TranscriptTurn(
        number=step.position,
        line=shorten(line, SHORT),
        message=None if step.message is None else _make_message(step.message),
        observed=tuple(_make_message(message) for message in step.observation),
        validated=scores,
        step=step,
        open=open_,
    )


def _make_message(message: Message) -> TranscriptMessage:
    return TranscriptMessage(message.role, transcript(message))


def _better(score: float, other: float, direction: str) -> bool:
    return score > other if direction == "higher" else score < other
