"""Write `palaestra/recipes/keywords.pyi`: the settings of the recipes as typed keyword arguments, for editors.

Run it with `make stub` after a change of settings.
"""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import palaestra
from palaestra.recipes.evaluate.settings import EvaluateSettings
from palaestra.recipes.research.settings import ResearchSettings
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.recipes.train.settings import TrainSettings
from palaestra.rl.algorithms import ALGORITHMS

STUB = Path(palaestra.__file__).parent / "recipes" / "keywords.pyi"
CLASSES = {"teacher"}
"""Settings that also accept a class in Python."""
OBJECTS = {"model", "student", "task", "prompts", "reward", "env", "algorithm"}
"""Settings that also accept an object: a model, data, functions, an environment, a config."""
HEADER = '''"""The settings of the recipes as keyword arguments. Generated from their dataclasses: `make stub`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict
'''


def write_class(name: str, *kinds: type[Any]) -> str:
    """Write a `TypedDict` of the fields of some dataclasses."""
    types: dict[str, dict[str, None]] = {}
    for field in (field for kind in kinds for field in fields(kind)):
        types.setdefault(field.name, {}).update(dict.fromkeys(str(field.type).split(" | ")))
    if {"model", "student"} & set(types) and kinds[0] is not ResearchSettings:
        types["tokenizer"] = {"object": None}
    lines = [f"    {field}: {write_type(field, ' | '.join(members))}" for field, members in types.items()]
    return "\n".join([f"class {name}(TypedDict, total=False):", *lines]) + "\n"


def write_type(field: str, kind: str) -> str:
    if field in OBJECTS:
        return "object"
    kind = re.sub(r"\btuple\[(\w+), \.\.\.\]", r"Sequence[\1]", kind.replace("'", '"'))
    return re.sub(r"\bstr\b", "str | type[Any]", kind) if field in CLASSES else kind


def write_stub() -> str:
    configs = [ALGORITHMS.get(name).Config for name in ("ppo", "grpo", "rloo", "reinforce")]
    classes = [
        write_class("EvaluateKeywords", EvaluateSettings),
        write_class("ResearchKeywords", ResearchSettings),
        write_class("TeachKeywords", TeachSettings),
        write_class("TrainKeywords", TrainSettings, *configs),
    ]
    return "\n".join([HEADER, *classes])


if __name__ == "__main__":
    STUB.write_text(write_stub(), encoding="utf-8")
