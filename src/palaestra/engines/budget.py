"""A limit to what calls may cost: looked at before each call, with those under way counted at their most."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from palaestra.core.errors import BudgetSpentError, SettingsError
from palaestra.core.records import Usage
from palaestra.runs.ledger import Spending


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a call may cost at most, while it is under way."""

    tokens: int
    money: float


class Budget:
    """Lets calls pass as long as they fit.

    Arguments:
        max_cost: US dollars at list price; `None` for no limit.
        max_calls: requests that go out, those included that have to be repeated.
        max_tokens: that go in and come out.
        spent: what was spent before, for example by a run that goes on: `Cache.spent(owner)`.
        within: a budget of several runs, of which this one is a part: a call must fit into both.
        advice: what the user is to do where `max_cost` is reached.
        resumable: whether whoever reaches a limit can go on with a larger one; else the error says only what was spent.
        error: what is raised where a call does not fit.

    A call that might pass a limit waits until those under way have ended, whose true cost may be below what
    was reserved. Where it still does not fit, the budget is spent. How long a prompt is, only its answer says: the
    budget goes by an estimate that learns from the answers.

    Several engines may share one budget.

    Example:
        >>> budget = Budget(max_calls=1)
        >>> call = budget.reserve(tokens=100)
        >>> budget.settle(call, Usage(20, 10))
        >>> budget.reserve(tokens=100)
        Traceback (most recent call last):
            ...
        palaestra.core.errors.BudgetSpentError: the budget is spent: 1 call made, at most 1 wanted; what was answered is stored: raise --max-calls and resume
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

    def reserve(self, tokens: int = 0, money: float = 0.0) -> Reservation | None:
        """Room for one call that costs at most this; `None` while it may yet fit, once others have ended.

        Raises:
            BudgetSpentError: it does not fit, and nothing that is under way can change that.
        """
        made = self.reserve_all(1, tokens, money)
        return made[0] if made else None

    def reserve_all(self, calls: int, tokens: int = 0, money: float = 0.0) -> list[Reservation]:
        """Room for several calls that cost at most this each, or an empty list while they may yet fit; else raises."""
        with self._lock:
            short = self._short(calls, calls * tokens, calls * money)
            if not short:
                if self.within is not None and not self.within.reserve_all(calls, tokens, money):
                    return []
                made = [Reservation(tokens, money) for _ in range(calls)]
                self._open += made
                self.calls += calls
                return made
            if self._open:
                return []
            raise self.error(f"the budget is spent: {short}")

    def settle(self, reservation: Reservation, usage: Usage | None, money: float = 0.0) -> None:
        """A call has ended and has cost this; where `usage` is not known, what was reserved counts."""
        with self._lock:
            self._open.remove(reservation)
            if usage is None:
                self.tokens, self.money = self.tokens + reservation.tokens, self.money + reservation.money
            else:
                self.tokens += usage.prompt_tokens + usage.completion_tokens
                self.money += money
        if self.within is not None:
            self.within.settle(reservation, usage, money)

    @property
    def limits_money(self) -> bool:
        """Whether it has to be known what a call costs."""
        return self.max_cost is not None or (self.within is not None and self.within.limits_money)

    def _short(self, calls: int, tokens: int, money: float) -> str:
        """Which limit the calls would pass, in the words of the error; empty where they fit."""
        if self.max_calls is not None and self.calls + calls > self.max_calls:
            made = "1 call" if self.calls == 1 else f"{self.calls} calls"
            return f"{made} made, at most {self.max_calls} wanted{self._go_on('raise --max-calls and resume')}"
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
        return f"; what was answered is stored: {advice}" if self.resumable else ""
