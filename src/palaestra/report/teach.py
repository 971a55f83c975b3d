"""The pages of a teach run and of a study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from urllib.parse import quote

from palaestra.core.records import Attempt, Json, Lesson, Split
from palaestra.core.statistics import Gain, find_best, measure_changes, measure_gain, report_on
from palaestra.envs.lesson.env import REHEARSAL
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.recipes.teach.study import COSTS, StudyArm, StudyResult
from palaestra.recipes.teach.summary import CALLING, Delivery, add_up, count_calls, list_unpriced
from palaestra.report.charts import Moment, accuracy_chart, accuracy_point, loss_chart
from palaestra.report.diagrams import (
    Allocation,
    allocation_rows,
    build_skill_nodes,
    count_allocated,
    difference_scale,
    draw_tree,
    format_tick,
    seed_points,
)
from palaestra.report.formatting import causes, plural
from palaestra.report.parts import compare_attempts, make_appendix, make_skill_row, make_skill_rows, setting_rows
from palaestra.report.svg import mean_bar, rate_axis, scale_axis, ticks
from palaestra.runs.provenance import describe_cost, read_provenance
from palaestra.runs.run import Run
from palaestra.tasks.group import divide_attempts
from palaestra.teachers.quality.base import Inspection
from palaestra.teachers.skills.overview import OWN, TEST, Overview, overview
from palaestra.teachers.skills.records import SkillMap
from palaestra.teachers.tree.records import skill_rewards

Attempts = Mapping[str, list[Attempt]]
"""Attempts by phase, for example `2/validation`."""
_Rewards = Sequence[Mapping[str, Gain]]
"""The reward of each skill by round. The skill `""` means all problems."""
_STAGE_NAMES = {
    "names": "the skills of the problems are named",
    "categories": "the names are clustered",
    "assignment": "the problems are assigned",
}


def teach_page(run: Run) -> Json:
    """Read the rounds of a teach run so far."""
    # The summary is written last. Read it first, so that the store contains everything that it mentions.
    ended, settings = run.summary is not None, run.settings
    phases = {phase: run.store.outcomes(phase) for phase in run.store.phases()}
    # Every evaluation of a split uses the same problems, so the first one sets the number of attempts of the others.
    sizes = {phase: len(phases.get(f"0/{phase.rpartition('/')[2]}", [])) for phase in phases}
    whole = {phase: attempts for phase, attempts in phases.items() if len(attempts) >= sizes[phase]}
    allocation = run.store.allocation()
    examples = sum(n for parts in allocation.values() for n in parts.values())
    moments = accuracy_by_round(whole, allocation)
    tests = accuracy_by_round(whole, allocation, Split.TEST) if settings.get("test_every_round") else []
    done = moments[-1].round if moments else 0
    measured = [whole[f"{moment.round}/{Split.VALIDATION}"] for moment in moments]
    kept = moments[find_best(measured)] if moments and settings.get("keep") == "best" else None
    before, after = whole.get(f"0/{Split.TEST}", []), _find_after(whole, kept, ended)
    skills = sorted(
        {a.problem.skill for phase, part in phases.items() if phase != REHEARSAL for a in part}
        | {s for p in allocation.values() for s, _ in p}
    )
    lessons = {round_: lesson for round_ in run.store.lesson_rounds() if (lesson := run.store.lesson(round_))}
    rewards = _rewards_by_round(measured)
    rehearsed = Counter(a.problem.skill for a in phases.get(REHEARSAL, ()) if a.correct)
    rows = make_skill_rows(skills, before, after, lambda skill: count_allocated(allocation, skill))
    curves = run.store.curves()
    multiples = _multiples(skills, moments)
    curve = accuracy_chart(moments, "validation accuracy", kept) if moments else None
    test_curve = accuracy_chart(tests, "test accuracy", kept) if tests else None
    losses = loss_chart(curves) if any(curves.values()) else None
    nodes = build_skill_nodes(moments[-1].report if moments else None, allocation)
    tree = draw_tree(nodes, str(settings.get("task", "task"))) if nodes else None
    failures = sum((Counter(report_on(part).failures) for part in phases.values()), Counter[str]())
    unpriced = list_unpriced(settings) if count_calls(run) else []
    delivered = add_up(list(run.store.deliveries(Delivery).values()))
    cost = {"cost": run.store.total().money, "unpriced": unpriced, "unmeasured_calls": delivered.unmeasured}
    # A round without training has the weights of the round before.
    weights = (run.store.weights_sha256(earlier) for earlier in range(done if kept is None else kept.round, 0, -1))
    return {
        "ended": ended,
        "under_way": [(phase, len(a), sizes[phase]) for phase, a in phases.items() if phase not in whole],
        "settings": settings,
        "rounds": done,
        "examples": examples,
        "lessons": delivered,
        "calls": count_calls(run),
        "cost": describe_cost(cost),
        "failures": dict(sorted(failures.items())),
        "attempts": sum(len(part) for part in phases.values()),
        "weights_sha256": next((digest for digest in weights if digest), ""),
        "kept": kept,
        "overall": make_skill_row("all skills", before, after, examples) | {"rehearsed": rehearsed.total()},
        "changes": measure_changes(before, after),
        "skills": [row | {"rehearsed": rehearsed[row["name"]]} for row in rows],
        "tasks": _task_rows(run, before, after, allocation),
        "validation_tasks": _validation_tasks(run, whole, allocation),
        "test_moments": tests,
        "test_curve": test_curve,
        "axis": rate_axis(),
        "moments": moments,
        "curve": curve,
        "multiples": multiples,
        "losses": losses,
        "allocation_rounds": sorted(allocation),
        "allocation": allocation_rows(allocation),
        "tree": tree,
        "tree_most": max((node.examples for node in nodes), default=0),
        "discovery": _discovery_part(run),
        "rewards": _reward_rows(rewards, lessons, allocation, skills),
        "decisions": sorted(lessons.items()),
        "inspections": run.store.inspections(Inspection),
        "samples": compare_attempts(
            before, after, load=lambda side, a: _load_attempt(run, whole, (before, after)[side], a)
        ),
        "appendix": make_appendix(run, TeachSettings, CALLING if unpriced else ()),
        "figures": (
            ("curves", "Learning curves", [curve, test_curve, losses]),
            ("curves", "By skill", [multiple["picture"] for multiple in multiples]),
            ("tree", "Skill tree", [tree]),
        ),
    }


def _load_attempt(run: Run, phases: Attempts, part: list[Attempt], attempt: Attempt) -> Attempt:
    """Read an attempt of a part with its texts."""
    phase = next(phase for phase, attempts in phases.items() if attempts is part)
    return run.store.attempt(phase, attempt.problem.id, attempt.sample) or attempt


def _find_after(phases: Attempts, kept: Moment | None, ended: bool) -> list[Attempt]:
    """Return the test attempts of the kept student; none before they were made."""
    if kept is not None:
        # If the untaught student is the best, its test counts as before and after.
        return phases.get(f"{kept.round}/{Split.TEST}", []) if kept.round or ended else []
    last = max((int(phase.split("/")[0]) for phase in phases if phase.endswith(f"/{Split.TEST}")), default=0)
    return phases[f"{last}/{Split.TEST}"] if last else []


def accuracy_by_round(phases: Attempts, allocation: Allocation, split: Split = Split.VALIDATION) -> list[Moment]:
    """The accuracy on a split after each round that was measured on it."""
    rounds = sorted(int(phase.split("/")[0]) for phase in phases if phase.endswith(f"/{split}"))
    sizes = {round_: sum(parts.values()) for round_, parts in allocation.items()}
    return [
        Moment(r, sum(n for k, n in sizes.items() if k <= r), report_on(phases[f"{r}/{split}"], split)) for r in rounds
    ]


def _multiples(skills: Sequence[str], moments: Sequence[Moment]) -> list[Json]:
    """Make a small chart for each skill with validation problems."""
    most = max((moment.examples for moment in moments), default=0)
    multiples = []
    for skill in skills:
        parts = [Moment(m.round, m.examples, part) for m in moments for part in m.report.slices if part.name == skill]
        if parts:
            picture = accuracy_chart(parts, "accuracy", most=most, small=True)
            values = [accuracy_point(part) for part in parts if part.report.accuracy is not None]
            ends = {"first": parts[0].report, "last": parts[-1].report}
            multiples.append({"name": skill, **ends, "picture": picture, "points": values})
    return multiples


# Several tasks


def _task_rows(run: Run, before: Sequence[Attempt], after: Sequence[Attempt], allocation: Allocation) -> list[Json]:
    """Make a row for each test task of a run with several tasks."""
    if not _has_several_tasks(run):
        return []
    main = str(run.settings.get("task", ""))
    first, second = divide_attempts(before, main), divide_attempts(after, main)
    given: Counter[str] = Counter()
    for parts in allocation.values():
        for (skill, _), count in parts.items():
            # A skill of a further task begins with the name of that task.
            given[next((task for task in first if task != main and skill.startswith(f"{task}/")), main)] += count
    return [make_skill_row(name, attempts, second.get(name, []), given[name]) for name, attempts in first.items()]


def _validation_tasks(run: Run, phases: Attempts, allocation: Allocation) -> list[tuple[str, list[Moment]]]:
    if not _has_several_tasks(run):
        return []
    main = str(run.settings.get("task", ""))
    parts = {phase: divide_attempts(attempts, main) for phase, attempts in phases.items()}
    return [
        (name, accuracy_by_round({phase: part[name] for phase, part in parts.items() if name in part}, allocation))
        for name in parts.get(f"0/{Split.VALIDATION}", {})
    ]


def _has_several_tasks(run: Run) -> bool:
    return bool(run.settings.get("validation_tasks") or run.settings.get("test_tasks"))


# Discovered skills


def _discovery_part(run: Run) -> Json | None:
    """Read the results of skill discovery; `None` if the skills are the task's own."""
    stages = run.store.skills(SkillMap)
    skills = overview(stages)
    if skills is None:
        return None
    pairs = {"problems that the categories come from": skills.agreement, "test problems": skills.agreement_test}
    return {
        "overview": skills,
        "under_way": "" if skills.stage == TEST else _STAGE_NAMES[skills.stage],
        "file": run.settings.get("skills_file"),
        "saw": "questions with their expected answers" if run.settings.get("references") else "questions",
        "has_own": OWN in stages,
        "agreements": {name: agreement for name, agreement in pairs.items() if agreement is not None},
        "troubles": _list_troubles(skills),
    }


def _list_troubles(skills: Overview) -> list[str]:
    unnamed, unassigned, again = (sum(part.values()) for part in (skills.unnamed, skills.unassigned, skills.reasked))
    troubles = []
    if unnamed:
        troubles.append(f"{plural(unnamed, 'problem')} could not be named ({causes(dict(skills.unnamed))})")
    if unassigned:
        reasons = causes(dict(skills.unassigned))
        troubles.append(f"{plural(unassigned, 'problem')} could not be assigned to a skill ({reasons})")
    if again:
        stages = causes(dict(skills.reasked))
        troubles.append(f"retried {plural(again, 'time')} because an answer was invalid ({stages})")
    return troubles + [f"repaired: {repair}" for repair in skills.repairs]


# Rewards and decisions


def _rewards_by_round(measured: Sequence[Sequence[Attempt]]) -> list[dict[str, Gain]]:
    """Return the rewards of all finished rounds.

    Arguments:
        measured: the attempts on the validation problems before the first round, and after each.
    """
    skills = skill_rewards(measured)
    return [
        {skill: gains[place] for skill, gains in skills.items()} | {"": measure_gain(before, after)}
        for place, (before, after) in enumerate(pairwise(measured))
    ]


def _reward_rows(
    rewards: _Rewards, lessons: Mapping[int, Lesson], allocation: Allocation, skills: Sequence[str]
) -> list[Json]:
    """Make a row for all skills together, then one for each skill, with a cell for each round.

    A cell has the reward (`None` until the round is over), the examples, and the teacher's actions with their reasons.
    """
    rounds = range(1, max([*lessons, len(rewards)], default=0) + 1)

    def make_cell(skill: str, round_: int) -> Json:
        decisions = lessons[round_].decisions if round_ in lessons else ()
        return {
            "reward": rewards[round_ - 1].get(skill) if round_ <= len(rewards) else None,
            "examples": sum(n for (s, _), n in allocation.get(round_, {}).items() if skill in ("", s)),
            "actions": [(d.action, d.reason) for d in decisions if skill and d.skill == skill],
        }

    names = ["", *(skill for skill in skills if skill)] if rounds else []
    return [{"name": skill, "cells": [make_cell(skill, round_) for round_ in rounds]} for skill in names]


# The page of a study


def study_page(result: StudyResult) -> Json:
    """Show the runs of a study so far."""
    arms = [_make_arm(result, row) for row in result.rows]
    scale = difference_scale([pair.difference for pair in result.pairs])
    pairs: list[Json] = [{"pair": pair, "picture": mean_bar(pair.difference, scale)} for pair in result.pairs]
    runs = [_make_run(result, row, seed) for row in result.rows for seed in result.seeds]
    first = result.rows[0].name
    figure = seed_points(result.rows, result.seeds, lambda row, seed: _address(result, row, seed))
    costs = {name: sum(row.cost[name] for row in result.rows) for name in COSTS}
    unpriced = sorted({model for row in result.rows for model in row.unpriced})
    return {
        "ended": result.ended,
        "runs_ended": sum(run["summary"] is not None for run in runs),
        "task": result.settings.get("task", ""),
        "student": result.settings.get("student", ""),
        "seeds": result.seeds,
        "several": result.several,
        "first": arms[0],
        "best": _find_best(arms),
        "arms": arms,
        "figure": figure,
        "figures": (("arms", "Arms", [figure]),),
        "axis": scale_axis(scale, ticks(scale.low, scale.high, 4), format_tick, "scale in points"),
        "against_first": [row for row in pairs if row["pair"].first == first],
        "other_pairs": [row for row in pairs if row["pair"].first != first],
        "runs": runs,
        "failures": dict(sorted(sum((Counter(row.failures) for row in result.rows), Counter[str]()).items())),
        "notes": result.notes,
        "without_gain": [run for run in runs if run["summary"] is not None and run["gain"] is None],
        "lessons": add_up([row.lessons for row in result.rows]),
        "costs": costs,
        "money": describe_cost({**costs, "unpriced": unpriced}),
        "examples": sum(row.examples for row in result.rows),
        "settings": setting_rows(result.settings, TeachSettings),
        "provenance": read_provenance(result.folder),
        "run_folders": [result.run_folder(row, seed) for row in result.rows for seed in result.seeds],
    }


def _make_arm(result: StudyResult, row: StudyArm) -> Json:
    """Make the row of an arm: means over its seeds, the number of ended runs, and the pair with the first arm."""
    names = result.rows[0].name, row.name
    return {
        "row": row,
        "before": row.mean("before"),
        "after": row.mean("after"),
        "ended": sum(run is not None for run in row.runs.values()),
        "planned": len(row.runs),
        "money": describe_cost({**row.cost, "unpriced": row.unpriced}),
        "pair": next((pair for pair in result.pairs if (pair.first, pair.second) == names), None),
    }


def _find_best(arms: Sequence[Json]) -> Json:
    """Find the arm with the largest mean gain. While runs are missing, only the arms with the most runs count."""
    most = max(arm["row"].gain.count for arm in arms)
    complete = [arm for arm in arms if arm["row"].gain.count == most]
    return max(complete, key=lambda arm: arm["row"].gain.value if most else 0.0)


def _make_run(result: StudyResult, row: StudyArm, seed: int) -> Json:
    summary, gain = row.runs[seed], None
    if summary is not None and summary["gain"] is not None:
        gain = Gain(summary["gain"], summary["gain_low"], summary["gain_high"], summary["problems"])
    address = _address(result, row, seed)
    return {"arm": row.name, "seed": seed, "address": address, "summary": summary, "gain": gain}


def _address(result: StudyResult, row: StudyArm, seed: int) -> str:
    """Return the path of a run's report, relative to the study's page; empty if the run has not begun."""
    folder = result.run_folder(row, seed)
    return f"{quote(folder.name)}/report.html" if (folder / "settings.json").exists() else ""
