"""Runs with several environments: `env` as a list, and the settings of each environment."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from palaestra.core.errors import SettingsError
from palaestra.core.records import Json, Values
from palaestra.core.settings import short_repr
from palaestra.recipes.settings import parse_options, require
from palaestra.recipes.train.settings import TrainSettings
from palaestra.rl.curriculum import UNIFORM

OWN = ("max_tokens", "num_envs", "evaluation")
"""Settings that each environment may have."""


def read_environments(value: object, options: Values) -> list[Json]:
    """Return the environments of the setting `env`, each with its options, its weight and settings of its own.

    Arguments:
        value: an id with options (`palaestra/Guess-v0,high=8,weight=2`), a class, a function, an environment; a list of
            them; or a mapping from ids to weights.
        options: the options of a single environment.
    """
    if isinstance(value, Mapping):
        entries = [_read_environment(env) | {"weight": weight} for env, weight in value.items()]
    else:
        entries = [_read_environment(env) for env in (value if isinstance(value, list | tuple) else [value])]
    require(bool(entries), "setting 'env': expected at least one environment")
    if len(entries) == 1:
        require("weight" not in entries[0], "setting 'env': a weight has no effect on a single environment")
        entries[0]["env_kwargs"] |= options
        return entries
    require(
        not options, "setting 'env_kwargs': expected each option behind its environment: env=['ID,NAME=VALUE', ...]"
    )
    for entry in entries:
        weight = entry.setdefault("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            raise SettingsError(
                f"setting 'env': expected a weight above 0 for {entry['env']}; got {short_repr(weight)}"
            )
    return entries


def _read_environment(env: object) -> Json:
    if not isinstance(env, str):
        from palaestra.envs.factory import describe_env

        name, options = describe_env(env)
        return {"env": name, "env_kwargs": options}
    name, *pairs = re.split(r",(?=\w+=)", env)
    options = parse_options(pairs, "env")
    own = {key: options.pop(key) for key in (*OWN, "weight") if key in options}
    return {"env": name, "env_kwargs": options, **own}


def split_environments(settings: TrainSettings) -> list[TrainSettings]:
    """The settings of a run by environment; those of a run with one environment as they are."""
    if not settings.environments:
        return [settings]
    common = replace(settings, environments=(), curriculum=UNIFORM)
    return [replace(common, **{k: v for k, v in entry.items() if k != "weight"}) for entry in settings.environments]


def join_environments(settings: TrainSettings, parts: Sequence[TrainSettings]) -> TrainSettings:
    """The settings of a run whose environments have the settings `parts`."""
    entries = [
        {**entry, "env_kwargs": part.env_kwargs, **{name: getattr(part, name) for name in OWN}}
        for entry, part in zip(settings.environments, parts, strict=True)
    ]
    return replace(parts[0], env_kwargs={}, environments=tuple(entries), curriculum=settings.curriculum)


def name_environments(entries: Sequence[Values]) -> list[str]:
    """A short name for each environment of a run: its id without the namespace, with its options. They are unique.

    >>> name_environments([{"env": "palaestra/Guess-v0", "env_kwargs": {"high": n}} for n in (4, 8)])
    ['Guess-v0,high=4', 'Guess-v0,high=8']
    """
    names = [
        ",".join([entry["env"].rpartition("/")[2], *(f"{name}={value}" for name, value in entry["env_kwargs"].items())])
        for entry in entries
    ]
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(f"{name}#{seen[name]}" if names.count(name) > 1 else name)
    return unique
