"""The cost of a run: calls, tokens, seconds and money."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from palaestra.core.records import Usage


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The cost of one step of work, written in the same transaction as its result."""

    phase: str
    model: str = ""
    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    money: float = 0.0


@dataclass(frozen=True, slots=True)
class LedgerTotal:
    """The sum of many entries. Money is in US dollars."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    money: float = 0.0


@dataclass(frozen=True, slots=True)
class Spending:
    """The cost of calls to models.

    Arguments:
        calls: number of calls, including rejected and failed ones.
        hits: number of answers from the cache; they cost nothing and are not in the other numbers.
        seconds: the sum of the calls' latencies; concurrent calls count in full.
        money: US dollars at list price, for calls with a known price.
        unpriced: number of calls without a known price; they are missing from `money`.
        unmeasured: number of calls whose tokens are unknown, because the connection broke or this process
            was killed; they are missing from the tokens and from `money`.
        again: number of repeated calls, after a failure or a kill of this process.
    """

    calls: int = 0
    hits: int = 0
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    money: float = 0.0
    unpriced: int = 0
    unmeasured: int = 0
    again: int = 0

    @property
    def tokens(self) -> int:
        return self.usage.prompt_tokens + self.usage.completion_tokens

    def entry(self, phase: str, model: str, seconds: float = 0.0) -> LedgerEntry:
        """Convert to an entry of a run's ledger. `seconds` is wall-clock time."""
        return LedgerEntry(phase, model, self.calls, self.usage, seconds, self.money)

    def entry_since(self, noted: LedgerTotal, phase: str, model: str = "", seconds: float = 0.0) -> LedgerEntry:
        """Return the cost since `noted`, the total of the ledger so far, including the calls of killed processes."""
        usage = Usage(
            max(0, self.usage.prompt_tokens - noted.prompt_tokens),
            max(0, self.usage.completion_tokens - noted.completion_tokens),
        )
        money = max(0.0, self.money - noted.money)
        return LedgerEntry(phase, model, max(0, self.calls - noted.calls), usage, seconds, money)

    def gaps(self) -> dict[str, int]:
        """Return the numbers of calls that are missing from the cost of a summary.

        `unpriced_calls` have no known price; `unmeasured_calls` have no known number of tokens.
        """
        return {"unpriced_calls": self.unpriced, "unmeasured_calls": self.unmeasured}


def describe_cost(summary: Mapping[str, Any]) -> str:
    """Describe the cost of a summary. Calls without a price or a token count are not shown as $0.

    Arguments:
        summary: has `cost`, and optionally `unpriced_calls` and `unmeasured_calls` (`Spending.gaps`) or the names of
            `unpriced` models.

    >>> describe_cost({"cost": 0.5}), describe_cost({"cost": 0.0, "unpriced_calls": 4})
    ('$0.50', 'unpriced')
    >>> describe_cost({"cost": 0.5, "unpriced_calls": 1})
    '$0.50 and 1 unpriced call'
    >>> describe_cost({"cost": 0.0, "unpriced": ["m"]}), describe_cost({"cost": 1.5, "unpriced": ["m"]})
    ('unpriced (m)', '$1.50 and unpriced (m)')
    >>> describe_cost({"cost": 0.0, "unmeasured_calls": 2})
    '$0.00 and 2 unmeasured calls'
    """
    money, names = summary["cost"], summary.get("unpriced") or ()
    unpriced, unmeasured = (int(summary.get(f"{name}_calls") or 0) for name in ("unpriced", "unmeasured"))
    parts = [f"${money:.2g}" if 0 < money < 0.01 else f"${money:,.2f}"] if money or not (names or unpriced) else []
    if names:
        parts.append(f"unpriced ({', '.join(names)})")
    elif unpriced:
        parts.append(_count_calls(unpriced, "unpriced") if money else "unpriced")
    if unmeasured:
        parts.append(_count_calls(unmeasured, "unmeasured"))
    return " and ".join(parts)


def _count_calls(count: int, kind: str) -> str:
    return f"{count} {kind} {'call' if count == 1 else 'calls'}"
