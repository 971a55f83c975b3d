"""`tools-skills`: requests that need one to four calls to typed tools, scored by their executed calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, Field

from palaestra.core.errors import SandboxError, SettingsError, TaskError
from palaestra.core.records import Attempt, Completion, Example, Failure, FailureCause, Message, Problem, Score, Split
from palaestra.core.settings import check_integer, check_number
from palaestra.core.statistics import Mean, get_cluster, rate_interval
from palaestra.tasks.base import UnusableError, check_choice, get_split
from palaestra.tasks.code.extraction import PARSE_ERRORS
from palaestra.tasks.content import read_brief
from palaestra.tasks.procedural import Family, ProceduralTask, make_problem
from palaestra.tasks.tools import plans
from palaestra.tasks.tools.extraction import extract_calls, extract_program, read_native_calls
from palaestra.tasks.tools.judge import ToolJudge
from palaestra.tasks.tools.library import LIBRARY
from palaestra.tasks.tools.matching import PlanOutcome, Record, match, same_value
from palaestra.tasks.tools.plans import MAX_CALLS_IN_PLAN, Plan, brief, format_prompt
from palaestra.tasks.tools.requests import SKILLS, Drawer, ToolDraft, make_drawer, offer, read_request

_PRESCRIBED = re.compile(r"\bthen\b|\bFirst\b|\bat last\b")
"""A request that states the order of its steps: only that order is right, even if another one has the same result."""


class ToolsDatum(BaseModel):
    """A request with its plan."""

    request: str = Field(min_length=1, description="What a person asks for; it says everything that the calls need.")
    plan: str = Field(
        min_length=1,
        max_length=2_000,
        description="The calls, a line each, for example: a = add_days('2024-03-01', 5) and then weekday(a)",
    )


class ToolsSkills(ProceduralTask[ToolDraft]):
    """Requests that need tool calls.

    Arguments:
        answer_form: `program`, a short Python program that calls the tools and ends with `answer(value)`; or `calls`,
            OpenAI's tool calls as JSON; the result of the last one is the answer.
        prompt: `full`, with types and descriptions of the tools; or `short`, with names only, for small models that are
            trained on the task.
        distractors: number of offered tools that are not needed.
        most_calls: maximum number of calls that a request needs, from 1 to 4. Skills that need more are left out.
        extra_calls: accept superfluous calls.
        sandbox: the name of the sandbox; see `palaestra.sandbox`.
        seconds: CPU time of a program.

    Example:
        >>> task = ToolsSkills()
        >>> problem = task.problems(Split.TEST, per_skill=1, seed=0, skills=["calendar"])[0]
        >>> task.score(problem, Completion(problem.metadata["worked"])).value  # doctest: +SKIP
        1.0
    """

    name = "tools-skills"
    concurrent_scoring = True
    student = "nano-coder"
    lesson_size = 240
    epochs = 1
    learning_rate = 1e-3
    datum = ToolsDatum

    def __init__(
        self,
        answer_form: str = "program",
        prompt: str = "full",
        distractors: int = 2,
        most_calls: int = MAX_CALLS_IN_PLAN,
        extra_calls: bool = False,
        sandbox: str = "bubblewrap",
        seconds: float = 2.0,
    ) -> None:
        check_choice(self.name, "answer_form", answer_form, plans.FORMS)
        check_choice(self.name, "prompt", prompt, plans.PROMPTS)
        check_choice(self.name, "extra_calls", extra_calls, (True, False))
        check_integer(f"option 'distractors' of {self.name}", distractors, 0, 20, error=SettingsError)
        check_integer(f"option 'most_calls' of {self.name}", most_calls, 1, MAX_CALLS_IN_PLAN, error=SettingsError)
        check_number(f"option 'seconds' of {self.name}", seconds, 0.01, error=SettingsError)
        from palaestra.sandbox.base import SANDBOXES, make_sandbox

        SANDBOXES.check(sandbox)
        self.answer_form, self.prompt, self.distractors = answer_form, prompt, distractors
        self.extra_calls = extra_calls
        self.max_tokens = plans.longest(answer_form, prompt, most_calls)
        self.family = _drawers(most_calls)
        self.judge = ToolJudge(None if sandbox == "bubblewrap" else make_sandbox(sandbox), seconds)

    def get_split(self, skill: str, draft: ToolDraft) -> Split:
        return get_split(draft.plan.canonical())  # The split of a plan does not depend on the wording or the skill.

    def key(self, draft: ToolDraft) -> str:
        return draft.question

    def content(self, draft: ToolDraft) -> str:
        return draft.plan.canonical()

    def problem(self, skill: str, subskill: str, draft: ToolDraft) -> Problem:
        identity = f"{draft.plan.canonical()}|{draft.question}"
        offered = offer(draft, self.distractors)
        calls = draft.plan.execute()
        question = format_prompt(draft.question, offered, self.answer_form, self.prompt)
        reference = json.dumps(calls[-1].value, ensure_ascii=False)
        return make_problem(
            skill,
            subskill,
            identity,
            Message("user", question),
            reference,
            {
                "question": draft.question,
                "level": len(calls),
                "type": draft.plan.shape,
                "answer_form": self.answer_form,
                "plan": draft.plan.to_data(),
                "prescribed": _PRESCRIBED.search(draft.question) is not None,
                "offered": offered,
                "tools": [LIBRARY[name].schema() for name in offered],
                "worked": plans.response(draft.plan, self.answer_form, self.prompt),
            },
        )

    def example(self, skill: str, subskill: str, draft: ToolDraft) -> Example:
        question = format_prompt(draft.question, offer(draft, self.distractors), self.answer_form, self.prompt)
        taught = plans.response(draft.plan, self.answer_form, self.prompt)
        return Example((Message("user", question),), taught, skill, subskill)

    def brief(self) -> str:
        """The tools, and what a good request is."""
        tools = "\n".join(f"- {tool.signature}: {tool.description}" for tool in LIBRARY.values())
        return f"{read_brief('tools-skills')}\n\nThe tools:\n{tools}"

    def make_example(self, datum: ToolsDatum, skill: str, subskill: str) -> Example:
        return self.example(skill, subskill, ToolDraft(datum.request.strip(), _read_datum_plan(datum)))

    def solve(self, example: Example) -> str | None:
        problem = self.to_problem(example)
        return None if problem is None else problem.reference

    def recognize_skill(self, example: Example) -> tuple[str, str] | None:
        problem = self.to_problem(example)
        return None if problem is None else (problem.skill, problem.subskill)

    def to_problem(self, example: Example) -> Problem | None:
        """The problem of a request in one of the task's wordings, with the task's own plan."""
        draft = read_request(plans.read_prompt(example.messages[-1].text, self.answer_form, self.prompt))
        return None if draft is None else self.problem(*draft)

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        """Execute the calls of a response, and compare them and the answer with the plan."""
        offered = problem.metadata["offered"]
        form = problem.metadata["answer_form"]
        code = extract_program(completion.text) if form == "program" else ""
        missing = "no tool calls as JSON" if form == "calls" else "no program that calls answer"
        calls = extract_calls(completion.text) if form == "calls" else None
        if completion.tool_calls and not code:
            calls, missing = read_native_calls(completion.tool_calls), "arguments that are not a JSON object"
        try:
            if code:
                record = self.judge.run_program(code, offered)
            elif calls:
                record = self.judge.run_calls(calls, offered)
            else:
                record = Record((), PlanOutcome.NO_PLAN, missing)
        except SandboxError as error:
            return Failure(FailureCause.SANDBOX, str(error))
        except TaskError as error:
            return Failure(FailureCause.SCORER, str(error))
        return self._score(problem, record)

    def metrics(self, attempts: Sequence[Attempt]) -> Mapping[str, Mean]:
        """The fraction of the plan's calls that were made."""
        fractions, clusters = [], []
        for attempt in attempts:
            if isinstance(attempt.outcome, Score) and "calls" in attempt.outcome.evidence:
                matched, _, wanted = attempt.outcome.evidence["calls"].partition(" of ")
                fractions.append(int(matched) / int(wanted))
                clusters.append(get_cluster(attempt.problem))
        return {"calls made": rate_interval(fractions, clusters)} if fractions else {}

    def check_scoring(self) -> None:
        """Start the sandbox; raises `SandboxError` if it is not available."""
        _ = self.judge.sandbox

    def _score(self, problem: Problem, record: Record) -> Score:
        plan = Plan.from_data(problem.metadata["plan"])
        gold = plan.execute()
        free = not problem.metadata.get("prescribed", True)
        result = match(plan, gold, record.calls, self.extra_calls, free_order=free)
        outcome, detail = result.outcome, result.detail
        if record.fault is not None:
            outcome, detail = record.fault, record.detail
        elif outcome is PlanOutcome.RIGHT and not same_value(record.value, gold[-1].value):
            outcome, detail = PlanOutcome.WRONG_ANSWER, f"expected {brief(gold[-1].value)}; got {brief(record.value)}"
        evidence = {
            "outcome": outcome.value,
            "calls": f"{result.matched} of {len(gold)}",
            "made": "; ".join(map(str, record.calls[:6])) + ("; ..." if len(record.calls) > 6 else ""),
            "answer": "" if record.fault else brief(record.value, 80),
            "expected": brief(gold[-1].value, 80),
            "detail": detail,
        }
        return Score(float(outcome is PlanOutcome.RIGHT), evidence)


def _read_datum_plan(datum: ToolsDatum) -> Plan:
    """The plan of a datum. Nothing is executed.

    Raises:
        UnusableError: it is not a plan of one to four calls of known tools.
    """
    try:
        plan = plans.read_plan(datum.plan.strip(), {})
    except KeyError as error:
        raise UnusableError(f"the plan uses {error}, which is neither a tool nor a result") from error
    except (*PARSE_ERRORS, TypeError, AttributeError, IndexError) as error:
        raise UnusableError(f"expected a plan of calls, literals and names; {error}") from error
    if not 1 <= len(plan.calls) <= MAX_CALLS_IN_PLAN:
        raise UnusableError(f"expected one to {MAX_CALLS_IN_PLAN} calls; got {len(plan.calls)}")
    return plan


def _drawers(most_calls: int) -> Family[ToolDraft]:
    """The recipes with at most `most_calls` calls, without empty skills and subskills."""
    drawers: dict[str, dict[str, Drawer]] = {}
    for skill, kinds in SKILLS.items():
        for subskill, recipes in kinds.items():
            if own := [recipe for recipe in recipes if recipe.level <= most_calls]:
                drawers.setdefault(skill, {})[subskill] = make_drawer(own)
    return drawers
