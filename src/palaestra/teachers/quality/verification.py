"""Checks with a second opinion: `skill` and `agreement`.

A task recognizes the skills of its questions with the hook `recognize_skill`, and verifies answers by solving or running
them. For other questions a language model, the verifier, is asked: it answers again, and it classifies a sample of the
questions. Its opinion is evidence, not proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from palaestra.core.records import Completion, Example, Failure, Problem, Request, Sampling
from palaestra.core.seeding import Seeds
from palaestra.tasks.base import get_hooks
from palaestra.tasks.evaluate import score
from palaestra.teachers.model_writer import ORDERED_SKILL
from palaestra.teachers.quality.answers import NOTHING_TO_SCORE_BY, make_problem_id, pose
from palaestra.teachers.quality.base import CheckResult, Context, Ruling, drop, not_judged
from palaestra.teachers.skills.discovery import Discovery
from palaestra.teachers.skills.records import Category, SkillMap

_AS_ORDERED, _UNRECOGNIZED = "as ordered", "not recognized"
_SAMPLED = "by the verifier: "
"""Prefix of the remarks about skills that the verifier classified."""
_MAX_CLASSIFIED = 20
"""Maximum number of questions in a lesson that the verifier classifies."""


class SkillCheck:
    """Compares the skill of an example with the one that the task recognizes, and drops it if they differ.

    The skills of a language model's examples are corrected before (`ModelWriter`); remarks count the corrections. Without a recognizer, the verifier classifies a sample of the questions. Its results are remarks: no example is dropped.
    """

    name = "skill"
    rank = 15
    needed = False

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult | Failure]:
        hooks = get_hooks(context.task)
        if hooks.overrides("recognize_skill"):
            return [_compare_skills(example, hooks.recognize_skill(example)) for example in examples]
        results: list[CheckResult | Failure] = [not_judged(_UNRECOGNIZED)] * len(examples)
        if context.verifier is not None and len(context.task.skills()) > 1:
            order = Seeds(context.seed).derive(self.name).generator().permutation(len(examples))
            places = sorted(int(place) for place in order[:_MAX_CLASSIFIED])
            labels = _classify([examples[place] for place in places], context)
            for place, label in zip(places, labels, strict=True):
                ordered = examples[place].skill
                reason = _AS_ORDERED if label in (ordered, "") else f"{label} instead of {ordered or 'no skill'}"
                results[place] = CheckResult(Ruling.KEPT, _SAMPLED + (reason if label else _UNRECOGNIZED))
        return results


def _compare_skills(example: Example, recognized: tuple[str, str] | None) -> CheckResult:
    if recognized is None:
        return not_judged(_UNRECOGNIZED)
    ordered = example.metadata.get(ORDERED_SKILL, example.skill)
    reason = _AS_ORDERED if ordered in ("", recognized[0]) else f"{recognized[0]} instead of {ordered}"
    return CheckResult(Ruling.KEPT, reason) if example.skill in ("", recognized[0]) else drop(reason)


def _classify(examples: Sequence[Example], context: Context) -> list[str]:
    """The skill of each question by the verifier; empty if it named none."""
    assert context.verifier is not None
    skills = SkillMap(
        categories=tuple(Category(name, "", tuple(parts)) for name, parts in context.task.skills().items())
    )
    problems = [Problem(make_problem_id(example), example.messages[-1:], "", "") for example in examples]
    assignment = Discovery(context.verifier, seed=context.seed).assign_more(skills, problems).assignment
    return [assignment.get(problem.id, "") for problem in problems]


_DISAGREE, _NO_VERIFIER, _VERIFIED = "the verifier disagrees", "no verifier was set", "verified already"
_AGREEMENT = "agreement"
_MAX_TOKENS = 2048
"""Maximum tokens of an answer of the verifier."""


class AgreementCheck:
    """Drops an unverified example unless all samples of the verifier give its answer."""

    name = "agreement"
    rank = 55
    needed = True

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult | Failure]:
        if context.verifier is None or not context.samples:
            return [not_judged(_NO_VERIFIER)] * len(examples)
        results: list[CheckResult | Failure] = [not_judged(_VERIFIED)] * len(examples)
        problems: dict[int, Problem] = {}
        for place, example in enumerate(examples):
            if id(example) not in context.verified:
                problem, _ = pose(example, context)
                results[place] = not_judged(NOTHING_TO_SCORE_BY)
                if problem is not None and problem.reference:
                    problems[place] = problem
        if not problems:
            return results
        sampling = Sampling(max_tokens=_MAX_TOKENS, temperature=1.0, count=context.samples)
        seeds = Seeds(context.seed).derive("agreement")
        requests = [
            Request(examples[place].messages, sampling, seeds.derive(make_problem_id(examples[place])).integer())
            for place in problems
        ]
        for (place, problem), answers in zip(problems.items(), context.verifier.generate(requests), strict=True):
            results[place] = _count_agreement(problem, answers, context)
        return results


def _count_agreement(
    problem: Problem, answers: Sequence[Completion | Failure], context: Context
) -> CheckResult | Failure:
    outcomes = [answer if isinstance(answer, Failure) else score(context.task, problem, answer) for answer in answers]
    agreeing = 0
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            return replace(outcome, message=f"the verifier gave no answer that can be scored: {outcome.message}")
        agreeing += outcome.value >= 1.0
    if agreeing < len(outcomes):
        return drop(_DISAGREE, f"{agreeing} of {len(outcomes)} samples give {problem.reference}", verified=_AGREEMENT)
    return CheckResult(verified=_AGREEMENT)
