"""Skill discovery: name the skill of every problem, cluster the names, assign the problems.

    discovery = Discovery(CachedEngine(engine, cache))
    skills = discovery.discover(validation, categories=8, keep=store)
    skills = discovery.assign_more(skills, test)
    fewer = discovery.recluster(skills, [*validation, *test], categories=4)

Categories come from the problems of `discover` alone. Those of `assign_more` only choose among them, so that a test split
can be labelled without affecting what a teacher sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, create_model

from palaestra.chat.structured import Check, ask
from palaestra.core.errors import SettingsError
from palaestra.core.records import (
    Answer,
    Engine,
    Failure,
    ImagePart,
    Message,
    Problem,
    Request,
    Sampling,
    TextPart,
    reads_schema,
)
from palaestra.engines.base import BaseEngine
from palaestra.engines.cached import CACHED_FAILURES
from palaestra.runs.cache import digest
from palaestra.teachers.prompts import TeacherPrompts
from palaestra.teachers.skills.records import (
    Category,
    Repair,
    SkillGroups,
    SkillMap,
    describe_fault,
    make_key,
    quote_names,
    repair_categories,
    tidy_name,
)

STAGES = ("names", "categories", "assignment")
"""The stages in order. `keep` receives the result of each under its name."""
_MAX_TOKENS = 1024
"""Maximum tokens of an answer; a clustering gets `_TOKENS_A_NAME` more for each name."""
_TOKENS_A_NAME = 24
MAX_NAMES_A_CALL = 150
"""Maximum number of names that one call clusters or sorts. With more, models begin to omit some."""

Keep = Callable[[str, SkillMap], None]
_Repaired = tuple[list[Category], list[Repair]]
T = TypeVar("T", bound=BaseModel)


class SkillName(BaseModel):
    """The schema of the model's answer in stage 1."""

    skill: str = Field(description="the skill, in two to five words")


class Discovery:
    """Discovers skills with a language model.

    Arguments:
        engine: the language model. With a `CachedEngine` a killed stage resumes without repeated calls.
        prompts: the templates; default: the built-in ones.
        show_references: include the expected answer in the prompt that names a problem's skill.
        seed: the seed of every request.
    """

    def __init__(
        self, engine: Engine, *, prompts: TeacherPrompts | None = None, show_references: bool = False, seed: int = 0
    ) -> None:
        self.engine, self.prompts = engine, prompts or TeacherPrompts()
        self.show_references, self.seed = show_references, seed
        self._repeated = 0

    def discover(
        self,
        problems: Sequence[Problem],
        *,
        categories: int = 0,
        known: SkillMap | None = None,
        keep: Keep = lambda stage, skills: None,
    ) -> SkillMap:
        """Run all remaining stages.

        Arguments:
            categories: the number of categories; 0: the model decides.
            known: the result of an earlier stage. Only transient failures are retried. If `categories` differs, the
                names are clustered again (`recluster`).
            keep: receives the skill map after each stage.

        Returns:
            The skill map, in which every problem is assigned, or unassigned with the cause.
        """
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
        self,
        skills: SkillMap,
        problems: Sequence[Problem],
        *,
        categories: int = 0,
        keep: Keep = lambda stage, skills: None,
    ) -> SkillMap:
        """Cluster the same names into another number of categories.

        Arguments:
            problems: the problems to assign, by their names if they have one.

        Raises:
            SettingsError: the map has no names.
        """
        if not skills.names:
            raise SettingsError("the skill map has no names to cluster; discover them first")
        reasked = {stage: count for stage, count in skills.reasked.items() if stage == "names"}
        named = SkillMap(skills.names, unnamed=skills.unnamed, wanted=categories, reasked=reasked, models=skills.models)
        return self._from_names(named, problems, keep)

    def _from_names(self, skills: SkillMap, problems: Sequence[Problem], keep: Keep) -> SkillMap:
        """Run stages 2 and 3, unless they are done."""
        if not skills.names and not skills.categories:
            # Without names, the failures of stage 1 are the causes.
            return replace(skills, unassigned=dict(skills.unnamed))
        if not skills.categories:
            clustering = self._cluster(Counter(skills.names.values()), skills.wanted)
            if isinstance(clustering, Failure):
                why = Failure(clustering.cause, f"there are no categories: {clustering.message}")
                return replace(skills, unassigned={problem.id: why for problem in problems})
            cleared = replace(skills, assignment={}, unassigned={})
            skills = self._end_stage("categories", cleared, categories=clustering[0], repairs=clustering[1])
            keep("categories", skills)
        done = self._assign(skills, problems)
        if done != skills:
            keep("assignment", done)
        return done

    def _name(self, skills: SkillMap, problems: Sequence[Problem], keep: Keep) -> SkillMap:
        """Stage 1: name the skill of every problem without a name.

        Each problem is one question, so a name depends on its problem alone and can be cached. Stage 2 merges synonyms.
        """
        pending = _select_pending(problems, skills.names, skills.unnamed)
        if not pending:
            return skills
        shown = {problem.id: problem.reference if self.show_references else "" for problem in pending}
        questions = [self._ask_about(problem, "name", reference=shown[problem.id]) for problem in pending]
        answers = self._ask(questions, SkillName, check=lambda _, answer: describe_fault(answer.skill))
        # A new name that differs from an existing one only in its spelling takes the existing spelling.
        spelled = {make_key(name): name for name in skills.names.values()}
        names, unnamed = dict(skills.names), dict(skills.unnamed)
        for problem, answer in zip(pending, answers, strict=True):
            unnamed.pop(problem.id, None)
            if isinstance(answer, Failure):
                unnamed[problem.id] = answer
            else:
                names[problem.id] = spelled.setdefault(make_key(answer.skill), tidy_name(answer.skill))
        skills = self._end_stage("names", skills, names=names, unnamed=unnamed)
        keep("names", skills)
        return skills

    def _cluster(self, names: Mapping[str, int], wanted: int) -> tuple[tuple[Category, ...], tuple[str, ...]] | Failure:
        """Stage 2: cluster the names into disjoint categories. Returns them with the repairs.

        The first call clusters as many names as fit into one answer. Further calls sort the remaining names, and those
        that the model left out, into these categories. The most frequent names come first; a hash breaks ties.

        Arguments:
            names: the number of problems of each name.
            wanted: the number of categories; 0: the model decides. With no more names than that, each is a category.
        """
        ordered = sorted(names, key=lambda name: (-names[name], digest(name)))
        if len(ordered) <= max(wanted, 1):
            short = Repair(f"expected {wanted} categories; got {len(ordered)} different names", "each is one")
            alone = tuple(Category(name, "", (name,)) for name in ordered)
            return alone, (str(short),) if len(ordered) < wanted else ()
        most = max(MAX_NAMES_A_CALL, wanted)
        answers, failures = self._ask_groups("cluster", [ordered[:most]], names, wanted)
        # If the service failed before a correction, the first answer is not used.
        if answers[0] is None or (0 in failures and is_transient(failures[0])):
            return failures[0]
        categories, repairs = answers[0][0], list(map(str, answers[0][1]))
        placed = {name for category in categories for name in category.members}
        rest = [name for name in ordered if name not in placed]
        parts = [rest[start : start + most] for start in range(0, len(rest), most)]
        answers, failures = self._ask_groups("sort", parts, names, 0, categories)
        members = {category.name: list(category.members) for category in categories}
        for index, (part, repaired) in enumerate(zip(parts, answers, strict=True)):
            if repaired is None:
                text = f"not sorted ({failures[index].message}): {quote_names(part)}"
                repairs.append(str(Repair(text, "their problems are asked about one by one")))
                continue
            repairs += map(str, repaired[1])
            for category in repaired[0]:
                members[category.name] += category.members
        filled = tuple(replace(category, members=tuple(members[category.name])) for category in categories)
        return filled, tuple(repairs)

    def _ask_groups(
        self,
        prompt: str,
        parts: Sequence[Sequence[str]],
        names: Mapping[str, int],
        wanted: int,
        allowed: Sequence[Category] = (),
    ) -> tuple[list[_Repaired | None], dict[int, Failure]]:
        """Ask for the categories of each part. Returns the best repaired answers, and the failures by index."""
        best: list[_Repaired | None] = [None] * len(parts)
        variables = {"categories": allowed} if allowed else {"wanted": wanted}
        sizes = [_MAX_TOKENS + _TOKENS_A_NAME * len(part) for part in parts]
        requests = [
            self._request(prompt, size, names=part, **variables) for size, part in zip(sizes, parts, strict=True)
        ]

        def check(index: int, groups: SkillGroups) -> str:
            counts = {name: names[name] for name in parts[index]}
            repaired = repair_categories(groups, counts, wanted, allowed)
            before = best[index]
            # Of two equally good answers the later one is used.
            if repaired[0] and (before is None or _demerit(repaired) <= _demerit(before)):
                best[index] = repaired
            return "; ".join(repair.wrong for repair in repaired[1])

        answers = self._ask(requests, SkillGroups, check=check) if parts else []
        return best, {index: answer for index, answer in enumerate(answers) if isinstance(answer, Failure)}

    def _assign(self, skills: SkillMap, problems: Sequence[Problem]) -> SkillMap:
        """Stage 3: assign every problem to a category, by its skill name or by a question to the model."""
        pending = _select_pending(problems, skills.assignment, skills.unassigned)
        if not pending:
            return skills
        member = {name: category.name for category in skills.categories for name in category.members}
        unclear = [problem for problem in pending if skills.names.get(problem.id) not in member]
        questions = [self._ask_about(problem, "assign", categories=skills.categories) for problem in unclear]
        answers = self._ask(questions, _make_schema(skills.categories)) if unclear else []
        answered = {problem.id: answer for problem, answer in zip(unclear, answers, strict=True)}
        assignment, unassigned = dict(skills.assignment), dict(skills.unassigned)
        for problem in pending:
            unassigned.pop(problem.id, None)
            answer = answered.get(problem.id)
            if isinstance(answer, Failure):
                unassigned[problem.id] = answer
            elif answer is not None:
                assignment[problem.id] = str(answer.model_dump()["category"])
            else:
                assignment[problem.id] = member[skills.names[problem.id]]
        return self._end_stage("assignment", skills, assignment=assignment, unassigned=unassigned)

    def _end_stage(self, stage: str, skills: SkillMap, **results: Any) -> SkillMap:
        """Add the results of a stage, the name of the engine, and the number of repeated questions."""
        name, repeated = self.engine.name, self._repeated
        self._repeated = 0
        models = skills.models if name in skills.models else (*skills.models, name)
        reasked = {**skills.reasked, stage: skills.reasked.get(stage, 0) + repeated} if repeated else skills.reasked
        return replace(skills, models=models, reasked=reasked, **results)

    def _ask(self, questions: Sequence[Request], schema: type[T], check: Check[T] | None = None) -> list[T | Failure]:
        counted = _CountedEngine(self.engine)
        answers = ask(counted, questions, schema, check=check)
        self._repeated += counted.requests - len(questions)
        return answers

    def _request(self, prompt: str, max_tokens: int = _MAX_TOKENS, **variables: Any) -> Request:
        messages = self.prompts.messages(f"skills/{prompt}", **variables)
        return Request(messages, Sampling(max_tokens=max_tokens), self.seed)

    def _ask_about(self, problem: Problem, prompt: str, **variables: Any) -> Request:
        """A question about one problem, with its last message and images.

        The model sees neither earlier messages, which are instructions or worked problems, nor the problem's id, which may
        contain the task's own skill.
        """
        asked = problem.messages[-1]
        request = self._request(prompt, question=asked.text, **variables)
        if isinstance(asked.content, str) or not asked.has_image:
            return request
        images = (part for part in asked.content if isinstance(part, ImagePart))
        *before, last = request.messages
        return replace(request, messages=(*before, Message(last.role, (TextPart(last.text), *images))))


def is_transient(failure: Failure) -> bool:
    """Whether a failure is transient, so that the question may be asked again."""
    return failure.cause not in CACHED_FAILURES


def _select_pending(
    problems: Iterable[Problem], done: Mapping[str, str], failed: Mapping[str, Failure]
) -> list[Problem]:
    """The problems without a result, each once. Failures that are not transient are results."""
    final = {problem for problem, failure in failed.items() if not is_transient(failure)}
    return list({p.id: p for p in problems if p.id not in done and p.id not in final}.values())


def _demerit(repaired: _Repaired) -> tuple[int, int]:
    """A sort key, lower is better: first the number of names without a category, then the number of repairs."""
    return -sum(len(category.members) for category in repaired[0]), len(repaired[1])


def _make_schema(categories: Sequence[Category]) -> type[BaseModel]:
    """The schema of an answer: one of the categories. Variants of spelling are accepted."""
    names = tuple(category.name for category in categories)
    spelled = {make_key(name): name for name in names}

    def spell(answer: Any) -> Any:
        return spelled.get(make_key(answer), answer) if isinstance(answer, str) and answer not in names else answer

    one_of: Any = Literal[names]
    schema: type[BaseModel] = create_model("Assignment", category=(Annotated[one_of, BeforeValidator(spell)], ...))
    return schema


class _CountedEngine(BaseEngine):
    """An engine that counts its requests, including those that a cache answers."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name, self.requests = engine, engine.name, 0
        self.reads_schema = reads_schema(engine)

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        self.requests += len(requests)
        return self.engine.generate(requests)
