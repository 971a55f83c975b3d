"""Tools for amounts of money, which are rounded to cents. The rates are those of our invented world."""

from __future__ import annotations

from typing import Literal

Currency = Literal["EUR", "USD", "GBP", "CHF", "JPY", "NOK"]
EUROS: dict[str, float] = {"EUR": 1.0, "USD": 0.92, "GBP": 1.17, "CHF": 1.05, "JPY": 0.0061, "NOK": 0.087}


def convert_currency(amount: float, source: Currency, target: Currency) -> float:
    """An amount of money in another currency.

    Arguments:
        amount: in the currency `source`
        source: the currency it is in
        target: the currency to give it in
    """
    return round(amount * EUROS[source] / EUROS[target], 2)


def add_percent(amount: float, percent: float) -> float:
    """An amount raised by a percentage, as by a tax or a tip.

    Arguments:
        amount: what is raised
        percent: 0 or more
    """
    return round(amount * (100 + _percent(percent)) / 100, 2)


def take_percent(amount: float, percent: float) -> float:
    """An amount lowered by a percentage, as by a discount.

    Arguments:
        amount: what is lowered
        percent: 0 to 100
    """
    if _percent(percent) > 100:
        raise ValueError(f"take_percent: at most 100 percent can be taken; got {percent}")
    return round(amount * (100 - percent) / 100, 2)


def split_evenly(amount: float, people: int) -> float:
    """What each pays when an amount is shared equally.

    Arguments:
        amount: what is shared
        people: how many share it
    """
    if people < 1:
        raise ValueError(f"split_evenly: at least 1 person must share; got {people}")
    return round(amount / people, 2)


def savings(amount: float, percent: float, years: int) -> float:
    """What an amount grows to with compound interest.

    Arguments:
        amount: what is saved at the start
        percent: the interest of a year
        years: how many, 0 to 100
    """
    if not 0 <= years <= 100:
        raise ValueError(f"savings: years lie between 0 and 100; got {years}")
    if _percent(percent) > 100:
        raise ValueError(f"savings: the interest is at most 100 percent; got {percent}")
    return round(amount * (1 + percent / 100) ** years, 2)


def _percent(percent: float) -> float:
    if percent < 0:
        raise ValueError(f"a percentage is 0 or more; got {percent}")
    return percent
