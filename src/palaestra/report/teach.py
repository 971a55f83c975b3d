"""What the page of a teach run shows, read from its store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from palaestra.core.records import Attempt, Decision, Report, Split
from palaestra.core.statistics import Gain, gain_between, report_on
from palaestra.recipes.teach import TeachSettings
from palaestra.report.allocation import Allocation, AllocationRow, allocation_bars, allocation_rows, examples_of
from palaestra.report.appendix import Appendix, appendix_of
from palaestra.report.bars import axis, dumbbell
from palaestra.report.curves import RAW_ROUNDS, Moment, accuracy_curve, accuracy_multiple, loss_curve, series
from palaestra.report.samples import Group, compare
from palaestra.report.tree import area_legend, draw_tree, grow
from palaestra.runs.run import Run
from palaestra.teachers.quality import Inspection


@dataclass(frozen=True, slots=True)
class SkillRow:
    """A skill on the test problems before and after, and the examples it was given."""

    name: str
    before: Report | None
    after: Report | None
    gain: Gain | None
    examples: int
    picture: Markup


@dataclass(frozen=True, slots=True)
class Multiple:
    """One skill's small curve with its first and last accuracy."""

    name: str
    first: Report | None
    last: Report | None
    picture: Markup


@dataclass(frozen=True, slots=True)
class RoundDecisions:
    """What a teacher decided for one lesson, and why."""

    round: int
    examples: int
    actions: dict[str, int]
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class TeachPage:
    """Everything on the page of a teach run. Pictures are there only where there is something to draw."""

    ended: bool
    under_way: tuple[tuple[str, int, int], ...]
    task: str
    student: str
    teacher: str
    seed: int
    rounds: int
    rounds_planned: int
    examples: int
    failures: dict[str, int]
    attempts: int
    weights_sha256: str
    overall: SkillRow
    skills: tuple[SkillRow, ...]
    axis: Markup
    moments: tuple[Moment, ...]
    curve: Markup | None
    multiples: tuple[Multiple, ...]
    losses: Markup | None
    loss_rounds: tuple[tuple[int, str], ...]
    loss_raw_rounds: int
    allocation: Markup | None
    allocation_rounds: tuple[int, ...]
    allocation_rows: tuple[AllocationRow, ...]
    tree: Markup | None
    tree_area: Markup | None
    decisions: tuple[RoundDecisions, ...]
    inspections: tuple[tuple[int, Inspection], ...]
    samples: tuple[Group, ...]
    appendix: Appendix


def teach_page(run: Run) -> TeachPage:
    """Read what a teach run has done so far."""
    # The summary is written last: asked for first, it cannot promise what the store does not hold yet.
    ended = run.summary is not None
    phases = {phase: run.store.attempts(phase) for phase in run.store.phases()}
    whole = {phase: attempts for phase, attempts in phases.items() if len(attempts) >= _asked(phases, phase)}
    allocation = run.store.allocation()
    before, after = whole.get(f"0/{Split.TEST}", []), _last(whole, Split.TEST)
    moments = _moments(whole, allocation)
    done = moments[-1].round if moments else 0
    skills = sorted(
        {a.problem.skill for part in phases.values() for a in part} | {s for p in allocation.values() for s, _ in p}
    )
    curves = run.store.curves()
    nodes = grow(moments[-1].report if moments else None, allocation)
    failed = Counter(
        cause for part in phases.values() for cause, n in report_on(part).failures.items() for _ in range(n)
    )
    settings = run.settings
    return TeachPage(
        ended=ended,
        under_way=tuple((p, len(a), _asked(phases, p)) for p, a in phases.items() if p not in whole),
        task=str(settings.get("task", "")),
        student=str(settings.get("student", "")),
        teacher=str(settings.get("teacher", "")),
        seed=int(settings.get("seed", 0)),
        rounds=done,
        rounds_planned=int(settings.get("rounds", 0)),
        examples=sum(n for parts in allocation.values() for n in parts.values()),
        failures=dict(sorted(failed.items())),
        attempts=sum(len(part) for part in phases.values()),
        weights_sha256=(run.store.weights_sha256(done) or "") if done else "",
        overall=_row("all skills", before, after, sum(n for parts in allocation.values() for n in parts.values())),
        skills=_rows(skills, before, after, allocation),
        axis=axis(),
        moments=moments,
        curve=accuracy_curve(moments) if moments else None,
        multiples=_multiples(skills, moments),
        losses=loss_curve(curves) if any(curves.values()) else None,
        loss_raw_rounds=RAW_ROUNDS,
        loss_rounds=tuple((round_, series(round_)) for round_ in curves),
        allocation=allocation_bars(allocation, skills) if allocation else None,
        allocation_rounds=tuple(sorted(allocation)),
        allocation_rows=tuple(allocation_rows(allocation)),
        tree=draw_tree(nodes, str(settings.get("task", "task"))) if nodes else None,
        tree_area=area_legend(nodes) if nodes else None,
        decisions=_decisions(run, allocation),
        inspections=tuple(run.store.inspections(Inspection).items()),
        samples=compare(before, after),
        appendix=appendix_of(run, TeachSettings),
    )


def _asked(phases: dict[str, list[Attempt]], phase: str) -> int:
    """How many attempts a phase will have: as many as the first of its split has, the problems being the same."""
    return len(phases.get(f"0/{phase.rpartition('/')[2]}", []))


def _last(phases: dict[str, list[Attempt]], split: Split) -> list[Attempt]:
    """The attempts after the last round at which this split was asked; none before the first."""
    rounds = [int(phase.split("/")[0]) for phase in phases if phase.endswith(f"/{split}")]
    last = max(rounds, default=0)
    return phases[f"{last}/{split}"] if last else []


def _moments(phases: dict[str, list[Attempt]], allocation: Allocation) -> tuple[Moment, ...]:
    rounds = sorted(int(phase.split("/")[0]) for phase in phases if phase.endswith(f"/{Split.VALIDATION}"))
    sizes = {round_: sum(parts.values()) for round_, parts in allocation.items()}
    return tuple(
        Moment(
            r,
            sum(n for k, n in sizes.items() if k <= r),
            report_on(phases[f"{r}/{Split.VALIDATION}"], Split.VALIDATION),
        )
        for r in rounds
    )


def _row(name: str, before: Sequence[Attempt], after: Sequence[Attempt], examples: int) -> SkillRow:
    first = report_on(before, name) if before else None
    second = report_on(after, name) if after else None
    gain = gain_between(before, after) if before and after else None
    return SkillRow(name, first, second, gain, examples, dumbbell(first, second))


def _rows(
    skills: Sequence[str], before: Sequence[Attempt], after: Sequence[Attempt], allocation: Allocation
) -> tuple[SkillRow, ...]:
    """A row a skill, the largest gain first."""

    def of(attempts: Sequence[Attempt], skill: str) -> list[Attempt]:
        return [attempt for attempt in attempts if attempt.problem.skill == skill]

    if not before:
        return ()
    rows = [_row(skill, of(before, skill), of(after, skill), examples_of(allocation, skill)) for skill in skills]
    return tuple(sorted(rows, key=lambda row: (-(row.gain.points if row.gain else 0.0), row.name)))


def _multiples(skills: Sequence[str], moments: Sequence[Moment]) -> tuple[Multiple, ...]:
    most = max((moment.examples for moment in moments), default=0)
    found = []
    for skill in skills:
        parts = [Moment(m.round, m.examples, part) for m in moments for part in m.report.slices if part.name == skill]
        if parts:
            found.append(Multiple(skill, parts[0].report, parts[-1].report, accuracy_multiple(parts, most)))
    return tuple(found)


def _decisions(run: Run, allocation: Allocation) -> tuple[RoundDecisions, ...]:
    found = []
    # A round whose examples were all dropped has a lesson, and no place in the allocation.
    for round_ in range(1, max([*allocation, *run.store.lesson_rounds()], default=0) + 1):
        lesson = run.store.lesson(round_)
        if lesson is not None:
            actions = dict(sorted(Counter(decision.action for decision in lesson.decisions).items()))
            found.append(RoundDecisions(round_, len(lesson.examples), actions, lesson.decisions))
    return tuple(found)
