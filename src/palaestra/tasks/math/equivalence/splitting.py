"""Split a formula at its outermost signs, commas and brackets."""

from __future__ import annotations

import re

from palaestra.tasks.math.equivalence.latex import closing

_SIGN = re.compile(r"\\(?:le|ge|ne|in|approx)(?![a-zA-Z])|[=<>]")
_AND = re.compile(r"\s*,?\s*(?<![A-Za-z\\])(?:and|or)(?![a-z])\s*")
_GROUP = re.compile(r"\d{3}(?:\.\d+)?", re.ASCII)
_ASSIGNED = re.compile(r"[^,]*[=<>]\s*[-+]?\d{1,3}(?:,\d{3})+(?![\d,])[^,]*", re.ASCII)
_OPEN, _CLOSE = {"(": 1, "[": 1, "{": 1}, {")": 1, "]": 1, "}": 1}


def _levels(text: str) -> list[int]:
    """The bracket depth of each character. Escaped braces count; half-open intervals are balanced."""
    depth, levels = 0, []
    for char in text:
        if char in _CLOSE:
            depth = max(0, depth - 1)
        levels.append(depth)
        if char in _OPEN:
            depth += 1
    return levels


def split_at(text: str) -> tuple[list[str], list[str]]:
    """The parts between the relation signs outside brackets, and the signs."""
    marks = list(_SIGN.finditer(text))
    if not marks:
        return [text], []
    levels, parts, signs, start = _levels(text), [], [], 0
    for sign in marks:
        if levels[sign.start()] == 0:
            parts.append(text[start : sign.start()])
            signs.append(sign.group())
            start = sign.end()
    return [*parts, text[start:]], signs


def split(text: str, mark: str) -> list[str]:
    """Split `text` at every `mark` outside brackets."""
    if mark not in text:
        return [text]
    levels, parts, start, index = _levels(text), [], 0, text.find(mark)
    while index >= 0:
        if levels[index] == 0:
            parts.append(text[start:index])
            start = index + len(mark)
        index = text.find(mark, index + len(mark))
    return [*parts, text[start:]]


def elements(text: str, *, bare: bool) -> list[str]:
    """Split a list at commas, semicolons and (`bare`) "and" and "or". Separators of thousands do not split."""
    if ";" in text and len(parts := split(text, ";")) > 1:
        return [part.strip() for part in parts]
    if bare:
        if _ASSIGNED.fullmatch(text):
            return [text.strip()]  # x = 1,234
        if "and" in text or "or" in text:
            levels = _levels(text)
            text = _AND.sub(lambda match: ", " if levels[match.end(0) - 1] == 0 else match.group(), text)
    pieces = split(text, ",")
    if len(pieces) == 1 or not any(piece.startswith(" ") for piece in pieces[1:]):
        return [piece.strip() for piece in pieces]
    # "1,234, 5": where some commas have a space after them, the others may be separators of thousands.
    joined = [pieces[0]]
    for piece in pieces[1:]:
        digits = joined[-1].rpartition("=")[2].strip().lstrip("+-")
        if (
            _GROUP.fullmatch(piece)
            and digits
            and digits.replace(",", "").isdigit()
            and (len(digits) <= 3 or "," in digits)
        ):
            joined[-1] += f",{piece}"
        else:
            joined.append(piece)
    return [piece.strip() for piece in joined]


def strip_brackets(text: str) -> tuple[str, str]:
    """The outermost brackets and their content if one pair encloses the whole text; else "" and the text."""
    for left, right, name in (("\\{", "\\}", "{}"), ("\\langle", "\\rangle", "<>")):
        if text.startswith(left) and text.endswith(right):
            inner = text[len(left) : -len(right)]
            if left not in inner or min(_levels(inner + ")")) >= 0:
                return name, inner
    if len(text) > 1 and text[0] == "{" and closing(text, 0) == len(text) - 1:
        return "group", text[1:-1]
    if len(text) > 1 and text[0] in "([" and text[-1] in ")]":
        depth = 0
        for index, char in enumerate(text):
            depth += 1 if char in "([{" else -1 if char in ")]}" else 0
            if depth == 0 and index < len(text) - 1:
                return "", text
        return text[0] + text[-1], text[1:-1]
    return "", text
