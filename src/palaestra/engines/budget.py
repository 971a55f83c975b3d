"""A limit on the cost of calls, checked before each call. Running calls count at their maximum cost."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from palaestra.core.errors import BudgetSpentError, SettingsError
from palaestra.core.records import Usage
from palaestra.runs.ledger import Spending


@dataclass(frozen=True, slots=True)
class Reservation:
    """The maximum cost of a running call."""

    tokens: int
    money: float


class Budget:
    """Limits calls, tokens and money.

    Arguments:
        max_cost: US dollars at list price; `None` for no limit.
        max_calls: number of calls, including repeated ones.
        max_tokens: number of prompt and completion tokens.
        spent: what was spent before, for example `Cache.spent(owner)` of a resumed run.
        within: a shared budget of several runs that this one is part of. A call must fit into both.
        advice: what the error tells the user if `max_cost` is reached.
        resumable: whether the run can be resumed with a larger limit; the error then says how.
        error: the exception for a call that does not fit.

    A call that may exceed a limit waits for the running calls, whose actual cost may be below their reservation. If it
    still does not fit, the budget is spent. The length of a prompt is only known with its answer, so reservations are
    estimates. Several engines may share one budget.

    Example:
        >>> budget = Budget(max_calls=1)
        >>> call = budget.reserve(tokens=100)
        >>> budget.settle(call, Usage(20, 10))
        >>> budget.reserve(tokens=100)
        Traceback (most recent call last):
            ...
        palaestra.core.errors.BudgetSpentError: the budget is spent: 1 call made, at most 1 allowed; what was answered is stored: raise --max-calls and resume
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
        """Reserve budget for one call of at most this cost; `None` if it must wait for running calls.

        Raises:
            BudgetSpentError: the call does not fit, and no call is running.
        """
        reservations = self.reserve_all(1, tokens, money)
        return reservations[0] if reservations else None

    def reserve_all(self, calls: int, tokens: int = 0, money: float = 0.0) -> list[Reservation]:
        """Reserve budget for several calls of at most this cost each; an empty list if they must wait. Raises like `reserve`."""
        with self._lock:
            short = self._short(calls, calls * tokens, calls * money)
            if not short:
                if self.within is not None and not self.within.reserve_all(calls, tokens, money):
                    return []
                reservations = [Reservation(tokens, money) for _ in range(calls)]
                self._open += reservations
                self.calls += calls
                return reservations
            if self._open:
                return []
            raise self.error(f"the budget is spent: {short}")

    def settle(self, reservation: Reservation, usage: Usage | None, money: float = 0.0) -> None:
        """Replace a reservation by the actual cost of a call. If `usage` is unknown, the reservation counts."""
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
        """Whether calls need a known price."""
        return self.max_cost is not None or (self.within is not None and self.within.limits_money)

    def _short(self, calls: int, tokens: int, money: float) -> str:
        """Return the error message of the limit that the calls exceed; empty if they fit."""
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
        return f"; what was answered is stored: {advice}" if self.resumable else ""
