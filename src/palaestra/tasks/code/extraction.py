"""Extract the program from a response: fenced code, a bare program, or the continuation of a given function.

A program may be spread over several fenced blocks, and some blocks may be usage examples. The wanted function or class
is known by name; for programs that read and print, the last block that does so is taken. Names that it uses but does
not define are looked up in the earlier blocks.
"""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass

_FENCE = re.compile(r"^[ \t]*(?P<fence>`{3,}|~{3,})(?P<tag>[^\n`]*)$", re.MULTILINE)
_PYTHON = {"", "python", "python3", "py", "py3", "python2", "pycon", "ipython"}
_START = re.compile(r"^(?:def |class |import |from |async def |@|if __name__|#!)", re.MULTILINE)
MOST_LINES = 5000
"""Maximum number of lines that are searched."""
MOST_TEXT = 2_000_000
"""Maximum number of characters of a response that are read."""
MOST_CODE = 60_000
"""Maximum length of a program in characters."""
MOST_BLOCKS = 200
"""Maximum number of fenced blocks; the last ones are read."""
MOST_WORK = 200_000
"""Maximum number of characters to compile in search of the end of a program. This takes less than a second."""
_ALWAYS = set(dir(builtins)) | {"__name__", "__file__", "__doc__", "__builtins__"}


@dataclass(frozen=True, slots=True)
class ExtractedProgram:
    """An extracted program.

    Arguments:
        how: `"fenced"`, `"bare"`, `"continued"`, or `"none"` with empty `code`.
    """

    code: str
    how: str


def extract_code(text: str, wanted: str = "", begun: str = "") -> ExtractedProgram:
    """The Python program in a response.

    Arguments:
        wanted: the function or class that it must define; empty for a whole program.
        begun: the start of a program that the model continues, as in HumanEval's prompts.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # For example about invalid escapes in the program.
        return _extract(text[:MOST_TEXT], wanted, begun)


def _extract(text: str, wanted: str, begun: str) -> ExtractedProgram:
    work = Work()
    blocks = [block for block in find_fenced(text, work) if parses(block)]
    program = _assemble(blocks, wanted)
    if program:
        return ExtractedProgram(_with_head(program, begun, wanted), "fenced")
    if begun and (whole := _continue(text, begun, wanted, work)):
        return ExtractedProgram(whole, "continued")
    bare = _bare(text, wanted, work)
    if bare:
        return ExtractedProgram(_with_head(bare, begun, wanted), "bare")
    return ExtractedProgram("", "none")


def find_fenced(text: str, work: Work | None = None) -> list[str]:
    """The fenced blocks that may be Python. An unclosed block ends with the text."""
    blocks, place = [], 0
    while match := _FENCE.search(text, place):
        fence, tag = match["fence"], match["tag"].strip().lower()
        closing = re.compile(rf"^[ \t]*{re.escape(fence[0])}{{{len(fence)},}}[ \t]*$", re.MULTILINE)
        end = closing.search(text, match.end())
        body = text[match.end() + 1 : end.start() if end else len(text)]
        words = re.split(r"[\s{,:]", tag)
        if words[0] in _PYTHON:
            blocks.append(body if end else longest_start(body, work=work))
        place = end.end() if end else len(text)
    return [_dedent(block) for block in blocks[-MOST_BLOCKS:]]


def _assemble(blocks: list[str], wanted: str) -> str:
    """The last block that defines what is wanted, preceded by earlier blocks that define names it uses."""
    chosen = _choose(blocks, wanted)
    if chosen is None:
        return ""
    parts, missing = [blocks[chosen]], find_used_names(blocks[chosen]) - find_defined_names(blocks[chosen])
    for block in reversed(blocks[:chosen]):
        if (names := find_defined_names(block)) & missing:
            parts.insert(0, block)
            missing = (missing | find_used_names(block)) - names
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _choose(blocks: list[str], wanted: str) -> int | None:
    for place in range(len(blocks) - 1, -1, -1):
        if wanted and wanted in find_defined_names(blocks[place]):
            return place
    if wanted:
        return None
    # A usage example or an expression after the program is not the program.
    busy = [k for k, block in enumerate(blocks) if _does_something(block)]
    return busy[-1] if busy else None


def _does_something(block: str) -> bool:
    """Whether a block reads input or prints, directly or in its functions."""
    return bool({"print", "input", "stdin", "stdout", "open"} & (find_used_names(block) | _attributes(block)))


def _bare(text: str, wanted: str, work: Work) -> str:
    """A program without fences: the longest part that starts with a line of code."""

    def is_one(part: str) -> bool:
        return wanted in find_defined_names(part) if wanted else _does_something(part)

    if parses(text) and is_one(text):
        return _dedent(text)
    return longest_part(text, is_one, work)


def longest_part(text: str, is_wanted: Callable[[str], bool], work: Work | None = None) -> str:
    """The longest run of lines that is a wanted program and starts with a line of code; empty if there is none."""
    best, end, work = "", 0, work or Work()
    for match in _START.finditer(text):
        if work.left <= 0:
            break
        if match.start() < end:
            continue  # It is inside a part that was checked.
        part = longest_start(text[match.start() : match.start() + MOST_CODE], work=work)
        end = match.start() + len(part)
        if len(part) > len(best) and is_wanted(part):
            best = part
    return best


def _continue(text: str, begun: str, wanted: str, work: Work) -> str:
    """The given start of a program, continued by the response."""
    stripped = text.split("```")[0] if text.lstrip()[:3] != "```" else text
    for body in (stripped, _indent(stripped)):
        whole = longest_start(begun + body, at_least=len(begun), work=work)
        if whole and (not wanted or wanted in find_defined_names(whole)):
            return whole
    return ""


def _with_head(program: str, begun: str, wanted: str) -> str:
    """Add the imports and helpers of the given start to a program that repeats the function."""
    if not begun:
        return program
    head = _before(begun, wanted)
    return f"{head}\n\n{program}" if head else program


def _before(begun: str, wanted: str) -> str:
    """The code before the wanted function in the given start."""
    match = re.search(rf"^(?:async )?(?:def|class) {re.escape(wanted)}\b", begun, re.MULTILINE) if wanted else None
    head = begun[: match.start()].rstrip() if match else ""
    return head if parses(head) else ""


class Work:
    """A budget of characters to compile."""

    def __init__(self, most: int = MOST_WORK) -> None:
        self.left = most


def longest_start(text: str, at_least: int = 0, work: Work | None = None) -> str:
    """The longest prefix of whole lines that is valid Python; empty if it has fewer than `at_least` characters.

    Arguments:
        work: the budget of characters to compile; `MOST_WORK` by default.
    """
    work = work or Work()
    lines = text[:MOST_CODE].split("\n")[:MOST_LINES]
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
        except (ValueError, RecursionError, MemoryError):
            end -= 1
            work.left -= len(part)
        else:
            work.left -= len(part)
            return part + "\n"
    return ""


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" if line.strip() else line for line in text.split("\n"))


def _dedent(text: str) -> str:
    import textwrap

    return textwrap.dedent(text.replace("\t", "    ") if re.search(r"^ +\t|^\t+ ", text, re.MULTILINE) else text)


def parses(text: str) -> bool:
    if len(text) > MOST_CODE:
        return False
    try:
        compile(text, "response", "exec", dont_inherit=True)
        return bool(ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def find_defined_names(text: str) -> set[str]:
    """The names that a program defines at its top level."""
    names: set[str] = set()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return names
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        for inner in () if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else ast.walk(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):
                names |= {(alias.asname or alias.name).split(".")[0] for alias in inner.names}
            elif isinstance(inner, ast.FunctionDef | ast.ClassDef):
                names.add(inner.name)
            elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                names.add(inner.id)
    return names


def find_used_names(text: str) -> set[str]:
    """The names that a program reads, without builtins and local names."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    loaded = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    local = {
        a.arg for n in ast.walk(tree) if isinstance(n, ast.arguments) for a in ast.walk(n) if isinstance(a, ast.arg)
    }
    local |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return loaded - local - (_ALWAYS - {"print", "input", "open"})


def _attributes(text: str) -> set[str]:
    return {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
