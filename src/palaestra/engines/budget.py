"""Prices of calls, and limits on their cost.

Prices are in US dollars per million tokens. Each engine has the list prices of its own models
(`EngineScheme.list_price`), without discounts, so the ledger may overstate the cost. The user's JSON file takes
precedence. Its path is an argument or the variable `PALAESTRA_PRICES`. For example:

    {"gpt-4o-mini": [0.15, 0.60], "azure:my-deployment": {"prompt": 2.5, "completion": 10}, "http://gpu-*": [0, 0]}

A key is the name of the engine (`http://HOST:PORT/v1#MODEL`) or only of the model, and may be a pattern with `*`.

A `Budget` is checked before each call. Running calls count at their maximum cost.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from palaestra.core.errors import BudgetSpentError, SettingsError
from palaestra.core.records import Usage
from palaestra.engines.base import ENGINES, EngineScheme, Price, get_scheme, is_remote
from palaestra.runs.provenance import Spending


@dataclass(frozen=True, slots=True)
class Reservation:
    """The maximum cost of a running call."""

    tokens: int
    money: float


class Budget:
    """Limits calls, tokens and money.

    Arguments:
        max_cost: maximum US dollars at list price; `None` for no limit.
        max_calls: maximum number of calls, including repeated ones.
        max_tokens: maximum number of prompt and completion tokens.
        spent: the cost so far, for example `Cache.spent(owner)` of a resumed run.
        within: a shared budget of several runs that this one is part of. A call must fit into both.
        advice: the advice in the error message if `max_cost` is reached.
        resumable: whether the run can be resumed with a larger limit; the error then says how.
        error: the exception for a call that does not fit.

    A call that may exceed a limit waits for the running calls, whose actual cost may be below their reservation. If it
    still does not fit, the budget is spent. The length of a prompt is only known with its answer, so reservations are
    estimates. Several engines may share one budget.

    Example:
        >>> budget = Budget(max_calls=1)
        >>> [call] = budget.reserve(tokens=100)
        >>> budget.settle(call, Usage(20, 10))
        >>> budget.reserve(tokens=100)
        Traceback (most recent call last):
            ...
        palaestra.core.errors.BudgetSpentError: the budget is spent: 1 call made, at most 1 allowed; the answers so far are stored: raise --max-calls and resume
    """

    def __init__(
        self,
        *,
        max_cost: float | None = None,
        max_calls: int | None = None,
        max_tokens: int | None = None,
        spent: Spending | None = None,
        within: Budget | None = None,
        advice: str = "raise --max-cost and resume",
        resumable: bool = True,
        error: type[BudgetSpentError] = BudgetSpentError,
    ) -> None:
        for name, value in (("max_cost", max_cost), ("max_calls", max_calls), ("max_tokens", max_tokens)):
            if value is not None and not value >= 0:
                raise SettingsError(f"{name} must be 0 or more; got {value}")
        self.max_cost, self.max_calls, self.max_tokens = max_cost, max_calls, max_tokens
        self.within, self.advice, self.resumable, self.error = within, advice, resumable, error
        before = spent or Spending()
        self.calls, self.tokens, self.money = before.calls, before.tokens, before.money
        self._open: list[Reservation] = []
        self._lock = threading.Lock()

    def reserve(self, tokens: int = 0, money: float = 0.0, calls: int = 1) -> list[Reservation]:
        """Reserve budget for calls of at most this cost each; an empty list if they must wait for running calls.

        Raises:
            BudgetSpentError: the calls do not fit, and no call is running.
        """
        with self._lock:
            short = self._short(calls, calls * tokens, calls * money)
            if not short:
                if self.within is not None and not self.within.reserve(tokens, money, calls):
                    return []
                reservations = [Reservation(tokens, money) for _ in range(calls)]
                self._open += reservations
                self.calls += calls
                return reservations
            if self._open:
                return []
            raise self.error(f"the budget is spent: {short}")

    def settle(self, reservation: Reservation, usage: Usage | None, money: float = 0.0) -> None:
        """Replace a reservation with the actual cost of a call. If `usage` is unknown, the reservation counts."""
        with self._lock:
            self._open.remove(reservation)
            if usage is None:
                self.tokens, self.money = self.tokens + reservation.tokens, self.money + reservation.money
            else:
                self.tokens += usage.prompt_tokens + usage.completion_tokens
                self.money += money
        if self.within is not None:
            self.within.settle(reservation, usage, money)

    def cancel(self, reservation: Reservation) -> None:
        """Drop the reservation of a call that was not made."""
        with self._lock:
            self._open.remove(reservation)
            self.calls -= 1
        if self.within is not None:
            self.within.cancel(reservation)

    @property
    def limits_money(self) -> bool:
        """Whether calls need a known price."""
        return self.max_cost is not None or (self.within is not None and self.within.limits_money)

    def _short(self, calls: int, tokens: int, money: float) -> str:
        """Return the error message for the limit that the calls exceed; empty if they fit."""
        if self.max_calls is not None and self.calls + calls > self.max_calls:
            count = "1 call" if self.calls == 1 else f"{self.calls} calls"
            return f"{count} made, at most {self.max_calls} allowed{self._go_on('raise --max-calls and resume')}"
        held = sum(call.tokens for call in self._open)
        if self.max_tokens is not None and self.tokens + held + tokens > self.max_tokens:
            return (
                f"{self.tokens} of at most {self.max_tokens} tokens used, and the next call may need {tokens}"
                f"{self._go_on('raise --max-tokens and resume')}"
            )
        promised = sum(call.money for call in self._open)
        if self.max_cost is not None and self.money + promised + money > self.max_cost:
            return (
                f"${self.money:.4f} of at most ${self.max_cost:.4f} spent, and the next call may cost ${money:.4f}"
                f"{self._go_on(self.advice)}"
            )
        return ""

    def _go_on(self, advice: str) -> str:
        return f"; the answers so far are stored: {advice}" if self.resumable else ""


_VARIABLE = "PALAESTRA_PRICES"


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
        """Load the user's entries from a JSON file: `path` or `$PALAESTRA_PRICES`. Without a file there are none.

        Raises:
            SettingsError: the file cannot be read, or an entry is not a price.
        """
        file = path or (Path(os.environ[_VARIABLE]).expanduser() if os.environ.get(_VARIABLE) else None)
        if file is None:
            return cls()
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(f"the price table {file} cannot be read as JSON: {error}") from error
        if not isinstance(data, dict):
            raise SettingsError(f"the price table {file} must map model names to prices; got {type(data).__name__}")
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
        SettingsError: the price is unknown; the message says how to set it.
    """
    if is_remote(name) and Prices.load().find(name) is None:
        raise missing_price(name)


def missing_price(name: str) -> SettingsError:
    """The error for a cost limit on a model without a known price."""
    return SettingsError(
        f"a cost limit needs the price of {name}; add it to a price table: "
        f'{_VARIABLE}=prices.json with {{"{name}": [prompt, completion]}}, dollars per million tokens'
    )


def _parse_price(path: Path, name: str, entry: Any) -> Price:
    values: Any = [entry.get("prompt"), entry.get("completion")] if isinstance(entry, dict) else entry
    numbers = isinstance(values, list) and len(values) == 2 and all(type(value) in (int, float) for value in values)
    if not numbers:
        raise SettingsError(
            f"the price of '{name}' in {path} must be [prompt, completion] in dollars per million tokens; got {entry!r}"
        )
    return Price(float(values[0]), float(values[1]))
