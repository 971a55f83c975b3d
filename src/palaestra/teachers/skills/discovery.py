"""Skill discovery: name the skill of every problem, cluster the names, assign the problems.

    discovery = Discovery(CachedEngine(engine, cache))
    found = discovery.discover(validation, categories=8, keep=store)
    found = discovery.assign_more(found, test)
    fewer = discovery.recluster(found, [*validation, *test], categories=4)

Categories come from the problems of `discover` alone. Those of `assign_more` only choose among them, so that a test split
can be labelled without shaping what a teacher sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from palaestra.core.errors import SettingsError
from palaestra.core.records import Failure, Problem
from palaestra.engines.base import Engine
from palaestra.teachers.prompts import TeacherPrompts
from palaestra.teachers.skills.clustering import NAMES_A_CALL, cluster
from palaestra.teachers.skills.records import SkillMap
from palaestra.teachers.skills.stages import SkillQueries, assign, is_transient, name_skills

STAGES = ("names", "categories", "assignment")
"""The stages in order. `keep` receives the result of each under its name."""

Keep = Callable[[str, SkillMap], None]


def _forget(stage: str, skills: SkillMap) -> None:
    """Keep nothing."""


class Discovery:
    """Discovers skills with a language model.

    Arguments:
        engine: the language model. With a `CachedEngine` a killed stage resumes without repeated calls.
        prompts: the templates; default: the built-in ones.
        show_references: include the expected answer in the prompt that names a problem's skill.
        tries: maximum calls per question; each repetition contains the errors of the last answer.
        max_tokens: maximum tokens of an answer; a clustering gets more by the number of its names.
        names_a_call: names that one call clusters or sorts.
        seed: the seed of every request.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        prompts: TeacherPrompts | None = None,
        show_references: bool = False,
        tries: int = 3,
        max_tokens: int = 1024,
        names_a_call: int = NAMES_A_CALL,
        seed: int = 0,
    ) -> None:
        if names_a_call < 2:
            raise SettingsError(f"a clustering needs at least 2 names a call; got names_a_call={names_a_call}")
        self.asking = SkillQueries(engine, prompts or TeacherPrompts(), tries, max_tokens, seed, show_references)
        self.names_a_call = names_a_call

    def discover(
        self, problems: Sequence[Problem], *, categories: int = 0, known: SkillMap | None = None, keep: Keep = _forget
    ) -> SkillMap:
        """Run all stages, or those that are left.

        Arguments:
            categories: the number of categories; 0: the model decides.
            known: the result of an earlier stage. Only transient failures are asked again. If `categories` differs, the
                names are clustered again (`recluster`).
            keep: receives the skill map after each stage.

        Returns:
            The skill map, in which every problem is assigned, or unassigned with the cause.
        """
        if categories < 0:
            raise SettingsError(f"expected categories of at least 0; got {categories}")
        skills = known or SkillMap(wanted=categories)
        if skills.categories and skills.wanted != categories:
            return self.recluster(skills, problems, categories=categories, keep=keep)
        if not skills.categories:
            skills = self._name(replace(skills, wanted=categories), problems, keep)
        return self._from_names(skills, problems, keep)

    def assign_more(self, skills: SkillMap, problems: Sequence[Problem]) -> SkillMap:
        """Assign further problems to the categories, without naming them.

        Raises:
            SettingsError: the map has no categories.
        """
        if not skills.categories:
            raise SettingsError("the skill map has no categories to assign problems to; discover them first")
        return self._assign(skills, problems)

    def recluster(
        self, skills: SkillMap, problems: Sequence[Problem], *, categories: int = 0, keep: Keep = _forget
    ) -> SkillMap:
        """Cluster the same names to another number of categories.

        Arguments:
            problems: the problems to assign, by their names if they have one.

        Raises:
            SettingsError: the map has no names.
        """
        if not skills.names:
            raise SettingsError("the skill map has no names to cluster; discover them first")
        if categories < 0:
            raise SettingsError(f"expected categories of at least 0; got {categories}")
        return self._from_names(replace(_without_categories(skills), wanted=categories), problems, keep)

    def _from_names(self, skills: SkillMap, problems: Sequence[Problem], keep: Keep) -> SkillMap:
        """Run stages 2 and 3, as far as they are not done."""
        if not skills.categories:
            counted = Counter(skills.names.values())
            if not counted:
                # Without names, the failures of stage 1 are the causes.
                return replace(skills, unassigned=dict(skills.unnamed))
            self.asking.again.clear()
            clustering = cluster(counted, self.asking, skills.wanted, self.names_a_call)
            if clustering.failure is not None:
                why = Failure(clustering.failure.cause, f"there are no categories: {clustering.failure.message}")
                return replace(skills, unassigned={problem.id: why for problem in problems})
            skills = replace(
                self._add_stage(skills, "categories"),
                categories=clustering.categories,
                repairs=clustering.repairs,
                assignment={},
                unassigned={},
            )
            keep("categories", skills)
        done = self._assign(skills, problems)
        if done != skills:
            keep("assignment", done)
        return done

    def _name(self, skills: SkillMap, problems: Sequence[Problem], keep: Keep) -> SkillMap:
        """Run stage 1 for the problems without a name."""
        final = {problem for problem, failure in skills.unnamed.items() if not is_transient(failure)}
        open_ = _distinct(p for p in problems if p.id not in skills.names and p.id not in final)
        if not open_:
            return skills
        self.asking.again.clear()
        answers = name_skills(open_, self.asking, skills.names.values())
        names = {problem: name for problem, name in answers.items() if isinstance(name, str)}
        failed = {problem: failure for problem, failure in answers.items() if isinstance(failure, Failure)}
        before = {problem: failure for problem, failure in skills.unnamed.items() if problem not in answers}
        skills = replace(
            self._add_stage(skills, "names"), names={**skills.names, **names}, unnamed={**before, **failed}
        )
        keep("names", skills)
        return skills

    def _assign(self, skills: SkillMap, problems: Sequence[Problem]) -> SkillMap:
        """Run stage 3 for the problems without a category."""
        final = {problem for problem, failure in skills.unassigned.items() if not is_transient(failure)}
        open_ = _distinct(p for p in problems if p.id not in skills.assignment and p.id not in final)
        if not open_:
            return skills
        self.asking.again.clear()
        answers = assign(open_, skills.names, skills.categories, self.asking)
        assigned = {problem: category for problem, category in answers.items() if isinstance(category, str)}
        failed = {problem: failure for problem, failure in answers.items() if isinstance(failure, Failure)}
        before = {problem: failure for problem, failure in skills.unassigned.items() if problem not in answers}
        return replace(
            self._add_stage(skills, "assignment"),
            assignment={**skills.assignment, **assigned},
            unassigned={**before, **failed},
        )

    def _add_stage(self, skills: SkillMap, stage: str) -> SkillMap:
        """Add the name of the engine and the number of repeated questions of `stage` to the map."""
        name, again = self.asking.engine.name, sum(self.asking.again)
        models = skills.models if name in skills.models else (*skills.models, name)
        reasked = {**skills.reasked, stage: skills.reasked.get(stage, 0) + again} if again else skills.reasked
        return replace(skills, models=models, reasked=reasked)


def _without_categories(skills: SkillMap) -> SkillMap:
    reasked = {stage: count for stage, count in skills.reasked.items() if stage == "names"}
    return SkillMap(names=skills.names, unnamed=skills.unnamed, reasked=reasked, models=skills.models)


def _distinct(problems: Iterable[Problem]) -> list[Problem]:
    """Each problem once, by its id."""
    return list({problem.id: problem for problem in problems}.values())
