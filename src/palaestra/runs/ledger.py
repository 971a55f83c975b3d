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
