"""The skills of a `teach` run: the task's own, those of a file, or those that a language model discovers.

The model names the skills of validation problems (and of train problems on request) and clusters the names. Test problems
are only assigned to the categories, so that results can be reported by them. A finished stage is stored with its
cost, and the cache contains every answer of an unfinished one. A resumed run repeats no call.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from palaestra.core.errors import PalaestraError, RunError, SettingsError, TaskError
from palaestra.core.records import Event, Json, Listener, Problem, Split, ignore
from palaestra.core.seeding import Seeds
from palaestra.engines.cached import CachedEngine
from palaestra.engines.factory import check_model, check_reads
from palaestra.recipes.metered_engines import meter_engines
from palaestra.recipes.settings import parse_options, require
from palaestra.recipes.teach.settings import TASK_WRITER, TeachSettings
from palaestra.runs.provenance import CallLog, LedgerEntry
from palaestra.runs.run import Run
from palaestra.tasks.base import GenerativeTask, Task, WritableTask, check_skills, get_hooks, make_task
from palaestra.tasks.evaluate import draw_problems
from palaestra.tasks.group import Member, TaskGroup
from palaestra.teachers.prompts import TeacherPrompts
from palaestra.teachers.skills.discovery import Discovery, is_transient
from palaestra.teachers.skills.overview import OWN, TEST, last_stage, overview
from palaestra.teachers.skills.records import SKILLS_FILE, SkillMap, read_skills, write_skills
from palaestra.teachers.skills.task import Discovered, GenerativeDiscovered, map_own_skills

DISCOVERY = "skill discovery"
"""The phase of the discovery's calls in the ledger."""
_WORD = re.compile(r'(?:[^\s"]|"[^"]*")+')
"""A word of an entry. Spaces inside quotes belong to the word. The quotes stay, because values are parsed as JSON."""


def label_tasks(run: Run, settings: TeachSettings, tasks: TeachTasks, listener: Listener = ignore) -> TeachTasks:
    """Apply the skills of a run to its tasks: the tasks' own, discovered ones, or those of a file.

    Discovered skills and those of a file are written to `skills.json` in the run folder, which another run can read.

    Raises:
        BudgetSpentError: the calls exceed the budget. Answers so far are stored.
        TaskError: the model's answers contain no usable skill; the message quotes them.
    """
    if not settings.discover and not settings.skills_file:
        return tasks
    skills = _load_skills(run, settings, tasks, listener)
    if not (run.folder / SKILLS_FILE).exists():
        write_skills(run.folder / SKILLS_FILE, skills)
    kind = GenerativeDiscovered if settings.writer == TASK_WRITER else Discovered
    tested = None if tasks.tested is None else Discovered(tasks.tested, skills)
    return TeachTasks(kind(tasks.taught, skills, settings.own_skills), tested)


def has_skills(run: Run) -> bool:
    """Whether the store of a run contains all of its discovered skills, or those of its skills file."""
    return TEST in run.store.skills(SkillMap)


def check_discovery(settings: TeachSettings, tasks: TeachTasks) -> None:
    """Raise for invalid settings of discovery or of the skills file. Opens no model."""
    discover = settings.discover
    require(
        not (discover and settings.skills_file),
        "the settings 'discover' and 'skills_file' exclude each other; leave one of them out",
    )
    if settings.skills_file:
        read_skills_file(settings, tasks)
    for name in ("categories", "discover_train"):
        require(
            bool(discover) or not getattr(settings, name),
            f"setting '{name}' needs a model that discovers skills; set 'discover' to one, or leave '{name}' out",
        )
    require(
        not discover or settings.writer != TASK_WRITER,
        f"the generators of task '{settings.task}' support its own skills only, not those that '{discover}' discovers; "
        "set 'writer' to a language model, or leave out 'discover'",
    )
    if discover:
        check_model(settings.resolve_model(discover))
    if settings.discover_train:
        tasks.taught.problems(Split.TRAIN, settings.discover_train, settings.seed, settings.own_skills)


def read_skills_file(settings: TeachSettings, tasks: TeachTasks) -> tuple[SkillMap, SkillMap]:
    """Read the skills file of a run. Returns the skills of the validation problems, and those of all problems.

    Only skills of validation problems are taught.

    Raises:
        SettingsError: the file cannot be read, it lacks a problem of the run, or the task's generators are the writer and
            do not support one of its skills.
    """
    task, file, skills = tasks.taught, settings.skills_file, read_skills(Path(settings.skills_file))
    validation, test = tasks.draw_problems(settings)
    for split, problems in ((Split.VALIDATION, validation), (Split.TEST, test)):
        if missing := skills.missing(problems):
            lacking = (
                f"{len(missing)} of {len(problems)} {split} problems of '{task.name}', for example {missing[0].id}"
            )
            raise SettingsError(
                f"the skills file {file} has no entry for {lacking}; use null for a problem without a skill"
            )
    seen = {skills.skill(problem.id) for problem in validation} - {""}
    require(bool(seen), f"the skills file {file} has no skill for any validation problem of '{task.name}'")
    skills = replace(skills, categories=tuple(category for category in skills.categories if category.name in seen))
    if settings.writer == TASK_WRITER:
        own = {name: {"", *parts} for name, parts in task.skills().items()}
        names = [(category.name, part) for category in skills.categories for part in ("", *category.members)]
        for skill, part in names:
            require(
                part in own.get(skill, ()),
                f"the generators of task '{task.name}' do not support '{part or skill}' of the skills file {file}; "
                "set 'writer' to a language model, or use the task's own skills",
            )
    return skills.select(problem.id for problem in validation), skills.select(p.id for p in (*validation, *test))


def regroup(run: Run, settings: TeachSettings, categories: int | None) -> None:
    """Delete the categories of a run without lessons, so that the names are clustered to another number.

    The answers of the untaught student are deleted too, because they are stored under the skills of their problems.

    Raises:
        SettingsError: the run discovers no skills.
        RunError: lessons were written for the current skills.
    """
    if categories is None:
        return
    require(bool(settings.discover), "this run uses the task's own skills; 'categories' needs the setting 'discover'")
    if categories == settings.categories:
        return
    if run.store.lesson_rounds():
        command = f"palaestra teach --settings {run.folder / 'settings.json'} --categories {categories}"
        raise RunError(f"{run.folder} has lessons for its skills; start a new run, which reuses the names: {command}")
    run.store.forget_skills(keep=("names", OWN))
    (run.folder / SKILLS_FILE).unlink(missing_ok=True)


def summarize_discovery(run: Run) -> Json:
    """Summarize discovered skills; empty if the run uses the task's own skills."""
    summary, file = overview(run.store.skills(SkillMap)), run.settings.get("skills_file")
    return ({"file": file} if file else {}) | summary.plain() if summary is not None else {}


def _load_skills(run: Run, settings: TeachSettings, tasks: TeachTasks, listener: Listener) -> SkillMap:
    """The skill map of a run: from the store, from its skills file, or from a language model."""
    stages = run.store.skills(SkillMap)
    if TEST in stages:
        return stages[TEST]  # The student is measured by these skills, so failed assignments are not tried again.
    if settings.skills_file:
        shaping, skills = read_skills_file(settings, tasks)
        if len(tasks.taught.skills()) > 1:
            validation, test = tasks.draw_problems(settings)
            run.store.add_skills(OWN, map_own_skills(tasks.taught, [*validation, *test]))
        run.store.add_skills("assignment", shaping)
        run.store.add_skills(TEST, skills)
        return skills
    log = CallLog()
    with meter_engines(run, settings, listener=listener, log=log) as calls:
        engine = calls.open(settings.resolve_model(settings.discover)).at(DISCOVERY)
        discovery = _StoredDiscovery(run, settings, tasks, engine, listener, log)
        try:
            return discovery.discover(stages.get(last_stage(stages)))
        except PalaestraError:
            run.store.add_cost(discovery.measure_cost())
            raise


class _StoredDiscovery:
    """The discovery of one run. It stores each stage when it is done, with its cost."""

    def __init__(
        self,
        run: Run,
        settings: TeachSettings,
        tasks: TeachTasks,
        engine: CachedEngine,
        listener: Listener,
        log: CallLog,
    ) -> None:
        self.run, self.settings, self.engine, self.listener, self.log = run, settings, engine, listener, log
        self.task = tasks.taught
        # Teachers see validation problems and lessons may contain train problems, so skills may come from both.
        self.shaping, self.test = tasks.draw_problems(settings)
        if settings.discover_train:
            self.shaping += self.task.problems(Split.TRAIN, settings.discover_train, settings.seed, settings.own_skills)
        self.started = time.perf_counter()

    def discover(self, stored: SkillMap | None) -> SkillMap:
        """Run the remaining stages."""
        settings = self.settings
        prompts = TeacherPrompts(Path(settings.prompts) if settings.prompts else None)
        seed = Seeds(settings.seed).derive("discovery").integer()
        discovery = Discovery(self.engine, prompts=prompts, show_references=settings.references, seed=seed)
        self._notify("names", 0, len(self.shaping))
        skills = discovery.discover(self.shaping, categories=settings.categories, known=stored, keep=self._keep)
        if not skills.categories:
            raise TaskError(self._explain_failure(skills))
        self._notify(TEST, 0, len(self.test))
        skills = discovery.assign_more(skills, self.test)
        self._store(TEST, skills, len(self.test))
        return skills

    def _keep(self, stage: str, skills: SkillMap) -> None:
        if not skills.names:
            return  # A resumed run starts with the names again; the cache has the answers.
        if stage == "names" and len(self.task.skills()) > 1:
            self.run.store.add_skills(OWN, map_own_skills(self.task, [*self.shaping, *self.test]))
        self._store(stage, skills, len(self.shaping))

    def _store(self, stage: str, skills: SkillMap, problems: int) -> None:
        self.run.store.add_skills(stage, skills, self.measure_cost(), self.log.take())
        self._notify(stage, problems, problems)

    def measure_cost(self) -> LedgerEntry:
        """The cost that is not yet in the ledger: seconds since the last call, and calls, including killed processes'."""
        start, self.started = self.started, time.perf_counter()
        booked = self.run.store.total(DISCOVERY)
        return self.engine.spent(DISCOVERY).entry_since(booked, DISCOVERY, self.engine.name, self.started - start)

    def _notify(self, stage: str, done: int, total: int) -> None:
        self.listener(Event(f"{DISCOVERY}: {stage}", done, total))

    def _explain_failure(self, skills: SkillMap) -> str:
        """Explain why there are no categories, and what the user can do."""
        count, failures = len(self.shaping), list(skills.unassigned.values())
        causes = ", ".join(f"{cause} {n}" for cause, n in sorted(Counter(str(f.cause) for f in failures).items()))
        result = f"named the skill of none of {count} problems ({causes})"
        advice = "start a run with another model in 'discover', or without 'discover'"
        if skills.names:
            result = f"named the skills of {len(skills.names)} of {count} problems but made no categories of them"
            advice += ", or resume this one with another number of 'categories'"
        if any(is_transient(failure) for failure in failures):
            advice = f"when the service is available again, run: palaestra resume {self.run.folder}"
        why = f"'{self.settings.discover}' {result}: {failures[0].message}; {advice}"
        return " ".join(f"no skills were discovered: {why}".split())


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
        skills, seed = settings.own_skills, settings.seed
        task, test_skills = (self.taught, skills) if self.tested is None else (self.tested, ())
        validation = draw_problems(self.taught, Split.VALIDATION, settings.validation, seed, skills)
        return validation, draw_problems(task, Split.TEST, settings.test, seed, test_skills)


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
    options: Json
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
    main = make_task(settings.task, **settings.task_kwargs)
    check_skills(main, settings.skills)
    return TeachTasks(_make_taught(settings, main), _make_tested(settings, main))


def _make_taught(settings: TeachSettings, main: Task) -> Task:
    """Make the task group of `validation_tasks`, or return `main` if there are none.

    The skills of a validation task are taught if the writer can write for them: the task has generators, or a language
    model writes and the data have the same shape as those of `main`.
    """
    entries = parse_entries(settings.validation_tasks, "validation_tasks")
    if not entries:
        return main
    members = {settings.task: Member(main, settings.skills, is_measured=False)}
    members |= _make_members(settings, entries, main)
    for label, member in members.items():
        if settings.writer == TASK_WRITER:
            can_write = isinstance(member.task, GenerativeTask)
        else:
            can_write = isinstance(member.task, WritableTask) and member.task.datum is getattr(main, "datum", None)
        if label != settings.task:
            members[label] = replace(member, is_taught=member.is_taught and can_write)
    return TaskGroup(members, settings.task)


def _make_tested(settings: TeachSettings, main: Task) -> Task | None:
    """Make the task group of `test_tasks`, or return `None` if there are none."""
    entries = parse_entries(settings.test_tasks, "test_tasks")
    if not entries:
        return None
    members = _make_members(settings, entries, main)
    if settings.task not in members:
        members = {settings.task: Member(main, settings.skills, is_measured=False), **members}
    return TaskGroup(members, settings.task)


def _make_members(settings: TeachSettings, entries: Sequence[TaskEntry], main: Task) -> dict[str, Member]:
    """Make the tasks of entries by label: the name, or the whole entry if two entries have the same name."""
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
    validation, test = tasks.draw_problems(settings)
    check_reads(settings.student, [*validation, *test])
    for task in (tasks.taught, tasks.tested):
        if task is not None:
            get_hooks(task).check_scoring()
    if settings.validation_tasks or settings.test_tasks:
        seen = {problem.messages: problem.id for problem in validation}
        for problem in test:
            known = seen.get(problem.messages)
            message = f"the test problem {problem.id} is also the validation problem {known}, which the teacher sees"
            require(known is None, f"{message}; choose other tasks")
