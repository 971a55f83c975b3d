"""Commands that search text and files: search_dir, search_file, find_file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from palaestra.research.workspace.commands.base import Command, CommandError, CommandParameter
from palaestra.research.workspace.commands.session import Session
from palaestra.research.workspace.commands.text import truncate_line

MOST, WIDEST = 50, 200
"""The maximum number of matches shown, and of characters per line."""
PATIENCE = 30.0
# Reading stops after the lines that are shown; the program then ends by itself.
_TAKE = (
    f"local __k; builtin mapfile -t -n {MOST + 1} __a < <({{}}); local LC_ALL=C\n"
    f'for __k in "${{{{!__a[@]}}}}"; do __a[__k]=${{{{__a[__k]::{WIDEST}}}}}; done'
)
_SEARCH_DIR = _TAKE.format('builtin cd -- "$2" && exec grep -rnIF --exclude-dir=.git -- "$1" .')
_SEARCH_FILE = _TAKE.format('exec grep -naF -- "$1" "$2"')
_FIND = _TAKE.format('builtin cd -- "$2" && exec find . -name .git -prune -o -name "$1" -print')


def _search_dir(session: Session, arguments: Mapping[str, Any]) -> str:
    term, folder = _term(SEARCH_DIR, arguments["term"]), _folder(session, arguments.get("dir", "."))
    term, lines = _search(session, term, lambda term: _query(session, _SEARCH_DIR, term, folder))
    where = _folder_name(arguments)
    if not lines:
        return f"No line of a file in {where} holds '{term}'. Capital letters count; binary files are not searched."
    return _listing([line.removeprefix("./") for line in lines], f"lines with '{term}' in {where}")


def _search_file(session: Session, arguments: Mapping[str, Any]) -> str:
    term, path = _term(SEARCH_FILE, arguments["term"]), arguments.get("file")
    location = session.open_place("search_file") if path is None else session.files.existing(path)

    def lines_with(term: str) -> list[str]:
        if location.data is None:
            return _query(session, _SEARCH_FILE, term, location.path)
        numbered = enumerate(session.files.text(location).lines, 1)
        matches = (f"{number}:{truncate_line(line, WIDEST)}" for number, line in numbered if term in line)
        return list(itertools.islice(matches, MOST + 1))

    term, lines = _search(session, term, lines_with)
    name = location.given
    if not lines:
        return f"No line of {name} holds '{term}'. Capital letters count."
    return _listing(lines, f"lines with '{term}' in {name}")


def _find_file(session: Session, arguments: Mapping[str, Any]) -> str:
    name, folder = _term(FIND_FILE, arguments["name"]), _folder(session, arguments.get("dir", "."))
    if "/" in name:
        raise FIND_FILE.error(f"NAME is a name without folders, DIR says where to look; got '{name}'")
    name, lines = _search(session, name, lambda name: _query(session, _FIND, name, folder))
    lines = sorted(line.removeprefix("./") for line in lines)
    where = _folder_name(arguments)
    if not lines:
        return f"No file called '{name}' in {where}. * stands for any letters: find_file '*{name.strip('*')}*'"
    return _listing(lines, f"files called '{name}' in {where}")


def _search(session: Session, term: str, search: Callable[[str], list[str]]) -> tuple[str, list[str]]:
    """Search, and return the text that matched with its lines.

    Models often put quotes around the text of a tool call, as in a shell. If nothing matches with them, the text
    without quotes is searched.
    """
    lines = search(term)
    bare = term[1:-1]
    if lines or not session.by_tool or not bare or term[0] not in "\"'" or term[-1] != term[0]:
        return term, lines
    without = search(bare)
    return (bare, without) if without else (term, lines)


def _query(session: Session, script: str, *arguments: str) -> list[str]:
    answer = session.query.ask(script, *arguments, timeout=PATIENCE)
    if answer is None:
        raise CommandError("there are too many matches to show; search for something longer, or in a smaller folder")
    return [line.decode("utf-8", "replace") for line in answer]


def _listing(lines: list[str], what: str) -> str:
    if len(lines) > MOST:
        return "\n".join([f"[the first {MOST} {what}]", *lines[:MOST], f"(more than {MOST}; search for something longer, or in a smaller folder)"])  # fmt: skip
    return "\n".join([f"[{len(lines)} {what}]", *lines])


def _term(command: Command[Session], term: str) -> str:
    if not term or "\n" in term or "\0" in term:
        raise command.error(f"what to look for is a text of one line; got {term[:80]!r}")
    return term


def _folder(session: Session, path: str) -> str:
    location = session.files.locate(path)
    if location.kind != "folder":
        kind = "does not exist" if location.kind in ("missing", "dangling") else "is no folder"
        raise CommandError(f"DIR is a folder to look in, and '{path}' {kind}. Look with: ls")
    return location.path


def _folder_name(arguments: Mapping[str, Any]) -> str:
    path = arguments.get("dir", ".")
    return "the current folder" if path == "." else path


SEARCH_DIR = Command(
    "search_dir",
    _search_dir,
    "Search the files of a folder, and of those below it, for a text as it stands. Shows file, line number and line.",
    (
        CommandParameter("term", "the text", written="in quotes if it has spaces"),
        CommandParameter("dir", "the folder; without it, the current one", required=False),
    ),
    'search_dir "learning_rate =" src',
)
SEARCH_FILE = Command(
    "search_file",
    _search_file,
    "Search a file for a text as it stands. Shows line number and line.",
    (
        CommandParameter("term", "the text", written="in quotes if it has spaces"),
        CommandParameter("file", "the file; without it, the open one", required=False),
    ),
    "search_file def train.py",
)
FIND_FILE = Command(
    "find_file",
    _find_file,
    "Find files and folders by their name in a folder and below it. * in the name stands for any letters.",
    (
        CommandParameter("name", "the name", written="in quotes if it has a *"),
        CommandParameter("dir", "the folder; without it, the current one", required=False),
    ),
    "find_file '*.csv' /data",
)
