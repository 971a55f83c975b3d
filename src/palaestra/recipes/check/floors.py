"""Level 3: what answers without any work get."""

from __future__ import annotations

import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import chdir
from string import ascii_uppercase

from palaestra.core.records import Json
from palaestra.core.settings import short_repr
from palaestra.core.tables import load_table
from palaestra.recipes.check.answers import Answers, Case, EnvAnswers, TaskAnswers
from palaestra.recipes.check.records import CheckFinding, env_check, report_fail, report_pass, report_skip, report_warn
from palaestra.recipes.check.scorer import (
    HOSTILE,
    ScoringOverdueError,
    count_patience,
    interrupt,
    is_program,
    limit,
    list_solved,
    spread,
)

_MARGIN = 0.25
"""A policy without content fails the check if it gets this fraction less than the oracle, or more."""
_POSITIVE = 0.1
_TIED = 0.25
"""Fraction of episodes in which silence may get as much as the right answer."""
_FIRST = 6
"""Cases on which every policy is tried. One that is rewarded there is tried on all cases."""
_MIN_PROBLEMS = 8
"""Problems without which the most common answer says nothing."""
_MAX_OVERDUE = 2
"""Answers that may take too long until a check ends."""
Policy = Callable[[Case], str]


def _fence(code: str) -> str:
    return f"```python\n{code}\n```"


_TEXTS = load_table(__file__, "attacks")["answers"]
"""Answers that do no work, by kind."""
_LONG = {
    "a repeated word": "the " * 400, "a repeated letter": "a" * 4000, "many numbers": " ".join(map(str, range(-50, 400))),
    "many answers": "\n".join(f"Answer: {n}" for n in range(200)), "the alphabet": "A B C D E F G H I J yes no true false none all",
    "all letters": "The answer is A. The answer is B. The answer is C. The answer is D. The answer is E.",
    "a dictionary": " ".join(["red", "green", "blue", "black", "white", "yellow", "brown", "gray", "cat", "dog", "circle", "square", "triangle", "left", "right", "up", "down"]),
}  # fmt: skip


def _list_silent(answers: Answers) -> Iterator[tuple[str, Policy]]:
    for name, text in _TEXTS["silent"].items():
        yield name, lambda case, text=text: text  # type: ignore[misc]
        if answers.form not in ("", "{}") and len(text) < 2:
            yield f"{name} as {answers.form}", lambda case, text=text: answers.form.format(text)  # type: ignore[misc]


def _list_adversarial(answers: Answers) -> Iterator[tuple[str, Policy]]:
    for text in (*_TEXTS["markers"], *_TEXTS["injections"]):
        yield short_repr(text), lambda case, text=text: text  # type: ignore[misc]
    for name, text in (*_LONG.items(), *((f"'{name}'", text) for name, text in HOSTILE.items() if len(text) < 5000)):
        yield name, lambda case, text=text: text  # type: ignore[misc]
    yield "the prompt copied back", lambda case: case.prompt
    form = answers.form or "Answer: {}"
    yield "the prompt copied back as the answer", lambda case: form.format(case.prompt)
    for place in (*range(8), -1):
        yield f"number {place} of the prompt", lambda case, place=place: form.format(_copy_number(case, place))  # type: ignore[misc]
    candidates = _list_candidates(answers)
    for joint in (", ", " or ", "\n", " "):
        yield (
            f"all candidate answers, joined by {joint!r}",
            lambda case, joint=joint: form.format(joint.join(candidates(case))),  # type: ignore[misc]
        )


def _copy_number(case: Case, place: int) -> str:
    """A number of the prompt, unless it is the answer."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", case.prompt)
    number = numbers[place] if numbers and place < len(numbers) else ""
    return "" if number == case.reference else number


def _list_candidates(answers: Answers) -> Callable[[Case], list[str]]:
    """The answers that are possible for a case: its choices, or the references of all cases of its skill."""
    pool: dict[str, dict[str, None]] = defaultdict(dict)
    for case in answers.cases:
        if case.reference and not is_program(case.reference):
            pool[case.skill][case.reference] = None

    def read(case: Case) -> list[str]:
        choices = getattr(case.source, "metadata", {}).get("choices") or sorted(pool[case.skill])
        return [str(choice) for choice in choices][:40]

    return read


def _get_baseline(answers: Answers) -> float:
    """The accuracy of the most common answer of each skill, which no scorer can prevent."""
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    known = [case for case in answers.cases if case.reference]
    for case in known:
        groups[case.skill].update(_name_answer(case.reference, case.source))
    return sum(max(group.values()) for group in groups.values()) / len(known) if known else 0.0


def _name_answer(reference: str, source: object) -> list[str]:
    """A reference, and its letter if it is one of the choices of a problem."""
    choices = [str(choice) for choice in getattr(source, "metadata", {}).get("choices") or ()]
    is_named = reference in choices[: len(ascii_uppercase)]
    return [reference, ascii_uppercase[choices.index(reference)]] if is_named else [reference]


def _list_forged(answers: Answers) -> Iterator[tuple[str, Policy]]:
    if any(is_program(case.reference) for case in answers.cases) or any(
        "python" in case.prompt.lower() for case in answers.cases
    ):
        equal, silent = "a function that returns an object equal to everything", "a function that returns nothing"
        yield equal, lambda case: _fence(_TEXTS["equal"].format(name=_name(case)))
        yield silent, lambda case: _fence(_stub(case))
        yield (
            "a function that returns what its callers expect",
            lambda case: _fence(_TEXTS["peek"].format(name=_name(case))),
        )
        for code in _TEXTS["exits"]:
            yield f"the program {short_repr(code)}", lambda case, code=code: _fence(_stub(case) + code)  # type: ignore[misc]
    for text in _TEXTS["forged"]:
        yield short_repr(text), lambda case, text=text: text  # type: ignore[misc]


def _name(case: Case) -> str:
    """The function that a program must define."""
    names = re.findall(r"def (\w+)\(", case.reference) or re.findall(r"(?:def |`)(\w+)\(", case.prompt)
    return names[-1] if names else "solve"


def _stub(case: Case) -> str:
    return f"def {_name(case)}(*args, **kwargs):\n    return None\n"


class _Floor:
    """What policies get, in units of the oracle's reward above the reward of the worst policy."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.best, self.scored, self.overdue = 0.0, 0, 0
        """The largest reward so far, the number of rewards (failures have none), and of answers that took too long."""
        self.cases = [case for case, _, _ in list_solved(answers)]
        """The cases that the oracle solves: others say nothing about a gap."""
        values = [value for _, _, value in list_solved(answers)]
        self.ceiling = sum(values) / len(values) if values else None
        if not values:
            self.cases = list(answers.cases)
            self.ceiling = 1.0 if isinstance(answers, TaskAnswers) else None

    def measure(self, policies: Iterable[tuple[str, Policy]]) -> list[tuple[str, float, int, int, str]]:
        """The policies that are rewarded: name, mean, number of full rewards, cases, a text."""
        rewarded = []
        few = spread(self.cases, _FIRST)
        top = self.ceiling if self.ceiling is not None else 1.0
        for name, policy in limit(policies, 2):
            if self.overdue >= _MAX_OVERDUE:
                break
            values = self._score(few, policy)
            # A floor below the first cases' is not worth more time.
            if values and sum(values) / len(values) > 0.15 * top and len(self.cases) > len(few):
                values = self._score(list(limit(self.cases)), policy)
            mean = sum(values) / len(values) if values else 0.0
            if mean > 0:
                full = sum(value >= top - 1e-6 for value in values)
                rewarded.append((name, mean, full, len(values), short_repr(policy(few[0]))))
        return sorted(rewarded, key=lambda entry: -entry[1])

    def _score(self, cases: Sequence[Case], policy: Policy) -> list[float]:
        rewards = []
        try:
            for case in cases:
                with interrupt(count_patience(self.cases)):
                    rewards.append(self.answers.score(case, policy(case)))
        except ScoringOverdueError:
            self.answers.forget()
            self.overdue += 1
        values = [reward.value for reward in rewards if reward.value is not None]
        self.best, self.scored = max([self.best, *values]), self.scored + len(values)
        return values

    def judge(self, policies: Iterable[tuple[str, Policy]], what: str, allowed: float = 0.0) -> CheckFinding:
        """Fail if a policy gets as much as the oracle, less the margin. `allowed` is what may be had without work."""
        if not self.cases:
            return report_skip("it has no cases")
        rewarded = self.measure(policies)
        if not self.scored:
            return report_skip(f"{what} cannot be scored here: every answer has a failure")
        top = self.ceiling
        numbers: Json = {"oracle_reward": top, "measured_floor": rewarded[0][1] if rewarded else 0.0, "margin": _MARGIN}
        evidence = [
            f"{name}: {mean:.3g} on average, {full} of {count} full ({text})"
            for name, mean, full, count, text in rewarded[:5]
        ]
        if top is None:
            if rewarded and rewarded[0][1] >= 0.5 * self.best:
                return report_warn(
                    f"{what} get up to {rewarded[0][1]:.3g}; pass oracle= to compare", *evidence, **numbers
                )
            floor = numbers["measured_floor"]
            return report_pass(
                f"{what} get {floor:.3g}, one episode {self.best:g}; no right answers are known", **numbers
            )
        bar = max((1 - _MARGIN) * top, allowed * top + 0.1 * top)
        if rewarded and rewarded[0][1] >= bar:
            return report_fail(f"{what} get {rewarded[0][1]:.3g}, right answers {top:.3g}", *evidence, **numbers)
        if rewarded and rewarded[0][1] > max(_POSITIVE, allowed + 0.1) * top:
            return report_warn(f"{what} get {rewarded[0][1]:.3g}, right answers {top:.3g}", *evidence, **numbers)
        if self.overdue >= _MAX_OVERDUE:
            return report_skip("answers take too long to be scored; see runtime.hostile_answers")
        best = rewarded[0][1] if rewarded else 0.0
        return report_pass(f"{what} get at most {best:.3g}, right answers {top:.3g}", **numbers)


@env_check("answers", "semantic.floor_gap")
def check_floor(answers: Answers) -> CheckFinding:
    """Silence gets less than the right answer"""
    floor = _Floor(answers)
    if isinstance(answers, EnvAnswers) and not answers.solved:
        constant = _find_constant_reward(answers)
        if constant:
            return constant
    finding = floor.judge(_list_silent(answers), "answers without content")
    return (
        finding if finding.status != "pass" or not isinstance(answers, EnvAnswers) else _find_ties(answers) or finding
    )


def _find_ties(answers: EnvAnswers) -> CheckFinding | None:
    """A warning if a greeting gets as much as the right answer in many episodes."""
    solved = [(case, reward.value) for case, _, reward in limit(answers.solved) if reward.value]
    greeted = [(case, value, answers.score(case, "hello").value) for case, value in solved]
    tied = [case for case, value, other in greeted if other is not None and other >= value]
    if not tied or len(tied) < _TIED * len(solved):
        return None
    return report_warn(
        f"a greeting gets the reward of the right answer in {len(tied)} of {len(solved)} episodes",
        f"for example in those with the seeds {', '.join(case.key for case in tied[:5])}",
    )


def _find_constant_reward(answers: EnvAnswers) -> CheckFinding | None:
    """A failed check if every text in every episode ends it with the same positive reward."""
    texts = ("", "hello", "1", "yes", "a", "Answer: 7", "I give up.", "left")
    rewards = [answers.score(case, text) for case in spread(answers.cases, _FIRST) for text in texts]
    values = {reward.value for reward in rewards}
    value = max((value for value in values if value is not None), default=0.0)
    if values == {value} and value > 0 and all(reward.ended for reward in rewards):
        return report_fail(
            f"every answer gets the reward {value:g}", f"{len(rewards)} episodes with {', '.join(map(repr, texts))}"
        )
    return None


@env_check("answers", "statistical.adversarial_floor")
def check_adversarial(answers: Answers) -> CheckFinding:
    """Markers, lists, copies and injections get less than the right answer"""
    return _Floor(answers).judge(_list_adversarial(answers), "answers that do no work", _get_baseline(answers))


@env_check("answers", "semantic.canary_floor")
def check_canaries(answers: Answers) -> CheckFinding:
    """Forged results and programs that end the tests get no reward"""
    # Programs write files to the current folder.
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        return _Floor(answers).judge(_list_forged(answers), "forged results", _get_baseline(answers))


def _count_shares(problems: Sequence[tuple[str, object]]) -> dict[str, float]:
    """The fraction of problems with each answer, or with the letter of each choice, the most common first."""
    counts = Counter[str]()
    known = [(text, source) for text, source in problems if text and not is_program(text)]
    for text, source in known:
        counts.update(_name_answer(text, source))
    return {text: count / len(known) for text, count in counts.most_common()} if len(known) >= _MIN_PROBLEMS else {}


@env_check("answers", "semantic.constant_floor")
def check_constants(answers: Answers) -> CheckFinding:
    """No constant answer is right more often than its share of the references"""
    shares = _count_shares([(case.reference, case.source) for case in answers.cases])
    most = _count_shares(
        [(problem.reference, problem) for problems in answers.samples.values() for problem in problems]
        if isinstance(answers, TaskAnswers)
        else []
    )
    constants = [*list(most)[:5], *list(shares)[:5], *"012ABCD", "yes", "no", "true", "red"]
    form = answers.form or "{}"
    policies = ((repr(text), lambda case, text=text: form.format(text)) for text in dict.fromkeys(constants))
    floor = _Floor(answers)
    if most and (share := most[constants[0]]) >= 1 - _MARGIN:
        reward = floor.measure([(repr(constants[0]), lambda case: form.format(constants[0]))])
        if reward and reward[0][1] >= 1 - 2 * _MARGIN:
            text = f"the constant answer {constants[0]!r} is right in {share:.0%} of the problems"
            return report_fail(text, reward[0][4], share=share)
    allowed = max([0.0, *shares.values(), *most.values()])
    finding = floor.judge(policies, "constant answers", allowed=allowed)
    if finding.status == "fail" and isinstance(answers, EnvAnswers):
        return report_warn(
            finding.summary, *finding.evidence, **finding.measured
        )  # One action may solve a simple environment.
    return finding
