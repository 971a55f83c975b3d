"""The tools, by name. To add one, write a typed function with a docstring and add its name to `DOMAINS`.

The tools generate problems and their answers, and execute the calls of a model.
"""

from __future__ import annotations

from collections.abc import Mapping

from palaestra.tasks.tools.library import dates, quantities, world
from palaestra.tasks.tools.library.tool import Tool, make_tool

DOMAINS = {
    "dates": (dates, "add_days add_months days_between weekday next_weekday month_end"),
    "clock": (dates, "add_minutes minutes_between"),
    "units": (quantities, "convert_length convert_mass convert_volume convert_temperature"),
    "money": (quantities, "convert_currency add_percent take_percent split_evenly savings"),
    "numbers": (quantities, "mean median largest smallest count_above top scale round_to"),
    "arithmetic": (quantities, "total difference product ratio"),
    "text": (
        quantities,
        "count_words count_letter longest_word nth_word replace_word reverse_text capitals first_letters shift_letters",
    ),
    "travel": (world, "distance population elevation nearest_town drive_minutes ticket_price local_time"),
    "people": (world, "town_of manager_of birthday_of age_on shift_start"),
    "shop": (world, "order_cost stock_of weight_of made_in delivery_days"),
}
LIBRARY: Mapping[str, Tool] = {
    name: make_tool(getattr(module, name), domain)
    for domain, (module, names) in DOMAINS.items()
    for name in names.split()
}
