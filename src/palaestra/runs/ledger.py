"""What a run has cost: calls, tokens, seconds and money."""

from __future__ import annotations

from dataclasses import dataclass, field

from palaestra.core.records import Usage


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The cost of one piece of work, written in the same transaction as its result."""

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
    """What calls to a model have cost, and what the cache has spared.

    Arguments:
        calls: requests that went out, those included that the server turned away or that broke.
        hits: answers that came from the cache; they cost nothing and are in no other figure.
        seconds: the calls' latencies added up; calls that overlap count in full.
        money: US dollars at list price, of the calls whose price is known.
        unpriced: calls whose price is not known: they are missing from `money`.
        unmeasured: calls whose tokens are not known, because the connection or this process broke:
            they are missing from the tokens and from `money`.
        again: calls for something that had been asked before: the first one failed, or this process was killed.
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
        """As an entry of a run's ledger; `seconds` are those on the wall, which no overlap stretches."""
        return LedgerEntry(phase, model, self.calls, self.usage, seconds, self.money)
