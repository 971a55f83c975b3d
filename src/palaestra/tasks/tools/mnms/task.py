"""`mnms`: plans of tool calls (m&m's, Ma et al., 2024), from the published files or the hub.

An answer is right if it uses the tools of the published plan in order. This is the plan accuracy of the benchmark's evaluation and the
reward of DataEnvGym. `match` makes the comparison stricter. The F1 metrics of the paper are in `plans`.

The skill is the number of calls, the subskill the kind of tools. Nothing is executed: most tools are models or services.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from pydantic import BaseModel, Field

from palaestra.core.errors import TaskError
from palaestra.core.records import Attempt, Completion, Example, Failure, Message, Problem, Score, Split
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import Mean, get_cluster
from palaestra.tasks.base import TaskHooks, UnusableError, check_choice, check_skills, part_by_hash, take
from palaestra.tasks.content import read_brief
from palaestra.tasks.sources import Row, Source, get_field, has_split, locate_dataset, read_rows
from palaestra.tasks.tools.mnms import plans
from palaestra.tasks.tools.mnms.plans import TOOLS, Nodes, PlanNode

FILTERED, VERIFIED, RAW = "test_human_verified_filtered", "test_human_verified", "test_raw"
_SKILLS = ("one_call", "two_calls", "more_calls")
_KINDS = ("models", "images", "services", "mixed")
_MATCHES = {"tools": plans.tool_labels, "names": plans.name_labels, "values": plans.value_labels}


class MnmsStep(BaseModel):
    """One call."""

    tool: str = Field(min_length=1, description="The name of a tool.")
    arguments: dict[str, str | int | float] = Field(
        description="All arguments of the tool by name; <node-0>.text stands for the output text of the first call."
    )


class MnmsDatum(BaseModel):
    """A request with its plan."""

    request: str = Field(min_length=1, description="What a person asks for, with the names of files that it is about.")
    plan: list[MnmsStep] = Field(min_length=1, max_length=5, description="The calls in order.")


class Mnms(TaskHooks):
    """Plans for requests about texts, images, sounds and facts, with 33 tools.

    Arguments:
        path: a folder with the published files, or a hub id; empty for the folder below `PALAESTRA_DATA`, else the hub.
        parts: `auto`: the filtered plans are test, the other verified plans are validation, and the unverified generated
            plans are train. A part whose file is missing is made by the hash of the ids. `published`: the filtered plans
            are test, and there are no other parts.
        answer_form: `json` or `code`; see `palaestra.tasks.tools.mnms.plans`.
        prompt: `full`, or `short`: without the descriptions of the tools.
        match: what must agree with the plan: the `tools`, also the argument `names`, or also their `values`.
        alternatives: also accept the alternative plans of the data set. The benchmark's own evaluation does not.
    """

    name = "mnms"
    max_tokens = 512
    concurrent_scoring = True
    datum = MnmsDatum
    source = Source("mnms", "zixianma/mnms")

    def __init__(
        self,
        path: str = "",
        parts: str = "auto",
        answer_form: str = "json",
        prompt: str = "full",
        match: str = "tools",
        alternatives: bool = False,
    ) -> None:
        check_choice(self.name, "parts", parts, ("auto", "published"))
        check_choice(self.name, "answer_form", answer_form, ("json", "code"))
        check_choice(self.name, "prompt", prompt, ("full", "short"))
        check_choice(self.name, "match", match, tuple(_MATCHES))
        self.path, self.parts, self.answer_form = str(path), parts, answer_form
        self.prompt, self.match, self.alternatives = prompt, match, alternatives

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(_SKILLS, _KINDS)

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        check_skills(self, skills)
        problems = []
        for skill in skills or _SKILLS:
            own = [problem for problem in self._parts[split] if problem.skill == skill]
            order = Seeds(seed).derive(self.name, split, skill).generator().permutation(len(own))
            problems += [own[place] for place in take(order.tolist(), per_skill, self, split, skill)]
        return problems

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        """Compare the plan in a response with the published one."""
        labels, answer = _MATCHES[self.match], plans.extract_plan(completion.text, self.answer_form)
        alternatives = problem.metadata["alternatives"] if self.alternatives else []
        accepted = [plans.read_nodes(plan) for plan in [problem.metadata["plan"], *alternatives]]
        right = any(labels(answer) == labels(plan) for plan in accepted)
        tools = any(plans.tool_labels(answer) == plans.tool_labels(plan) for plan in accepted)
        outcome = "right" if right else "no_plan" if not answer else "wrong_arguments" if tools else "wrong_tools"
        evidence = {
            "outcome": outcome,
            "answer": "; ".join(labels(answer))[:300],
            "expected": "; ".join(labels(accepted[0]))[:300],
        }
        return Score(float(right), evidence)

    def metrics(self, attempts: Sequence[Attempt]) -> Mapping[str, Mean]:
        """The metrics of the benchmark."""
        scored = [attempt for attempt in attempts if isinstance(attempt.outcome, Score)]
        answers = [attempt.completion.text if attempt.completion else "" for attempt in scored]
        predicted = [plans.extract_plan(answer, self.answer_form) for answer in answers]
        gold = [plans.read_nodes(attempt.problem.metadata["plan"]) for attempt in scored]
        clusters = [get_cluster(attempt.problem) for attempt in scored]
        return plans.measure_plans(list(zip(gold, predicted, strict=True)), clusters)

    def get_shots(self, skill: str, count: int) -> list[Example]:
        """The first plans of the train part."""
        return [self._taught(problem) for problem in self._parts[Split.TRAIN] if problem.skill == skill][:count]

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        """Shuffled plans of the train split; none is repeated before all were used."""
        check_skills(self, [skill], subskill)
        own = [problem for problem in self._parts[Split.TRAIN] if problem.skill == skill]
        own = [problem for problem in own if problem.subskill == subskill] or own
        if not own:
            raise TaskError(
                f"{self.name} has no train plans of the skill '{skill}'; use a language model as the writer"
            )
        places: list[int] = []
        while len(places) < count:
            places += generator.permutation(len(own)).tolist()
        return [self._taught(own[place]) for place in places[:count]]

    def brief(self) -> str:
        tools = "\n".join(f"- {tool.signature}: {tool.description}" for tool in TOOLS.values())
        return f"{read_brief('mnms')}\n\nThe tools, with arguments and outputs:\n{tools}"

    def make_example(self, datum: MnmsDatum, skill: str, subskill: str) -> Example:
        """The training example of a datum.

        Raises:
            UnusableError: a tool, an argument or a reference does not exist.
        """
        steps = enumerate(datum.plan)
        nodes = tuple(PlanNode(place, plans.tool_name(step.tool), step.arguments) for place, step in steps)
        try:
            plans.check_plan(nodes)
        except ValueError as error:
            raise UnusableError(f"the plan cannot be executed: {error}") from error
        reference = json.dumps([node.to_data() for node in nodes], ensure_ascii=False)
        question = Message("user", self._ask(datum.request.strip()))
        return Example((question,), plans.write_plan(nodes, self.answer_form), skill, subskill, reference)

    def to_problem(self, example: Example) -> Problem | None:
        """The problem of an example, with its own plan as the reference."""
        form = "json" if example.reference else self.answer_form
        nodes = plans.extract_plan(example.reference or example.response, form)
        if not nodes or not example.messages:
            return None
        plan = [node.to_data() for node in nodes]
        name = f"mnms/example/{hashlib.blake2b(example.messages[-1].text.encode(), digest_size=8).hexdigest()}"
        metadata = {"plan": plan, "alternatives": []}
        return Problem(name, example.messages, json.dumps(plan), example.skill, example.subskill, metadata)

    def execute_example(self, example: Example) -> Score | Failure | None:
        """Whether the plan of an example is executable: its tools, arguments and references exist."""
        nodes = plans.extract_plan(example.response, self.answer_form)
        try:
            plans.check_plan(nodes)
        except ValueError as error:
            return Score(0.0, {"detail": str(error)})
        return Score(float(bool(nodes)), {} if nodes else {"detail": "there is no plan"})

    def _ask(self, request: str) -> str:
        full = self.prompt == "full"
        tools = "\n".join(tool.signature + (f": {tool.description}" if full else "") for tool in TOOLS.values())
        return f"Tools:\n{tools}\n\nRequest: {request}\n\n{read_brief('mnms-' + self.answer_form)}"

    def _taught(self, problem: Problem) -> Example:
        response = plans.write_plan(plans.read_nodes(problem.metadata["plan"]), self.answer_form)
        return Example(problem.messages, response, problem.skill, problem.subskill, problem.reference)

    @cached_property
    def _parts(self) -> dict[Split, list[Problem]]:
        place = locate_dataset(self.source, self.path)
        names = [FILTERED, VERIFIED, RAW]
        if isinstance(place, Path):
            names = [name for name in names if has_split(place, name)] or [FILTERED]
        if self.parts == "published":
            names = names[:1]
        problems: dict[Split, list[Problem]] = {split: [] for split in Split}
        known: set[str] = set()
        for order, name in enumerate(names):
            for where, row in read_rows(self.source, self.path, name):
                problem = self._problem(row, where, generated=name == RAW)
                # The same id may be in several files; a request may also be in one of them twice.
                if problem is None or {problem.id, problem.messages[0].text} & known:
                    continue
                known |= {problem.id, problem.messages[0].text}
                problems[self._part(problem.id, order, names)].append(problem)
        return problems

    def _part(self, identity: str, order: int, names: Sequence[str]) -> Split:
        """The part of a plan that is in file `order` of `names` and in none before it."""
        if self.parts == "published" or (order == 0 and len(names) > 1):
            return Split.TEST
        if len(names) == 1:
            return part_by_hash(identity)
        is_train = part_by_hash(identity) is Split.TRAIN if len(names) == 2 else order > 1
        return Split.TRAIN if is_train else Split.VALIDATION

    def _problem(self, row: Row, where: str, *, generated: bool) -> Problem | None:
        """Convert a row to a problem; `None` for a generated plan that cannot be parsed."""
        number, request = get_field(row, where, "id"), str(get_field(row, where, "user_request"))
        try:
            nodes = plans.read_nodes(plans.read_literal(get_field(row, where, "plan_str", "plan")))
            others = plans.read_literal(row.get("alt_plans_str") or row.get("alt_plans") or [])
            alternatives = [[node.to_data() for node in plans.read_nodes(plan)] for plan in others]
        except (ValueError, TypeError) as error:
            if generated:
                return None
            raise TaskError(f"{where}: {error}") from None
        plan = [node.to_data() for node in nodes]
        kind = _get_kind(nodes)
        metadata = {"plan": plan, "alternatives": alternatives, "level": str(len(plan)), "type": kind}
        reference = json.dumps(plan, ensure_ascii=False)
        skill = _SKILLS[min(len(plan), len(_SKILLS)) - 1]
        return Problem(f"mnms/{number}", (Message("user", self._ask(request)),), reference, skill, kind, metadata)


def _get_kind(nodes: Nodes) -> str:
    """The kind of a plan's tools; `mixed` if there are several kinds or an unknown tool."""
    kinds = {TOOLS[node.name].kind if node.name in TOOLS else "" for node in nodes}
    return kinds.pop() if len(kinds) == 1 and kinds <= set(_KINDS) else "mixed"
