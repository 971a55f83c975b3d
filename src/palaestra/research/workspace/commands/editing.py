"""Commands that change files: create, edit, insert, undo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.research.workspace.commands.base import Command, CommandError, CommandParameter, CommandResult
from palaestra.research.workspace.commands.files import WHOLE, Change, FileLocation
from palaestra.research.workspace.commands.lint import LINTER, Finding, new_errors
from palaestra.research.workspace.commands.session import Session
from palaestra.research.workspace.commands.text import Text, split_lines
from palaestra.research.workspace.commands.window import around, window

ERRORS_SHOWN = 10


def _create(session: Session, arguments: Mapping[str, Any]) -> str:
    path, body = arguments["path"], arguments.get("text")
    location = session.files.locate(path)
    if location.kind not in ("missing", "file"):
        location = session.files.existing(path)  # raises with the actual kind
    _check_writable(session, location)
    before = session.files.read(location) if location.kind == "file" else None
    if before and body is None:
        raise CREATE.error(
            f"'{path}' exists already ({location.size} bytes); open it, or give the text that is to take its location"
        )
    after = Text(tuple(split_lines(body or ""))).encode()
    _check(after)
    _write(session, location, after, f"create {path}")
    created = session.files.existing(location.path)
    summary = f"'{path}' is written anew; undo brings the old one back." if before else f"'{path}' is made."
    return f"{summary}{_remarks(created, Text.decode(after))}\n{session.show(created, 1)}"


def _edit(session: Session, arguments: Mapping[str, Any]) -> str | CommandResult:
    first, last = arguments["first"], arguments["last"]
    location, text = _editable(session, "edit")
    total = len(text.lines)
    if not total and (first, last) in ((1, 1), (1, 0), (0, 0)):
        first, last = 1, 0  # an empty file has no lines
    elif first < 1 or last < first or last > total:
        raise EDIT.error(
            f"FIRST:LAST are lines of '{location.given}', from 1 to {total}, FIRST not behind LAST; got {first}:{last}. "
            "To put lines in between use insert"
        )
    return _change(session, "edit", location, text, first, last, split_lines(arguments["text"]))


def _insert(session: Session, arguments: Mapping[str, Any]) -> str | CommandResult:
    line = arguments["line"]
    location, text = _editable(session, "insert")
    if not 0 <= line <= len(text.lines):
        raise INSERT.error(
            f"LINE is the line of '{location.given}' behind which the text goes, from 0 (before the first) to {len(text.lines)}; got {line}"
        )
    new = split_lines(arguments["text"])
    if not new:
        raise INSERT.error("there is no text to insert")
    return _change(session, "insert", location, text, line + 1, line, new)


def _undo(session: Session, arguments: Mapping[str, Any]) -> str:
    if not session.changes.done:
        raise CommandError("undo: there is nothing to undo. Only what create, edit and insert did can be undone")
    change = session.changes.done[-1]
    now = session.shell.read_files([change.relative], len(change.after) + 1).get(change.relative)
    if now != change.after:
        session.changes.forget(change.relative)
        raise CommandError(
            f"undo: '{change.relative}' was changed by something else since '{change.what}', which undo would take away too, "
            f"so it was left as it is. Changes to other files can still be undone: {len(session.changes.done)}"
        )
    path = f"{session.shell.workspace.rstrip('/')}/{change.relative}"
    if change.before is None:
        session.files.remove(change.relative)
        session.changes.done.pop()
        if session.view is not None and session.view.path == path:
            session.view = None
        return f"Undone: {change.what}. '{change.relative}' is gone. {_undo_left(session)}"
    location = session.files.existing(path)
    session.files.write(location, change.before)
    session.changes.done.pop()
    location = session.files.existing(path)
    first = session.view.first if session.view is not None and session.view.path == location.path else 1
    return f"Undone: {change.what}. {_undo_left(session)}\n{session.show(location, first)}"


def _editable(session: Session, name: str) -> tuple[FileLocation, Text]:
    """Return the open file if it can be changed."""
    location = session.open_place(name)
    _check_writable(session, location)
    return location, session.files.text(location)


def _check_writable(session: Session, location: FileLocation) -> None:
    if location.relative is None:
        raise CommandError(
            f"'{location.given}' {f'leads out of the workspace, to {location.path}' if location.link else 'lies outside of the workspace'}; "
            f"only files in {session.shell.workspace} can be changed. Copy it there"
        )
    if location.kind == "file" and not location.writable:
        raise CommandError(
            f"'{location.given}' is read-only. If it is yours, allow it with: chmod u+w '{location.given}'"
        )


def _check(data: bytes) -> None:
    if b"\0" in data:
        raise CommandError("a text cannot hold NUL bytes; let a program write a binary file")
    if len(data) > WHOLE:
        raise CommandError(
            f"a file of at most {WHOLE} bytes can be written here; this has {len(data)}. Let a program write it"
        )


def _change(
    session: Session, name: str, location: FileLocation, text: Text, first: int, last: int, new: Sequence[str]
) -> str | CommandResult:
    """Replace lines and show the result; if that adds errors to a Python file, show these instead."""
    changed = text.replace_lines(first, last, new)
    after = changed.encode()
    _check(after)
    remark = ""
    end = first + len(new) - 1
    if location.path.endswith(".py"):
        was, now = LINTER.check(text.source), LINTER.check(changed.source)
        if was is not None and now is not None:
            if errors := new_errors(was, now):
                return CommandResult(
                    _report_rollback(session, name, location, text, changed, (first, last, end), errors), ok=False
                )
            if now.errors:
                remark = f" Errors that the file had before are still in it:\n{_list_errors(now.errors)}"
    _write(session, location, after, f"{name} {location.given}")
    page = around(changed.lines, first, end, session.window)
    session.view_from(location, page)
    gone = last - first + 1
    did = f"{_lines(gone)} replaced by {len(new)}" if gone and new else _lines(gone) + " deleted" if gone else _lines(len(new)) + " inserted"  # fmt: skip
    return f"{did}. If that is not what you meant: undo.{remark}\n{window(location.path, page)}"


def _report_rollback(
    session: Session,
    name: str,
    location: FileLocation,
    text: Text,
    changed: Text,
    span: tuple[int, int, int],
    errors: Sequence[Finding],
) -> str:
    first, last, end = span
    size = max(10, session.window // 2)
    wanted, had = around(changed.lines, first, end, size), around(text.lines, first, last, size)
    session.view_from(location, had)
    return (
        f"The {name} was not made, because it brings {len(errors)} new error{'s' if len(errors) > 1 else ''} into the file:\n"
        f"{_list_errors(errors)}\nThis is how it would have looked:\n{window(location.path, wanted, 'as you wanted it')}\n"
        f"This is how it is, unchanged:\n{window(location.path, had)}\n"
        f"Send the {name} again, corrected. Look at the line numbers and at the indentation; where a name is defined elsewhere, change that "
        "location first, or write the file with create."
    )


def _write(session: Session, location: FileLocation, after: bytes, what: str) -> None:
    assert location.relative is not None
    session.files.write(location, after)
    session.changes.add(Change(location.relative, location.data, after, what))


def _remarks(location: FileLocation, text: Text) -> str:
    """Describe the errors of a new file. The file is kept: fixing it is cheaper than writing it again."""
    findings = LINTER.check(text.source) if location.path.endswith(".py") else None
    return f" It has errors:\n{_list_errors(findings.errors)}" if findings and findings.errors else ""


def _list_errors(errors: Sequence[Finding]) -> str:
    lines = [f"- {error}" for error in errors[:ERRORS_SHOWN]]
    if len(errors) > ERRORS_SHOWN:
        lines.append(f"- and {len(errors) - ERRORS_SHOWN} more")
    return "\n".join(lines)


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


def _undo_left(session: Session) -> str:
    left = len(session.changes.done)
    return f"{left} more can be undone." if left else "Nothing more can be undone."


CREATE = Command(
    "create",
    _create,
    "Make a file and open it: an empty one, or with a text. With a text, a file that exists is replaced. Folders on the way "
    "are made.",
    (CommandParameter("path", "the file, in the workspace"),),
    "create notes/plan.txt\nFirst measure the baseline.\nend_of_file",
    CommandParameter("text", "what the file is to hold", required=False),
    "end_of_file",
)
EDIT = Command(
    "edit",
    _edit,
    "Replace lines of the open file, both ends included. Without a text they are deleted. Write the indentation as it is to be. "
    "An edit that brings new errors into a Python file is not made, and you are shown why.",
    (
        CommandParameter("first", "the first line to replace", "integer"),
        CommandParameter("last", "the last line to replace", "integer"),
    ),
    "edit 12:13\n    rate = 0.01\n    for epoch in range(20):\nend_of_edit",
    CommandParameter("text", "the new lines"),
    "end_of_edit",
    joined=":",
)
INSERT = Command(
    "insert",
    _insert,
    "Put a text behind a line of the open file. It is checked as an edit is.",
    (CommandParameter("line", "the line behind which it goes; 0 puts it before the first", "integer"),),
    "insert 0\nimport random\nend_of_insert",
    CommandParameter("text", "the new lines"),
    "end_of_insert",
)
UNDO = Command(
    "undo", _undo, "Take the last change back that create, edit or insert made; again, the one before it, and so on."
)
