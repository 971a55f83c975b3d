"""Whose skills a `teach` run goes by: the task's own, or those that a language model discovers before the first round.

The model names the skills of validation problems (and of train problems, if that is wanted) and clusters the names. Test
problems only choose among the categories, so that results can be cut by them. Each stage is in the run's store when it is
done, with its cost; inside a stage, the cache has every answer. A run that was stopped asks nothing twice.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import PalaestraError, RunError, SettingsError, TaskError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.records import Split, Usage
from palaestra.core.seeding import Seeds
from palaestra.recipes.metered_engines import meter_engines
from palaestra.runs.ledger import LedgerEntry

if TYPE_CHECKING:
    from palaestra.engines.cached import CachedEngine
    from palaestra.recipes.teach.recipe import TeachSettings
    from palaestra.runs.run import Run
    from palaestra.tasks.base import Task
    from palaestra.teachers.skills import SkillMap

DISCOVERY = "skill discovery"
"""What the calls are booked under."""


def label_tasks(
    run: Run, settings: TeachSettings, taught: Task, tested: Task | None, listener: Listener = ignore
) -> tuple[Task, Task | None]:
    """The taught and the tested task under the skills that a run goes by: their own, discovered ones, or those of a file.

    Discovered skills and those of a file are written to `skills.json` in the run folder, which another run can read.

    Raises:
        BudgetSpentError: the calls do not fit; what was answered is stored.
        TaskError: the model gave nothing that can be taught by; says what it said.
    """
    if not settings.discover and not settings.skills_file:
        return taught, tested
    from palaestra.recipes.teach.lessons import OWN
    from palaestra.teachers.skills import Discovered, GenerativeDiscovered
    from palaestra.teachers.skills.files import SKILLS_FILE, write_skills

    found = _found(run, settings, taught, tested, listener)
    if not (run.folder / SKILLS_FILE).exists():
        write_skills(run.folder / SKILLS_FILE, found)
    kind = GenerativeDiscovered if settings.writer == OWN else Discovered
    return kind(taught, found, settings.own_skills), None if tested is None else Discovered(tested, found)


def has_skills(run: Run) -> bool:
    """Whether the store of a run holds all of its discovered skills, or those of its skills file."""
    from palaestra.teachers.skills import SkillMap
    from palaestra.teachers.skills.overview import TEST

    return TEST in run.store.skills(SkillMap)


def check_discovery(settings: TeachSettings, task: Task, tested: Task | None = None) -> None:
    """Raise for a discovery or a skills file that cannot be, before anything is loaded or written."""
    from palaestra.engines.factory import check_model
    from palaestra.recipes.teach.lessons import OWN

    if settings.skills_file:
        if settings.discover:
            raise SettingsError(
                "the settings 'discover' and 'skills_file' both say where skills come from; leave one of them out"
            )
        read_skills_file(settings, task, tested)
    if not settings.discover:
        for name in ("categories", "discover_train"):
            if getattr(settings, name):
                raise SettingsError(
                    f"setting '{name}' is about skills that a model discovers, and nobody is to; name one by the "
                    "setting 'discover', or leave it out"
                )
        return
    if settings.writer == OWN:
        raise SettingsError(
            f"the generators of task '{task.name}' know its own skills only, and cannot write for those that "
            f"'{settings.discover}' discovers; let a language model write, by the setting 'writer', or leave out 'discover'"
        )
    check_model(settings.discover)
    if settings.discover_train:
        task.problems(Split.TRAIN, settings.discover_train, settings.seed, settings.own_skills)


def read_skills_file(settings: TeachSettings, task: Task, tested: Task | None) -> tuple[SkillMap, SkillMap]:
    """The skills file of a run, cut to the run's problems: of the validation problems, and of all.

    Only skills of validation problems are taught.

    Raises:
        SettingsError: the file cannot be read, a problem of the run is not in it, or the task's generators are to write and
            do not know one of its skills.
    """
    from palaestra.recipes.teach.lessons import OWN
    from palaestra.recipes.teach.task_groups import measured_problems
    from palaestra.teachers.skills.files import read_skills

    file, skills = settings.skills_file, read_skills(Path(settings.skills_file))
    validation, test = measured_problems(settings, task, tested)
    for split, problems in ((Split.VALIDATION, validation), (Split.TEST, test)):
        if missing := skills.missing(problems):
            raise SettingsError(
                f"the skills file {file} has no entry for {len(missing)} of {len(problems)} {split} problems of "
                f"'{task.name}', {missing[0].id} for one; null stands for a problem without a skill"
            )
    seen = {skills.skill(problem.id) for problem in validation} - {""}
    if not seen:
        raise SettingsError(f"the skills file {file} gives no validation problem of '{task.name}' a skill")
    skills = replace(skills, categories=tuple(one for one in skills.categories if one.name in seen))
    if settings.writer == OWN:
        own = task.skills()
        for one in skills.categories:
            strange = one.name if one.name not in own else next((m for m in one.members if m not in own[one.name]), "")
            if strange:
                raise SettingsError(
                    f"the generators of task '{task.name}' cannot write for '{strange}' of the skills file {file}; let a "
                    "language model write, by the setting 'writer', or name the task's own skills"
                )
    return skills.select(problem.id for problem in validation), skills.select(p.id for p in (*validation, *test))


def regroup(run: Run, settings: TeachSettings, categories: int) -> None:
    """Forget the categories of a run that has not taught yet, so that the names are clustered to another number.

    The answers of the untaught student go with them, for they are stored under the skills of their problems.

    Raises:
        SettingsError: the run discovers nothing.
        RunError: a lesson was written for the skills as they are.
    """
    if not settings.discover:
        raise SettingsError("this run goes by the task's own skills; other categories need the setting 'discover'")
    if categories == settings.categories:
        return
    if run.store.lesson_rounds():
        raise RunError(
            f"the lessons of {run.folder} are written for its skills, which cannot change any more; start another run, "
            f"which names nothing again: palaestra teach --settings {run.folder / 'settings.json'} "
            f"--categories {categories}"
        )
    from palaestra.teachers.skills.files import SKILLS_FILE
    from palaestra.teachers.skills.overview import OWN

    run.store.forget_skills(keep=("names", OWN))
    (run.folder / SKILLS_FILE).unlink(missing_ok=True)


def discovered(run: Run) -> dict[str, Any]:
    """What was discovered, for a summary; empty where the skills are the task's own."""
    from palaestra.teachers.skills import SkillMap, overview

    found, file = overview(run.store.skills(SkillMap)), run.settings.get("skills_file")
    return ({"file": file} if file else {}) | found.plain() if found is not None else {}


def _found(run: Run, settings: TeachSettings, task: Task, tested: Task | None, listener: Listener) -> SkillMap:
    """The skill map of a run: from the store, from its skills file, or by asking."""
    from palaestra.teachers.skills import SkillMap, by_gold
    from palaestra.teachers.skills.overview import OWN, TEST, last_stage

    stages = run.store.skills(SkillMap)
    if TEST in stages:
        return stages[TEST]  # From here on the student is asked: what could not be placed stays so.
    if settings.skills_file:
        from palaestra.recipes.teach.task_groups import measured_problems

        shaping, found = read_skills_file(settings, task, tested)
        if len(task.skills()) > 1:
            run.store.add_skills(
                OWN, by_gold(task, [p for part in measured_problems(settings, task, tested) for p in part])
            )
        run.store.add_skills("assignment", shaping)
        run.store.add_skills(TEST, found)
        return found
    known = stages.get(last_stage(stages))
    with meter_engines(run, settings, listener=listener) as calls:
        engine = calls.open(settings.discover).at(DISCOVERY)
        return _Stages(run, settings, task, tested, engine, listener).discover(known)


class _Stages:
    """The discovery of one run, from wherever it stands."""

    def __init__(
        self,
        run: Run,
        settings: TeachSettings,
        task: Task,
        tested: Task | None,
        engine: CachedEngine,
        listener: Listener,
    ) -> None:
        self.run, self.settings, self.task, self.engine, self.listener = run, settings, task, engine, listener
        from palaestra.recipes.teach.task_groups import measured_problems

        # Teachers see validation problems, and lessons may hold train problems: these may shape what is taught.
        self.shaping, self.test = measured_problems(settings, task, tested)
        if settings.discover_train:
            self.shaping += task.problems(Split.TRAIN, settings.discover_train, settings.seed, settings.own_skills)
        self.started = time.perf_counter()

    def discover(self, known: SkillMap | None) -> SkillMap:
        """What is found in the end; each stage is stored when it is done, and what was spent in any case."""
        try:
            return self._discover(known)
        except PalaestraError:
            self.run.store.add_cost(self._cost())
            raise

    def _discover(self, known: SkillMap | None) -> SkillMap:
        from palaestra.teachers.prompts import Prompts
        from palaestra.teachers.skills import Discovery
        from palaestra.teachers.skills.overview import TEST

        settings = self.settings
        discovery = Discovery(
            self.engine,
            prompts=Prompts(Path(settings.prompts) if settings.prompts else None),
            show_references=settings.references,
            seed=Seeds(settings.seed).derive("discovery").integer(),
        )
        self._tell("names", 0, len(self.shaping))
        found = discovery.discover(self.shaping, categories=settings.categories, known=known, keep=self._keep)
        if not found.categories:
            raise TaskError(self._nothing(found))
        self._tell(TEST, 0, len(self.test))
        found = discovery.assign_more(found, self.test)
        self._store(TEST, found)
        self._tell(TEST, len(self.test), len(self.test))
        return found

    def _keep(self, stage: str, found: SkillMap) -> None:
        from palaestra.teachers.skills import by_gold
        from palaestra.teachers.skills.overview import OWN

        if not found.names:
            return  # With nothing named there is nothing to go on from; the cache has what was said.
        if stage == "names" and len(self.task.skills()) > 1:
            self.run.store.add_skills(OWN, by_gold(self.task, [*self.shaping, *self.test]))
        self._store(stage, found)
        self._tell(stage, len(self.shaping), len(self.shaping))

    def _store(self, stage: str, found: SkillMap) -> None:
        self.run.store.add_skills(stage, found, self._cost())

    def _cost(self) -> LedgerEntry:
        """What the ledger does not have yet: the time since it was last asked, and calls, killed processes' included."""
        spent, booked, start = self.engine.spent(DISCOVERY), self.run.store.total(DISCOVERY), self.started
        self.started = time.perf_counter()
        usage = Usage(
            spent.usage.prompt_tokens - booked.prompt_tokens, spent.usage.completion_tokens - booked.completion_tokens
        )
        calls, money = spent.calls - booked.calls, spent.money - booked.money
        return LedgerEntry(DISCOVERY, self.engine.name, calls, usage, self.started - start, money)

    def _tell(self, stage: str, done: int, total: int) -> None:
        self.listener(Event(f"{DISCOVERY}: {stage}", done, total))

    def _nothing(self, found: SkillMap) -> str:
        """Why there are no categories, and what to do about it."""
        from palaestra.teachers.skills.llm_queries import may_pass

        model, count, failures = self.settings.discover, len(self.shaping), list(found.unassigned.values())
        causes = ", ".join(f"{cause} {n}" for cause, n in sorted(Counter(str(f.cause) for f in failures).items()))
        done = (
            f"'{model}' named the skills of {len(found.names)} of {count} problems and made no categories of them"
            if found.names
            else f"'{model}' named the skill of none of {count} problems ({causes})"
        )
        if any(may_pass(failure) for failure in failures):
            advice = f"go on when it answers again: palaestra resume {self.run.folder}"
        else:
            advice = "start a run with another model as the setting 'discover', or with none"
            advice += ", or resume this one with another number of 'categories'" if found.names else ""
        return " ".join(f"no skills were discovered: {done}: {failures[0].message}; {advice}".split())
