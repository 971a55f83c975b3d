"""Commands for files: open, goto, scroll_up, scroll_down, search_dir, search_file, find_file, create, edit, insert, undo."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.core.records import Json
from palaestra.research.workspace.commands.base import Command, CommandError, CommandParameter, CommandResult, command
from palaestra.research.workspace.commands.files import (
    MAX_BYTES,
    FileLocation,
    Text,
    count_lines,
    select_around,
    show_window,
    truncate_line,
)
from palaestra.research.workspace.commands.lint import Finding, find_errors, new_errors
from palaestra.research.workspace.commands.session import WINDOW, Change, Session

_SCROLLED = WINDOW - 2
"""The lines by which scrolling moves the window; two windows share two lines."""
_MAX_MATCHES, _MAX_WIDTH = 50, 200
"""The maximum number of matches shown, and of characters per line."""
_MAX_ERRORS = 10
MAX_UNDO, _MAX_UNDO_BYTES = 100, 32 << 20
"""The number of changes that can be undone, and the bytes kept for that."""
_FOLDER = CommandParameter("dir", "the folder; without it, the current one", required=False)
# Reading stops after the lines that are shown; the program then ends by itself.
_TAKE = (
    f"local __k; builtin mapfile -t -n {_MAX_MATCHES + 1} __a < <(PATH=/usr/bin:/bin; {{}}); local LC_ALL=C\n"
    f'for __k in "${{{{!__a[@]}}}}"; do __a[__k]=${{{{__a[__k]::{_MAX_WIDTH}}}}}; done'
)
_SEARCH_DIR = _TAKE.format('builtin cd -- "$2" && builtin exec grep -rnIF --exclude-dir=.git -- "$1" .')
_SEARCH_FILE = _TAKE.format('builtin exec grep -naF -- "$1" "$2"')
_FIND = _TAKE.format('builtin cd -- "$2" && builtin exec find . -name .git -prune -o -name "$1" -print')


@command(
    CommandParameter("path", "the file, from the current folder or absolute", required=False),
    CommandParameter("line", "a line that the window is to show, or the nearest one", "integer", required=False),
    example="open train.py 40",
)
def open_(session: Session, arguments: Json) -> str:
    """Open a file and show a window of its lines with their numbers. Files of the workspace can then be changed with edit
    and insert; files outside of it can be read. Without a path, the open file is shown again.
    """
    path, line, view = arguments.get("path"), arguments.get("line"), session.view
    if path is None:
        if view is None:
            raise open_.error("PATH is missing, and no file is open")
        path = view.path
    location = session.files.existing(path)
    if line is None:
        return session.show(location, view.first if view is not None and view.path == location.path else 1)
    return session.show_line(location, max(1, line), clamp=True)


@command(CommandParameter("line", "the line to show", "integer"), example="goto 120")
def goto(session: Session, arguments: Json) -> str:
    """Move the window of the open file to a line."""
    return session.show_line(session.locate_open_file("goto"), arguments["line"])


@command()
def scroll_up(session: Session, arguments: Json) -> str:
    """Move the window of the open file up by its height."""
    return session.show(session.locate_open_file("scroll_up"), session.first_line - _SCROLLED)


@command()
def scroll_down(session: Session, arguments: Json) -> str:
    """Move the window of the open file down by its height."""
    return session.show(session.locate_open_file("scroll_down"), session.first_line + _SCROLLED)


@command(CommandParameter("term", "the text"), _FOLDER, example='search_dir "learning_rate =" src')
def search_dir(session: Session, arguments: Json) -> str:
    """Search the files of a folder, and of those below it, for a text as it stands. Shows file, line number and line."""
    term, folder = _check_term(search_dir, arguments["term"]), _locate_folder(session, arguments)
    lines = _query(session, _SEARCH_DIR, term, folder)
    where = arguments.get("dir", "the current folder")
    if not lines:
        return f"No line of a file in {where} holds '{term}'. Capital letters count; binary files are not searched."
    return _list_matches(lines, f"lines with '{term}' in {where}")


@command(
    CommandParameter("term", "the text"),
    CommandParameter("file", "the file; without it, the open one", required=False),
    example="search_file def train.py",
)
def search_file(session: Session, arguments: Json) -> str:
    """Search a file for a text as it stands. Shows line number and line."""
    term, path = _check_term(search_file, arguments["term"]), arguments.get("file")
    location = session.locate_open_file("search_file") if path is None else session.files.existing(path)
    if location.data is None:
        lines = _query(session, _SEARCH_FILE, term, location.path)
    else:
        numbered = enumerate(session.files.text(location).lines, 1)
        lines = [f"{number}:{truncate_line(line, _MAX_WIDTH)}" for number, line in numbered if term in line]
    if not lines:
        return f"No line of {location.given} holds '{term}'. Capital letters count."
    return _list_matches(lines, f"lines with '{term}' in {location.given}")


@command(CommandParameter("name", "the name"), _FOLDER, example="find_file '*.csv' /data")
def find_file(session: Session, arguments: Json) -> str:
    """Find files and folders by their name in a folder and below it. * in the name stands for any letters."""
    name, folder = _check_term(find_file, arguments["name"]), _locate_folder(session, arguments)
    if "/" in name:
        raise find_file.error(f"NAME is a name without folders, DIR says where to look; got '{name}'")
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
    if len(lines) <= _MAX_MATCHES:
        return "\n".join([f"[{len(lines)} {what}]", *lines])
    more = f"(more than {_MAX_MATCHES}; search for something longer, or in a smaller folder)"
    return "\n".join([f"[the first {_MAX_MATCHES} {what}]", *lines[:_MAX_MATCHES], more])


def _check_term(user: Command, term: str) -> str:
    if not term or "\n" in term or "\0" in term:
        raise user.error(f"a text of one line to look for is expected; got {term[:80]!r}")
    return term


def _locate_folder(session: Session, arguments: Json) -> str:
    path = arguments.get("dir", ".")
    location = session.files.locate(path)
    if location.kind != "folder":
        kind = "does not exist" if location.kind in ("missing", "dangling") else "is not a folder"
        raise CommandError(f"DIR is a folder to look in, and '{path}' {kind}. Look with: ls")
    return location.path


# Changes


# The line numbers that edit, insert and open accept beyond the end of a file, the empty line of a new file and the
# opening of a file that cannot be created again are those of MLGym, because agents have learned to use them.


@command(
    CommandParameter("path", "the file, in the workspace"),
    example="create notes/plan.txt\nFirst measure the baseline.\nend_of_file",
    body=CommandParameter("text", "the content of the file", required=False),
    end="end_of_file",
)
def create(session: Session, arguments: Json) -> str | CommandResult:
    """Create a file, with a text or with one empty line, and open it. With a text, an existing file is replaced. Missing
    folders are created.
    """
    path, body = arguments["path"], arguments.get("text")
    location = session.files.locate(path)
    if location.kind not in ("missing", "file"):
        location = session.files.existing(path)  # Raises with the actual kind.
    _check_writable(session, location)
    if location.kind == "file" and location.data != b"" and body is None:
        problem = f"create: '{path}' already exists, so it was opened. Edit it, or give a text to replace it"
        return CommandResult(f"{problem}\n{session.show(location, 1)}", ok=False, kind="error")
    after = Text(("",) if body is None else tuple(_split_lines(body)))
    _write(session, location, after, f"create {path}")
    created = session.files.existing(location.path)
    summary = f"'{path}' was replaced; undo restores the old version." if location.data else f"'{path}' was created."
    # A new file with errors is kept: fixing it is cheaper than writing it again.
    findings = find_errors(after.source) if created.path.endswith(".py") else None
    if findings and findings.errors:
        summary += f" It has errors:\n{_list_errors(findings.errors)}"
    return f"{summary}\n{session.show(created, 1)}"


@command(
    CommandParameter("first", "the first line to replace; beyond the end, the text is appended", "integer"),
    CommandParameter("last", "the last line to replace; beyond the end, all that follow FIRST", "integer"),
    example="edit 12:13\n    rate = 0.01\n    for epoch in range(20):\nend_of_edit",
    body=CommandParameter("text", "the new lines"),
    end="end_of_edit",
    joined=":",
    tail=CommandParameter("file", "the open file", required=False),
)
def edit(session: Session, arguments: Json) -> str | CommandResult:
    """Replace lines of the open file, both ends included. Without a text they are deleted. Include the indentation. An
    edit that adds errors to a Python file is not applied, and the errors are shown.
    """
    first, last = arguments["first"], arguments["last"]
    location, text = _open_text(session, "edit")
    if "file" in arguments and session.files.locate(arguments["file"]).path != location.path:
        raise edit.error(f"the open file is '{location.path}'; open '{arguments['file']}' before you edit it")
    if first < 1 or last < first - 1:
        lines = f"lines of '{location.given}', which has {len(text.lines)}"
        raise edit.error(f"expected FIRST:LAST, {lines}, with 1 <= FIRST <= LAST; got {first}:{last}")
    first = min(first, len(text.lines) + 1)
    last = min(last, len(text.lines))
    return _change(session, "edit", location, text, first, last, _split_lines(arguments["text"]))


@command(
    CommandParameter(
        "line", "the line after which to insert; 0: before the first; beyond the end: at the end", "integer"
    ),
    example="insert 0\nimport random\nend_of_insert",
    body=CommandParameter("text", "the new lines"),
    end="end_of_insert",
)
def insert(session: Session, arguments: Json) -> str | CommandResult:
    """Insert a text after a line of the open file. It is checked like an edit."""
    line, new = arguments["line"], _split_lines(arguments["text"])
    location, text = _open_text(session, "insert")
    if line < 0:
        raise insert.error(f"expected LINE, the line after which to insert, 0 for before the first; got {line}")
    if not new:
        raise insert.error("there is no text to insert")
    line = min(line, len(text.lines))
    return _change(session, "insert", location, text, line + 1, line, new)


@command()
def undo(session: Session, arguments: Json) -> str:
    """Undo the last change by create, edit or insert. Repeat it to undo earlier changes."""
    if not session.changes:
        raise CommandError("undo: there is nothing to undo. Only create, edit and insert can be undone")
    change = session.changes[-1]
    now = session.shell.read_files([change.relative], len(change.after) + 1).get(change.relative)
    if now != change.after:
        session.changes = [other for other in session.changes if other.relative != change.relative]
        raise CommandError(
            f"undo: '{change.relative}' was changed by another command since '{change.what}', so it was not restored. "
            f"Changes to other files can still be undone: {len(session.changes)}"
        )
    path = f"{session.shell.workspace.rstrip('/')}/{change.relative}"
    if change.before is None:
        session.files.remove(change.relative)
        if session.view is not None and session.view.path == path:
            session.view = None
        shown = f"'{change.relative}' was deleted."
    else:
        session.files.write(session.files.existing(path), change.before)
        location = session.files.existing(path)
        first = session.first_line if session.view is not None and session.view.path == location.path else 1
        shown = session.show(location, first)
    session.changes.pop()
    return f"Undone: {change.what}. Changes that can still be undone: {len(session.changes)}.\n{shown}"


def _split_lines(text: str) -> list[str]:
    """Split a text of the agent into lines. A final newline does not start another line.

    >>> _split_lines("a\\nb\\n"), _split_lines("a\\nb"), _split_lines(""), _split_lines("\\n")
    (['a', 'b'], ['a', 'b'], [], [''])
    """
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text else []


def _open_text(session: Session, name: str) -> tuple[FileLocation, Text]:
    """Return the open file if it can be changed."""
    location = session.locate_open_file(name)
    _check_writable(session, location)
    return location, session.files.text(location)


def _check_writable(session: Session, location: FileLocation) -> None:
    if location.relative is None:
        raise CommandError(
            f"'{location.given}' is outside the workspace, at {location.path}. "
            f"Only files in {session.shell.workspace} can be changed; copy it there"
        )
    if location.kind == "file" and not location.writable:
        raise CommandError(f"'{location.given}' is read-only. Allow writing with: chmod u+w '{location.given}'")


def _change(
    session: Session, name: str, location: FileLocation, text: Text, first: int, last: int, new: Sequence[str]
) -> str | CommandResult:
    """Replace lines and show the result; if that adds errors to a Python file, show these instead."""
    changed = text.replace_lines(first, last, new)
    remark, end = "", first + len(new) - 1
    if location.path.endswith(".py"):
        was, now = find_errors(text.source), find_errors(changed.source)
        errors = new_errors(was, now) if was is not None and now is not None else []
        if errors:
            size = WINDOW // 2
            wanted, had = select_around(changed.lines, first, end, size), select_around(text.lines, first, last, size)
            session.set_view(location, had)
            return CommandResult(
                f"The {name} was not applied, because it adds {len(errors)} new error{'s' if len(errors) > 1 else ''} to the file:\n"
                f"{_list_errors(errors)}\nThe result would have been:\n{show_window(location.path, wanted, 'not applied')}\n"
                f"The file is unchanged:\n{show_window(location.path, had)}\n"
                f"Send the {name} again, corrected. Look at the line numbers and at the indentation; if a name is defined elsewhere, change "
                "that place first, or write the file with create.",
                ok=False,
            )
        if now is not None and now.errors:
            remark = f" The file still has these earlier errors:\n{_list_errors(now.errors)}"
    _write(session, location, changed, f"{name} {location.given}")
    page = select_around(changed.lines, first, end, WINDOW)
    session.set_view(location, page)
    gone = last - first + 1
    if gone and new:
        summary = f"{count_lines(gone)} replaced by {len(new)}"
    else:
        summary = f"{count_lines(gone)} deleted" if gone else f"{count_lines(len(new))} inserted after line {last}"
    return f"{summary}. To revert: undo.{remark}\n{show_window(location.path, page)}"


def _write(session: Session, location: FileLocation, text: Text, what: str) -> None:
    """Write a file of the workspace and remember the change for `undo`."""
    assert location.relative is not None
    after = text.encode()
    if b"\0" in after or len(after) > MAX_BYTES:
        allowed = f"at most {MAX_BYTES} bytes without NUL bytes"
        raise CommandError(f"expected a text of {allowed}; write other files with a program")
    session.files.write(location, after)
    changes = [*session.changes, Change(location.relative, location.data, after, what)][-MAX_UNDO:]
    while len(changes) > 1 and sum(len(c.before or b"") + len(c.after) for c in changes) > _MAX_UNDO_BYTES:
        del changes[0]
    session.changes = changes


def _list_errors(errors: Sequence[Finding]) -> str:
    lines = [f"- {error}" for error in errors[:_MAX_ERRORS]]
    if len(errors) > _MAX_ERRORS:
        lines.append(f"- and {len(errors) - _MAX_ERRORS} more")
    return "\n".join(lines)
