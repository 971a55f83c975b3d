"""The program in a response: fenced code among prose, a bare program, or the rest of a function that was begun.

Models explain before, between and after. So a program may be spread over several blocks, of which some are
examples of its use. What is wanted is named (a function, a class) or, for programs that read and print, the last
block that is one; whatever it uses and does not define is looked for in the blocks before it.
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
"""Of a response; a program behind them is not looked for."""
MOST_TEXT = 2_000_000
"""Characters of a response; what stands behind them is not read."""
MOST_CODE = 60_000
"""Characters of a program; a longer text is taken for none."""
MOST_BLOCKS = 200
"""Between fences; the last ones are read."""
MOST_WORK = 200_000
"""Characters that are compiled in search of a program that other text follows. That takes less than a second."""
_ALWAYS = set(dir(builtins)) | {"__name__", "__file__", "__doc__", "__builtins__"}


@dataclass(frozen=True, slots=True)
class ExtractedProgram:
    """A program, and how it was found.

    Arguments:
        how: `"fenced"`, `"bare"`, `"continued"`, or `"none"`, where `code` is empty.
    """

    code: str
    how: str


def extract_code(text: str, wanted: str = "", begun: str = "") -> ExtractedProgram:
    """The Python program in a response.

    Arguments:
        wanted: the function or class that it must define; empty for a whole program.
        begun: the start of a program that the model was to continue, as HumanEval's prompts are.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A model's doubtful escapes are no concern of the caller.
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
    """The blocks between fences that may be Python; one that is never closed ends with the text."""
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
    """The last block that has what is wanted, after the earlier ones that define what it uses."""
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
    # An example of a run or a bare expression behind the program is not the program.
    busy = [k for k, block in enumerate(blocks) if _does_something(block)]
    return busy[-1] if busy else None


def _does_something(block: str) -> bool:
    """Whether a block reads input or prints, itself or in what it defines and calls."""
    return bool({"print", "input", "stdin", "stdout", "open"} & (find_used_names(block) | _attributes(block)))


def _bare(text: str, wanted: str, work: Work) -> str:
    """A program without fences: the longest part from a line that starts one."""

    def is_one(part: str) -> bool:
        return wanted in find_defined_names(part) if wanted else _does_something(part)

    if parses(text) and is_one(text):
        return _dedent(text)
    return longest_part(text, is_one, work)


def longest_part(text: str, is_wanted: Callable[[str], bool], work: Work | None = None) -> str:
    """The longest run of lines that is a program as it is wanted, from a line that starts like one; empty if there is none."""
    best, end, work = "", 0, work or Work()
    for match in _START.finditer(text):
        if work.left <= 0:
            break
        if match.start() < end:
            continue  # It stands in a part that was looked at.
        part = longest_start(text[match.start() : match.start() + MOST_CODE], work=work)
        end = match.start() + len(part)
        if len(part) > len(best) and is_wanted(part):
            best = part
    return best


def _continue(text: str, begun: str, wanted: str, work: Work) -> str:
    """The program that was begun, with the response as its next lines."""
    stripped = text.split("```")[0] if text.lstrip()[:3] != "```" else text
    for body in (stripped, _indent(stripped)):
        whole = longest_start(begun + body, at_least=len(begun), work=work)
        if whole and (not wanted or wanted in find_defined_names(whole)):
            return whole
    return ""


def _with_head(program: str, begun: str, wanted: str) -> str:
    """A program that repeats the function it was to continue still needs the imports and helpers before it."""
    if not begun:
        return program
    head = _before(begun, wanted)
    return f"{head}\n\n{program}" if head else program


def _before(begun: str, wanted: str) -> str:
    """What stands before the wanted function in a program that was begun."""
    match = re.search(rf"^(?:async )?(?:def|class) {re.escape(wanted)}\b", begun, re.MULTILINE) if wanted else None
    head = begun[: match.start()].rstrip() if match else ""
    return head if parses(head) else ""


class Work:
    """How many characters may still be compiled."""

    def __init__(self, most: int = MOST_WORK) -> None:
        self.left = most


def longest_start(text: str, at_least: int = 0, work: Work | None = None) -> str:
    """The most whole lines from the start that are Python; empty if fewer than `at_least` characters.

    Arguments:
        work: how much may be compiled in search of it; `MOST_WORK` characters by default. It is not found behind that.
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
            # No start that has the line of the error in it is Python: what it opens is closed nowhere behind it either.
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
    """The names that a program gives a meaning at its top level."""
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
    """The names that a program reads, but for Python's own and those that only exist inside its functions."""
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
