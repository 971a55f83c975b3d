"""Output parsers: from an assistant's message to its action, or to what is wrong with it.

To add one, write a class with the two members of `Parser` and register it like these.
"""

from palaestra.research.workspace.parsing.base import PARSERS, Action, FormatError, Parser, make_parser

_HERE = "palaestra.research.workspace.parsing"

PARSERS.register("last_block", f"{_HERE}.blocks:LastBlock", "the last fenced block")
PARSERS.register("one_block", f"{_HERE}.blocks:OneBlock", "exactly one fenced block")
PARSERS.register("xml", f"{_HERE}.markup:Xml", "<command>...</command>")
PARSERS.register("json", f"{_HERE}.markup:Json", '{"thought": ..., "command": ...}')
PARSERS.register("tool_call", f"{_HERE}.tool_calls:ToolCalls", "calls of tools, also as local models write them")
PARSERS.register("identity", f"{_HERE}.markup:Identity", "the whole message")

__all__ = ["PARSERS", "Action", "FormatError", "Parser", "make_parser"]
