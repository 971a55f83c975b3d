"""The bash scripts of a persistent shell, and the lines that they report.

Bash runs a loop: read a command, run it, report its exit status. The output of commands goes to one pipe. The status
goes to another descriptor, which commands do not inherit, with a token that is new for each command and that the loop
reads only after the command has ended. In the bubblewrap sandbox the kernel also reports which process sent the status,
and the loop runs a copy of bash that can be executed but not read, so /proc hides its memory and files from others.

Code that a command makes the loop itself run, such as a trap or a function named like a builtin, does have these
descriptors. So the host accepts nothing there but an exit code, and only a bounded number of bytes. The start and the
end of a shell are reported on a third descriptor, which the shell closes before its first command.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# The shell's own stdin, stdout and stderr are /dev/null, so neither `set -x` nor a trap writes into a command's output.
# A command runs in a sourced script, because a trap can `return` from one: an interrupt ends the whole command and
# leaves the shell intact.
LOOP = r"""
trap 'return 130' INT
builtin printf 'hello %d\n' $$ >&60
exec 0</dev/null 1>/dev/null 2>/dev/null 60>&-
while IFS= builtin read -r -d '' -u 57 PALAESTRA; do
  builtin source /dev/fd/56
  PALAESTRA=$?
  IFS= builtin read -r -d '' -u 57 PALAESTRA_WORD || builtin exit
  builtin printf '\0%s\0' "$PALAESTRA_WORD" >&58
  builtin printf '%s %d\n' "$PALAESTRA_WORD" "$PALAESTRA" >&59
  builtin unset -v PALAESTRA PALAESTRA_WORD
done
"""
STEP = b'builtin eval "$PALAESTRA" 0</dev/null 1>&58 2>&1 56<&- 57<&- 58>&- 59>&-\n'

# Descriptors 56 to 60: the script for each command, the commands, their output, the status, and the start message.
LOCAL_FILES = r"""
step=$1 commands=$2 status=$3
exec 56<&$step 57<&$commands 58>&1 59>&$status 60>&0 {step}<&- {commands}<&- {status}>&-
unset -v step commands status
set --
"""

# The first process of a sandbox, which no process inside can kill. Before it starts a new loop it can kill all others.
# Outside a process namespace it must not, because these would be processes of the host.
SUPERVISOR = r"""
trap : INT QUIT TERM HUP
echo >&0
while read -r what; do
  exec 2>/dev/null
  if [[ $what == sweep ]]; then
    if [[ $$ == 1 ]]; then kill -KILL -1; fi
    echo swept >&0
  else
    "$1" --norc --noprofile -c "$2" bash "$3" "$4" "$5" 8<&- 9<&-
    printf 'ended %d\n' $? >&0
  fi
done
"""

_STATUS = re.compile(rb"([0-9a-f]{32}) (?:([0-9]{1,3})|.*)", re.DOTALL)


class StatusLine(NamedTuple):
    """The report of a shell at the end of a command."""

    word: bytes
    """The token of the command."""
    code: int | None
    """The exit code; None if the line has no valid one."""

    @classmethod
    def parse(cls, line: bytes) -> StatusLine | None:
        """Parse a line; None if it is not a status.

        >>> StatusLine.parse(b"0123456789abcdef0123456789abcdef 7").code
        7
        >>> StatusLine.parse(b"0123456789abcdef0123456789abcdef 256").code
        """
        if (match := _STATUS.fullmatch(line)) is None:
            return None
        code = int(match[2] or 256)
        return cls(match[1], code if code < 256 else None)
