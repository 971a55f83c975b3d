"""Recipes of generated problems, in a `recipes.yaml` beside the module of a task.

A recipe draws values one after the other and writes the question, the steps and the answer from them, so these always agree. Its
fields:

draw    values by name, in the order in which they are drawn: Python expressions of earlier values and of the book's names
until   all values are drawn again until this expression holds
ask     the question: a wording, or several to choose from

The others are fields of the draft. Those of `_TEXTS`, and those that are lists, are texts with expressions in braces, as f-strings;
all others are expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType
from typing import Generic, TypeVar, cast

import numpy as np

from palaestra.core.tables import load_table
from palaestra.tasks import procedural

D = TypeVar("D")
Drawer = Callable[[np.random.Generator], D]
_TEXTS = frozenset({"ask", "answer", "response", "solution"})


def join(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def flip_coin(rng: np.random.Generator) -> bool:
    return bool(rng.random() < 0.5)


def _choose(rng: np.random.Generator, choices: Sequence[object]) -> object:
    return choices[int(rng.integers(len(choices)))]


def _permute(rng: np.random.Generator, count: int) -> list[int]:
    """The integers below `count` in random order."""
    return [int(number) for number in rng.permutation(count)]


class RecipeBook(Generic[D]):
    """The recipes of a file.

    Arguments:
        module: the `__file__` of a module in the same folder.
        draft: makes a draft from its fields and the `question`.
        names: what expressions may use, besides `values` of the file, without a leading underscore. Functions that draw, whose first
            argument is `rng`, are called without it.
        defaults: expressions of fields that a recipe may leave out.
    """

    def __init__(
        self, module: str, draft: Callable[..., D], names: Mapping[str, object], defaults: Mapping[str, str]
    ) -> None:
        self.table = load_table(module, "recipes")
        self.draft, self.defaults = draft, defaults
        known = {name.removeprefix("_"): value for name, value in {**vars(procedural), **globals(), **names}.items()}
        self._random = {name: value for name, value in known.items() if _draws(value)}
        self._names = {**known, **self.table.get("values", {})}

    def read(self, section: str) -> dict[str, dict[str, Drawer[D]]]:
        """The drawers of a section by skill and subskill."""
        return {
            skill: {subskill: self.make(recipe) for subskill, recipe in recipes.items()}
            for skill, recipes in self.table[section].items()
        }

    def make(self, recipe: Mapping[str, object]) -> Drawer[D]:
        """A function that draws drafts of a recipe."""
        drawn = cast(Mapping[str, str], recipe["draw"])
        values = {name: compile(value, name, "eval") for name, value in drawn.items()}
        codes = {
            name: compile(_to_expression(name, field), name, "eval")
            for name, field in {"until": "True", **self.defaults, **recipe}.items()
            if name != "draw"
        }
        until, asked = codes.pop("until"), codes.pop("ask")
        return partial(self._draw, values, until, asked, codes)

    def _draw(
        self,
        values: Mapping[str, CodeType],
        until: CodeType,
        asked: CodeType,
        fields: Mapping[str, CodeType],
        rng: np.random.Generator,
    ) -> D:
        random = {name: partial(function, rng) for name, function in self._random.items()}
        is_drawn = False
        while not is_drawn:
            scope: dict[str, object] = {**self._names, **random}
            for name, value in values.items():
                scope[name] = eval(value, scope)
            is_drawn = eval(until, scope)
        wordings: str | tuple[str, ...] = eval(asked, scope)
        question = wordings if isinstance(wordings, str) else procedural.pick(rng, wordings)
        return self.draft(question=question, **{name: eval(code, scope) for name, code in fields.items()})


def _draws(value: object) -> bool:
    return isinstance(value, FunctionType) and value.__code__.co_varnames[:1] == ("rng",)


def _to_expression(name: str, field: object) -> str:
    """The expression of a field. A list of texts is a tuple."""
    if isinstance(field, list):
        return f"({''.join(f'f{text!r}, ' for text in field)})"
    return f"f{field!r}" if name in _TEXTS else str(field)
