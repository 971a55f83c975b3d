"""The page of a teach run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from palaestra.core.records import Attempt, Decision, Lesson, Report, Split
from palaestra.core.statistics import Gain, find_best, measure_gain, report_on
from palaestra.recipes.teach.lesson_order import Delivery, add_up
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.recipes.teach.summary import CALLING, count_calls, list_unpriced
from palaestra.report.appendix import Appendix, make_appendix
from palaestra.report.charts import (
    RAW_ROUNDS,
    Moment,
    accuracy_curve,
    accuracy_multiple,
    dumbbell,
    loss_curve,
    rate_axis,
    round_series,
)
from palaestra.report.diagrams import (
    Allocation,
    AllocationRow,
    allocation_bars,
    allocation_rows,
    area_legend,
    build_tree,
    count_examples,
    draw_tree,
)
from palaestra.report.formatting import NOTHING, causes, plural
from palaestra.report.samples import SampleGroup, compare_attempts
from palaestra.runs.ledger import describe_cost
from palaestra.runs.run import Run
from palaestra.tasks.group import divide_attempts
from palaestra.teachers.quality.base import Inspection
from palaestra.teachers.skills.overview import OWN, TEST, Agreement, Overview, overview
from palaestra.teachers.skills.records import SkillMap
from palaestra.teachers.tree.records import skill_rewards

STAGE_NAMES = {
    "names": "the skills of the problems are named",
    "categories": "the names are clustered",
    "assignment": "the problems are assigned",
}


@dataclass(frozen=True, slots=True)
class AgreementRow:
    """How far the categories agree with the task's own skills, on some problems."""

    name: str
    adjusted_rand: str
    mutual_information: str
    purity: str
    problems: int
    left_out: int


@dataclass(frozen=True, slots=True)
class DiscoveryPart:
    """The section on discovered skills.

    Arguments:
        under_way: how far the discovery is, where it is not over.
        file: the skills file that they come from; empty where a model discovered them.
        saw: what the model was shown of a problem.
        has_own: the task has skills of its own to compare with.
        troubles: what the model could not do, in words.
    """

    overview: Overview
    under_way: str
    file: str
    saw: str
    has_own: bool
    agreements: tuple[AgreementRow, ...]
    troubles: tuple[str, ...]


def discovery_part(run: Run) -> DiscoveryPart | None:
    """What the store of a run has of a skill discovery; `None` where its skills are the task's own."""
    stages = run.store.skills(SkillMap)
    skills = overview(stages)
    if skills is None:
        return None
    pairs = (("problems that the categories come from", skills.agreement), ("test problems", skills.agreement_test))
    return DiscoveryPart(
        overview=skills,
        under_way="" if skills.stage == TEST else STAGE_NAMES[skills.stage],
        file=str(run.settings.get("skills_file") or ""),
        saw="questions with their expected answers" if run.settings.get("references") else "questions",
        has_own=OWN in stages,
        agreements=tuple(_make_agreement(name, figures) for name, figures in pairs if figures is not None),
        troubles=tuple(_list_troubles(skills)),
    )


def _make_agreement(name: str, figures: Agreement) -> AgreementRow:
    def number(value: float | None) -> str:
        return NOTHING if value is None else f"{value:.2f}".replace("-", "−")

    purity = NOTHING if figures.purity is None else f"{100 * figures.purity:.0f} %"
    rand, shared = number(figures.adjusted_rand), number(figures.mutual_information)
    return AgreementRow(name, rand, shared, purity, figures.problems, figures.left_out)


def _list_troubles(skills: Overview) -> list[str]:
    unnamed, unassigned, again = (sum(part.values()) for part in (skills.unnamed, skills.unassigned, skills.reasked))
    troubles = []
    if unnamed:
        troubles.append(f"{plural(unnamed, 'problem')} could not be named ({causes(dict(skills.unnamed))})")
    if unassigned:
        without = f"{'has' if unassigned == 1 else 'have'} no skill ({causes(dict(skills.unassigned))})"
        troubles.append(f"{plural(unassigned, 'problem')} could not be assigned and {without}")
    if again:
        stages = ", ".join(f"{stage} {count}" for stage, count in skills.reasked.items())
        troubles.append(f"asked again {plural(again, 'time')}, because an answer did not fit ({stages})")
    return troubles + [f"repaired: {repair}" for repair in skills.repairs]


@dataclass(frozen=True, slots=True)
class RewardCell:
    """A skill in a round.

    Arguments:
        reward: the change of its validation accuracy in points; `None` as long as the round is not over.
        examples: what it was given.
        actions: what the teacher did with it, and why.
    """

    reward: Gain | None
    examples: int
    actions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RewardRow:
    """A skill with its rounds in order."""

    name: str
    cells: tuple[RewardCell, ...]


@dataclass(frozen=True, slots=True)
class RoundDecisions:
    """What a teacher decided for one lesson, and why, with what came of it.

    Arguments:
        rows: each decision, beside the first of a skill its reward.
        idle: the skills without a decision, with their rewards.
    """

    round: int
    examples: int
    actions: Mapping[str, int]
    rows: tuple[tuple[Decision, Gain | None], ...]
    idle: tuple[tuple[str, Gain], ...]


Rewards = Sequence[Mapping[str, Gain]]
"""By round, from the first on, the reward of each skill. `""` is the whole: problems without a skill have none of their own."""


def rewards_by_round(measured: Sequence[Sequence[Attempt]]) -> list[dict[str, Gain]]:
    """The rewards of all rounds that are over.

    Arguments:
        measured: the attempts on the validation problems before the first round, and after each.
    """
    skills = skill_rewards(measured)
    return [
        {skill: gains[place] for skill, gains in skills.items()} | {"": measure_gain(before, after)}
        for place, (before, after) in enumerate(pairwise(measured))
    ]


def reward_rows(
    rewards: Rewards, lessons: Mapping[int, Lesson], allocation: Allocation, skills: Sequence[str]
) -> tuple[RewardRow, ...]:
    """A row for all skills together, then one for each skill."""
    rounds = range(1, max([*lessons, len(rewards)], default=0) + 1)

    def cell(skill: str, round_: int) -> RewardCell:
        reward = rewards[round_ - 1].get(skill) if round_ <= len(rewards) else None
        given = allocation.get(round_, {})
        lesson = lessons.get(round_)
        actions = [(d.action, d.reason) for d in lesson.decisions if skill and d.skill == skill] if lesson else []
        return RewardCell(reward, sum(n for (s, _), n in given.items() if not skill or s == skill), tuple(actions))

    named = [skill for skill in skills if skill]
    return tuple(RewardRow(skill, tuple(cell(skill, round_) for round_ in rounds)) for skill in ("", *named))


def decisions_by_round(rewards: Rewards, lessons: Mapping[int, Lesson]) -> tuple[RoundDecisions, ...]:
    """Every round whose lesson has been written."""
    rounds = []
    for round_, lesson in sorted(lessons.items()):
        earned = dict(rewards[round_ - 1]) if round_ <= len(rewards) else {}
        earned.pop("", None)
        rows = tuple((decision, earned.pop(decision.skill, None)) for decision in lesson.decisions)
        actions = dict(sorted(Counter(decision.action for decision in lesson.decisions).items()))
        rounds.append(RoundDecisions(round_, len(lesson.examples), actions, rows, tuple(earned.items())))
    return tuple(rounds)


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
class TeachPage:
    """Everything on the page of a teach run. Pictures are there only where there is something to draw.

    Arguments:
        tasks: the test tasks, where a run has several; `validation_tasks` are those of validation with their rounds.
        test_moments: the test after each round, where it was asked for.
        error: why the run ended without a gain, if it did.
        lessons: what was ordered, delivered, dropped and failed in all rounds.
        cost: dollars of the calls to models, or that they are unpriced.
        kept: where the best round's student is kept: the round, or as long as the run goes on, the best so far.
    """

    ended: bool
    under_way: tuple[tuple[str, int, int], ...]
    task: str
    student: str
    teacher: str
    seed: int
    rounds: int
    rounds_planned: int
    examples: int
    error: str
    lessons: Delivery
    calls: int
    cost: str
    failures: dict[str, int]
    attempts: int
    weights_sha256: str
    starts_at_base: bool
    kept: Moment | None
    overall: SkillRow
    skills: tuple[SkillRow, ...]
    tasks: tuple[SkillRow, ...]
    validation_tasks: tuple[tuple[str, tuple[Moment, ...]], ...]
    test_moments: tuple[Moment, ...]
    test_curve: Markup | None
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
    discovery: DiscoveryPart | None
    rewards: tuple[RewardRow, ...]
    decisions: tuple[RoundDecisions, ...]
    inspections: tuple[tuple[int, Inspection], ...]
    samples: tuple[SampleGroup, ...]
    appendix: Appendix


def teach_page(run: Run) -> TeachPage:
    """Read what a teach run has done so far."""
    # The summary is written last: asked for first, it cannot promise what the store does not hold yet.
    ended = run.summary is not None
    phases = {phase: run.store.attempts(phase) for phase in run.store.phases()}
    whole = {phase: attempts for phase, attempts in phases.items() if len(attempts) >= _count_problems(phases, phase)}
    allocation = run.store.allocation()
    moments, tests = _moments(whole, allocation), _moments(whole, allocation, Split.TEST)
    tests = tests if run.settings.get("test_every_round") else ()
    done = moments[-1].round if moments else 0
    measured = [whole[f"{moment.round}/{Split.VALIDATION}"] for moment in moments]
    kept = moments[find_best(measured)] if moments and run.settings.get("keep") == "best" else None
    before, after = whole.get(f"0/{Split.TEST}", []), _after(whole, kept, ended)
    skills = sorted(
        {a.problem.skill for part in phases.values() for a in part} | {s for p in allocation.values() for s, _ in p}
    )
    lessons = {round_: lesson for round_ in run.store.lesson_rounds() if (lesson := run.store.lesson(round_))}
    rewards = rewards_by_round(measured)
    curves = run.store.curves()
    nodes = build_tree(moments[-1].report if moments else None, allocation)
    failed = Counter(
        cause for part in phases.values() for cause, n in report_on(part).failures.items() for _ in range(n)
    )
    settings = run.settings
    unpriced = list_unpriced(settings) if count_calls(run) else []
    delivered = add_up(list(run.store.deliveries(Delivery).values()))
    return TeachPage(
        ended=ended,
        under_way=tuple((p, len(a), _count_problems(phases, p)) for p, a in phases.items() if p not in whole),
        task=str(settings.get("task", "")),
        student=str(settings.get("student", "")),
        teacher=str(settings.get("teacher", "")),
        seed=int(settings.get("seed", 0)),
        rounds=done,
        rounds_planned=int(settings.get("rounds", 0)),
        examples=sum(n for parts in allocation.values() for n in parts.values()),
        error=str((run.summary or {}).get("error", "")),
        lessons=delivered,
        calls=count_calls(run),
        cost=describe_cost(
            {"cost": run.store.total().money, "unpriced": unpriced, "unmeasured_calls": delivered.unmeasured}
        ),
        failures=dict(sorted(failed.items())),
        attempts=sum(len(part) for part in phases.values()),
        weights_sha256=_weights_sha256(run, done if kept is None else kept.round),
        starts_at_base=settings.get("start", "base") == "base",
        kept=kept,
        overall=make_skill_row(
            "all skills", before, after, sum(n for parts in allocation.values() for n in parts.values())
        ),
        skills=make_skill_rows(skills, before, after, allocation),
        tasks=_task_rows(run, before, after, allocation),
        validation_tasks=_validation_tasks(run, whole, allocation),
        test_moments=tests,
        test_curve=accuracy_curve(tests, kept, "test") if tests else None,
        axis=rate_axis(),
        moments=moments,
        curve=accuracy_curve(moments, kept) if moments else None,
        multiples=_multiples(skills, moments),
        losses=loss_curve(curves) if any(curves.values()) else None,
        loss_raw_rounds=RAW_ROUNDS,
        loss_rounds=tuple((round_, round_series(round_)) for round_ in curves),
        allocation=allocation_bars(allocation, skills) if allocation else None,
        allocation_rounds=tuple(sorted(allocation)),
        allocation_rows=tuple(allocation_rows(allocation)),
        tree=draw_tree(nodes, str(settings.get("task", "task"))) if nodes else None,
        tree_area=area_legend(nodes) if nodes else None,
        discovery=discovery_part(run),
        rewards=reward_rows(rewards, lessons, allocation, skills) if rewards or lessons else (),
        decisions=decisions_by_round(rewards, lessons),
        inspections=tuple(run.store.inspections(Inspection).items()),
        samples=compare_attempts(before, after),
        appendix=make_appendix(run, TeachSettings, CALLING if unpriced else ()),
    )


def _count_problems(phases: dict[str, list[Attempt]], phase: str) -> int:
    """How many attempts a phase will have: as many as the first of its split has, the problems being the same."""
    return len(phases.get(f"0/{phase.rpartition('/')[2]}", []))


def _after(phases: dict[str, list[Attempt]], kept: Moment | None, ended: bool) -> list[Attempt]:
    """The attempts of the student that is kept at the test problems; none before they were made."""
    if kept is not None:
        # Where the untaught student is the best of all, its test stands for both.
        return phases.get(f"{kept.round}/{Split.TEST}", []) if kept.round or ended else []
    rounds = [int(phase.split("/")[0]) for phase in phases if phase.endswith(f"/{Split.TEST}")]
    last = max(rounds, default=0)
    return phases[f"{last}/{Split.TEST}"] if last else []


def _weights_sha256(run: Run, round_: int) -> str:
    """The hash of the weights after a round; those of a round without training are those of the one before."""
    known = (run.store.weights_sha256(earlier) for earlier in range(round_, 0, -1))
    return next((digest for digest in known if digest), "")


def _moments(
    phases: dict[str, list[Attempt]], allocation: Allocation, split: Split = Split.VALIDATION
) -> tuple[Moment, ...]:
    rounds = sorted(int(phase.split("/")[0]) for phase in phases if phase.endswith(f"/{split}"))
    sizes = {round_: sum(parts.values()) for round_, parts in allocation.items()}
    return tuple(
        Moment(
            r,
            sum(n for k, n in sizes.items() if k <= r),
            report_on(phases[f"{r}/{split}"], split),
        )
        for r in rounds
    )


def make_skill_row(name: str, before: Sequence[Attempt], after: Sequence[Attempt], examples: int) -> SkillRow:
    first = report_on(before, name) if before else None
    second = report_on(after, name) if after else None
    gain = measure_gain(before, after) if before and after else None
    return SkillRow(name, first, second, gain, examples, dumbbell(first, second))


def make_skill_rows(
    skills: Sequence[str], before: Sequence[Attempt], after: Sequence[Attempt], allocation: Allocation
) -> tuple[SkillRow, ...]:
    """A row a skill, the largest gain first."""

    def select_skill(attempts: Sequence[Attempt], skill: str) -> list[Attempt]:
        return [attempt for attempt in attempts if attempt.problem.skill == skill]

    if not before:
        return ()
    rows = [
        make_skill_row(
            skill, select_skill(before, skill), select_skill(after, skill), count_examples(allocation, skill)
        )
        for skill in skills
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.gain.points if row.gain else 0.0), row.name)))


def _has_several_tasks(run: Run) -> bool:
    return bool(run.settings.get("validation_tasks") or run.settings.get("test_tasks"))


def _task_rows(
    run: Run, before: Sequence[Attempt], after: Sequence[Attempt], allocation: Allocation
) -> tuple[SkillRow, ...]:
    """A row for each test task of a run that has several."""
    if not _has_several_tasks(run):
        return ()
    main = str(run.settings.get("task", ""))
    first, second = divide_attempts(before, main), divide_attempts(after, main)
    further = [name for name in first if name != main]
    rows = []
    for name, attempts in first.items():
        # A skill of a further task begins with its name.
        given = sum(
            count
            for parts in allocation.values()
            for (skill, _), count in parts.items()
            if next((task for task in further if skill.startswith(f"{task}/")), main) == name
        )
        rows.append(make_skill_row(name, attempts, second.get(name, []), given))
    return tuple(rows)


def _validation_tasks(
    run: Run, phases: dict[str, list[Attempt]], allocation: Allocation
) -> tuple[tuple[str, tuple[Moment, ...]], ...]:
    if not _has_several_tasks(run):
        return ()
    main = str(run.settings.get("task", ""))
    parts = {phase: divide_attempts(attempts, main) for phase, attempts in phases.items()}
    names = parts.get(f"0/{Split.VALIDATION}", {})
    return tuple(
        (name, _moments({phase: part[name] for phase, part in parts.items() if name in part}, allocation))
        for name in names
    )


def _multiples(skills: Sequence[str], moments: Sequence[Moment]) -> tuple[Multiple, ...]:
    most = max((moment.examples for moment in moments), default=0)
    multiples = []
    for skill in skills:
        parts = [Moment(m.round, m.examples, part) for m in moments for part in m.report.slices if part.name == skill]
        if parts:
            multiples.append(Multiple(skill, parts[0].report, parts[-1].report, accuracy_multiple(parts, most)))
    return tuple(multiples)
