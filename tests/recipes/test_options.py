"""The keyword arguments of Python calls have the types of the settings."""

from __future__ import annotations

import types
from dataclasses import fields
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from palaestra.learn.algorithms import ALGORITHMS
from palaestra.recipes.evaluate.recipe import EvaluateResult
from palaestra.recipes.evaluate.settings import EvaluateOptions, EvaluateSettings
from palaestra.recipes.teach.settings import TeachOptions, TeachSettings
from palaestra.recipes.train.recipe import TrainResult
from palaestra.recipes.train.settings import TrainOptions, TrainSettings

CONFIGS = [ALGORITHMS.get(name).Config for name in ("ppo", "grpo", "rloo", "reinforce")]


def parts(hint: Any) -> set[Any]:
    """The members of a union, with sequences of text for tuples of text and no classes."""
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return {
        "texts" if str(member).endswith(("Sequence[str]", "tuple[str, ...]")) else member
        for member in members
        if get_origin(member) is not type
    }


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (TrainOptions, [TrainSettings, *CONFIGS]),
        (TeachOptions, [TeachSettings]),
        (EvaluateOptions, [EvaluateSettings]),
    ],
)
def test_the_typed_options_are_the_fields_of_the_settings(options: Any, kinds: list[Any]) -> None:
    expected: dict[str, set[Any]] = {}
    for kind in kinds:
        hints = get_type_hints(kind)
        for f in fields(kind):
            expected.setdefault(f.name, set()).update(parts(hints[f.name]))
    assert {name: parts(hint) for name, hint in get_type_hints(options).items()} == expected


def test_results_have_a_short_repr() -> None:
    summary = {"before": 40.0, "after": 60.0, "gain": 20.0, "unit": "percent", "seconds": 3.0, "env": "CoTEnv-v0"}
    result = TrainResult(Path("runs/a"), summary, object())
    assert repr(result) == "TrainResult(before=40.0, after=60.0, gain=20.0, unit='percent', folder='runs/a')"
    evaluated: Any = EvaluateResult(Path("runs/b"), None, {"before": None, "after": 60.0, "unit": "percent"})  # type: ignore[arg-type]
    assert repr(evaluated) == "EvaluateResult(after=60.0, unit='percent', folder='runs/b')"
