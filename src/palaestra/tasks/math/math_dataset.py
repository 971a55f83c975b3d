"""`math`: competition problems of the MATH dataset (Hendrycks et al., 2021), by type and level."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from palaestra.core.errors import MissingExtraError, SettingsError, TaskError
from palaestra.core.records import Failure, Split
from palaestra.tasks.math.equivalence.compare import LIMIT, AnswerVerdict, compare
from palaestra.tasks.math.equivalence.sympy_client import get_client
from palaestra.tasks.math.extraction import find_boxed
from palaestra.tasks.math.worked import WorkedProblem, WorkedTask, text_field
from palaestra.tasks.sources import Source

TYPES = {
    "Algebra": "algebra",
    "Counting & Probability": "counting_and_probability",
    "Geometry": "geometry",
    "Intermediate Algebra": "intermediate_algebra",
    "Number Theory": "number_theory",
    "Prealgebra": "prealgebra",
    "Precalculus": "precalculus",
}
LEVELS = ("level_1", "level_2", "level_3", "level_4", "level_5")


class MATH(WorkedTask):
    """Competition mathematics by hub id or path; the skill is the type, the subskill the level.

    A few published problems have no level; they are left out. Problems of a type are drawn from its levels in
    turn, so a subset is balanced as far as the dataset is.

    Arguments:
        limit: time limit of a comparison in seconds.
    """

    name = "math"
    source = Source("math", "DigitalLearningGmbH/MATH-lighteval")
    max_tokens = 1024

    def __init__(self, path: str = "", limit: float = LIMIT) -> None:
        super().__init__(path)
        if not isinstance(limit, int | float) or limit <= 0:
            raise SettingsError(f"option 'limit' of {self.name}: expected seconds above 0; got {limit!r}")
        self.limit = float(limit)

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(TYPES.values(), LEVELS)

    def _load(self) -> dict[Split, list[WorkedProblem]]:
        if self._items is None:
            if find_spec("math_verify") is None:
                raise MissingExtraError("math-verify", "math", "scoring MATH")
            # The server takes a second or two to start, while the data and the model are loaded.
            get_client().start()
        return super()._load()

    def _item(self, row: Mapping[str, Any], where: str) -> WorkedProblem:
        kind, level = text_field(row, "type", where), text_field(row, "level", where)
        if kind not in TYPES and kind not in TYPES.values():
            raise TaskError(f"{where}: expected 'type' to be one of {', '.join(TYPES)}; got {kind!r}")
        problem, solution = text_field(row, "problem", where), text_field(row, "solution", where)
        box = find_boxed(solution)
        if box is None:
            raise TaskError(f"{where}: expected a solution with its answer in \\boxed{{}}; got ...{solution[-40:]!r}")
        digits = re.sub(r"\D", "", level)
        return WorkedProblem(
            problem, solution.strip(), box.text, TYPES.get(kind, kind), f"level_{digits}" if digits else ""
        )

    def _cuts(self, item: WorkedProblem) -> Mapping[str, str]:
        return {"level": item.subskill}

    def _compare(self, answer: str | None, reference: str) -> AnswerVerdict | Failure:
        return compare(answer, reference, limit=self.limit)
