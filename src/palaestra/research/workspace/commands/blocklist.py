"""Refusal of interactive programs, with advice on what to use instead.

Nothing types into the agent's shell, so an editor or a console would end at once or run into the time limit. The check
saves the agent that turn. It looks at the first command of the first line only and is not a security boundary.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

PREFIX = re.compile(r"sudo|env|[A-Za-z_]\w*=.*")
"""Words that may precede the program."""
_CONSOLE = "nothing can be typed into its console: "
_PYTHON = f"{_CONSOLE}write a file and run it with: python FILE; or python -c 'CODE'"
_ANY = r"( .*)?"
_BARE = r"( -(?![cmVh]\b)[a-zA-Z]+)*"
"""Short options, except those that run something and exit: -c, -m, -V, -h."""

RULES: Mapping[str, str] = {
    rf"(vi|vim|nvim|vimdiff|view|gvim|nano|pico|emacs|emacsclient|micro|joe|jed|mcedit|kak|hx|helix){_ANY}":
        "to change a file use edit, insert or create; to see it, open",
    rf"ed{_BARE}": "to change a file use edit, insert or create",
    rf"(less|more|most|pg){_ANY}": "to see a file use open, or cat, head and tail",
    rf"(htop|btop|atop|nvtop|glances){_ANY}": "use ps aux, free or df, which print once and end",
    rf"(ssh|telnet|ftp|sftp|mosh){_ANY}": "there is no network here",
    rf"(tmux|screen|byobu|script){_ANY}": "to run something in the background use: COMMAND > log 2>&1 &",
    rf"top(?!.* -(b|v|h)){_ANY}": "use ps aux, or top -b -n 1",
    rf"watch{_ANY}": "run the command itself, once or in a loop that ends",
    rf"tail\b.* (-f|-F|--follow|-fn|--retry){_ANY}": "tail -f never ends; use tail -n 50 FILE",
    rf"gdb(?!.* (-batch|--batch|--version)){_ANY}": f"{_CONSOLE}use gdb -batch -ex COMMAND PROGRAM",
    rf"jupyter (notebook|lab|console|qtconsole){_ANY}": "write a script and run it with python; jupyter nbconvert is fine",
    rf"i?python[0-9.]*({_BARE}| -m (pdb|IPython|code)\b.*)": _PYTHON,
    rf"(node|irb|ghci|julia|R|octave|sqlite3|psql|mysql|bc){_BARE}": f"{_CONSOLE}give it a file, or a program as an argument",
    rf"(bash|sh|dash|zsh|ksh){_BARE}": "this is a shell already; type the command itself",
    rf"(su|passwd){_ANY}": "there is only one user here",
}  # fmt: skip
"""Advice by a regular expression that matches the whole command: the program's name, and its arguments."""


def refuse(text: str) -> str | None:
    """Return why a bash text is refused, as a message for the agent; `None` if it is allowed.

    >>> refuse("cat notes.txt") is None
    True
    """
    command = first_command(text)
    for pattern, advice in RULES.items():
        if re.fullmatch(pattern, command):
            return f"{command.split()[0]} is refused: {advice}. Nothing was run."
    return None


def first_command(text: str) -> str:
    """Return the first command on the first line, without prefixes and folders of the program.

    A command that reads a file or a here-document ends with `<`.

    >>> first_command("A=1 sudo /usr/bin/vim 'my file' && ls")
    'vim my file'
    """
    lexer = shlex.shlex(text.strip().partition("\n")[0], posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if word[0] in "();<>|&":
                words += ["<"] if word[0] == "<" else []
                break
            if words or not PREFIX.fullmatch(word):
                words.append(word)
    except ValueError:  # Unbalanced quotes: bash reports them better.
        return ""
    return " ".join([words[0].rpartition("/")[2], *words[1:]]) if words else ""
