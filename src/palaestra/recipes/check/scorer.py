"""Level 2: whether the rewards of texts are right and repeatable."""

from __future__ import annotations

import math
import os
import re
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NoReturn, TypeVar

from palaestra.core.foreign import GlobalRandom
from palaestra.core.records import Completion, Json, Score
from palaestra.core.settings import short_repr
from palaestra.recipes.check.answers import Answers, Case, EnvAnswers, TaskAnswers, TextReward
from palaestra.recipes.check.elsewhere import call_elsewhere
from palaestra.recipes.check.records import CheckFinding, env_check, report_fail, report_pass, report_skip, report_warn
from palaestra.tasks.base import Task

_SECONDS = 6.0
"""How long a check scores answers. It examines at least `_MIN_CASES` cases."""
_MIN_CASES = 3
_SLOW = 5.0
"""Seconds after which a single answer takes too long to score."""
_MOST = 0.5
"""A wrong answer that is accepted in this fraction of the cases is a fault of the scorer, not of a case."""
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")
T = TypeVar("T")


def limit(items: Iterable[T], factor: float = 1.0) -> Iterator[T]:
    """Yield items until `factor * _SECONDS` are over, at least `_MIN_CASES`.

    The time is that of the processor, so that other work on the machine changes no result, or twice as much waiting.
    """
    start, used = time.monotonic(), _read_cpu_time()
    for number, item in enumerate(items):
        if number >= _MIN_CASES and max(_read_cpu_time() - used, (time.monotonic() - start) / 2) > factor * _SECONDS:
            return
        yield item


def _read_cpu_time() -> float:
    """The processor time of this process and the children that have ended."""
    return sum(os.times()[:4])


def spread(items: Sequence[T], count: int) -> list[T]:
    """Up to `count` items at equal distances, so that they are of different skills."""
    return [items[place * len(items) // count] for place in range(count)] if len(items) > count else list(items)


class ScoringOverdueError(BaseException):
    """Not an `Exception`, so that the scorer does not catch it."""


@contextmanager
def interrupt(seconds: float) -> Iterator[None]:
    """Raise `ScoringOverdueError` inside after some seconds; only in the main thread, where signals arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> NoReturn:
        raise ScoringOverdueError

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def count_patience(cases: Iterable[Case]) -> float:
    """Seconds after which the score of an answer is overdue. A program may run until its own limit."""
    return (12 if any(is_program(case.reference) for case in cases) else 3) * _SLOW


def is_full(answers: Answers, reward: TextReward, best: float) -> bool:
    """Whether a reward is as good as that of a right answer."""
    return reward.value is not None and reward.value >= best - 1e-6


def list_solved(answers: Answers) -> list[tuple[Case, Sequence[str], float]]:
    """Cases that the oracle solves, with its texts and reward: 1 for a task, more than silence gets for an environment."""
    solved = []
    for case, texts, reward in limit(answers.solved):
        value = reward.value
        if value is None or (isinstance(answers, TaskAnswers) and value < 1.0 - 1e-6):
            continue
        if isinstance(answers, EnvAnswers) and value <= (answers.score(case, "").value or 0.0):
            continue
        solved.append((case, texts, value))
    return solved


def get_answer(case: Case, texts: Sequence[str]) -> str:
    """The short right answer of a case; empty if it is not known."""
    return case.reference or (texts[-1] if len(texts) == 1 and len(texts[-1]) <= 60 else "")


def put_answer(answers: Answers, case: Case, texts: Sequence[str], new: str) -> list[str] | None:
    """The texts of the oracle with another answer; `None` if they do not contain the reference."""
    if not case.oracle:
        return [answers.form.format(new)]
    old = get_answer(case, texts)
    places = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(old)}(?!\w)", texts[-1])] if old else []
    return [*texts[:-1], texts[-1][: places[-1]] + new + texts[-1][places[-1] + len(old) :]] if places else None


# Repeatable


@env_check("answers", "semantic.verifier_determinism")
def check_determinism(answers: Answers) -> CheckFinding:
    """The same answer always gets the same score"""
    cases = spread(answers.cases, 8)
    if not cases:
        return report_skip("it has no cases")
    others = {case.key: answers.solve(cases[(place + 1) % len(cases)]) or ["2"] for place, case in enumerate(cases)}
    pairs = [
        (case, texts)
        for case in cases
        for right in [list(answers.solve(case) or ["1"])]
        for texts in (
            right,
            [""],
            others[case.key],
            ["Answer: 1"],
            ["I do not know."],
            [*right[:-1], _spoil(right[-1])],
        )
    ]
    start = time.perf_counter()
    first = [(pair, _sign(answers.score(*pair))) for pair in limit(pairs)]
    # Another order after other answers, the same answer several times in a row, and another day and other random numbers.
    orders: list[tuple[str, list[Any], Any]] = [
        ("in another order", first[::-1], nullcontext()),
        ("scored again and again", [entry for entry in first[:10] for _ in range(4)], nullcontext()),
        ("on another day", first, _shift_clock(_choose_shift())),
        ("with other random numbers", first, GlobalRandom(20_260).active()),
    ]
    for name, entries, context in orders:
        if time.perf_counter() - start > 4 * _SECONDS:
            break
        with context:
            for (case, texts), expected in limit(entries, 0.5):
                value = _sign(answers.score(case, texts))
                if value != expected:
                    text = f"case {case.key}, answer {short_repr(texts[-1])}: {expected}, then {value}"
                    return report_fail(f"an answer gets another score {name}", text, seed=_get_seed(case))
    if isinstance(answers, TaskAnswers):
        texts = [(case.source, texts[-1]) for (case, texts), _ in first[:20]]
        away = call_elsewhere(score_values, answers.task, texts)
        if away is not None:
            for ((case, given), _), value, own in zip(first, away, score_values(answers.task, texts), strict=False):
                if value != own:
                    text = f"case {case.key}, answer {short_repr(given[-1])}: {own} here, {value} there"
                    return report_fail("an answer gets another score in another process", text)
    return report_pass(f"{len(first)} answers always get the same score", answers=len(first))


def _spoil(text: str) -> str:
    """A text with another last number, or without its last word: an answer that is almost right."""
    spoiled = re.sub(r"\d+(?=\D*$)", lambda match: str(int(match[0][-9:]) + 1), text, count=1)
    return spoiled if spoiled != text else text.rpartition(" ")[0]


def score_values(task: Task, answers: Sequence[tuple[Any, str]]) -> list[float | None]:
    """The scores of answers to problems; `None` for a failure."""
    outcomes = (task.score(problem, Completion(text)) for problem, text in answers)
    return [outcome.value if isinstance(outcome, Score) else None for outcome in outcomes]


def _sign(reward: TextReward) -> str:
    if reward.error or reward.failure:
        return f"a failure ({(reward.error or reward.failure).partition(':')[0]})"
    return f"reward {reward.value:.10g}"


def _get_seed(case: Case) -> int | None:
    return case.source if isinstance(case.source, int) else None


def _choose_shift() -> float:
    """Seconds to the third day from now, at another hour, but not across a further midnight."""
    hours = 12_345.678
    return 86_400 * 3 + (hours if time.time() % 86_400 < 43_200 else -hours)


@contextmanager
def _shift_clock(seconds: float) -> Iterator[None]:
    real = time.time
    time.time = lambda: real() + seconds
    try:
        yield
    finally:
        time.time = real


# Values and hostile answers


@env_check("problems", "runtime.reward_well_formed")
def check_scores(answers: TaskAnswers) -> CheckFinding:
    """Scores are finite numbers from 0 to 1"""
    count, values = 0, set[float]()
    for case in limit(answers.cases):
        for texts in (list(answers.solve(case) or ()) or ["1"], ["hello"], [""]):
            reward = answers.score(case, texts)
            count += 1
            if reward.error:
                return report_fail(
                    f"score raises or returns something else: {reward.error}", f"{case.key}: {short_repr(texts[-1])}"
                )
            if reward.value is not None:
                if not math.isfinite(reward.value) or not 0.0 <= reward.value <= 1.0:
                    return report_fail(
                        f"a score is {reward.value}; expected 0 to 1", f"{case.key}: {short_repr(texts[-1])}"
                    )
                values.add(reward.value)
    if not values:
        return report_warn(
            f"all of {count} answers have failures instead of scores", answers.score(answers.cases[0], "1").failure
        )
    return report_pass(f"{count} scores are from 0 to 1", answers=count, values=len(values))


HOSTILE: dict[str, str] = {
    "empty": "", "spaces": " \n\t ", "NUL": "\x00", "lone surrogate": "\ud800", "emoji": "\U0001f9d1‍\U0001f680" * 3,
    "right-to-left": "‮٢١", "open brace": "\\boxed{", "open braces": "{" * 3000, "open brackets": "((((((((((",
    "deep nesting": "[" * 20_000 + "]" * 20_000, "deep boxes": "\\boxed{" * 500 + "1" + "}" * 500, "nan": "nan", "inf": "inf",
    "minus infinity": "-Infinity", "overflow": "1e999", "division by zero": "1/0", "power": "9**9**9**9", "factorial": "99999999!",
    "long number": "9" * 10_000, "power of LaTeX": "9^{9^{9^{9}}}", "JSON": '{"answer": null}', "half of a JSON": '{"answer": [1, ',
    "null": "null", "None": "None", "code": "__import__('os').getcwd()", "percent": "%s %d %(a)s {0} {x}", "long word": "a" * 100_000,
    "many words": "the answer is " * 8000, "regex": "(a+)+$", "regex bomb": "a" * 40 + "!", "spaces inside": " " * 50_000 + "x",
    "digits": "1" * 60 + "x", "commas": "1," * 20_000, "digits and spaces": "1 " * 20_000, "backslashes": "\\" * 5000,
    "quotes": "\"'`" * 2000, "full-width": "１２", "fraction of LaTeX": "\\frac{1}{", "loop": "```python\nwhile True: pass\n```",
    "recursion": "```python\ndef f(): f()\nf()\n```",
}  # fmt: skip
"""Answers that break scorers, by name."""
_ENDLESS = ("power", "factorial", "power of LaTeX")
_NOT_NUMBERS = ("nan", "inf", "minus infinity", "overflow")


@env_check("answers", "runtime.hostile_answers")
def check_hostile(answers: Answers) -> CheckFinding:
    """No answer breaks the scorer or keeps it busy"""
    cases = spread(answers.cases, 3)
    if not cases:
        return report_skip("it has no cases")
    start, count, failures = time.monotonic(), 0, list[str]()
    # A program may run until its limit: one endless program is enough.
    runs = any(is_program(case.reference) for case in cases)
    patience = count_patience(cases)
    for name, text in HOSTILE.items():
        if runs and name in _ENDLESS:
            continue
        # Bare, and where a scorer reads the answer.
        for given in dict.fromkeys((text, (answers.form or "Answer: {}").format(text))):
            for case in cases[: 1 if len(text) > 1000 else 3]:
                if time.monotonic() - start > 4 * _SECONDS or not _is_action(answers, given):
                    break
                began = time.monotonic()
                where = f"case {case.key}, answer '{name}': {short_repr(given)}"
                try:
                    with interrupt(patience):
                        reward = answers.score(case, [given])
                except ScoringOverdueError:
                    answers.forget()
                    return report_fail(
                        f"the answer '{name}' is not scored within {patience:.0f} s", where, seed=_get_seed(case)
                    )
                count += 1
                seconds = time.monotonic() - began
                if reward.failure:
                    failures.append(f"{where}: {reward.failure}")
                if reward.error:
                    return report_fail(f"the answer '{name}' raises {reward.error}", where, seed=_get_seed(case))
                if reward.value is not None and not math.isfinite(reward.value):
                    return report_fail(
                        f"the answer '{name}' gets the reward {reward.value}", where, seed=_get_seed(case)
                    )
                if seconds > _SLOW and not runs:
                    return report_fail(f"the answer '{name}' takes {seconds:.1f} s", where, seed=_get_seed(case))
    rewarded = [name for name in _NOT_NUMBERS if _is_rewarded(answers, cases, HOSTILE[name])]
    if rewarded:
        return report_fail(
            f"{' and '.join(rewarded)} are accepted as right answers", *(HOSTILE[name] for name in rewarded)
        )
    repeated = answers.score(cases[0], "hello")
    if isinstance(answers, EnvAnswers) and (repeated.error or repeated.failure):
        report = report_fail if repeated.error else report_warn
        return report(
            "a wrong answer that is repeated until the end has no reward",
            f"case {cases[0].key}: {repeated.error or repeated.failure}",
            seed=_get_seed(cases[0]),
        )
    if failures and not answers.score(cases[0], ["hello"]).failure:
        return report_warn(
            f"{len(failures)} of {count} answers have a failure instead of a score", *failures[:3], answers=count
        )
    return report_pass(f"{count - len(failures)} hostile answers have scores", answers=count)


def is_program(text: str) -> bool:
    """Whether a reference is Python code of several lines."""
    return "\n" in text and bool(
        re.search(r"^\s*(def|import|from|return|print|for|class|while)\b|^\w+ = ", text, re.MULTILINE)
    )


def _is_action(answers: Answers, text: str) -> bool:
    """Whether an environment must accept a text: it is in the action space."""
    if not isinstance(answers, EnvAnswers):
        return True
    try:
        return answers.is_token or answers.env.action_space.contains(text)
    except (TypeError, ValueError):
        return False


def _is_rewarded(answers: Answers, cases: Sequence[Case], text: str) -> bool:
    """Whether most cases give a full reward to a text that is not their answer."""
    solved = {case.key: value for case, _, value in list_solved(answers)}
    own = [case for case in cases if case.key in solved and text.casefold() not in case.reference.casefold()]
    full = [
        any(
            is_full(answers, answers.score(case, [form.format(text)]), solved[case.key])
            for form in ("{}", answers.form or "{}")
        )
        for case in own
    ]
    return bool(full) and sum(full) > len(full) / 2


# Right answers


@env_check("answers", "semantic.oracle_max")
def check_oracle(answers: Answers) -> CheckFinding:
    """The right answer gets the best reward"""
    solved = list(limit(answers.solved, 3))
    if not solved:
        return report_skip("no right answers are known; pass oracle=, a function that returns them")
    errors = [entry for entry in solved if entry[2].error]
    if errors:
        return report_fail(
            f"the right answer raises {errors[0][2].error}", _show(errors[0]), seed=_get_seed(errors[0][0])
        )
    failures = [entry for entry in solved if entry[2].failure]
    if len(failures) == len(solved):
        return report_skip(f"answers cannot be scored here: {failures[0][2].failure}")
    if failures:
        return report_fail(
            f"{len(failures)} of {len(solved)} right answers have a failure: {failures[0][2].failure}",
            _show(failures[0]),
        )
    best = [entry for entry in solved if _is_best(answers, *entry)]
    top = max((reward.value or 0.0 for _, _, reward in best), default=math.inf)
    # What gets the most is right, even if silence gets as much in this episode; see the check of floors.
    low = [entry for entry in solved if entry not in best and (entry[2].value or 0.0) < top]
    ceiling = answers.ceiling or 0.0
    numbers: Json = {"oracle_reward": round(ceiling, 4), "cases": len(solved), "low": len(low)}
    if isinstance(answers, EnvAnswers) and not low and not list_solved(answers):
        return report_warn(
            "no right conversation gets more than silence, and none ends its episode", _show(solved[0]), **numbers
        )
    if not low:
        return report_pass(f"{len(solved)} right answers get the best reward, {ceiling:g} on average", **numbers)
    explicit = [entry for entry in low if entry[0].oracle]
    evidence = [f"{_show(entry)} has reward {entry[2].value:g}" for entry in (explicit or low)[:4]]
    summary = f"{len(low)} of {len(solved)} right answers do not get the best reward"
    is_known = isinstance(answers, TaskAnswers) or explicit or len(low) < 0.4 * len(solved)
    if not is_known or (not explicit and all(_is_pattern(entry[0].reference) for entry in low)):
        return report_warn(
            f"{summary}, if the references are answers; pass oracle= with the right ones", *evidence, **numbers
        )
    return report_fail(summary, *evidence, seed=_get_seed(low[0][0]), **numbers)


def _show(entry: tuple[Case, Sequence[str], TextReward]) -> str:
    case, texts, _ = entry
    return f"case {case.key}: {short_repr(case.messages[-1].text if case.messages else '')} -> {short_repr(texts[-1])}"


def _is_best(answers: Answers, case: Case, texts: Sequence[str], reward: TextReward) -> bool:
    """Whether the oracle's reward is 1 for a task, or above those of other texts for an environment."""
    if reward.value is None:
        return False
    if isinstance(answers, TaskAnswers):
        return reward.value >= 1.0 - 1e-6
    others = [answers.score(case, text) for text in ("", "hello")]
    rivals = [other.value for other in others if other.value is not None]
    return reward.value > max(rivals, default=-math.inf) or (not reward.ended and bool(case.oracle))


def _is_pattern(reference: str) -> bool:
    """Whether a reference is a regular expression, which is not itself an answer."""
    with suppress(re.error):
        return bool(re.search(r"[\\^$*+?|(\[]", reference)) and not re.fullmatch(reference, reference)
    return False


@env_check("answers", "semantic.equivalent_answers")
def check_equivalents(answers: Answers) -> CheckFinding:
    """A right answer stays right in another form"""
    solved = list_solved(answers)
    if not solved:
        return report_skip("no right answers are known")
    numeric = isinstance(answers, TaskAnswers) and len({"." in case.reference for case, _, _ in solved}) == 2
    rejected: dict[tuple[str, bool], list[str]] = {}
    counts: dict[tuple[str, bool], int] = {}
    for case, texts, value in limit(spread(solved, 12)):
        for name, is_needed, variant in _list_equivalents(answers, case, texts, numeric):
            key = name, is_needed
            counts[key] = counts.get(key, 0) + 1
            if not is_full(answers, answers.score(case, variant), value):
                rejected.setdefault(key, []).append(
                    f"{short_repr(variant[-1])} is rejected, {short_repr(texts[-1])} is right"
                )
    faults = [key for key, texts_ in rejected.items() if len(texts_) >= _MOST * counts[key]]
    hard = [key for key in faults if key[1]]
    names = ", ".join(
        f"{name} ({len(rejected[name, needed])} of {counts[name, needed]})" for name, needed in hard or faults
    )
    if not hard:  # A scorer may insist on other forms.
        rest = f"; not {names}" if faults else ""
        return report_pass(f"{sum(counts.values())} other forms of right answers are accepted{rest}", forms=len(counts))
    return report_fail(f"right answers are rejected: {names}", *(rejected[key][0] for key in hard[:4]))


def _list_equivalents(
    answers: Answers, case: Case, texts: Sequence[str], numeric: bool
) -> Iterator[tuple[str, bool, Sequence[str]]]:
    """Other forms of the oracle: name, whether it must be accepted, texts."""
    text, before = texts[-1], list(texts[:-1])
    is_line = "\n" not in text.strip()
    wholes = {"a newline at the end": f"{text}\n", "a space at the end": f"{text} ", "a newline before": f"\n{text}"}
    wholes |= {"a carriage return at the end": f"{text}\r\n", **({"spaces before": f"  {text}"} if is_line else {})}
    for name, whole in wholes.items():
        if _is_action(answers, whole):
            yield name, "\r" not in whole, [*before, whole]
    answer = get_answer(case, texts)
    if not answer or "\n" in answer or len(answer) > 60:
        return
    changes: dict[str, tuple[bool, str]] = {"a period at the end": (False, f"{answer}.")}
    if answer.lower() != answer.upper() and len(answer) > 1:
        changes |= {"upper case": (False, answer.upper()), "lower case": (False, answer.lower())}
    plain = answer.replace(",", "")
    if _NUMBER.fullmatch(plain):
        if plain != answer and re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", answer):
            changes["no commas"] = (True, plain)
        if re.search(r"\.0+$", plain):
            changes["no zeros after the point"] = (True, plain.partition(".")[0])
        if "." not in plain:
            if numeric:
                changes["a zero after the point"] = (True, f"{plain}.0")
            changes["commas"] = (False, f"{int(plain):,}")
        if "boxed" in case.prompt:
            changes |= {"dollar signs": (False, f"${answer}$"), "a box": (False, f"\\boxed{{{answer}}}")}
    for name, (is_needed, new) in changes.items():
        variant = put_answer(answers, case, texts, new)
        if new != answer and variant is not None and _is_action(answers, variant[-1]):
            yield name, is_needed, variant


@env_check("answers", "semantic.mutated_oracle")
def check_mutants(answers: Answers) -> CheckFinding:
    """A wrong answer that resembles the right one is rejected"""
    solved = list_solved(answers)
    if not solved:
        return report_skip("no right answers are known")
    accepted: dict[tuple[str, bool], list[str]] = {}
    counts: dict[tuple[str, bool], int] = {}
    pools: dict[str, list[str]] = {}
    for case, texts, _ in solved:
        pools.setdefault(case.skill, []).append(get_answer(case, texts))
    for case, texts, value in limit(spread(solved, 16), 2):
        answer = get_answer(case, texts)
        for name, is_wrong, mutants in _list_mutants(case, answer, pools[case.skill]):
            variants = [
                variant for mutant in mutants if (variant := put_answer(answers, case, texts, mutant)) is not None
            ]
            if len(variants) < len(mutants) or not all(_is_action(answers, variant[-1]) for variant in variants):
                continue
            counts[name, is_wrong] = counts.get((name, is_wrong), 0) + 1
            if all(is_full(answers, answers.score(case, variant), value) for variant in variants):
                text = f"case {case.key}: {short_repr(variants[0][-1])} is accepted; the answer is {short_repr(answer)}"
                accepted.setdefault((name, is_wrong), []).append(text)
    if not counts:
        return report_skip("the right answers have no part that can be changed")
    rates = {key: len(texts_) / counts[key] for key, texts_ in accepted.items()}
    faults = [key for key, rate in rates.items() if rate >= _MOST and (counts[key] >= _MIN_CASES or rate == 1.0)]
    faults = [key for key in faults if counts[key] > 1]
    doubts = [key for key, rate in rates.items() if rate >= 0.25 and len(accepted[key]) >= _MIN_CASES]
    hard = [key for key in faults if key[1]]
    if not faults and not doubts:
        return report_pass(
            f"{sum(counts.values())} wrong answers are rejected", kinds=len(counts), answers=sum(counts.values())
        )
    shown = hard or faults or doubts
    names = ", ".join(f"{name} ({len(accepted[name, wrong])} of {counts[name, wrong]})" for name, wrong in shown)
    finding = report_fail if hard else report_warn
    return finding(f"wrong answers get the reward of right ones: {names}", *(accepted[key][0] for key in shown[:4]))


_ORDERED = re.compile(
    r"\b(sort|arrange|rank|reverse|alphabetical|ascending|descending|(?<!any )order|smallest to largest)", re.IGNORECASE
)
"""Words of a question whose answer has an order."""
_OPPOSITES = {"yes": "no", "no": "yes", "true": "false", "false": "true", "left": "right", "right": "left"}


def _list_mutants(case: Case, answer: str, pool: Sequence[str]) -> Iterator[tuple[str, bool, Sequence[str]]]:
    """Wrong answers: name, whether it is wrong beyond doubt, and texts that are only a fault if all are accepted."""
    choices = [str(choice) for choice in getattr(case.source, "metadata", {}).get("choices", ())]
    other = next((text for text in (choices if answer in choices else pool) if text and _differ(text, answer)), "")
    if other:
        yield "the answer of another case", True, [other]
    if not answer or "\n" in answer or len(answer) > 60:
        return
    if other and "\n" not in other:
        # A scorer may read the first or the last answer of a text, but not both.
        yield "the right and a wrong answer", True, [f"{answer} or {other}", f"{other} or {answer}"]
    if len(choices) > 1 and answer in choices:
        yield "all choices", True, [", ".join(choices), ", ".join(choices[::-1])]
    opposite = _OPPOSITES.get(answer.casefold())
    if opposite:
        yield "the opposite", True, [opposite]
    own, words = answer.split(), other.split()
    if len(own) == len(words) and 2 <= len(own) <= 4:
        is_quantity = bool(_NUMBER.fullmatch(own[0]))  # Units may have several names.
        if _differ(words[-1], own[-1]) and not is_quantity:
            yield "its beginning with another end", True, [" ".join([*own[:-1], words[-1]])]
        if _differ(words[0], own[0]):
            yield "its end with another beginning", True, [" ".join([words[0], *own[1:]])]
    parts = re.findall(r"[^\s,;]+", answer)
    if len(set(parts)) >= 3 and parts != parts[::-1] and _ORDERED.search(case.prompt):
        remaining = iter(parts[::-1])
        yield "its parts in the reverse order", True, [re.sub(r"[^\s,;]+", lambda _: next(remaining), answer)]
    if _NUMBER.fullmatch(answer):
        value = float(answer)
        if "." not in answer:
            yield "the number plus 1", abs(value) < 20, [str(int(value) + 1)]
            yield "the number minus 1", abs(value) < 20, [str(int(value) - 1)]
            yield "the number with more digits", True, [f"{answer}7"]
            yield "the number inside another", True, [f"{'-' * (value < 0)}9{answer.lstrip('-')}3"]
        digit = re.search(r"[1-9]", answer)
        if digit:
            yield "another first digit", True, [answer.replace(digit[0], str(int(digit[0]) % 9 + 1), 1)]
        if value:
            yield "the negated number", True, [answer[1:] if answer.startswith("-") else f"-{answer}"]
    elif len(answer) >= 4:
        words = answer.split()
        if len(words) >= 4:
            yield "the first half of its words", True, [" ".join(words[: len(words) // 2])]
        half = len(answer) // 2
        if answer[half - 1].isalnum() and answer[half].isalnum():
            yield "half of the answer", True, [answer[:half]]
            yield "its first letter", True, [answer[0]]


def _differ(text: str, answer: str) -> bool:
    """Whether two answers differ by more than their form. Numbers differ by more than a tenth."""
    if _NUMBER.fullmatch(text) and _NUMBER.fullmatch(answer):
        return abs(float(text) - float(answer)) > 0.1 * max(abs(float(text)), abs(float(answer)))
    short, long = sorted((_squeeze(text), _squeeze(answer)), key=len)
    return bool(short) and short not in long


def _squeeze(text: str) -> str:
    return re.sub(r"\W+", "", text.casefold())
