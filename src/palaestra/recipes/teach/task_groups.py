"""The tasks of a `teach` run: the task that is taught, and the tasks of validation and test."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import SettingsError
from palaestra.core.records import Problem, Split
from palaestra.recipes.settings import parse_options, require
from palaestra.recipes.teach.settings import TASK_WRITER, TeachSettings

if TYPE_CHECKING:
    from palaestra.tasks.base import Task
    from palaestra.tasks.group import Member


_WORD = re.compile(r'(?:[^\s"]|"[^"]*")+')
"""A word of an entry. Spaces inside quotes belong to the word. The quotes stay, because values are parsed as JSON."""


@dataclass(frozen=True, slots=True)
class TeachTasks:
    """The tasks of a run.

    Arguments:
        taught: lessons are written for it, and validation problems come from it.
        tested: test problems come from it; `None`: from `taught`.
    """

    taught: Task
    tested: Task | None = None

    def draw_problems(self, settings: TeachSettings) -> tuple[list[Problem], list[Problem]]:
        """Draw the validation and test problems of a run."""
        from palaestra.tasks.evaluate import draw_problems

        skills = settings.own_skills
        validation = draw_problems(self.taught, Split.VALIDATION, settings.validation, settings.seed, skills)
        if self.tested is not None:
            return validation, draw_problems(self.tested, Split.TEST, settings.test, settings.seed)
        return validation, draw_problems(self.taught, Split.TEST, settings.test, settings.seed, skills)


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """A task as written in a setting.

    Arguments:
        text: the entry with single spaces between its words.
        skills: only these skills; empty: all.
        problems: problems per skill; `None`: the run's setting.
        is_taught: lessons may be written for the skills of this validation task.
    """

    text: str
    name: str
    options: dict[str, Any]
    skills: tuple[str, ...] = ()
    problems: int | None = None
    is_taught: bool = True


def parse_entries(texts: Sequence[str], setting: str) -> list[TaskEntry]:
    """Parse the tasks of a setting. An entry is `NAME`, `NAME,NAME`, or `NAME option=value option=value`.

    In addition to the options of the task, `problems=N` sets the problems per skill, `skills=A,B` selects skills, and
    `taught=false` excludes a validation task from the lessons: the teacher sees its results but orders nothing for it.

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
        selected = tuple(skills.split(",")) if isinstance(skills, str) else tuple(map(str, skills))
        entries.append(TaskEntry(" ".join(words), words[0], options, selected, problems, is_taught))
    twice = [text for text, count in Counter(entry.text for entry in entries).items() if count > 1]
    require(not twice, f"setting '{setting}': {', '.join(twice)} is given twice; give each task once")
    return entries


def make_tasks(settings: TeachSettings) -> TeachTasks:
    """Make the tasks of a run."""
    from palaestra.tasks.base import check_skills, make_task

    main = make_task(settings.task, **settings.parse("task_options"))
    check_skills(main, settings.skills)
    return TeachTasks(_make_taught(settings, main), _make_tested(settings, main))


def _make_taught(settings: TeachSettings, main: Task) -> Task:
    """Make the task group of `validation_tasks`, or return `main` if there are none.

    The skills of a validation task are taught if the writer can write for them: the task has generators, or a language
    model writes and the data have the same shape as those of `main`.
    """
    from palaestra.tasks.base import GenerativeTask, WritableTask
    from palaestra.tasks.group import Member, TaskGroup

    entries = parse_entries(settings.validation_tasks, "validation_tasks")
    if not entries:
        return main
    members = {settings.task: Member(main, settings.skills, is_measured=False)}
    for label, member in _make_members(settings, entries, main).items():
        if label != settings.task:
            task = member.task
            if settings.writer == TASK_WRITER:
                can_write = isinstance(task, GenerativeTask)
            else:
                can_write = isinstance(task, WritableTask) and task.datum is getattr(main, "datum", None)
            member = Member(task, member.skills, member.problems, is_taught=member.is_taught and can_write)
        members[label] = member
    return TaskGroup(members, settings.task)


def _make_tested(settings: TeachSettings, main: Task) -> Task | None:
    """Make the task group of `test_tasks`, or return `None` if there are none."""
    from palaestra.tasks.group import Member, TaskGroup

    entries = parse_entries(settings.test_tasks, "test_tasks")
    if not entries:
        return None
    members = _make_members(settings, entries, main)
    if settings.task not in members:
        members = {settings.task: Member(main, settings.skills, is_measured=False), **members}
    return TaskGroup(members, settings.task)


def _make_members(settings: TeachSettings, entries: Sequence[TaskEntry], main: Task) -> dict[str, Member]:
    """Make the tasks of entries by label: the name, or the whole entry if two entries have the same name."""
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


def check_tasks(settings: TeachSettings, tasks: TeachTasks) -> None:
    """Check that all problems can be asked and scored, and that no test problem is a validation problem.

    Raises:
        SettingsError: the teacher would see a test problem as a validation problem of another task.
    """
    from palaestra.engines.factory import check_reads
    from palaestra.tasks.base import get_hooks

    validation, test = tasks.draw_problems(settings)
    check_reads(settings.student, [*validation, *test])
    for task in (tasks.taught, tasks.tested):
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
