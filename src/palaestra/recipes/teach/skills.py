"""The skills of a `teach` run: the task's own, those of a file, or those that a language model discovers.

The model names the skills of validation problems (and of train problems on request) and clusters the names. Test problems
are only assigned to the categories, so that results can be reported by them. A finished stage is stored with its
cost, and the cache contains every answer of an unfinished one. A resumed run repeats no call.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import PalaestraError, RunError, SettingsError, TaskError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.records import Split
from palaestra.core.seeding import Seeds
from palaestra.recipes.metered_engines import meter_engines
from palaestra.recipes.teach.settings import TASK_WRITER, TeachSettings
from palaestra.recipes.teach.task_groups import TeachTasks
from palaestra.runs.calls import CallLog
from palaestra.runs.ledger import LedgerEntry

if TYPE_CHECKING:
    from palaestra.engines.cached import CachedEngine
    from palaestra.runs.run import Run
    from palaestra.tasks.base import Task
    from palaestra.teachers.skills.records import SkillMap

DISCOVERY = "skill discovery"
"""The phase of the discovery's calls in the ledger."""


def label_tasks(run: Run, settings: TeachSettings, tasks: TeachTasks, listener: Listener = ignore) -> TeachTasks:
    """Apply the skills of a run to its tasks: the tasks' own, discovered ones, or those of a file.

    Discovered skills and those of a file are written to `skills.json` in the run folder, which another run can read.

    Raises:
        BudgetSpentError: the calls exceed the budget. Answers so far are stored.
        TaskError: the model's answers contain no usable skill; the message quotes them.
    """
    if not settings.discover and not settings.skills_file:
        return tasks
    from palaestra.teachers.skills.files import SKILLS_FILE, write_skills
    from palaestra.teachers.skills.task import Discovered, GenerativeDiscovered

    skills = _load_skills(run, settings, tasks, listener)
    if not (run.folder / SKILLS_FILE).exists():
        write_skills(run.folder / SKILLS_FILE, skills)
    kind = GenerativeDiscovered if settings.writer == TASK_WRITER else Discovered
    tested = None if tasks.tested is None else Discovered(tasks.tested, skills)
    return TeachTasks(kind(tasks.taught, skills, settings.own_skills), tested)


def has_skills(run: Run) -> bool:
    """Whether the store of a run contains all of its discovered skills, or those of its skills file."""
    from palaestra.teachers.skills.overview import TEST
    from palaestra.teachers.skills.records import SkillMap

    return TEST in run.store.skills(SkillMap)


def check_discovery(settings: TeachSettings, tasks: TeachTasks) -> None:
    """Raise for invalid settings of discovery or of the skills file. Opens no model."""
    from palaestra.engines.factory import check_model

    task = tasks.taught
    if settings.skills_file:
        if settings.discover:
            raise SettingsError("the settings 'discover' and 'skills_file' exclude each other; leave one of them out")
        read_skills_file(settings, tasks)
    if not settings.discover:
        for name in ("categories", "discover_train"):
            if getattr(settings, name):
                raise SettingsError(
                    f"setting '{name}' needs a model that discovers skills; set 'discover' to one, or leave "
                    f"'{name}' out"
                )
        return
    if settings.writer == TASK_WRITER:
        raise SettingsError(
            f"the generators of task '{task.name}' support its own skills only, not those that '{settings.discover}' "
            "discovers; set 'writer' to a language model, or leave out 'discover'"
        )
    check_model(settings.resolve_model(settings.discover))
    if settings.discover_train:
        task.problems(Split.TRAIN, settings.discover_train, settings.seed, settings.own_skills)


def read_skills_file(settings: TeachSettings, tasks: TeachTasks) -> tuple[SkillMap, SkillMap]:
    """Read the skills file of a run. Returns the skills of the validation problems, and those of all problems.

    Only skills of validation problems are taught.

    Raises:
        SettingsError: the file cannot be read, it lacks a problem of the run, or the task's generators are the writer and
            do not support one of its skills.
    """
    from palaestra.teachers.skills.files import read_skills

    task, file, skills = tasks.taught, settings.skills_file, read_skills(Path(settings.skills_file))
    validation, test = tasks.draw_problems(settings)
    for split, problems in ((Split.VALIDATION, validation), (Split.TEST, test)):
        if missing := skills.missing(problems):
            raise SettingsError(
                f"the skills file {file} has no entry for {len(missing)} of {len(problems)} {split} problems of "
                f"'{task.name}', for example {missing[0].id}; use null for a problem without a skill"
            )
    seen = {skills.skill(problem.id) for problem in validation} - {""}
    if not seen:
        raise SettingsError(f"the skills file {file} has no skill for any validation problem of '{task.name}'")
    skills = replace(skills, categories=tuple(category for category in skills.categories if category.name in seen))
    if settings.writer == TASK_WRITER:
        _check_generators(task, skills, file)
    return skills.select(problem.id for problem in validation), skills.select(p.id for p in (*validation, *test))


def _check_generators(task: Task, skills: SkillMap, file: str) -> None:
    """Raise if the generators of `task` do not support a skill or subskill of the skills file."""
    own = task.skills()
    for category in skills.categories:
        if category.name not in own:
            unknown = category.name
        else:
            unknown = next((name for name in category.members if name not in own[category.name]), "")
        if unknown:
            raise SettingsError(
                f"the generators of task '{task.name}' do not support '{unknown}' of the skills file {file}; set "
                "'writer' to a language model, or use the task's own skills"
            )


def regroup(run: Run, settings: TeachSettings, categories: int) -> None:
    """Delete the categories of a run without lessons, so that the names are clustered to another number.

    The answers of the untaught student are deleted too, because they are stored under the skills of their problems.

    Raises:
        SettingsError: the run discovers no skills.
        RunError: lessons were written for the current skills.
    """
    if not settings.discover:
        raise SettingsError("this run uses the task's own skills; 'categories' needs the setting 'discover'")
    if categories == settings.categories:
        return
    if run.store.lesson_rounds():
        raise RunError(
            f"the lessons of {run.folder} were written for its skills, which can no longer change; start a new run, "
            f"which reuses the names: palaestra teach --settings {run.folder / 'settings.json'} "
            f"--categories {categories}"
        )
    from palaestra.teachers.skills.files import SKILLS_FILE
    from palaestra.teachers.skills.overview import OWN

    run.store.forget_skills(keep=("names", OWN))
    (run.folder / SKILLS_FILE).unlink(missing_ok=True)


def summarize_discovery(run: Run) -> dict[str, Any]:
    """Summarize discovered skills; empty if the run uses the task's own skills."""
    from palaestra.teachers.skills.overview import overview
    from palaestra.teachers.skills.records import SkillMap

    summary, file = overview(run.store.skills(SkillMap)), run.settings.get("skills_file")
    return ({"file": file} if file else {}) | summary.plain() if summary is not None else {}


def _load_skills(run: Run, settings: TeachSettings, tasks: TeachTasks, listener: Listener) -> SkillMap:
    """The skill map of a run: from the store, from its skills file, or from a language model."""
    from palaestra.teachers.skills.overview import OWN, TEST, last_stage
    from palaestra.teachers.skills.records import SkillMap
    from palaestra.teachers.skills.task import map_own_skills

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
    stored = stages.get(last_stage(stages))
    log = CallLog()
    with meter_engines(run, settings, listener=listener, log=log) as calls:
        engine = calls.open(settings.resolve_model(settings.discover)).at(DISCOVERY)
        return _StoredDiscovery(run, settings, tasks, engine, listener, log).discover(stored)


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
        """Run the remaining stages. After an error, the cost so far is stored."""
        try:
            return self._discover(stored)
        except PalaestraError:
            self.run.store.add_cost(self._cost())
            raise

    def _discover(self, stored: SkillMap | None) -> SkillMap:
        from palaestra.teachers.prompts import TeacherPrompts
        from palaestra.teachers.skills.discovery import Discovery
        from palaestra.teachers.skills.overview import TEST

        settings = self.settings
        discovery = Discovery(
            self.engine,
            prompts=TeacherPrompts(Path(settings.prompts) if settings.prompts else None),
            show_references=settings.references,
            seed=Seeds(settings.seed).derive("discovery").integer(),
        )
        self._notify("names", 0, len(self.shaping))
        skills = discovery.discover(self.shaping, categories=settings.categories, known=stored, keep=self._keep)
        if not skills.categories:
            raise TaskError(self._explain_failure(skills))
        self._notify(TEST, 0, len(self.test))
        skills = discovery.assign_more(skills, self.test)
        self._store(TEST, skills)
        self._notify(TEST, len(self.test), len(self.test))
        return skills

    def _keep(self, stage: str, skills: SkillMap) -> None:
        from palaestra.teachers.skills.overview import OWN
        from palaestra.teachers.skills.task import map_own_skills

        if not skills.names:
            return  # A resumed run starts with the names again; the cache has the answers.
        if stage == "names" and len(self.task.skills()) > 1:
            self.run.store.add_skills(OWN, map_own_skills(self.task, [*self.shaping, *self.test]))
        self._store(stage, skills)
        self._notify(stage, len(self.shaping), len(self.shaping))

    def _store(self, stage: str, skills: SkillMap) -> None:
        self.run.store.add_skills(stage, skills, self._cost(), self.log.take())

    def _cost(self) -> LedgerEntry:
        """The cost that is not yet in the ledger: seconds since the last call, and calls, including killed processes'."""
        start, self.started = self.started, time.perf_counter()
        booked = self.run.store.total(DISCOVERY)
        return self.engine.spent(DISCOVERY).entry_since(booked, DISCOVERY, self.engine.name, self.started - start)

    def _notify(self, stage: str, done: int, total: int) -> None:
        self.listener(Event(f"{DISCOVERY}: {stage}", done, total))

    def _explain_failure(self, skills: SkillMap) -> str:
        """Explain why there are no categories, and what the user can do."""
        from palaestra.teachers.skills.discovery import is_transient

        model, count, failures = self.settings.discover, len(self.shaping), list(skills.unassigned.values())
        causes = ", ".join(f"{cause} {n}" for cause, n in sorted(Counter(str(f.cause) for f in failures).items()))
        result = (
            f"'{model}' named the skills of {len(skills.names)} of {count} problems but made no categories of them"
            if skills.names
            else f"'{model}' named the skill of none of {count} problems ({causes})"
        )
        if any(is_transient(failure) for failure in failures):
            advice = f"when the service is available again, run: palaestra resume {self.run.folder}"
        else:
            advice = "start a run with another model in 'discover', or without 'discover'"
            advice += ", or resume this one with another number of 'categories'" if skills.names else ""
        return " ".join(f"no skills were discovered: {result}: {failures[0].message}; {advice}".split())
