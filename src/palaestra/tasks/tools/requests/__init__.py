"""The requests of `tools-skills`, by skill and subskill. The recipes are data: one JSON file a domain.

A file has `pools` of its own and `skills`. A new skill is an entry there; a new domain is a file and its name in `DOMAINS`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

from palaestra.tasks.tools.requests.recipe import POOLS, Recipe, read_pool, read_recipe

DOMAINS = ("time", "quantities", "data", "places", "people", "shop", "together")
Kinds = Mapping[str, Sequence[Recipe]]
"""The recipes of a skill, by subskill. The subskills are shapes of plans: `single`, `chain`, `join`."""


def _read_domain(name: str) -> dict[str, Kinds]:
    data = json.loads((files(__name__) / f"{name}.json").read_text(encoding="utf-8"))
    pools = {**POOLS, **{own: read_pool(pool) for own, pool in data.get("pools", {}).items()}}
    return {
        skill: {subskill: [read_recipe(recipe, pools) for recipe in recipes] for subskill, recipes in kinds.items()}
        for skill, kinds in data["skills"].items()
    }


SKILLS: Mapping[str, Kinds] = {skill: kinds for name in DOMAINS for skill, kinds in _read_domain(name).items()}
