"""The tasks of a `teach` run: the one that is taught, and those that it is validated and tested on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import SettingsError
from palaestra.core.records import Problem, Split
from palaestra.recipes.settings import parse_options, require

if TYPE_CHECKING:
    from palaestra.recipes.teach.recipe import TeachSettings
    from palaestra.tasks.base import Task
    from palaestra.tasks.group import Member


_WORD = re.compile(r'(?:[^\s"]|"[^"]*")+')
"""A part of an entry. Spaces inside quotes belong to it, and the quotes stay: values are read as JSON."""


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """A task as a setting names it.

    Arguments:
        text: as it was given, with one space between its parts.
        skills: only these skills; all if empty.
        problems: problems a skill; `None` for the run's setting.
        is_taught: lessons may be written for its skills; of a validation task.
    """

    text: str
    name: str
    options: dict[str, Any]
    skills: tuple[str, ...] = ()
    problems: int | None = None
    is_taught: bool = True


def parse_entries(texts: Sequence[str], setting: str) -> list[TaskEntry]:
    """The tasks of a setting. An entry is `NAME`, `NAME,NAME`, or `NAME option=value option=value`.

    Beside the options of the task, `problems=N` sets the problems a skill, `skills=A,B` selects skills, and `taught=false`
    keeps a validation task out of the lessons: the teacher sees how the student does on it, and orders nothing for it.

    >>> [entry.name for entry in parse_entries(["a,b", "c shots=2"], "test_tasks")]
    ['a', 'b', 'c']
    >>> parse_entries(["math path=data skills=algebra problems=5"], "test_tasks")[0].options
    {'path': 'data'}
    """
    entries: list[TaskEntry] = []
    for text in texts:
        require(text.count('"') % 2 == 0, f"setting '{setting}': {text!r} has no closing quotation mark")
        words = _WORD.findall(text)
        require(bool(words), f"setting '{setting}': expected the name of a task; got {text!r}")
        if len(words) == 1:
            entries += [TaskEntry(name, name, {}) for name in words[0].split(",") if name]
            continue
        options = parse_options(words[1:], setting)
        problems, skills = options.pop("problems", None), options.pop("skills", ())
        is_taught = options.pop("taught", True)
        require(
            isinstance(is_taught, bool),
            f"setting '{setting}': taught of {words[0]}: expected true or false; got {is_taught!r}",
        )
        require(
            problems is None or (isinstance(problems, int) and not isinstance(problems, bool) and problems >= 0),
            f"setting '{setting}': problems of {words[0]}: expected a whole number of at least 0; got {problems!r}",
        )
        chosen = tuple(skills.split(",")) if isinstance(skills, str) else tuple(map(str, skills))
        entries.append(TaskEntry(" ".join(words), words[0], options, chosen, problems, is_taught))
    twice = [text for text, count in Counter(entry.text for entry in entries).items() if count > 1]
    require(not twice, f"setting '{setting}': {', '.join(twice)} is given twice; give each task once")
    return entries


def make_taught_task(settings: TeachSettings) -> Task:
    """The task that lessons are written for and validation problems come from.

    That is `task`, or with `validation_tasks` a group of it and these. Skills of a validation task are taught if the writer
    can write for them: its own generators, or a language model if its data have the same shape as those of `task`.
    """
    from palaestra.tasks.base import GenerativeTask, make_task
    from palaestra.tasks.group import Member, TaskGroup
    from palaestra.tasks.teaching import WritableTask

    main = make_task(settings.task, **settings.options)
    entries = parse_entries(settings.validation_tasks, "validation_tasks")
    if not entries:
        return main
    members = {settings.task: Member(main, settings.skills, is_measured=False)}
    for label, member in _members(settings, entries, main).items():
        if label != settings.task:
            task = member.task
            own = isinstance(task, GenerativeTask)
            shaped = isinstance(task, WritableTask) and task.datum is getattr(main, "datum", None)
            is_taught = member.is_taught and (own if settings.writer == "task" else shaped)
            members[label] = Member(task, member.skills, member.problems, is_taught=is_taught)
        else:
            members[label] = member
    return TaskGroup(members, settings.task)


def make_test_task(settings: TeachSettings) -> Task | None:
    """The tasks that the student is tested on as one; `None` where they are those of validation."""
    from palaestra.tasks.base import make_task
    from palaestra.tasks.group import Member, TaskGroup

    entries = parse_entries(settings.test_tasks, "test_tasks")
    if not entries:
        return None
    main = make_task(settings.task, **settings.options)
    members = _members(settings, entries, main)
    if settings.task not in members:
        members = {settings.task: Member(main, settings.skills, is_measured=False), **members}
    return TaskGroup(members, settings.task)


def check_tasks(settings: TeachSettings, taught: Task, tested: Task | None) -> None:
    """Raise if a problem cannot be asked or scored, or if a test problem is among the validation problems.

    Raises:
        SettingsError: the teacher would see a test problem, as a validation problem of another task.
    """
    from palaestra.engines.factory import check_reads
    from palaestra.tasks.base import get_hooks

    validation, test = measured_problems(settings, taught, tested)
    check_reads(settings.student, [*validation, *test])
    for task in (taught, tested):
        if task is not None:
            get_hooks(task).check_scoring()
    if settings.validation_tasks or settings.test_tasks:
        seen = {problem.messages: problem.id for problem in validation}
        for problem in test:
            if problem.messages in seen:
                raise SettingsError(
                    f"the test problem {problem.id} is also the validation problem {seen[problem.messages]}, which the "
                    "teacher sees; choose other tasks"
                )


def measured_problems(
    settings: TeachSettings, taught: Task, tested: Task | None
) -> tuple[list[Problem], list[Problem]]:
    """The validation and the test problems of a run."""
    from palaestra.tasks.checks import draw_problems

    validation = draw_problems(taught, Split.VALIDATION, settings.validation, settings.seed, settings.own_skills)
    if tested is not None:
        return validation, draw_problems(tested, Split.TEST, settings.test, settings.seed)
    return validation, draw_problems(taught, Split.TEST, settings.test, settings.seed, settings.own_skills)


def _members(settings: TeachSettings, entries: Sequence[TaskEntry], main: Task) -> dict[str, Member]:
    """The tasks of entries by label: the name, or the whole entry where two entries have one name."""
    from palaestra.tasks.base import check_skills, make_task
    from palaestra.tasks.group import Member

    names = Counter(entry.name for entry in entries)
    members: dict[str, Member] = {}
    for entry in entries:
        if entry.text == settings.task:
            members[settings.task] = Member(main, settings.skills)
            continue
        task = make_task(entry.name, **entry.options)
        check_skills(task, entry.skills)
        unique = names[entry.name] == 1 and entry.name != settings.task
        members[entry.name if unique else entry.text] = Member(task, entry.skills, entry.problems, entry.is_taught)
    return members
