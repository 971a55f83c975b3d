"""Prices of models in US dollars per million tokens.

Each engine has the list prices of its own models (`EngineScheme.list_price`), without discounts, so that the ledger
rather overstates than understates. Prices change, so a JSON file of the user comes first, for example

    {"gpt-4o-mini": [0.15, 0.60], "azure:my-deployment": {"prompt": 2.5, "completion": 10}, "http://gpu-*": [0, 0]}

given as a path or by the variable `PALAESTRA_PRICES`. A key is the name of the engine (`http://HOST:PORT/v1#MODEL`) or of
the model alone, and may be a pattern with `*`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from palaestra.core.errors import SettingsError
from palaestra.engines.base import ENGINES, EngineScheme, Price, get_scheme, is_remote

VARIABLE = "PALAESTRA_PRICES"


def strip_date(model: str) -> str:
    """Remove the date of a model's version.

    >>> strip_date("gpt-4o-mini-2024-07-18")
    'gpt-4o-mini'
    """
    return re.sub(r"-20\d\d-\d\d-\d\d$", "", model)


@dataclass(frozen=True, slots=True)
class Prices:
    """The price table: the user's entries before the engines' list prices.

    >>> Prices().find("openai:gpt-4o-mini-2024-07-18")
    Price(prompt=0.15, completion=0.6)
    >>> Prices({"gpt-4o-mini": Price(0.1, 0.2)}).find("openai:gpt-4o-mini")
    Price(prompt=0.1, completion=0.2)
    >>> Prices({"big": Price(1.0, 2.0)}).find("https://elsewhere/v1#big")
    Price(prompt=1.0, completion=2.0)
    >>> Prices().find("openai:something-new") is None
    True
    """

    own: Mapping[str, Price] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None = None) -> Prices:
        """Load the user's entries from a JSON file: `path`, or what `PALAESTRA_PRICES` names, or none.

        Raises:
            SettingsError: the file cannot be read, or an entry is not a price.
        """
        file = path or (Path(os.environ[VARIABLE]).expanduser() if os.environ.get(VARIABLE) else None)
        if file is None:
            return cls()
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(f"the price table {file} cannot be read as JSON: {error}") from error
        if not isinstance(data, dict):
            raise SettingsError(f"the price table {file} must be an object of model names; got {type(data).__name__}")
        return cls({name: _parse_price(file, name, entry) for name, entry in data.items()})

    def find(self, name: str) -> Price | None:
        """Return the price of a model by the name of its engine (`openai:gpt-4o`); `None` if it is unknown."""
        model = name.partition("#")[2] if "#" in name else name.partition(":")[2]
        for key in (name, model, strip_date(model)):
            if key in self.own:
                return self.own[key]
        for pattern, price in self.own.items():
            if "*" in pattern and (fnmatchcase(name, pattern) or fnmatchcase(model, pattern)):
                return price
        scheme: type[EngineScheme] = ENGINES.get(get_scheme(name))
        return scheme.list_price(name)


def check_price(name: str) -> None:
    """Raise if a model has no known price. Local models are free.

    Raises:
        SettingsError: names the model and how to give its price.
    """
    if is_remote(name) and Prices.load().find(name) is None:
        raise missing_price(name)


def missing_price(name: str) -> SettingsError:
    """The error for a cost limit on a model without a known price."""
    return SettingsError(
        f"a limit in dollars needs the price of {name}; add it to a price table: "
        f'{VARIABLE}=prices.json with {{"{name}": [prompt, completion]}}, dollars per million tokens'
    )


def _parse_price(path: Path, name: str, entry: Any) -> Price:
    values: Any = [entry.get("prompt"), entry.get("completion")] if isinstance(entry, dict) else entry
    numbers = isinstance(values, list) and len(values) == 2 and all(type(value) in (int, float) for value in values)
    if not numbers:
        raise SettingsError(
            f"the price of '{name}' in {path} must be [prompt, completion] in dollars per million tokens; got {entry!r}"
        )
    return Price(float(values[0]), float(values[1]))
