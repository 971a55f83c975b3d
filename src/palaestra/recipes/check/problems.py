"""Level 1 for tasks: whether problems are valid, repeatable and different, and splits do not overlap."""

from __future__ import annotations

import copy
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import get_args

import numpy as np

from palaestra.core.errors import PalaestraError, TooFewProblemsError
from palaestra.core.records import Completion, Example, Failure, Message, Problem, Role, Score, Split
from palaestra.core.seeding import Seeds
from palaestra.core.settings import short_repr
from palaestra.recipes.check.answers import FORMS, TaskAnswers, pose
from palaestra.recipes.check.elsewhere import call_elsewhere
from palaestra.recipes.check.play import watch_global_random
from palaestra.recipes.check.records import (
    CheckFinding,
    FaultError,
    env_check,
    report_fail,
    report_pass,
    report_skip,
    report_warn,
)
from palaestra.recipes.check.scorer import limit
from palaestra.recipes.check.subjects import Subject
from palaestra.tasks.base import GenerativeTask, Task, get_hooks, get_split
from palaestra.tasks.texts import digest_texts

_TOLERATED = 0.01
"""Fraction of problems of published data that may be contradictory, or be in two splits, with a warning."""
_ROLES = get_args(Role)


@env_check("problems", "runtime.task_api")
def check_task(answers: TaskAnswers) -> CheckFinding:
    """The task returns skills and problems of the right types"""
    task = answers.task
    skills = task.skills()
    if not isinstance(skills, Mapping) or not skills or any(isinstance(parts, str) for parts in skills.values()):
        return report_fail(f"skills returned {short_repr(skills)}; expected a mapping of skills to tuples of subskills")
    for split, problems in answers.samples.items():
        for problem in problems:
            wrong = _find_wrong_field(problem)
            if wrong:
                return report_fail(f"problems returned {wrong}", f"split {split}: {short_repr(problem)}")
    count = sum(map(len, answers.samples.values()))
    return (
        report_pass(f"{count} problems are valid", problems=count) if count else report_fail("no split has a problem")
    )


def _find_wrong_field(problem: object) -> str:
    if not isinstance(problem, Problem):
        return f"{short_repr(problem)}; expected a Problem"
    if not problem.messages or not all(isinstance(message, Message) for message in problem.messages):
        return f"a problem with {short_repr(problem.messages)} as its messages; expected at least one Message"
    for name in ("id", "reference", "skill", "subskill"):
        if not isinstance(getattr(problem, name), str):
            return f"a problem with {short_repr(getattr(problem, name))} as its {name}; expected a text"
    if not problem.id:
        return "a problem without an id"
    try:
        json.dumps(dict(problem.metadata))
    except (TypeError, ValueError) as error:
        return f"metadata that cannot be stored: {error}; expected texts, numbers, lists and dictionaries"
    return ""


def _list_all(answers: TaskAnswers) -> list[Problem]:
    return [problem for problems in answers.samples.values() for problem in problems]


@env_check("problems", "runtime.observation_schema")
def check_messages(answers: TaskAnswers) -> CheckFinding:
    """A model can continue the messages of every problem"""
    faults = Counter[str]()
    shown: dict[str, str] = {}
    for problem in _list_all(answers):
        fault = find_role_fault(problem.messages)
        if fault:
            faults[fault] += 1
            shown.setdefault(fault, f"{problem.id}: {short_repr(problem.messages)}")
    total = len(_list_all(answers))
    if faults:
        fault, count = faults.most_common(1)[0]
        return report_fail(f"{fault}, in {count} of {total} problems", *shown.values(), problems=count)
    return report_pass("roles and texts of all messages are valid")


def find_role_fault(messages: Sequence[Message]) -> str:
    """What is wrong with a conversation that a model shall continue; empty if nothing is."""
    roles = [message.role for message in messages]
    unknown = [role for role in roles if role not in _ROLES]
    if unknown:
        return f"a message has the unknown role {unknown[0]!r}"
    if "system" in roles[1:]:
        return "a system message follows another message"
    if roles[-1] == "assistant":
        return "the last message is the assistant's"
    if "user" not in roles:
        return "no message is the user's"
    if not any(message.text.strip() or message.has_image for message in messages if message.role == "user"):
        return "the user's messages are empty"
    calls = {call.id for message in messages for call in message.tool_calls}
    if any(m.role == "tool" and m.tool_call_id and m.tool_call_id not in calls for m in messages):
        return "a tool message answers no call"
    return ""


@env_check("problems", "runtime.task_declaration_accuracy")
def check_declarations(answers: TaskAnswers) -> CheckFinding:
    """Every skill has the requested number of problems"""
    task, seed = answers.task, answers.subject.seed
    known = task.skills()
    for problem in _list_all(answers):
        parts = known.get(problem.skill)
        if parts is None or (problem.subskill and parts and problem.subskill not in parts):
            name = f"{problem.skill}/{problem.subskill}".rstrip("/")
            return report_fail(f"problems have the skill {name!r}, which skills() does not list", problem.id)
    split = next(split for split, problems in answers.samples.items() if problems)
    available = Counter(problem.skill for problem in answers.samples[split])
    for skill in list(known)[:6]:
        try:
            drawn = task.problems(split, 2, seed, [skill])
        except TooFewProblemsError:
            continue
        others = {problem.skill for problem in drawn} - {skill}
        if others:
            return report_fail(
                f"problems of the skill {skill!r} were requested; got some of {', '.join(sorted(others))!r}"
            )
        if len(drawn) > 2 or len(drawn) < min(2, available[skill]):
            return report_fail(f"2 problems of {skill!r} were requested; got {len(drawn)}", f"{available[skill]} exist")
    without = [skill for skill in known if not any(skill == problem.skill for problem in _list_all(answers))]
    if without:
        return report_warn(f"{len(without)} of {len(known)} skills have no problems", ", ".join(without[:10]))
    return report_pass(f"{len(known)} skills have problems", skills=len(known))


@env_check("problems", "static.problem_ids")
def check_ids(answers: TaskAnswers) -> CheckFinding:
    """No two problems share an id"""
    repeated, colliding = list[str](), list[str]()
    by_id: dict[str, Problem] = {}
    for problems in answers.samples.values():
        own: set[str] = set()
        for problem in problems:
            if problem.id in own and _get_key(problem) == _get_key(by_id[problem.id]):
                repeated.append(problem.id)
            own.add(problem.id)
            first = by_id.setdefault(problem.id, problem)
            if (_get_key(first), first.reference) != (_get_key(problem), problem.reference):
                colliding.append(f"{problem.id}: {_describe(first)} and {_describe(problem)}")
    if colliding:
        return report_fail(
            f"{len(colliding)} problems have the id of another problem", *colliding[:3], colliding=len(colliding)
        )
    if repeated:
        text = f"{len(repeated)} problems are returned twice by one call; expected different problems"
        return report_fail(text, ", ".join(repeated[:5]), repeated=len(repeated))
    return report_pass(f"{len(by_id)} ids are unique", ids=len(by_id))


def _get_key(problem: Problem | Example) -> str:
    """What a model sees, up to case and spaces."""
    parts = [
        str(message.content) if message.has_image else " ".join(message.text.casefold().split())
        for message in problem.messages
    ]
    return digest_texts(*parts)


def _describe(problem: Problem) -> str:
    return f"{short_repr(problem.messages[-1].text)} -> {short_repr(problem.reference)}"


@env_check("problems", "semantic.consistent_references")
def check_references(answers: TaskAnswers) -> CheckFinding:
    """The same question does not have two different answers"""
    groups: dict[tuple[str, str], list[Problem]] = defaultdict(list)
    problems = _list_all(answers)
    for problem in problems:
        groups[problem.skill, _get_key(problem)].append(problem)
    contradictions, duplicates = list[str](), 0
    for group in groups.values():
        references = {_fold(problem.reference): problem for problem in group if problem.reference}
        duplicates += len(group) - 1
        if len(references) > 1:
            first, second = list(references.values())[:2]
            if not _accepts(answers, first, second.reference) or not _accepts(answers, second, first.reference):
                contradictions.append(f"{_describe(first)}, but {short_repr(second.reference)} in {second.id}")
    if contradictions:
        finding = report_fail if len(contradictions) > _TOLERATED * len(problems) else report_warn
        summary = f"{len(contradictions)} questions have contradicting references"
        return finding(summary, *contradictions[:3], questions=len(contradictions))
    if duplicates > 0.02 * len(problems):
        return report_warn(
            f"{duplicates} of {len(problems)} problems repeat the question of another", duplicates=duplicates
        )
    return report_pass(f"{len(groups)} questions have one answer each", duplicates=duplicates)


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())


def _accepts(answers: TaskAnswers, problem: Problem, reference: str) -> bool:
    """Whether the scorer accepts a reference for a problem, in any form."""
    outcomes = (answers.task.score(problem, Completion(form.format(reference))) for form in FORMS)
    return any(isinstance(outcome, Score) and outcome.value >= 1.0 for outcome in outcomes)


@env_check("problems", "semantic.split_overlap")
def check_splits(answers: TaskAnswers) -> CheckFinding:
    """No problem is in two splits"""
    keys = {split: {_get_key(p): p for p in problems} for split, problems in answers.samples.items() if problems}
    if len(keys) < 2:
        return report_skip("it has one split")
    shared = [
        (first, second, keys[first][key])
        for first, second in (
            (Split.TRAIN, Split.TEST),
            (Split.TRAIN, Split.VALIDATION),
            (Split.VALIDATION, Split.TEST),
        )
        for key in keys.get(first, {}).keys() & keys.get(second, {}).keys()
    ]
    if not shared:
        return report_pass("the splits have no question in common", problems=len(_list_all(answers)))
    evidence = [f"{first} and {second}: {_describe(problem)}" for first, second, problem in shared[:3]]
    finding = report_fail if len(shared) > _TOLERATED * len(_list_all(answers)) else report_warn
    return finding(f"{len(shared)} questions are in two splits", *evidence, shared=len(shared))


@env_check("problems", "runtime.seed_control")
def check_seeds(answers: TaskAnswers) -> CheckFinding:
    """The same arguments give the same problems, in any process"""
    split = next(split for split, problems in answers.samples.items() if problems)
    seed, skills = answers.subject.seed, tuple(list(answers.task.skills())[:6])

    def draw(task: Task, own: int = seed) -> list[tuple[str, str, str]]:
        return draw_keys(task, split, own, skills)

    with watch_global_random(1):
        first = draw(answers.task)
    with watch_global_random(2) as list_used:
        draw(answers.task, seed + 1)
        second = draw(answers.task)
        used = list_used()
    if used:
        return report_fail(f"problems uses the global generator of {' and '.join(used)}", seed=seed)
    if first != second:
        different = next(
            (pair for pair in zip(first, second, strict=False) if pair[0] != pair[1]), (len(first), len(second))
        )
        return report_fail(f"two calls with seed {seed} return different problems", *map(str, different), seed=seed)
    away = call_elsewhere(draw_keys, answers.task, split, seed, skills)
    if away is not None and away != first:
        pair = next((pair for pair in zip(first, away, strict=False) if pair[0] != pair[1]), (len(first), len(away)))
        return report_fail("another process returns different problems for the same seed", *map(str, pair), seed=seed)
    if get_hooks(answers.task).is_procedural and all(draw(answers.task, seed + n) == first for n in (1, 2, 3)):
        return report_fail("all seeds give the same problems, although the task says that it generates them", seed=seed)
    return report_pass("problems depend on the seed only", processes=1 if away is None else 2)


def draw_keys(task: Task, split: Split, seed: int, skills: Sequence[str]) -> list[tuple[str, str, str]]:
    """The ids, prompts and references of problems."""
    drawn = TaskAnswers(Subject("", "", task=task), task).draw_unchecked(split, 4, seed, skills)
    return [(p.id, "\n".join(str(message.content) for message in p.messages), p.reference) for p in drawn]


@env_check("problems", "runtime.episode_isolation")
def check_isolation(answers: TaskAnswers) -> CheckFinding:
    """Scoring and other instances do not change the problems"""
    split = next(split for split, problems in answers.samples.items() if problems)
    skills = tuple(list(answers.task.skills())[:4])
    try:
        other: Task = copy.deepcopy(answers.task)
    except Exception:  # A task with a sandbox or a file cannot be copied.
        other = answers.task
    first = answers.draw_unchecked(split, 3, answers.subject.seed, skills)
    before = [_freeze(problem) for problem in first]
    TaskAnswers(answers.subject, other).draw_unchecked(split, 2, answers.subject.seed + 7, skills)
    for problem in first:
        for text in ("hello", problem.reference):
            try:
                other.score(problem, Completion(text))
            except Exception:  # Another check reports it.
                continue
    changed = [p.id for p, frozen in zip(first, before, strict=True) if _freeze(p) != frozen]
    if changed:
        return report_fail("score changes the problem that it is given", *changed[:3])
    again = [_freeze(problem) for problem in answers.draw_unchecked(split, 3, answers.subject.seed, skills)]
    if again != before:
        return report_fail("after scores and draws of another instance, the same call returns other problems", again[0])
    return report_pass("problems do not depend on earlier calls")


def _freeze(problem: Problem) -> str:
    return repr((problem.id, problem.messages, problem.reference, json.dumps(dict(problem.metadata), sort_keys=True)))


@env_check("problems", "semantic.examples")
def check_examples(answers: TaskAnswers) -> CheckFinding:
    """Training examples are right, and not of another split"""
    task = answers.task
    if not isinstance(task, GenerativeTask):
        return report_skip("the task writes no examples")
    generator = Seeds(answers.subject.seed).derive("check").generator()
    held = {_get_key(p): split for split in (Split.VALIDATION, Split.TEST) for p in answers.samples[split]}
    wrong, shared, unscored, total, reason = list[str](), list[str](), list[str](), 0, ""
    find_split = _get_split_rule(answers.samples)
    for skill in _repeat_skills(task):
        try:
            examples = _write(task, skill, generator)
        except FaultError:
            raise
        except PalaestraError as error:  # A skill may have no right answers.
            reason = str(error)
            continue
        for example in examples:
            total += 1
            split = held.get(_get_key(example)) or find_split(example)
            if split is not Split.TRAIN:
                shared.append(f"{split}: {short_repr(example.messages[-1].text)}")
            problem = pose(task, example)
            if problem is None:
                continue
            outcome = task.score(problem, Completion(example.response))
            text = f"{skill}: {short_repr(example.messages[-1].text)} -> {short_repr(example.response)}"
            if isinstance(outcome, Failure):
                unscored.append(f"{text}: {outcome.message}")
            elif outcome.value < 1.0:
                wrong.append(f"{text} has score {outcome.value:g}")
    if wrong:
        return report_fail(
            f"{len(wrong)} of {total} examples have a response that the scorer rejects", *wrong[:3], wrong=len(wrong)
        )
    if shared:
        finding = report_fail if len(shared) > _TOLERATED * total else report_warn
        return finding(
            f"{len(shared)} of {total} examples are problems of a held-out split", *shared[:3], shared=len(shared)
        )
    if unscored:
        return report_warn(
            f"{len(unscored)} of {total} examples cannot be scored", *unscored[:3], unscored=len(unscored)
        )
    return (
        report_pass(f"{total} examples are right and of the train split", examples=total)
        if total
        else report_skip(reason)
    )


def _repeat_skills(task: Task) -> Iterator[str]:
    """Each skill once, and then again until the time of the check is over: examples of few questions repeat held-out ones."""
    skills = list(task.skills())
    yield from skills
    yield from limit(skills * 4, 0.3)


def _get_split_rule(samples: Mapping[Split, Sequence[Problem]]) -> Callable[[Problem | Example], Split]:
    """How a task seems to divide its questions: by the hash of their text, or in a way that is not known."""

    def hash_text(problem: Problem | Example) -> Split:
        return get_split(problem.messages[-1].text)

    known = [(split, problem) for split, problems in samples.items() for problem in problems]
    is_rule = len(known) >= 20 and all(hash_text(problem) is split for split, problem in known)
    return hash_text if is_rule and len({split for split, _ in known}) > 1 else lambda _: Split.TRAIN


def _write(task: GenerativeTask, skill: str, generator: np.random.Generator) -> list[Example]:
    examples = task.write_examples(skill, "", 12, generator)
    if not isinstance(examples, list | tuple) or not all(isinstance(example, Example) for example in examples):
        raise FaultError(f"write_examples returned {short_repr(examples)}; expected a list of Example")
    others = {example.skill for example in examples} - {skill}
    if len(examples) > 12 or others:
        raise FaultError(
            f"12 examples of {skill!r} were requested; got {len(examples)} of {', '.join(sorted(others | {skill}))}"
        )
    return list(examples)
