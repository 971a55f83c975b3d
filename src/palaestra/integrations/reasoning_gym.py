"""`reasoning_gym:NAME`: the procedural data sets of the package reasoning-gym as a task.

A data set is a skill; the levels of its curriculum are subskills. A problem depends only on its data set, its level and
its seed. The hash of its question decides its split, so the splits do not overlap for any seed.

The package's scorers pay for answers that merely contain the reference, and for some wrong answers. Two rules precede
them. Only the text after the last "Answer:" (or inside the last `<answer>` tags) is scored. Only a full score counts,
unless `partial_credit` is set. Some scorers evaluate the answer: with `eval`, which is replaced by `ast.literal_eval`, or
with sympy, which gets an answer only if it is a plain formula (`_GRAMMARS`). The source of each scorer is searched for such
calls, not that of the functions that it calls: those of version 0.1.23 were read.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from palaestra.core.errors import SettingsError, TaskError, UnknownNameError
from palaestra.core.foreign import ForeignCallError, GlobalRandom, call_foreign
from palaestra.core.records import Completion, Example, Failure, FailureCause, Json, Message, Problem, Score, Split
from palaestra.core.settings import check_number, short_repr
from palaestra.envs.base import Options
from palaestra.integrations import load_library
from palaestra.tasks.base import get_split
from palaestra.tasks.procedural import Family, ProceduralTask

if TYPE_CHECKING:
    from reasoning_gym.factory import ProceduralDataset

_INSTRUCTION = 'End with "Answer:" and the answer alone.'
_DEFAULT = "default"
"""The subskill of a data set without a curriculum."""
_DEFAULT_LEVELS = (0, 1, 2)
_MAX_ANSWER = 10_000
"""Longer answers are wrong."""
_MAX_ENTRIES = 4096
"""Number of generated problems that are kept in memory."""
_MAX_FORMULA = 400
_MAX_BRACKET_POWERS = 2
"""Nested powers of brackets can be astronomically large."""
NONSENSE = "zq zq"
"""An answer that no scorer should accept."""
_MARK = re.compile(r"\banswer\s{0,9}:", re.IGNORECASE)
_TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_EVAL = re.compile(r"\beval\(")
_PARSE = re.compile(r"\b(?:exec|parse_expr|sympify|parse_latex)\(")
"""Calls in the source of a scorer that evaluate a text."""
_FUNCTIONS = r"sin|cos|tan|sec|csc|cot|sinh|cosh|tanh|asin|acos|atan|exp|log|ln|sqrt|pi|[A-Za-z]"
_NUMBER = r"(?<!\d)\d{1,24}(?:\.\d{1,24})?(?!\d)"  # Long digits match in one way only, or matching takes forever.
_POWER = r"\*\*\s?\d{1,2}(?!\d|\s?\*\*)"
_TIMES = r"(?<!\*)\*(?!\*)"
_FORMULA = re.compile(rf"(?:{_NUMBER}|\b(?:{_FUNCTIONS})(?![A-Za-z_])|{_POWER}|{_TIMES}|[-+/()\s])*")
_ARITHMETIC = re.compile(rf"(?:{_NUMBER}|{_TIMES}|[-+/()\s])*")
_BRACKET_POWER = re.compile(r"\)\s*\*\*")


def _is_arithmetic(answer: str) -> bool:
    """Whether an answer consists of numbers, `+ - * /` and brackets.

    >>> _is_arithmetic("(3 + 4) * 2"), _is_arithmetic("9**9**9"), _is_arithmetic("a.b")
    (True, False, False)
    """
    return len(answer) <= _MAX_FORMULA and _ARITHMETIC.fullmatch(answer) is not None


def _is_formula(answer: str) -> bool:
    """Whether an answer is a formula of numbers, letters, well-known functions and powers up to 99.

    >>> _is_formula("3*x**2 + sin(x) + C"), _is_formula("2**3**4"), _is_formula("().__class__")
    (True, False, False)
    """
    is_small = len(answer) <= _MAX_FORMULA and len(_BRACKET_POWER.findall(answer)) <= _MAX_BRACKET_POWERS
    return is_small and _FORMULA.fullmatch(answer) is not None


_GRAMMARS: Mapping[str, Callable[[str], bool]] = {
    **dict.fromkeys(("puzzle24", "countdown"), _is_arithmetic),
    **dict.fromkeys(("simple_integration", "intermediate_integration", "polynomial_multiplication"), _is_formula),
}
"""The answers that a scorer may give to sympy, by data set. Other answers are compared with the reference as texts."""
_TRUSTED = frozenset({"bitwise_arithmetic", "number_sorting"})
"""Data sets whose scorers evaluate only texts of the package, never the answer."""


def make_source(names: str) -> Callable[..., ReasoningGym]:
    """Return the class of the task `reasoning_gym:NAME` or `reasoning_gym:NAME+NAME`, bound to its data sets."""
    return partial(ReasoningGym, names)


@dataclass(frozen=True, slots=True)
class Draft:
    """A drawn problem: its seed and what the package generated."""

    seed: int
    question: str
    answer: str


class ReasoningGym(ProceduralTask[Draft]):
    """Data sets of reasoning-gym.

    Arguments:
        datasets: names, joined by `+`.
        levels: levels of the curriculum, each a subskill `level_N`; a data set with fewer levels has only those. Empty:
            the package's default configuration.
        config: fields of the data sets' configuration, for example `{"max_digits": 2}`.
        instruction: added to every question on a line of its own; empty: none.
        partial_credit: keep scores between 0 and 1. By default they count as 0.
        max_seconds: time limit of generating a problem and of scoring an answer.

    Raises:
        TaskError: a data set ignores its seed, its scorer accepts any answer, or it fails to generate a problem.
        SettingsError: the package rejects the configuration of every level.
    """

    def __init__(
        self,
        datasets: str,
        /,
        levels: Sequence[int] = _DEFAULT_LEVELS,
        config: Options | None = None,
        instruction: str = _INSTRUCTION,
        partial_credit: bool = False,
        max_seconds: float = 30.0,
    ) -> None:
        self.name = f"reasoning_gym:{datasets}"
        self.instruction, self.partial_credit = instruction, partial_credit
        self.max_seconds = check_number("max_seconds", max_seconds, minimum=0.001, error=SettingsError)
        self._configs = {name: _make_configs(name, levels, config or {}) for name in _list_names(datasets)}
        self.family: Family[Draft] = {
            name: {level: partial(self._draw, name, level) for level in levels}
            for name, levels in self._configs.items()
        }
        self._scorers: dict[tuple[str, str], ProceduralDataset] = {}
        self._entries: dict[tuple[str, str, int], Json] = {}
        for name in self._configs:
            self._check_dataset(name)

    def get_split(self, skill: str, draft: Draft) -> Split:
        return get_split(f"{skill}|{draft.question}")

    def key(self, draft: Draft) -> str:
        return draft.question

    def problem(self, skill: str, subskill: str, draft: Draft) -> Problem:
        return Problem(
            id=f"{skill}/{subskill}/{draft.seed}",
            messages=self._ask(draft),
            reference=draft.answer,
            skill=skill,
            subskill=subskill,
            metadata=_describe(subskill, draft),
        )

    def example(self, skill: str, subskill: str, draft: Draft) -> Example:
        if not draft.answer:
            raise TaskError(f"reasoning-gym's {skill} has no reference answers, so it cannot be taught")
        metadata = _describe(subskill, draft)
        return Example(self._ask(draft), f"Answer: {draft.answer}", skill, subskill, draft.answer, metadata)

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        reference = problem.reference  # It may be unknown.
        answer = _extract_answer(completion.text, several_lines=not reference or "\n" in reference.strip())
        evidence = {"extracted": answer or "", "expected": reference}
        if answer is None or len(answer) > _MAX_ANSWER:
            return Score(0.0, {**evidence, "outcome": "no_answer" if answer is None else "too_long"})
        grammar = _GRAMMARS.get(problem.skill)
        if grammar is not None and not grammar(answer):
            return Score(float(answer == reference), evidence)
        try:
            entry = self._generate(problem.skill, problem.subskill, int(problem.metadata["seed"]))
            value = self._call_scorer(problem.skill, problem.subskill, answer, entry)
        except ForeignCallError as error:
            return Failure(FailureCause.SCORER, str(error))
        if not isinstance(value, (int, float, np.number)) or not 0.0 <= float(value) <= 1.0:
            what = f"the scorer of {problem.skill} returned {short_repr(value)}; expected a number from 0 to 1"
            return Failure(FailureCause.SCORER, what)
        value = float(value)
        evidence["package_score"] = f"{value:.4g}"
        return Score(value if self.partial_credit or value >= 1.0 else 0.0, evidence)

    def _call_scorer(self, name: str, level: str, answer: str, entry: Json) -> object:
        scorer = self._scorers[name, level].score_answer
        with GlobalRandom(0).active():
            return call_foreign(f"the scorer of {name}", scorer, answer, entry, seconds=self.max_seconds)

    def _ask(self, draft: Draft) -> tuple[Message, ...]:
        question = draft.question.strip()
        return (Message("user", f"{question}\n{self.instruction}" if self.instruction else question),)

    def _draw(self, name: str, level: str, generator: np.random.Generator) -> Draft:
        seed = int(generator.integers(2**31))
        try:
            entry = self._generate(name, level, seed)
        except ForeignCallError as error:
            raise TaskError(f"cannot generate a problem of {self.name} with seed {seed}: {error}") from error
        return Draft(seed, entry["question"], entry["answer"] or "")

    def _generate(self, name: str, level: str, seed: int) -> Json:
        """The package's entry of a seed, from the cache or generated."""
        key = name, level, seed
        if key not in self._entries:
            if len(self._entries) >= _MAX_ENTRIES:
                self._entries.clear()
            self._entries[key] = self._generate_entry(*key)
        return self._entries[key]

    def _generate_entry(self, name: str, level: str, seed: int) -> Json:
        """Generate the problem of a seed. The first data set of a level is kept to score its answers."""

        def generate() -> tuple[ProceduralDataset, Json]:
            kind = _load_factory().DATASETS[name][0]
            dataset = kind(config=replace(self._configs[name][level], seed=seed, size=1))
            return dataset, dataset[0]

        with GlobalRandom(seed).active():
            dataset, entry = call_foreign(f"reasoning-gym's {name}", generate, seconds=self.max_seconds)
        question, answer = (entry.get("question"), entry.get("answer")) if isinstance(entry, Mapping) else (None, None)
        if not isinstance(question, str) or not isinstance(answer, str | None):
            raise TaskError(f"reasoning-gym's {name} generated {short_repr(entry)}; expected question and answer texts")
        self._scorers.setdefault((name, level), dataset)
        return entry

    def __getstate__(self) -> Json:
        """Copies and other processes generate their own data sets."""
        return {**vars(self), "_scorers": {}, "_entries": {}}

    def _check_dataset(self, name: str) -> None:
        """Raise if a data set ignores its seed, or if its scorer accepts a nonsensical answer."""
        level = next(iter(self._configs[name]))
        try:
            entry, again = (self._generate_entry(name, level, seed=0) for _ in range(2))
        except ForeignCallError as error:
            raise TaskError(f"cannot generate a problem of {self.name}: {error}") from error
        if entry["question"] != again["question"]:
            raise TaskError(f"reasoning-gym's {name} ignores its seed: seed 0 generated two different problems")
        with suppress(ForeignCallError):  # An exception is a failure of the answer that causes it.
            value = self._call_scorer(name, level, NONSENSE, entry)
            if isinstance(value, (int, float, np.number)) and value >= 1.0:
                raise TaskError(f"the scorer of reasoning-gym's {name} accepts any answer, for example {NONSENSE!r}")


def _describe(level: str, draft: Draft) -> Json:
    """What the scorer needs to generate the entry of a problem or an example again."""
    return {"level": level, "seed": draft.seed}


def _extract_answer(text: str, several_lines: bool = False) -> str | None:
    """The answer in a response: inside the last `<answer>` tags, or after the last "Answer:"; `None` if it has neither.

    Arguments:
        several_lines: take all lines after "Answer:" instead of its own line.

    >>> _extract_answer("3+4=7. Answer: 7"), _extract_answer("It is 7."), _extract_answer("<answer> 7 </answer>")
    ('7', None, '7')
    """
    tagged = _TAGS.findall(text)
    if tagged:
        return str(tagged[-1]).strip() or None
    marks = list(_MARK.finditer(text))
    if not marks:
        return None
    rest = text[marks[-1].end() :].strip()
    return (rest if several_lines else rest.partition("\n")[0].strip()) or None


def _load_factory() -> ModuleType:
    # Its package is imported first, which registers the data sets.
    return load_library("reasoning_gym.factory", "reasoning-gym", "reasoning-gym", "a task of reasoning-gym")


def _list_names(datasets: str) -> list[str]:
    """The data sets of a task name. Raises for an unknown one, and for one whose scorer could run the answer as code."""
    known = _load_factory().DATASETS
    names = [name.strip() for name in datasets.split("+")]
    for name in names:
        if name not in known:
            raise UnknownNameError("data set of reasoning-gym", name, known)
        if names.count(name) > 1:
            raise TaskError(f"the data set {name} of reasoning-gym is given twice; give each data set once")
        _protect_scorer(name, known[name][0])
    return names


def _protect_scorer(name: str, kind: type[ProceduralDataset]) -> None:
    """Make sure that a scorer cannot run an answer as code. In its module `eval` becomes `ast.literal_eval`."""
    source = inspect.getsource(kind.score_answer)
    if name not in _TRUSTED and _EVAL.search(source):
        vars(sys.modules[kind.__module__])["eval"] = ast.literal_eval
    if name not in _GRAMMARS and _PARSE.search(source):
        raise TaskError(f"the scorer of reasoning-gym's {name} runs answers as code; choose another data set")


def _make_configs(name: str, levels: Sequence[int], fields: Options) -> Json:
    """The configurations of a data set by subskill: one for each level of its curriculum."""
    factory = _load_factory()
    try:
        if not levels or not factory.has_curriculum(name):
            return {_DEFAULT: factory.DATASETS[name][1](**fields)}
        configs: Json = {}
        highest = 0
        for level in levels:
            curriculum = factory.create_curriculum(name)
            highest = max((len(part.levels) for part in curriculum.attributes.values()), default=1) - 1
            if level > highest:
                continue
            curriculum.set_global_level(level)
            config = replace(curriculum.generate_configuration(), **fields)
            with suppress(AssertionError):  # Some curricula have levels that the package itself rejects.
                if hasattr(config, "validate"):
                    config.validate()
                configs[f"level_{level}"] = config
    except (TypeError, AssertionError, ValueError) as error:
        raise SettingsError(f"reasoning-gym's {name} does not accept this configuration: {error}") from error
    if not configs:
        raise SettingsError(
            f"option 'levels': reasoning-gym's {name} has the levels 0 to {highest} and accepts none of {list(levels)}; "
            "with levels=[] its default configuration is used"
        )
    return configs
