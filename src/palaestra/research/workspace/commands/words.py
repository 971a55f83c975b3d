"""The simple commands in a text of bash, without running it.

Enough of bash's grammar to know which words stand where a command's name stands: lists, pipelines, groups, loops,
quotes, comments, here-documents, and the commands within substitutions. Whatever the text is, the scan is linear and
does not raise; what is no bash gives whatever was found in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

DEEPEST = 40
"""How deep substitutions are followed."""

KEYWORDS = frozenset({"if", "then", "else", "elif", "while", "until", "do", "!", "{", "coproc"})
"""Words after which a command begins anew."""

_PLAIN = re.compile(r"[^\s;&|()<>\"'`$\\#]+")
_BLANK = re.compile(r"[ \t]+")
_DOUBLE = re.compile(r"[^\"`$\\]+")
_BRACED = re.compile(r"[^\"'`$\\{}]+")
_SEPARATORS = re.compile(r"\|\||\|&|\||&&|;;&?|;&?|&|\n|\(|\)")


@dataclass(slots=True)
class SimpleCommand:
    """A command and its arguments; quotes are taken off, expansions stand as they were written.

    Arguments:
        piped: it reads what another command prints.
        redirected: its input is a file or a text.
    """

    words: list[str] = field(default_factory=list)
    piped: bool = False
    redirected: bool = False


def simple_commands(text: str) -> list[SimpleCommand]:
    """All commands in a text, those in substitutions among them.

    >>> [command.words for command in simple_commands("cd x && echo $(date) | tee log  # vim")]
    [['cd', 'x'], ['date'], ['echo', '$'], ['tee', 'log']]
    """
    scan = _Scan(text)
    scan.commands("", 0)
    return scan.found


class _Scan:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.found = text, 0, list[SimpleCommand]()
        self._documents: list[tuple[str, bool]] = []

    def commands(self, closer: str, depth: int) -> None:
        """Read up to the character that closes this level, or the end."""
        text, command, opened = self.text, SimpleCommand(), 0
        while self.at < len(text):
            here = text[self.at]
            if here == closer and not opened:
                self.at += 1
                break
            if blank := _BLANK.match(text, self.at):
                self.at = blank.end()
            elif text.startswith("\\\n", self.at):
                self.at += 2
            elif here == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            elif here in "<>" or text.startswith("&>", self.at):
                self._redirection(command, depth)
            elif text.startswith("((", self.at) and not command.words:
                self._balanced(depth)
            elif separator := _SEPARATORS.match(text, self.at):
                opened += (separator[0] == "(") - (separator[0] == ")")
                opened = max(0, opened)  # a pattern of `case` closes what nothing opened
                self.at = separator.end()
                command = self._ended(command, separator[0] in ("|", "|&"))
                if separator[0] == "\n":
                    self._skip_documents()
            elif here.isspace():
                self.at += 1
            else:
                self._word(command, closer, depth)
        self._ended(command, False)

    def _ended(self, command: SimpleCommand, pipe: bool) -> SimpleCommand:
        if command.words or command.redirected:
            self.found.append(command)
        elif pipe is False and command.piped:
            return SimpleCommand(piped=True)  # a line break after a pipe
        return SimpleCommand(piped=pipe)

    def _word(self, command: SimpleCommand, closer: str, depth: int) -> None:
        start = self.at
        word = self.word(closer, depth)
        if self.at == start:  # nothing that a word begins with
            self.at += 1
            return
        if word.endswith("=") and self.text.startswith("(", self.at):  # an array's values are no commands
            self._balanced(depth)
        if self.text[self.at : self.at + 1] in ("<", ">") and word.isdigit():
            return  # the number of a file that is redirected
        if not command.words and word in KEYWORDS:
            return
        command.words.append(word)

    def word(self, closer: str, depth: int) -> str:
        """Read one word."""
        text, parts = self.text, list[str]()
        while self.at < len(text):
            here = text[self.at]
            if here == closer and closer:
                break
            if plain := _PLAIN.match(text, self.at):
                parts.append(plain[0])
                self.at = plain.end()
            elif here == "#":  # within a word it begins no comment
                parts.append(here)
                self.at += 1
            elif here == "\\":
                parts.append(text[self.at + 1 : self.at + 2].replace("\n", ""))
                self.at += 2
            elif here == "'":
                end = text.find("'", self.at + 1)
                end = len(text) if end < 0 else end
                parts.append(text[self.at + 1 : end])
                self.at = end + 1
            elif here == '"':
                self.at += 1
                self._quoted(parts, depth)
            elif here == "$" or here == "`":
                self._expansion(parts, depth)
            elif here in "<>" and text.startswith("(", self.at + 1) and not parts:
                self.at += 2
                self._inner(")", depth)
                parts.append("<")
            else:
                break
        return "".join(parts)

    def _quoted(self, parts: list[str], depth: int) -> None:
        text = self.text
        while self.at < len(text):
            here = text[self.at]
            if plain := _DOUBLE.match(text, self.at):
                parts.append(plain[0])
                self.at = plain.end()
            elif here == '"':
                self.at += 1
                return
            elif here == "\\":
                escaped = text[self.at + 1 : self.at + 2]
                parts.append(escaped if escaped in '"\\$`' else "\\" + escaped)
                self.at += 2
            else:
                self._expansion(parts, depth)

    def _expansion(self, parts: list[str], depth: int) -> None:
        """Read `$...` or a command in backticks; what it stands for is not known."""
        text, here = self.text, self.text[self.at]
        parts.append("$")
        if depth >= DEEPEST:
            self.at = len(text)
        elif here == "`":
            self.at += 1
            self._inner("`", depth)
        elif text.startswith("$((", self.at):
            self.at += 1
            self._balanced(depth + 1)
        elif text.startswith("$(", self.at):
            self.at += 2
            self._inner(")", depth)
        elif text.startswith("${", self.at):
            self.at += 2
            self._braced(depth + 1)
        elif text.startswith("$'", self.at):
            self.at += 2
            while self.at < len(text) and text[self.at] != "'":
                self.at += 2 if text[self.at] == "\\" else 1
            self.at += 1
        else:
            self.at += 1

    def _inner(self, closer: str, depth: int) -> None:
        if depth >= DEEPEST:
            self.at = len(self.text)
            return
        waiting, self._documents = self._documents, []
        self.commands(closer, depth + 1)
        self._documents = waiting

    def _braced(self, depth: int) -> None:
        """Skip to the brace that closes `${`."""
        text, level, dropped = self.text, 1, list[str]()
        while self.at < len(text):
            here = text[self.at]
            if plain := _BRACED.match(text, self.at):
                self.at = plain.end()
            elif here in "{}":
                self.at += 1
                level += 1 if here == "{" else -1
                if not level:
                    return
            elif here == "\\":
                self.at += 2
            elif here == '"':
                self.at += 1
                self._quoted(dropped, depth)
            elif here == "'":
                end = text.find("'", self.at + 1)
                self.at = len(text) if end < 0 else end + 1
            else:
                self._expansion(dropped, depth)

    def _balanced(self, depth: int) -> None:
        """Skip a pair of parentheses, of arithmetic or of an array, at whose first one we are."""
        text, level, dropped = self.text, 0, list[str]()
        while self.at < len(text):
            here = text[self.at]
            if here in "()":
                self.at += 1
                level += 1 if here == "(" else -1
                if level <= 0:
                    return
            elif here == '"':
                self.at += 1
                self._quoted(dropped, depth)
            elif here == "'":
                end = text.find("'", self.at + 1)
                self.at = len(text) if end < 0 else end + 1
            elif here == "\\":
                self.at += 2
            elif here in "$`":
                self._expansion(dropped, depth)
            else:
                self.at += 1

    def _redirection(self, command: SimpleCommand, depth: int) -> None:
        text = self.text
        if text[self.at] in "<>" and text.startswith("(", self.at + 1):
            command.words.append(self.word("", depth))
            return
        sign = next(sign for sign in _REDIRECTIONS if text.startswith(sign, self.at))
        self.at += len(sign)
        if sign.startswith("<") and sign != "<&":
            command.redirected = True
        if blank := _BLANK.match(text, self.at):
            self.at = blank.end()
        target = self.word("", depth)
        if sign in ("<<", "<<-") and target:
            self._documents.append((target, sign == "<<-"))

    def _skip_documents(self) -> None:
        """Skip the here-documents that begin on this line."""
        text = self.text
        for end, tabs in self._documents:
            while self.at < len(text):
                stop = text.find("\n", self.at)
                stop = len(text) if stop < 0 else stop
                line = text[self.at : stop]
                self.at = min(stop + 1, len(text))
                if (line.lstrip("\t") if tabs else line) == end:
                    break
        self._documents = []


_REDIRECTIONS = ("<<<", "<<-", "<<", "<&", "<>", "<", "&>>", "&>", ">>", ">&", ">|", ">")
