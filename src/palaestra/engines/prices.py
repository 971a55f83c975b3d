"""What tokens cost, in US dollars for a million.

List prices as their sellers published them in 2025, without discounts (cached prompts, batches), so that what
the ledger says is rather too much than too little. Prices change: a JSON file of your own comes first, for
example

    {"gpt-4o-mini": [0.15, 0.60], "azure:my-deployment": {"prompt": 2.5, "completion": 10}, "http://gpu-*": [0, 0]}

given as a path, or by the variable `PALAESTRA_PRICES`. A name is that of the engine (`http://HOST:PORT/v1#MODEL`) or of
the model alone, and may be a pattern with `*`. What a server of one's own asks for a model is not what its maker does:
the published prices are those of OpenAI's own service, and of Azure's.
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
from palaestra.core.records import Usage
from palaestra.engines.endpoints import is_remote

VARIABLE = "PALAESTRA_PRICES"


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens that go in, and that come out."""

    prompt: float
    completion: float

    def __post_init__(self) -> None:
        if not all(0 <= value < float("inf") for value in (self.prompt, self.completion)):
            raise SettingsError(f"a price is a number of dollars, 0 or more; got {self.prompt} and {self.completion}")

    def of(self, usage: Usage) -> float:
        return (usage.prompt_tokens * self.prompt + usage.completion_tokens * self.completion) / 1e6


PUBLISHED: Mapping[str, Price] = {
    "gpt-4o": Price(2.50, 10.00),
    "gpt-4o-mini": Price(0.15, 0.60),
    "gpt-4.1": Price(2.00, 8.00),
    "gpt-4.1-mini": Price(0.40, 1.60),
    "gpt-4.1-nano": Price(0.10, 0.40),
    "gpt-5": Price(1.25, 10.00),
    "gpt-5-mini": Price(0.25, 2.00),
    "gpt-5-nano": Price(0.05, 0.40),
    "o3": Price(2.00, 8.00),
    "o3-mini": Price(1.10, 4.40),
    "o4-mini": Price(1.10, 4.40),
    # A server on this machine sends no bill.
    "http://localhost*": Price(0.0, 0.0),
    "http://127.0.0.1*": Price(0.0, 0.0),
}


@dataclass(frozen=True, slots=True)
class Prices:
    """The price table: the user's entries before the published ones.

    >>> Prices().of("openai:gpt-4o-mini-2024-07-18")
    Price(prompt=0.15, completion=0.6)
    >>> Prices({"gpt-4o-mini": Price(0.1, 0.2)}).of("openai:gpt-4o-mini")
    Price(prompt=0.1, completion=0.2)
    >>> Prices({"big": Price(1.0, 2.0)}).of("https://elsewhere/v1#big")
    Price(prompt=1.0, completion=2.0)
    >>> Prices().of("openai:something-new") is None
    True
    """

    own: Mapping[str, Price] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None = None) -> Prices:
        """The table with the entries of a JSON file: `path`, or what `PALAESTRA_PRICES` names, or none.

        Raises:
            SettingsError: the file cannot be read, or an entry is no price.
        """
        named = path or (Path(os.environ[VARIABLE]).expanduser() if os.environ.get(VARIABLE) else None)
        if named is None:
            return cls()
        try:
            data = json.loads(named.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(f"the price table {named} cannot be read as JSON: {error}") from error
        if not isinstance(data, dict):
            raise SettingsError(f"the price table {named} must be an object of model names; got {type(data).__name__}")
        return cls({name: _price(named, name, entry) for name, entry in data.items()})

    def of(self, name: str) -> Price | None:
        """The price of a model by the name of its engine (`openai:gpt-4o`); `None` where it is not known."""
        elsewhere = name.startswith(("http://", "https://"))
        bare = name.partition("#")[2] if elsewhere else re.sub("^(openai|azure):", "", name)
        undated = re.sub(r"-20\d\d-\d\d-\d\d$", "", bare)
        for table in (self.own, PUBLISHED):
            for known in (name,) if elsewhere and table is PUBLISHED else (name, bare, undated):
                if known in table:
                    return table[known]
            for pattern, price in table.items():
                if "*" in pattern and (fnmatchcase(name, pattern) or fnmatchcase(bare, pattern)):
                    return price
        return None


def check_price(name: str) -> None:
    """Raise if a model has no known price. A model that is loaded in this process costs nothing.

    Raises:
        SettingsError: names the model and how to give its price.
    """
    if is_remote(name) and Prices.load().of(name) is None:
        raise unpriced(name)


def unpriced(name: str) -> SettingsError:
    """The error where dollars are limited, and nobody knows what a model costs."""
    return SettingsError(
        f"a limit in dollars needs to know what {name} costs; add it to a price table: "
        f'{VARIABLE}=prices.json with {{"{name}": [prompt, completion]}}, dollars for a million tokens'
    )


def _price(path: Path, name: str, entry: Any) -> Price:
    values: Any = [entry.get("prompt"), entry.get("completion")] if isinstance(entry, dict) else entry
    numbers = isinstance(values, list) and len(values) == 2 and all(type(value) in (int, float) for value in values)
    if not numbers:
        raise SettingsError(
            f"the price of '{name}' in {path} must be [prompt, completion] in dollars for a million tokens; got {entry!r}"
        )
    return Price(float(values[0]), float(values[1]))
