"""The tools, by name. To add one, write a typed function with a docstring and add its name to `domains.yaml`.

The tools generate problems and their answers, and execute the calls of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from palaestra.core.tables import load_table
from palaestra.tasks.tools.library.tool import Tool, make_tool

DOMAINS = load_table(__file__, "domains")
LIBRARY: Mapping[str, Tool] = {
    name: make_tool(getattr(import_module(f"{__name__}.{own['module']}"), name), domain)
    for domain, own in DOMAINS.items()
    for name in own["tools"].split()
}
