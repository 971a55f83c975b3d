"""Extract the program from a response: fenced code, a bare program, or the continuation of a given function.

A program may be spread over several fenced blocks, and some blocks may be usage examples. The wanted function or class
is known by name; for programs that read and print, the last block that does so is used. Names that it uses but does
not define are looked up in the earlier blocks.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_FENCE = re.compile(r"^[ \t]*(?P<fence>`{3,}|~{3,})(?P<tag>[^\n`]*)$", re.MULTILINE)
_PYTHON = {"", "python", "python3", "py", "py3", "python2", "pycon", "ipython"}
_START = re.compile(r"^(?:def |class |import |from |async def |@|if __name__|#!)", re.MULTILINE)
_ALWAYS = set(dir(builtins)) | {"__name__", "__file__", "__doc__", "__builtins__"}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_MAX_TEXT, MAX_CODE, _MAX_LINES = 2_000_000, 60_000, 5000
"""Maximum length of a response and of a program in characters, and of a program in lines."""
_MAX_BLOCKS = 200
"""Maximum number of fenced blocks; the last ones are read."""
_MAX_WORK = 200_000
"""Maximum number of characters to compile in search of the end of a program. This takes less than a second."""
PARSE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)
"""The exceptions of `compile` and `ast.parse`."""


@dataclass(frozen=True, slots=True)
class ExtractedProgram:
    """An extracted program.

    Arguments:
        how: `"fenced"`, `"bare"`, `"continued"`, or `"none"` with empty `code`.
    """

    code: str
    how: str


class Work:
    """A budget of characters to compile."""

    def __init__(self) -> None:
        self.left = _MAX_WORK


def extract_code(text: str, wanted: str = "", begun: str = "") -> ExtractedProgram:
    """The Python program in a response.

    Arguments:
        wanted: the function or class that it must define; empty for a whole program.
        begun: the start of a program that the model continues, as in HumanEval's prompts.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # For example about invalid escapes in the program.
        text, work = text[:_MAX_TEXT], Work()

        def is_wanted(code: str) -> bool:
            return wanted in find_defined_names(code) if wanted else _does_something(code)

        head = _find_head(begun, wanted)
        blocks = [block for block in find_fenced(text, work) if is_program(block)]
        if program := assemble(blocks, is_wanted):
            return ExtractedProgram(head + program, "fenced")
        if begun and (program := _continue(text, begun, wanted, work)):
            return ExtractedProgram(program, "continued")
        if is_program(text) and is_wanted(text):
            return ExtractedProgram(head + _dedent(text), "bare")
        if program := longest_part(text, is_wanted, work):
            return ExtractedProgram(head + program, "bare")
        return ExtractedProgram("", "none")


def find_fenced(text: str, work: Work | None = None) -> list[str]:
    """The fenced blocks that may be Python. An unclosed block ends with the text."""
    blocks, place = [], 0
    while match := _FENCE.search(text, place):
        fence, tag = match["fence"], match["tag"].strip().lower()
        closing = re.compile(rf"^[ \t]*{re.escape(fence[0])}{{{len(fence)},}}[ \t]*$", re.MULTILINE)
        end = closing.search(text, match.end())
        body = text[match.end() + 1 : end.start() if end else len(text)]
        if re.split(r"[\s{,:]", tag)[0] in _PYTHON:
            blocks.append(body if end else longest_start(body, work=work))
        place = end.end() if end else len(text)
    return [_dedent(block) for block in blocks[-_MAX_BLOCKS:]]


def assemble(blocks: Sequence[str], is_wanted: Callable[[str], bool]) -> str:
    """The last wanted block, preceded by earlier blocks that define names it uses; empty if no block is wanted."""
    chosen = next((place for place in reversed(range(len(blocks))) if is_wanted(blocks[place])), None)
    if chosen is None:
        return ""
    parts, missing = [blocks[chosen]], _find_used_names(blocks[chosen]) - find_defined_names(blocks[chosen])
    for block in reversed(blocks[:chosen]):
        if (names := find_defined_names(block)) & missing:
            parts.insert(0, block)
            missing = (missing | _find_used_names(block)) - names
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def longest_part(
    text: str, is_wanted: Callable[[str], bool], work: Work | None = None, start: re.Pattern[str] = _START
) -> str:
    """The longest run of lines that is a wanted program and starts with a line of code; empty if there is none.

    Arguments:
        start: matches the start of such a line.
    """
    best, end, work = "", 0, work or Work()
    for match in start.finditer(text):
        if work.left <= 0:
            break
        if match.start() < end:
            continue  # Inside a part that was already checked.
        part = longest_start(text[match.start() : match.start() + MAX_CODE], work=work)
        end = match.start() + len(part)
        if len(part) > len(best) and is_wanted(part):
            best = part
    return best


def longest_start(text: str, at_least: int = 0, work: Work | None = None) -> str:
    """The longest prefix of whole lines that is valid Python; empty if it has fewer than `at_least` characters."""
    work = work or Work()
    lines = text[:MAX_CODE].split("\n")[:_MAX_LINES]
    end = len(lines)
    while end and work.left > 0:
        part = "\n".join(lines[:end])
        if len(part) <= at_least:
            return ""
        work.left -= len(part) // 8
        try:
            compile(part, "response", "exec", dont_inherit=True)
        except SyntaxError as error:
            # A prefix that contains the line of the error is not valid Python.
            end = min(end - 1, max((error.lineno or end) - 1, 0))
            work.left -= sum(map(len, lines[: end + 1]))
        except PARSE_ERRORS:
            end -= 1
            work.left -= len(part)
        else:
            work.left -= len(part)
            return part + "\n"
    return ""


def is_program(text: str) -> bool:
    """Whether a text is a program with at least one statement."""
    if len(text) > MAX_CODE:
        return False
    try:
        compile(text, "response", "exec", dont_inherit=True)
        return bool(ast.parse(text).body)
    except PARSE_ERRORS:
        return False


def find_defined_names(text: str) -> set[str]:
    """The names that a program defines at its top level."""
    names: set[str] = set()
    for node in parse_program(text).body:
        if isinstance(node, _DEFINITIONS):
            names.add(node.name)
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):
                names |= {(alias.asname or alias.name).split(".")[0] for alias in inner.names}
            elif isinstance(inner, _DEFINITIONS):
                names.add(inner.name)
            elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                names.add(inner.id)
    return names


def _find_used_names(text: str) -> set[str]:
    """The names that a program reads, without builtins and local names."""
    nodes = list(ast.walk(parse_program(text)))
    loaded = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    local = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    local |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return loaded - local - (_ALWAYS - {"print", "input", "open"})


def parse_program(text: str) -> ast.Module:
    """The syntax tree of a program; empty if it is not valid."""
    try:
        return ast.parse(text)
    except PARSE_ERRORS:
        return ast.Module([], [])


def _does_something(block: str) -> bool:
    """Whether a program reads input or prints, directly or in its functions. A usage example or an expression does not."""
    attributes = {node.attr for node in ast.walk(parse_program(block)) if isinstance(node, ast.Attribute)}
    return bool({"print", "input", "stdin", "stdout", "open"} & (_find_used_names(block) | attributes))


def _continue(text: str, begun: str, wanted: str, work: Work) -> str:
    """The given start of a program, continued by the response."""
    stripped = text.split("```")[0] if text.lstrip()[:3] != "```" else text
    for body in (stripped, textwrap.indent(stripped, "    ")):
        whole = longest_start(begun + body, at_least=len(begun), work=work)
        if whole and (not wanted or wanted in find_defined_names(whole)):
            return whole
    return ""


def _find_head(begun: str, wanted: str) -> str:
    """The imports and helpers of a given start, for a program that repeats its function."""
    match = re.search(rf"^(?:async )?(?:def|class) {re.escape(wanted)}\b", begun, re.MULTILINE) if wanted else None
    head = begun[: match.start()].rstrip() if match else ""
    return f"{head}\n\n" if is_program(head) else ""


def _dedent(text: str) -> str:
    return textwrap.dedent(text.replace("\t", "    ") if re.search(r"^ +\t|^\t+ ", text, re.MULTILINE) else text)
