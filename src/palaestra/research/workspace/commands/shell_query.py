"""Queries to the agent's shell, whose answers are separated from its other output."""

from __future__ import annotations

import math
import secrets
import shlex
import time

from palaestra.research.workspace.commands.base import CommandError
from palaestra.sandbox.base import Shell, ShellResult

# The agent's commands are not bash commands. This explains it if one is used in a list, a loop or a script. A program
# or function of the agent with the same name takes precedence, as usual in bash.
PRELUDE = r"""
command_not_found_handle() {{
  case $1 in
    {names}) printf '%s did nothing: it is one of your own commands, not of bash. It stands alone, as the first word of a message.\n' "$1" >&2 ;;
    *) printf 'bash: %s: command not found\n' "$1" >&2 ;;
  esac
  return 127
}}
export -f command_not_found_handle
"""

# A query is a function with local variables, so that nothing is left behind. The variable names are unlikely to be
# read-only. The agent's shell options do not apply in it; behind `||`, neither does `set -e`. Programs are run by
# `command -p`, which ignores the agent's PATH and functions. The answer is in `__a` and is printed between two marks by
# one builtin: output of background processes comes before or after it.
QUESTION = """{{
palaestra_question() {{
local - __a=(); set +eufx; [[ ${{PWD-}} == /* ]] || builtin cd .
{script}
builtin printf '%s\\0' {mark} "${{__a[@]}}" {mark}
}}
palaestra_question {arguments} || :
builtin unset -f palaestra_question
}} 2>/dev/null"""

MOST_STRAY = 1 << 16


class ShellQuery:
    """A shell, and the queries to it that are not the agent's.

    Output of background processes arrives with the next command. If that is a query, the output is kept in `stray` for
    the agent's next command. All queries of one command share a `deadline`.
    """

    def __init__(self, shell: Shell, names: list[str]) -> None:
        self.shell, self.stray, self.deadline = shell, b"", math.inf
        self._prepared, self._folder = False, ""
        self._prelude = PRELUDE.format(names="|".join(map(shlex.quote, names)) or "''")

    def execute(self, command: str, timeout: float | None = None) -> ShellResult:
        """Run a command of the agent."""
        if not self._prepared:
            self._prepared = True
            self._stay(self._run(self._prelude).output)
        self._folder = ""
        return self._run(command, timeout)

    def ask(self, script: str, *arguments: str, timeout: float = 20.0) -> list[bytes] | None:
        """Run a script with `arguments` as `$1` and so on, and return what it left in the array `__a`.

        Returns `None` if the output was too large.

        Raises:
            CommandError: the shell does not answer.
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise CommandError("the shell is too slow to answer; look at what runs in the background")
        mark = secrets.token_hex(12)
        words = " ".join(map(shlex.quote, arguments))
        result = self._run(QUESTION.format(script=script, mark=mark, arguments=words), min(timeout, left))
        parts = result.output.split(mark.encode())
        if len(parts) != 3:
            self._stay(result.output)
            raise CommandError(
                f"the shell did not answer ({result.note or 'something else is printing into it'}); look at what runs in the background, or try again"
            )
        self._stay(parts[0] + parts[2].removeprefix(b"\0"))
        return None if result.truncated else parts[1].split(b"\0")[1:-1]

    @property
    def folder(self) -> str:
        """The shell's current folder, queried once after each command of the agent."""
        if not self._folder:
            try:
                answer = self.ask('__a=("$PWD")', timeout=2.0)
            except CommandError:
                answer = None
            self._folder = b"".join(answer or ()).decode("utf-8", "replace") or self.shell.workspace
        return self._folder

    def take_stray(self) -> bytes:
        stray, self.stray = self.stray, b""
        return stray

    def _stay(self, output: bytes) -> None:
        self.stray = (self.stray + output)[-MOST_STRAY:]

    def _run(self, command: str, timeout: float | None = None) -> ShellResult:
        result = self.shell.execute(command, timeout)
        if result.restarted:
            self._prepared, self._folder = False, ""
        return result
