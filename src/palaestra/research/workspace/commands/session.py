"""The session of one episode: its state, the entry points for actions, and the commands that open no file."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from palaestra.core.errors import PalaestraError, suggest
from palaestra.core.records import Json
from palaestra.core.registry import describe_error_within
from palaestra.core.tables import load_table
from palaestra.core.text import clean_text
from palaestra.research.workspace.commands.base import (
    BrokenCommandError,
    Command,
    CommandError,
    CommandParameter,
    CommandResult,
    Hooks,
    command,
    from_text,
    load_commands,
    parse_arguments,
)
from palaestra.research.workspace.commands.files import FileLocation, Files, Page, ShellQuery, show_window
from palaestra.research.workspace.commands.memory import Memory
from palaestra.sandbox.base import Shell

WINDOW = 100
"""The lines of a window."""
_MAX_QUERY_SECONDS = 40.0
"""Seconds that the shell queries of one command may take together."""
_COMMAND_AFTER_BASH = re.compile(r"\s*bash[ \t]+([A-Za-z_]\w*(?:[ \t][^;&>]*)?)\s*")
_NOT_A_SCRIPT = re.compile(r"\A(?:bash: \w+: No such file or directory|\S+: \S+: cannot execute binary file)\Z")
"""A command that is typed as an argument of bash, and the answer of bash, which expects a script."""


class _View(NamedTuple):
    """The lines of a file that the agent sees."""

    path: str
    first: int
    last: int
    total: int


class Change(NamedTuple):
    """A change of a workspace file by a command; `before` is `None` if the file was new."""

    relative: str
    before: bytes | None
    after: bytes
    what: str


class Session:
    """The commands of one episode and their shared state. One action at a time.

    Any input of an agent returns a `CommandResult`. Exceptions mean that something else failed:
    `SandboxError` from the shell, `BrokenCommandError` from the code of a command, `StorageError` from the memory file,
    and other errors from the hooks.

    Arguments:
        shell: the agent's shell.
        hooks: what validate and submit do.
        commands: the names of the agent's commands; all registered ones if empty.
        memory: a file that keeps notes across episodes.
        timeout: the maximum seconds of a bash command; by default the shell's own limit.

    Example:
        >>> from palaestra.sandbox import make_sandbox
        >>> shell = make_sandbox().shell(files={"main.py": "print(1)"})  # doctest: +SKIP
        >>> Session(shell, hooks).run("open main.py").text  # doctest: +SKIP
        '[file /workspace/main.py, 1 line]\\n1|print(1)'
    """

    def __init__(
        self,
        shell: Shell,
        hooks: Hooks,
        commands: Iterable[str] = (),
        memory: Path | None = None,
        timeout: float | None = None,
    ) -> None:
        self.shell, self.hooks, self.timeout = shell, hooks, timeout
        self.commands: dict[str, Command] = load_commands(commands)
        self.memory = Memory(memory)
        self.query = ShellQuery(shell, [name for name, command in self.commands.items() if command.textual])
        self.files = Files(self.query)
        self.changes: list[Change] = []
        self.view: _View | None = None
        self.ok = True
        """Whether the last action succeeded."""

    def run(self, text: str) -> CommandResult:
        """Perform an action given as text: a command if the first word is one, else bash if the agent has it."""
        text = clean_text(text).replace("\r\n", "\n")
        words = text.split(None, 1)
        command = self.commands.get(words[0]) if words else None
        if command is not None and command.textual:
            return self._perform(command, lambda: from_text(command, text))
        if "bash" not in self.commands:
            name = words[0][:80] if words else ""
            message = f"there is no command '{name}', and no bash; a message is one of: {', '.join(self.commands)}"
            return self._record(CommandResult(message, False, "error"))
        return self._record(self.run_bash(text))

    def call(self, name: str, arguments: Json | str) -> CommandResult:
        """Perform an action given as a tool call, including `bash`; the arguments may be JSON text."""
        command = self.commands.get(name)
        if command is None:
            message = f"there is no tool '{name[:80]}'; {suggest(name[:80], self.commands)}"
            return self._record(CommandResult(message, False, "error"))
        return self._perform(command, lambda: parse_arguments(command, arguments))

    def run_bash(self, text: str) -> CommandResult:
        """Run a text in the agent's shell, unless it starts an interactive program."""
        refusal = refuse(text)
        if refusal is not None:
            return CommandResult(refusal, ok=False, kind="blocked")
        result = self.query.execute(text, self.timeout)
        output = (self.query.take_stray() + result.output).decode("utf-8", "replace").rstrip("\n")
        if (command := _COMMAND_AFTER_BASH.fullmatch(text)) and _NOT_A_SCRIPT.match(output):
            return self.run_bash(command[1])  # Nothing has run: `bash ls` would run a script named ls.
        note = result.note or ("" if result.ok else f"exit code {result.exit_code}")
        return CommandResult(output, result.ok, "bash", note, result.exit_code, result.seconds)

    def state(self) -> Json:
        """Return the state for templates: `open_file`, `working_dir`, the `window` as `FIRST-LAST of TOTAL`, and `ok`,
        whether the last action succeeded.

        File and window are empty if no file is open.
        """
        view = self.view
        return {
            "open_file": "" if view is None else view.path,
            "working_dir": self.query.folder,
            "window": "" if view is None else f"{view.first}-{view.last} of {view.total}",
            "ok": self.ok,
        }

    # For commands

    @property
    def first_line(self) -> int:
        """The first line of the open window."""
        return 1 if self.view is None else self.view.first

    def locate_open_file(self, name: str) -> FileLocation:
        """Return the open file, for the command `name`."""
        if self.view is None:
            raise CommandError(f"{name}: no file is open. Open one first: open PATH")
        location = self.files.locate(self.view.path)
        if location.kind != "file":
            self.view = None
            return self.files.existing(location.path)  # Raises with the actual kind.
        return location

    def show(self, location: FileLocation, first: int) -> str:
        """Open a file at a line and return its window."""
        return self._show_page(location, self.files.page(location, first, WINDOW))

    def show_line(self, location: FileLocation, line: int, clamp: bool = False) -> str:
        """Open a file and show a line, with some lines above it.

        Arguments:
            clamp: show the last line instead of one beyond the end.
        """
        if line < 1:
            raise CommandError(f"LINE counts from 1; got {line}")
        page = self.files.page(location, line - WINDOW // 4, WINDOW)
        if line > max(1, page.total) and not clamp:
            raise CommandError(f"'{location.given}' has {page.total} lines; there is no line {line}")
        return self._show_page(location, page)

    def _show_page(self, location: FileLocation, page: Page) -> str:
        self.set_view(location, page)
        return show_window(location.path, page, "" if location.relative is not None else "read-only")

    def set_view(self, location: FileLocation, page: Page) -> None:
        """Set the open window."""
        self.view = _View(location.path, page.first, page.first + max(0, len(page.lines) - 1), page.total)

    def _perform(self, command: Command, arguments: Callable[[], Json]) -> CommandResult:
        start = time.monotonic()
        self.query.deadline = start + min(_MAX_QUERY_SECONDS, self.timeout or _MAX_QUERY_SECONDS)
        try:
            done = command.perform(self, arguments())
        except CommandError as error:
            done = CommandResult(str(error), ok=False, kind="error")
        except PalaestraError:
            raise
        except Exception as error:  # A user-defined command may raise anything.
            code = getattr(command.perform, "__code__", None)
            why = describe_error_within(error, Path(code.co_filename if code else "/"))
            raise BrokenCommandError(command.name, why) from error
        finally:
            self.query.deadline = math.inf
        outcome = CommandResult(done) if isinstance(done, str) else done
        if not isinstance(outcome, CommandResult):
            why = f"it must return a text or a CommandResult; got {type(done).__name__}"
            raise BrokenCommandError(command.name, why)
        seconds = outcome.seconds or time.monotonic() - start
        return self._record(replace(outcome, name=command.name, seconds=seconds))

    def _record(self, outcome: CommandResult) -> CommandResult:
        self.ok = outcome.ok
        return outcome


# Interactive programs

# Nothing types into the agent's shell, so an editor or a console would end at once or run into the time limit. The check
# saves the agent that turn. It looks at the first command of the first line only and is not a security boundary.

_PREFIX = re.compile(r"sudo|env|[A-Za-z_]\w*=.*")
"""Words that may precede the program."""
_RULES: Mapping[str, str] = load_table(__file__, "refused")
"""Advice by a regular expression that matches the whole command: the program's name, and its arguments."""


def refuse(text: str) -> str | None:
    """Return why a bash text is refused, as a message for the agent; `None` if it is allowed.

    >>> refuse("cat notes.txt") is None
    True
    """
    command = _first_command(text)
    for pattern, advice in _RULES.items():
        if re.fullmatch(pattern, command):
            return f"{command.split()[0]} is refused: {advice}. Nothing was run."
    return None


def _first_command(text: str) -> str:
    """Return the first command on the first line, without prefixes and folders of the program.

    A command that reads a file or a here-document ends with `<`.

    >>> _first_command("A=1 sudo /usr/bin/vim 'my file' && ls")
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
            if words or not _PREFIX.fullmatch(word):
                words.append(word)
    except ValueError:  # Unbalanced quotes: bash reports them better.
        return ""
    return " ".join([words[0].rpartition("/")[2], *words[1:]]) if words else ""


_MAX_KEY, _MAX_TEXT, _MAX_NOTES = 200, 20_000, 1000
"""Characters of a key and of a note, and the number of notes."""
_MAX_SHOWN = 10
"""The maximum number of notes in one answer; of the others only the keys are shown."""


@command(
    CommandParameter("command", "what bash is to run, of any number of lines"),
    example="python train.py --epochs 3 2>&1 | tail -n 20",
    textual=False,
)
def bash(session: Session, arguments: Json) -> CommandResult:
    """Run a text with bash, in a shell that stays: the current folder, variables and background processes are kept for the
    next command. Nothing is typed into it, so programs that wait for input do not work. A command that exceeds the time
    limit is ended.
    """
    return session.run_bash(arguments["command"].replace("\r\n", "\n"))


@command()
def validate(session: Session, arguments: Json) -> str | CommandResult:
    """Have your work as it is now scored on the validation data, and go on. How often this can be done is limited."""
    return session.hooks.validate()


@command()
def submit(session: Session, arguments: Json) -> str | CommandResult:
    """Hand your work in as it is now. It is scored, and the episode ends."""
    return session.hooks.submit()


@command(
    CommandParameter("key", "one word that names the note"),
    CommandParameter("text", "the note, of any number of lines", rest=True),
    example="memory_write best_so_far two hidden layers of 64, learning rate 0.003: validation 0.871",
)
def memory_write(session: Session, arguments: Json) -> str:
    """Write a note down under a key, to be read later, also when the conversation has grown too long to see. A note with
    the same key is replaced.
    """
    key, text = arguments["key"].strip(), arguments["text"]
    if not key or len(key) > _MAX_KEY or len(text) > _MAX_TEXT:
        raise memory_write.error(
            f"KEY has 1 to {_MAX_KEY} characters and TEXT at most {_MAX_TEXT}; got {len(key)} and {len(text)}"
        )
    notes = session.memory.notes()
    if len(notes) >= _MAX_NOTES and key not in notes:
        raise memory_write.error(f"the memory is full ({_MAX_NOTES} notes); replace a note by using its key")
    session.memory.write(key, text)
    return f"{'Replaced' if key in notes else 'Stored'} the note '{key}'. Notes in memory: {len({*notes, key})}."


@command(CommandParameter("query", "words to look for", required=False, rest=True), example="memory_read learning rate")
def memory_read(session: Session, arguments: Json) -> str:
    """Show the notes whose key or text shares words with the query, the best first; without a query, the newest."""
    query = arguments.get("query", "")
    notes = session.memory.search(query)
    if not notes:
        total = len(session.memory.notes())
        if not total:
            return "The memory is empty. Write to it with: memory_write KEY TEXT"
        return f"None of the {total} notes shares a word with '{query}'. Without a query memory_read shows the newest."
    lines = [f"[{key}]\n{text}" for key, text in notes[:_MAX_SHOWN]]
    if len(notes) > _MAX_SHOWN:
        lines.append(f"({len(notes) - _MAX_SHOWN} more: {', '.join(key for key, _ in notes[_MAX_SHOWN:][:50])})")
    return "\n".join(lines)
