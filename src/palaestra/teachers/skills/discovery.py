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
from palaestra.teachers.prompts import Prompts
from palaestra.teachers.skills.assigning import assign
from palaestra.teachers.skills.clustering import NAMES_A_CALL, cluster
from palaestra.teachers.skills.llm_queries import Asking, may_pass
from palaestra.teachers.skills.naming import name_skills
from palaestra.teachers.skills.records import SkillMap

STAGES = ("names", "categories", "assignment")
"""The stages, in order, by the names under which `keep` is given what they brought."""

Keep = Callable[[str, SkillMap], None]


def _forget(stage: str, found: SkillMap) -> None:
    """Keep nothing."""


class Discovery:
    """Discovers skills with a language model.

    Arguments:
        engine: who answers. A `CachedEngine` makes a stage that was killed go on where it was.
        prompts: the templates; ours if none are given.
        show_references: show the model the expected answer of a problem that it names. It never sees one otherwise.
        tries: how often a question is asked at most, each time with what was wrong before.
        max_tokens: of an answer; a clustering gets more by the number of its names.
        names_a_call: names that are clustered, or sorted, by one call.
        seed: of every request.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        prompts: Prompts | None = None,
        show_references: bool = False,
        tries: int = 3,
        max_tokens: int = 1024,
        names_a_call: int = NAMES_A_CALL,
        seed: int = 0,
    ) -> None:
        if names_a_call < 2:
            raise SettingsError(f"a clustering needs at least 2 names a call; got names_a_call={names_a_call}")
        self.asking = Asking(engine, prompts or Prompts(), tries, max_tokens, seed, show_references)
        self.names_a_call = names_a_call

    def discover(
        self, problems: Sequence[Problem], *, categories: int = 0, known: SkillMap | None = None, keep: Keep = _forget
    ) -> SkillMap:
        """All three stages, or those that are left.

        Arguments:
            categories: exactly so many; 0 leaves it to the model.
            known: what was found before, to the end of any stage. Nothing that it holds is asked again, but for what
                failed for a reason that may have passed. Other `categories` than its own mean: `recluster`.
            keep: is given each stage when it is done, with everything found so far.

        Returns:
            Every problem assigned, or unassigned with the cause.
        """
        if categories < 0:
            raise SettingsError(f"expected categories of at least 0; got {categories}")
        found = known or SkillMap(wanted=categories)
        if found.categories and found.wanted != categories:
            return self.recluster(found, problems, categories=categories, keep=keep)
        if not found.categories:
            found = self._name(replace(found, wanted=categories), problems, keep)
        return self._from_names(found, problems, keep)

    def assign_more(self, found: SkillMap, problems: Sequence[Problem]) -> SkillMap:
        """Assign problems that were not there before, without naming them. What is assigned is not asked again.

        Raises:
            SettingsError: there are no categories to choose from.
        """
        if not found.categories:
            raise SettingsError("the skill map has no categories to assign problems to; discover them first")
        return self._assign(found, problems)

    def recluster(
        self, found: SkillMap, problems: Sequence[Problem], *, categories: int = 0, keep: Keep = _forget
    ) -> SkillMap:
        """Other categories from the same names: nothing is named again.

        Arguments:
            problems: those that are to be assigned. A problem with a name follows it; the others are asked about.

        Raises:
            SettingsError: there are no names to cluster.
        """
        if not found.names:
            raise SettingsError("the skill map has no names to cluster; discover them first")
        if categories < 0:
            raise SettingsError(f"expected categories of at least 0; got {categories}")
        return self._from_names(replace(_without_categories(found), wanted=categories), problems, keep)

    def _from_names(self, found: SkillMap, problems: Sequence[Problem], keep: Keep) -> SkillMap:
        """Stages 2 and 3, as far as they are not done."""
        if not found.categories:
            counted = Counter(found.names.values())
            if not counted:
                # Each problem has its own cause: why it could not be named.
                return replace(found, unassigned=dict(found.unnamed))
            self.asking.again.clear()
            made = cluster(counted, self.asking, found.wanted, self.names_a_call)
            if made.failure is not None:
                why = Failure(made.failure.cause, f"there are no categories: {made.failure.message}")
                return replace(found, unassigned={problem.id: why for problem in problems})
            found = replace(
                self._asked(found, "categories"),
                categories=made.categories,
                repairs=made.repairs,
                assignment={},
                unassigned={},
            )
            keep("categories", found)
        done = self._assign(found, problems)
        if done != found:
            keep("assignment", done)
        return done

    def _name(self, found: SkillMap, problems: Sequence[Problem], keep: Keep) -> SkillMap:
        """Stage 1 for the problems that have no name."""
        final = {problem for problem, failure in found.unnamed.items() if not may_pass(failure)}
        open_ = _distinct(p for p in problems if p.id not in found.names and p.id not in final)
        if not open_:
            return found
        self.asking.again.clear()
        said = name_skills(open_, self.asking, found.names.values())
        names = {problem: name for problem, name in said.items() if isinstance(name, str)}
        failed = {problem: failure for problem, failure in said.items() if isinstance(failure, Failure)}
        before = {problem: failure for problem, failure in found.unnamed.items() if problem not in said}
        found = replace(self._asked(found, "names"), names={**found.names, **names}, unnamed={**before, **failed})
        keep("names", found)
        return found

    def _assign(self, found: SkillMap, problems: Sequence[Problem]) -> SkillMap:
        """Stage 3 for the problems that have no category."""
        final = {problem for problem, failure in found.unassigned.items() if not may_pass(failure)}
        open_ = _distinct(p for p in problems if p.id not in found.assignment and p.id not in final)
        if not open_:
            return found
        self.asking.again.clear()
        said = assign(open_, found.names, found.categories, self.asking)
        assigned = {problem: category for problem, category in said.items() if isinstance(category, str)}
        failed = {problem: failure for problem, failure in said.items() if isinstance(failure, Failure)}
        before = {problem: failure for problem, failure in found.unassigned.items() if problem not in said}
        return replace(
            self._asked(found, "assignment"),
            assignment={**found.assignment, **assigned},
            unassigned={**before, **failed},
        )

    def _asked(self, found: SkillMap, stage: str) -> SkillMap:
        """The map with this engine among those who answered, and with what `stage` had to ask again."""
        name, again = self.asking.engine.name, sum(self.asking.again)
        models = found.models if name in found.models else (*found.models, name)
        reasked = {**found.reasked, stage: found.reasked.get(stage, 0) + again} if again else found.reasked
        return replace(found, models=models, reasked=reasked)


def _without_categories(found: SkillMap) -> SkillMap:
    reasked = {stage: count for stage, count in found.reasked.items() if stage == "names"}
    return SkillMap(names=found.names, unnamed=found.unnamed, reasked=reasked, models=found.models)


def _distinct(problems: Iterable[Problem]) -> list[Problem]:
    """Each problem once, by its id."""
    return list({problem.id: problem for problem in problems}.values())
