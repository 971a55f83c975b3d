"""`gsm8k`: grade-school word problems (Cobbe et al., 2021), scored by their final number.

GSM8K has no skills of its own. Its slices follow from the published solutions: the skill is the number of
steps, the subskill the operations of the calculator annotations (`<<16-3=13>>`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from palaestra.core.errors import TaskError
from palaestra.core.records import Failure
from palaestra.tasks.math.equivalence.compare import AnswerVerdict, compare_numbers
from palaestra.tasks.math.extraction import numbers_in
from palaestra.tasks.math.worked import WorkedProblem, WorkedTask, text_field
from palaestra.tasks.sources import Source

STEPS = ("two_steps", "three_steps", "four_steps", "five_steps", "more_steps")
OPERATIONS = ("additive", "multiplicative", "mixed")

_CALCULATION = re.compile(r"<<([^<>]*)>>")
_PROSE = re.compile(r"(?<!\\)[A-Za-z]{3,}")


class GSM8K(WorkedTask):
    r"""Grade-school mathematics by hub id or path; needs no extra to score.

    Example:
        >>> task = GSM8K(path="data/gsm8k")                              # doctest: +SKIP
        >>> problem = task.problems(Split.TEST, per_skill=10, seed=0)[0] # doctest: +SKIP
    """

    name = "gsm8k"
    source = Source("gsm8k", "openai/gsm8k", "main")

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(STEPS, OPERATIONS)

    def _item(self, row: Mapping[str, Any], where: str) -> WorkedProblem:
        question, answer = text_field(row, "question", where), text_field(row, "answer", where)
        solution, mark, final = answer.rpartition("####")
        if not mark or not final.strip():
            raise TaskError(f"{where}: expected an answer that ends with '#### NUMBER'; got ...{answer[-40:]!r}")
        lines = [line for line in solution.strip().splitlines() if line.strip()]
        reference = final.strip()
        worked = f"{_CALCULATION.sub('', solution).strip()}\nThe answer is \\boxed{{{reference}}}."
        return WorkedProblem(question, worked, reference, STEPS[min(max(len(lines), 2), 6) - 2], _operations(solution))

    def _cuts(self, item: WorkedProblem) -> Mapping[str, str]:
        return {"type": item.subskill}

    def _compare(self, answer: str | None, reference: str) -> AnswerVerdict | Failure:
        verdict = compare_numbers(answer, reference)
        if (
            isinstance(verdict, AnswerVerdict)
            and verdict.note == "the answer is no number"
            and answer
            and _PROSE.search(answer)
        ):
            # A sentence in the box, with one number in it.
            numbers = numbers_in(answer)
            if len(numbers) == 1:
                return compare_numbers(numbers[0], reference)
        return verdict


def _operations(solution: str) -> str:
    calculations = _CALCULATION.findall(solution) or re.findall(r"[^=\n]*=", solution)
    formulas = " ".join(calculation.rpartition("=")[0] or calculation for calculation in calculations)
    sums, products = bool(re.search(r"[\d)]\s*[-+]", formulas)), bool(re.search(r"[*/x×÷%]", formulas))
    return "mixed" if sums == products else "additive" if sums else "multiplicative"
