"""Programs that wait for somebody at a keyboard, of whom there is none: refused, with what to use instead.

Without this most of them would end at once, as a command's input is empty, and some would stand until the command's limit.
It saves the agent that turn, and tells it the way; it is no wall, and needs to be none. A name counts only where a
command's name stands: `echo vim` and `python vim.py` are fine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from palaestra.research.workspace.commands.words import simple_commands

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[[^\]]*\])?\+?=")
_PYTHON = re.compile(r"(?:python|pypy)[0-9]*(?:\.[0-9]+)*")
_AMOUNT = re.compile(r"[0-9.]+[smhd]?|\{\}|%")
WRAPPERS = frozenset({
    "sudo", "doas", "env", "nohup", "exec", "command", "builtin", "nice", "ionice", "timeout", "stdbuf", "setsid",
    "xargs", "time", "unbuffer", "chronic",
})  # fmt: skip
"""Programs that run another one, which stands behind their options."""
NESTED = 5
"""How deep a text that is run by `bash -c` or `eval` is followed."""
SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})


@dataclass(frozen=True, slots=True)
class Rule:
    """When a program is refused.

    Arguments:
        advice: what to use instead.
        bare: only without arguments, and where nothing is fed to it.
        unless: not with one of these options.
        only: only with one of these options.
    """

    advice: str
    bare: bool = False
    unless: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def holds(self, arguments: list[str], fed: bool) -> bool:
        if self.bare:
            return not fed and not any(not one.startswith("-") or one in ("-c", "-m", "-V", "-h") or one.startswith("--") for one in arguments)  # fmt: skip
        if self.only:
            return any(one in self.only for one in arguments)
        return not any(one in self.unless for one in arguments)


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
    **dict.fromkeys(sorted(SHELLS), Rule("this is a shell already; type the command itself", bare=True)),
    "su": Rule("there is only one user here"),
    "passwd": Rule("there is only one user here"),
}  # fmt: skip
PYTHON = Rule(_CONSOLE + "write a file and run it with: python FILE; or python -c 'CODE'", bare=True)


@dataclass(frozen=True, slots=True)
class Blocklist:
    """What is refused.

    Arguments:
        rules: by the name of the program.
        python: for every Python; `None` refuses none.
    """

    rules: Mapping[str, Rule] = field(default_factory=lambda: RULES)
    python: Rule | None = PYTHON

    def refusal(self, text: str) -> str | None:
        """Why a text of bash is refused, for the agent to read; `None` where it is not."""
        return self._refusal(text, 0)

    def _refusal(self, text: str, depth: int) -> str | None:
        for command in simple_commands(text):
            words = effective(command.words)
            if not words:
                continue
            name, arguments = words[0].rsplit("/", 1)[-1], words[1:]
            rule = self.rules.get(name)
            if rule is None and _PYTHON.fullmatch(name):
                rule = self.python
                if rule is not None and arguments[:2] in (["-m", "pdb"], ["-m", "IPython"], ["-m", "code"]):
                    return f"{name} -m {arguments[1]} is refused: {_CONSOLE}use print, or logging. Nothing was run."
            if rule is not None and rule.holds(arguments, command.piped or command.redirected):
                return f"{name} is refused: {rule.advice}. Nothing was run."
            inner = _inner(name, arguments)
            if inner and depth < NESTED and (found := self._refusal(inner, depth + 1)):
                return found
        return None


NOTHING_REFUSED = Blocklist({}, None)


def effective(words: list[str]) -> list[str]:
    """The command that is run in the end: without assignments, and without what only runs another.

    >>> effective("A=1 timeout -s KILL 5 nice -n 10 vim x".split())
    ['vim', 'x']
    """
    place = 0
    while place < len(words):
        word = words[place]
        if _ASSIGNMENT.match(word):
            place += 1
        elif word == "command" and words[place + 1 : place + 2] in (["-v"], ["-V"]):  # it only asks where one is
            return words[place:]
        elif word in WRAPPERS:
            place += 1
            while place < len(words) and (words[place].startswith("-") or _AMOUNT.fullmatch(words[place])):
                takes = words[place] in ("-u", "-s", "-I", "-k", "-g")  # a user, a signal, a placeholder
                place += 2 if takes else 1
        else:
            return words[place:]
    return []


def _inner(name: str, arguments: list[str]) -> str:
    """The text of bash that a command is given to run, if it is."""
    if name == "eval":
        return " ".join(arguments)
    if name in SHELLS:
        for place, word in enumerate(arguments[:-1]):
            if re.fullmatch(r"-[a-z]*c", word):
                return arguments[place + 1]
    return ""
