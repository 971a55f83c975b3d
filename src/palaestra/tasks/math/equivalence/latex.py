"""Normalise LaTeX: one spelling for each notation, without evaluation.

Every function takes linear time, and recursion is at most `MAX_DEPTH` deep.
"""

from __future__ import annotations

import re

from palaestra.core.tables import load_table

MAX_LENGTH = 1000
"""Longer answers are compared as text."""
MAX_INPUT = 4 * MAX_LENGTH
"""Longer texts are not normalised at all."""
MAX_DEPTH = 24
"""Answers with deeper brackets are compared as text."""

NOTATION = load_table(__file__, "notation")
_SIGNS = str.maketrans(NOTATION["signs"])

_SIMPLE = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?<!,)", re.ASCII)
_SQUEEZED = re.compile(r"(?<=\d),\s*\\!\s*(?=\d{3})", re.ASCII)
_SPACES = re.compile(r"\\(?:[,;:> ]|q?quad|enspace\b|thinspace\b|hspace\{[^{}]*\})|~|\s+")
_DROPPED = re.compile(
    r"\\!|\\(?:left|right|[bB]igg?[lr]?|middle)(?![a-zA-Z])\.?"
    r"|\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|mathstrut|strut|large|Large|normalsize|bf|rm|it|tt|sf)(?![a-zA-Z])"
    r"|\\[()\[\]]"
)
_RENAMED: dict[str, str] = NOTATION["renamed"]
"""Commands with the same meaning as another one."""
_REPLACED = [(re.compile(pattern), spelling) for pattern, spelling in NOTATION["replaced"]]
_TEXT = re.compile(
    r"\\(?P<name>text|textbf|textit|textrm|textnormal|texttt|textsf|mbox|hbox|mathrm|mathbf|mathit|mathsf|boldsymbol|bm|emph|boxed|fbox|tag)\s*\{"
)
_AROUND = re.compile(r"\s*((?<!\\)[-+/^_=<>(){}\[\]|&!:;]|\\[{}])\s*")
_COMMA = re.compile(r"\s*,\s*")
_BEFORE = re.compile(r"\s+(?=\\)")
_AFTER = re.compile(r"(\\[a-zA-Z]+)\s+(?![a-zA-Z])")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_GROUPED = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?", re.ASCII)
_DIGITS = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
_WRAPPED = (("**", "**"), ("__", "__"), ("`", "`"), ("*", "*"), ('"', '"'), ("'", "'"))


def closing(text: str, start: int, brackets: str = "{}") -> int:
    """The index of the bracket that closes the one at `start`; -1 if it is not closed. Escaped brackets are ignored."""
    depth, index = 0, start
    while index < len(text):
        if text[index] == "\\":
            index += 2
            continue
        depth += (text[index] == brackets[0]) - (text[index] == brackets[1])
        if depth == 0:
            return index
        index += 1
    return -1


def measure_depth(text: str) -> int:
    """The nesting depth of the brackets of `text`."""
    depth = deepest = 0
    for char in text:
        if char in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")]}":
            depth = max(0, depth - 1)
    return deepest


def tidy(text: str) -> str:
    r"""`text` with one spelling for each notation, and without formatting.

    >>> tidy(r"$\left( \dfrac12 ,\, 3 \right)$.")
    '(\\frac{1}{2}, 3)'
    >>> tidy(r"\text{Monday}")
    'Monday'
    """
    if _SIMPLE.fullmatch(text):
        return text
    text = _unwrap(text.replace('\\"', '"'))
    if len(text) > MAX_LENGTH or measure_depth(text) > MAX_DEPTH:
        return " ".join(text.split())
    text = text.translate(_SIGNS).replace("\\$", "").replace("$", "")
    if "\\\\begin" in text:
        text = text.replace("\\\\", "\\")  # Every backslash is escaped.
    # Lines of a matrix end with a double backslash; everywhere else it is an escaped command.
    if "matrix" not in text and "array" not in text and "cases" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z])", r"\\", text)
    else:
        text = text.replace("\\\\", "\\cr ")
    text = _SPACES.sub(" ", _SQUEEZED.sub("", text))
    text = _DROPPED.sub("", text)
    text = _plain_text(text)
    text = _COMMAND.sub(lambda command: _RENAMED.get(command[0], command[0]), text)
    for pattern, spelling in _REPLACED:
        text = pattern.sub(spelling, text)
    text = _SPACES.sub(" ", text).strip()
    return _add_spaces(_strip_end(_brace(text, 0)))


def _add_spaces(text: str) -> str:
    """`text` with only the necessary spaces: between words or numbers, after a comma, after a command."""
    text = _AROUND.sub(r"\1", text)
    text = _COMMA.sub(lambda match: "," if match.group() == "," else ", ", text)
    return _AFTER.sub(r"\1", _BEFORE.sub("", text)).strip()


def _strip_end(text: str) -> str:
    r"""`text` without the punctuation, spaces and backslashes (`\\\\` ends a line) at its end."""
    return text.rstrip(" \t\r\n.,;:。\\")


def _unwrap(text: str) -> str:
    """`text` without the marks of emphasis and mathematics around it, and without trailing punctuation."""
    before = None
    while before != text:
        before = text
        text = _strip_end(text.strip())
        for left, right in _WRAPPED:
            inner = text[len(left) : -len(right)]
            if (
                len(text) > len(left) + len(right)
                and text.startswith(left)
                and text.endswith(right)
                and left not in inner
            ):
                text = inner
    return text


def _plain_text(text: str) -> str:
    r"""`\text{...}` and similar commands without the command; `\text{and}` keeps a space on both sides."""
    parts, index = [], 0
    while match := _TEXT.search(text, index):
        end = closing(text, match.end() - 1)
        parts.append(text[index : match.start()])
        inner = text[match.end() : end if end >= 0 else len(text)]
        if match["name"] != "tag":
            inner = _plain_text(inner)
            # A single letter in another typeface is still that letter; a word is separated from its neighbours.
            parts.append(f" {inner} " if len(inner.strip()) > 1 or match["name"].startswith("text") else inner)
        index = end + 1 if end >= 0 else len(text)
    return "".join([*parts, text[index:]])


def _brace(text: str, depth: int) -> str:
    r"""Every argument of `\frac`, `\sqrt`, `\binom`, `^` and `_` in braces."""
    parts, index = [], 0
    while index < len(text):
        char = text[index]
        if char in "^_" and not text.startswith("^\\circ", index):
            argument, index = _argument(text, index + 1, depth, digits=True)
            parts.append(f"{char}{{{argument}}}" if argument else char)
            continue
        if char != "\\":
            parts.append(char)
            index += 1
            continue
        command, index = _command(text, index, depth)
        parts.append(command)
    return "".join(parts)


def _command(text: str, index: int, depth: int) -> tuple[str, int]:
    """The command at `index` with its arguments in braces, and the index of its end."""
    match = _COMMAND.match(text, index)
    if not match:
        return text[index : index + 2], index + 2
    name, index = match.group(), match.end()
    if name not in (r"\frac", r"\sqrt", r"\binom") or depth >= MAX_DEPTH:
        return name, index
    option = ""
    if name == r"\sqrt":
        while index < len(text) and text[index] == " ":
            index += 1
        if index < len(text) and text[index] == "[" and (end := text.find("]", index)) >= 0:
            option, index = text[index : end + 1], end + 1
            option = "" if option == "[2]" else option
        if index < len(text) and text[index] == "(" and (end := closing(text, index, "()")) >= 0:
            inner = _brace(text[index + 1 : end], depth + 1)  # sqrt(x + 1), from plain text.
            return f"{name}{option}{{{inner.strip()}}}", end + 1
    first, index = _argument(text, index, depth, digits=name == r"\sqrt")
    if name == r"\sqrt":
        return f"{name}{option}{{{_join(first)}}}", index
    second, index = _argument(text, index, depth, digits=False)
    return f"{name}{{{_join(first)}}}{{{_join(second)}}}", index


def _join(argument: str) -> str:
    """`argument` without separators of thousands. It is one value, so a comma in it separates nothing else."""
    return argument.replace(",", "") if _GROUPED.fullmatch(argument) else argument


def _argument(text: str, index: int, depth: int, *, digits: bool) -> tuple[str, int]:
    r"""The argument at `index`: a group, a command, or one character (`digits`: a whole number, as `x^10` is usually meant)."""
    while index < len(text) and text[index] == " ":
        index += 1
    if index >= len(text):
        return "", index
    if text[index] == "{":
        end = closing(text, index)
        if end < 0:
            return text[index + 1 :].strip(), len(text)
        inner = text[index + 1 : end].strip()
        return (_brace(inner, depth + 1).strip() if depth < MAX_DEPTH else inner), end + 1
    if text[index] == "\\":
        return _command(text, index, depth + 1)
    if digits and (match := _DIGITS.match(text, index)):
        return match.group(), match.end()
    return text[index], index + 1
