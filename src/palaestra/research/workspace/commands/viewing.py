"""Commands that show and search files: open, goto, scroll_up, scroll_down, search_dir, search_file, find_file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palaestra.research.workspace.commands.base import Command, CommandError, CommandParameter
from palaestra.research.workspace.commands.session import WINDOW, Session

SCROLLED = WINDOW - 2
"""The lines by which scrolling moves the window; two windows share two lines."""
MOST, WIDEST = 50, 200
"""The maximum number of matches shown, and of characters per line."""
# Reading stops after the lines that are shown; the program then ends by itself.
_TAKE = (
    f"local __k; builtin mapfile -t -n {MOST + 1} __a < <({{}}); local LC_ALL=C\n"
    f'for __k in "${{{{!__a[@]}}}}"; do __a[__k]=${{{{__a[__k]::{WIDEST}}}}}; done'
)
_SEARCH_DIR = _TAKE.format('builtin cd -- "$2" && builtin command -p grep -rnIF --exclude-dir=.git -- "$1" .')
_SEARCH_FILE = _TAKE.format('builtin command -p grep -naF -- "$1" "$2"')
_FIND = _TAKE.format('builtin cd -- "$2" && builtin command -p find . -name .git -prune -o -name "$1" -print')


def _open(session: Session, arguments: Mapping[str, Any]) -> str:
    path, line, view = arguments.get("path"), arguments.get("line"), session.view
    if path is None:
        if view is None:
            raise OPEN.error("PATH is missing, and no file is open")
        path = view.path
    location = session.files.existing(path)
    if line is None:
        return session.show(location, view.first if view is not None and view.path == location.path else 1)
    return session.show_line(location, line)


def _goto(session: Session, arguments: Mapping[str, Any]) -> str:
    return session.show_line(session.locate_open_file("goto"), arguments["line"])


def _scroll_up(session: Session, arguments: Mapping[str, Any]) -> str:
    return session.show(session.locate_open_file("scroll_up"), session.first_line - SCROLLED)


def _scroll_down(session: Session, arguments: Mapping[str, Any]) -> str:
    return session.show(session.locate_open_file("scroll_down"), session.first_line + SCROLLED)


def _search_dir(session: Session, arguments: Mapping[str, Any]) -> str:
    term, folder = _check_term(SEARCH_DIR, arguments["term"]), _locate_folder(session, arguments)
    lines = _query(session, _SEARCH_DIR, term, folder)
    where = arguments.get("dir", "the current folder")
    if not lines:
        return f"No line of a file in {where} holds '{term}'. Capital letters count; binary files are not searched."
    return _list_matches(lines, f"lines with '{term}' in {where}")


def _search_file(session: Session, arguments: Mapping[str, Any]) -> str:
    term, path = _check_term(SEARCH_FILE, arguments["term"]), arguments.get("file")
    location = session.locate_open_file("search_file") if path is None else session.files.existing(path)
    lines = _query(session, _SEARCH_FILE, term, location.path)
    if not lines:
        return f"No line of {location.given} holds '{term}'. Capital letters count."
    return _list_matches(lines, f"lines with '{term}' in {location.given}")


def _find_file(session: Session, arguments: Mapping[str, Any]) -> str:
    name, folder = _check_term(FIND_FILE, arguments["name"]), _locate_folder(session, arguments)
    if "/" in name:
        raise FIND_FILE.error(f"NAME is a name without folders, DIR says where to look; got '{name}'")
    lines = sorted(_query(session, _FIND, name, folder))
    where = arguments.get("dir", "the current folder")
    if not lines:
        return f"No file called '{name}' in {where}. * stands for any letters: find_file '*{name.strip('*')}*'"
    return _list_matches(lines, f"files called '{name}' in {where}")


def _query(session: Session, script: str, *arguments: str) -> list[str]:
    answer = session.query.ask(script, *arguments, timeout=30.0)
    if answer is None:
        raise CommandError("there are too many matches to show; search for something longer, or in a smaller folder")
    return [line.decode("utf-8", "replace").removeprefix("./") for line in answer]


def _list_matches(lines: list[str], what: str) -> str:
    if len(lines) <= MOST:
        return "\n".join([f"[{len(lines)} {what}]", *lines])
    more = f"(more than {MOST}; search for something longer, or in a smaller folder)"
    return "\n".join([f"[the first {MOST} {what}]", *lines[:MOST], more])


def _check_term(command: Command[Session], term: str) -> str:
    if not term or "\n" in term or "\0" in term:
        raise command.error(f"a text of one line to look for is expected; got {term[:80]!r}")
    return term


def _locate_folder(session: Session, arguments: Mapping[str, Any]) -> str:
    path = arguments.get("dir", ".")
    location = session.files.locate(path)
    if location.kind != "folder":
        kind = "does not exist" if location.kind in ("missing", "dangling") else "is not a folder"
        raise CommandError(f"DIR is a folder to look in, and '{path}' {kind}. Look with: ls")
    return location.path


OPEN = Command(
    "open",
    _open,
    "Open a file and show a window of its lines with their numbers. Files of the workspace can then be changed with edit "
    "and insert; files outside of it can be read. Without a path, the open file is shown again.",
    (
        CommandParameter("path", "the file, from the current folder or absolute", required=False),
        CommandParameter("line", "a line that the window is to show", "integer", required=False),
    ),
    "open train.py 40",
)
GOTO = Command(
    "goto",
    _goto,
    "Move the window of the open file to a line.",
    (CommandParameter("line", "the line to show", "integer"),),
    "goto 120",
)
SCROLL_UP = Command("scroll_up", _scroll_up, "Move the window of the open file up by its height.")
SCROLL_DOWN = Command("scroll_down", _scroll_down, "Move the window of the open file down by its height.")
FOLDER = CommandParameter("dir", "the folder; without it, the current one", required=False)
SEARCH_DIR = Command(
    "search_dir",
    _search_dir,
    "Search the files of a folder, and of those below it, for a text as it stands. Shows file, line number and line.",
    (CommandParameter("term", "the text"), FOLDER),
    'search_dir "learning_rate =" src',
)
SEARCH_FILE = Command(
    "search_file",
    _search_file,
    "Search a file for a text as it stands. Shows line number and line.",
    (
        CommandParameter("term", "the text"),
        CommandParameter("file", "the file; without it, the open one", required=False),
    ),
    "search_file def train.py",
)
FIND_FILE = Command(
    "find_file",
    _find_file,
    "Find files and folders by their name in a folder and below it. * in the name stands for any letters.",
    (CommandParameter("name", "the name"), FOLDER),
    "find_file '*.csv' /data",
)
