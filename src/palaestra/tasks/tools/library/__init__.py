"""The tools, by name. A new one is a function in a file of its domain; a new domain is a file and a name in `DOMAINS`.

This folder runs twice: here, to draw problems and to know what is right, and in a sandbox of its own, where the calls
of a model are made. So it imports nothing but Python's own library and itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from palaestra.tasks.tools.library import (
    arithmetic,
    clock,
    dates,
    money,
    numbers,
    people,
    shop,
    text,
    travel,
    units,
)
from palaestra.tasks.tools.library.tool import Tool, collect_tools

DOMAINS = (dates, clock, units, money, numbers, arithmetic, text, travel, people, shop)
LIBRARY: Mapping[str, Tool] = {tool.name: tool for domain in DOMAINS for tool in collect_tools(domain)}
