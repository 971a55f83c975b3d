"""Refusal of interactive programs, with advice on what to use instead.

Nothing types into the agent's shell, so an editor or a console would end at once or run into the time limit. The check
saves the agent that turn. It looks at the first word of the first line only and is not a security boundary.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON = re.compile(r"python[0-9]*(?:\.[0-9]+)*")
PREFIXES = ("sudo", "env")
"""Words that may precede the program, besides assignments."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When a program is refused.

    Arguments:
        advice: what to use instead.
        bare: refuse it only without arguments and without redirected input.
        unless: options with which it is allowed.
        only: options with which it is refused; without them it is allowed.
    """

    advice: str
    bare: bool = False
    unless: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def applies(self, arguments: list[str], has_input: bool) -> bool:
        """Whether the program is refused with these arguments.

        Arguments:
            has_input: the program reads a file or a here-document.
        """
        if self.bare:
            return not has_input and all(re.fullmatch(r"-[a-zA-Z]+", word) and word not in _RUNS for word in arguments)
        if self.only:
            return any(word in self.only for word in arguments)
        return not any(word in self.unless for word in arguments)


_RUNS = ("-c", "-m", "-V", "-h")
"""Short options with which a console runs something and ends."""


def _each(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


_EDITOR = Rule("to change a file use edit, insert or create; to see it, open")
_PAGER = Rule("to see a file use open, or cat, head and tail")
_MONITOR = Rule("use ps aux, free or df, which print once and end")
_REMOTE = Rule("there is no network here")
_SCREEN = Rule("to run something in the background use: COMMAND > log 2>&1 &")
_CONSOLE = "there is nobody at its console: "

RULES: Mapping[str, Rule] = {
    **_each("vi vim nvim vimdiff view gvim nano pico emacs emacsclient micro joe jed mcedit kak hx helix", _EDITOR),
    **_each("less more most pg", _PAGER),
    **_each("htop btop atop nvtop glances", _MONITOR),
    **_each("ssh telnet ftp sftp mosh", _REMOTE),
    **_each("tmux screen byobu script", _SCREEN),
    "top": Rule("use ps aux, or top -b -n 1", unless=("-b", "-bn1", "-bn", "-v", "-h")),
    "watch": Rule("run the command itself, once or in a loop that ends"),
    "tail": Rule("tail -f never ends; use tail -n 50 FILE", only=("-f", "-F", "--follow", "-fn", "--retry")),
    "gdb": Rule(_CONSOLE + "use gdb -batch -ex COMMAND PROGRAM", unless=("-batch", "--batch", "--version")),
    "jupyter": Rule("write a script and run it with python; jupyter nbconvert is fine", only=("notebook", "lab", "console", "qtconsole")),
    "ed": Rule("to change a file use edit, insert or create", bare=True),
    "ipython": Rule(_CONSOLE + "write a file and run it with: python FILE", bare=True),
    "ipython3": Rule(_CONSOLE + "write a file and run it with: python FILE", bare=True),
    **_each("node irb ghci julia R octave sqlite3 psql mysql bc", Rule(_CONSOLE + "give it a file, or a program as an argument", bare=True)),
    **_each("bash sh dash zsh ksh", Rule("this is a shell already; type the command itself", bare=True)),
    "su": Rule("there is only one user here"),
    "passwd": Rule("there is only one user here"),
}  # fmt: skip
PYTHON = Rule(_CONSOLE + "write a file and run it with: python FILE; or python -c 'CODE'", bare=True)


@dataclass(frozen=True, slots=True)
class Blocklist:
    """The programs that are refused.

    Arguments:
        rules: rules by the name of the program.
        python: the rule of every Python interpreter; `None` refuses none.
    """

    rules: Mapping[str, Rule] = field(default_factory=lambda: RULES)
    python: Rule | None = PYTHON

    def refusal(self, text: str) -> str | None:
        """Return why a bash text is refused, as a message for the agent; `None` if it is allowed.

        >>> Blocklist().refusal("cat notes.txt") is None
        True
        """
        words, has_input = first_command(text)
        if not words:
            return None
        name, arguments = words[0].rsplit("/", 1)[-1], words[1:]
        rule = self.rules.get(name)
        if rule is None and _PYTHON.fullmatch(name):
            rule = self.python
            if rule is not None and arguments[:2] in (["-m", "pdb"], ["-m", "IPython"], ["-m", "code"]):
                return f"{name} -m {arguments[1]} is refused: {_CONSOLE}use print, or logging. Nothing was run."
        if rule is not None and rule.applies(arguments, has_input):
            return f"{name} is refused: {rule.advice}. Nothing was run."
        return None


NOTHING_REFUSED = Blocklist({}, None)


def first_command(text: str) -> tuple[list[str], bool]:
    """Return the words of the first command on the first line, and whether its input is redirected.

    >>> first_command("A=1 sudo vim 'my file' && ls")
    (['vim', 'my file'], False)
    """
    line = text.strip().partition("\n")[0]
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if word[0] in "();<>|&":
                return words, word.startswith("<")
            if words or not (word in PREFIXES or _ASSIGNMENT.match(word)):
                words.append(word)
    except ValueError:  # Unbalanced quotes: bash reports them better.
        return [], False
    return words, False
