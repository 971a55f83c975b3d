"""Compare the outputs of a replayed run with the recorded ones.

What legitimately varies is left out: blank lines and trailing spaces, colours, memory addresses, times and dates, everything
but the name in a line of `ls -l`, the folder of installed packages, and the copyright notice that MLGym's files have since
got. Decimal fractions may differ by `_TOLERANCE` or `_SMALL`, because games and training draw random numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from palaestra.core.tables import load_table

_TOLERANCE = 0.05
"""The relative difference of two decimal fractions, such as scores, that counts as none."""
_SMALL = 0.005
"""The absolute difference that counts as none."""
_FILE_COMMANDS = ("open", "goto", "scroll_up", "scroll_down", "create", "edit", "insert")
_SEARCHES = ("search_dir", "search_file", "find_file")
_MAX_LINE = 120
"""The maximum characters of a line in the description of a difference."""
_VARYING = [(re.compile(pattern), replacement) for pattern, replacement in load_table(__file__, "varying")]
_DECIMAL = re.compile(r"-?\d+\.\d+(?:[eE][-+]?\d+)?")
_HEADER = re.compile(r"\[[Ff]ile:? (\S+?)(?: \((\d+) lines total\)|, (\d+) lines?[^\]]*)\]")
_NUMBERED = re.compile(r"^(\d+)[:|](.*)$", re.MULTILINE)
_MATCHES = re.compile(r"(?:Found |\[)(\d+) ")
_LISTED = re.compile(r"[*/]$", re.MULTILINE)
_MLGYM_SCORE = re.compile(r"Evaluation Score: \{.*?: (-?[\d.]+(?:e[-+]?\d+)?)")
_SCORE = re.compile(r"on the \w+ split: (-?[\d.]+(?:e[-+]?\d+)?) \(baseline")


@dataclass(frozen=True, slots=True)
class Window:
    """The lines of a file that an output shows, by their numbers; without those of a refused change."""

    path: str
    total: int
    lines: Mapping[int, str]

    @property
    def is_whole(self) -> bool:
        """Whether it shows all lines of the file."""
        return len(self.lines) == self.total

    @classmethod
    def read(cls, text: str) -> Window | None:
        """Read the first window in an output of MLGym or of ours; `None` if there is none.

        >>> Window.read("[File: /w/a.py (2 lines total)]\\n1:x = 1\\n2:y = 2")
        Window(path='/w/a.py', total=2, lines={1: 'x = 1', 2: 'y = 2'})
        """
        header = _HEADER.search(text)
        if header is None or "NOT been applied" in text or "was not applied" in text:
            return None
        lines = {int(number): line for number, line in _NUMBERED.findall(text[header.end() :])}
        return cls(header[1], int(header[2] or header[3]), lines)


def find_difference(recorded: str, observed: str) -> str:
    """Describe the first difference of two outputs; empty if there is none.

    >>> find_difference("loss 0.412 in 3.1 s\\n<A at 0x7f12>", "loss 0.409 in 2.8 s\\n\\n<A at 0x7e55>")
    ''
    >>> find_difference("a\\nb", "a\\nc")
    "'c' instead of 'b'"
    """
    before, after = _normalize(recorded), _normalize(observed)
    for number in range(max(len(before), len(after))):
        then = before[number] if number < len(before) else None
        now = after[number] if number < len(after) else None
        if then is None or now is None or not _is_same_line(then, now):
            return f"{_quote(now)} instead of {_quote(then)}"
    return ""


def find_answer_difference(action: str, recorded: str, observed: str, shifts: Mapping[str, int]) -> str:
    """Describe how our answer to an action differs from MLGym's; empty if it does not.

    The wording of the commands differs, so files are compared by the lines that both show, validations by their scores and
    searches by the number of matches. `ls` marks programs and folders in MLGym.

    Arguments:
        shifts: by how many lines files have grown since the recording.
    """
    word = (action.split() or [""])[0]
    if word == "validate":
        return _compare_scores(_find_score(_MLGYM_SCORE, recorded), _find_score(_SCORE, observed), observed)
    if word in _SEARCHES:
        counts = [int(match[1]) if (match := _MATCHES.match(text)) else 0 for text in (recorded, observed)]
        return "" if counts[0] == counts[1] else f"{counts[1]} instead of {counts[0]} matches"
    if word == "ls":
        return find_difference(_LISTED.sub("", recorded), _LISTED.sub("", observed))
    if word not in _FILE_COMMANDS:
        return find_difference(recorded, observed)
    then, now = Window.read(recorded), Window.read(observed)
    if then is None or now is None:
        if then is now:
            return ""
        changed, refused = "showed or changed a file", f"did not ({_quote(observed if now is None else recorded)})"
        return f"{word} {refused if now is None else changed}; when recorded, it {refused if then is None else changed}"
    if then.path != now.path:
        return f"{now.path} instead of {then.path} is open"
    before, after = then.lines, now.lines
    if not (then.is_whole and now.is_whole):
        shift = shifts.get(then.path, 0)
        if now.total - shift != then.total:
            return f"{now.path} has {now.total - shift} lines instead of {then.total}"
        after = {number: now.lines[number + shift] for number in then.lines if number + shift in now.lines}
        before = {number: then.lines[number] for number in after}
    difference = find_difference("\n".join(before.values()), "\n".join(after.values()))
    return difference and f"{now.path} has {difference}"


def find_score_difference(recorded: Mapping[str, float], observed: Mapping[str, float]) -> str:
    """Describe how the scores of a submission differ from the recorded ones; empty if they do not."""
    for name, value in recorded.items():
        if difference := _compare_scores(float(value), observed.get(name), ""):
            return f"{name}: {difference}"
    return ""


def find_shifts(recorded: Sequence[str], observed: Sequence[str]) -> dict[str, int]:
    """Return by how many lines each file has grown, from the first time that both sides showed it."""
    shifts: dict[str, int] = {}
    for then, now in zip(map(Window.read, recorded), map(Window.read, observed), strict=False):
        if then is not None and now is not None and then.path == now.path:
            shifts.setdefault(then.path, now.total - then.total)
    return shifts


def map_line(then: Window, now: Window, number: int, is_end: bool = False) -> int:
    """Return the number that a line of a recorded window has in ours.

    Arguments:
        is_end: whether it is the last line of a range. In a part that was rewritten since, a range covers all of it.
    """
    blocks = SequenceMatcher(None, list(then.lines.values()), list(now.lines.values()), autojunk=False).get_opcodes()
    for tag, first, last, own_first, own_last in blocks:
        if first < number <= last and tag == "equal":
            return number - first + own_first
        if first < number <= last:
            return own_last if is_end else own_first + 1
    return number + now.total - then.total


def _compare_scores(recorded: float | None, observed: float | None, answer: str) -> str:
    if recorded is None or observed is None:
        if recorded is observed:
            return ""
        return (
            f"no score instead of {recorded:.6g} ({_quote(answer)})" if observed is None else f"a score, {observed:.6g}"
        )
    return "" if _is_close(recorded, observed) else f"the score is {observed:.6g} instead of {recorded:.6g}"


def _find_score(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return None if match is None else float(match[1])


def _normalize(text: str) -> list[str]:
    for pattern, replacement in _VARYING:
        text = pattern.sub(replacement, text)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _is_same_line(recorded: str, observed: str) -> bool:
    if recorded == observed:
        return True
    if _DECIMAL.sub("", recorded) != _DECIMAL.sub("", observed):
        return False
    pairs = zip(_DECIMAL.findall(recorded), _DECIMAL.findall(observed), strict=True)
    return all(_is_close(float(then), float(now)) for then, now in pairs)


def _is_close(recorded: float, observed: float) -> bool:
    return abs(recorded - observed) <= max(_SMALL, _TOLERANCE * max(abs(recorded), abs(observed)))


def _quote(line: str | None) -> str:
    if line is None:
        return "the end of the output"
    line = line.strip().split("\n")[0]
    return repr(line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 1]}…")
