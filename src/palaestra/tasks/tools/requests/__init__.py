"""Requests: what can be asked, by skill and subskill. A new skill is a table of recipes and a line in `SKILLS`."""

from __future__ import annotations

from collections.abc import Mapping

from palaestra.tasks.tools.requests.data import STATISTICS, TEXTS
from palaestra.tasks.tools.requests.people import PEOPLE
from palaestra.tasks.tools.requests.places import TRAVEL
from palaestra.tasks.tools.requests.quantities import MONEY, UNITS
from palaestra.tasks.tools.requests.recipe import Kinds
from palaestra.tasks.tools.requests.shop import SHOP
from palaestra.tasks.tools.requests.time import CALENDAR, CLOCK
from palaestra.tasks.tools.requests.together import DEADLINES, ORDERS, TRIPS

SKILLS: Mapping[str, Kinds] = {
    "calendar": CALENDAR,
    "clock": CLOCK,
    "units": UNITS,
    "money": MONEY,
    "statistics": STATISTICS,
    "text": TEXTS,
    "travel": TRAVEL,
    "people": PEOPLE,
    "shop": SHOP,
    "deadlines": DEADLINES,
    "trips": TRIPS,
    "orders": ORDERS,
}
"""Skill -> subskill -> kinds of requests. The subskills are shapes of plans: `single`, `chain`, `join`."""
