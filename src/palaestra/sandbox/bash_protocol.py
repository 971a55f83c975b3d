"""The loop that bash runs for a shell that stays, the keeper that starts it, and what they say.

Bash runs a loop: read a command, run it, say its exit status. What commands print goes to one pipe; the status goes by
another way, which commands do not inherit, with a word that is new for each command and reaches the loop only after
the command has ended. In the bubblewrap sandbox the kernel also tells us which process sent it, and the loop's bash is
a copy that may be executed but not read, so that /proc shows its memory and files to no other process.

What a command sets up to run in the loop itself, a trap or a function named like a builtin, does have these files. So
nothing that comes by them is believed that is not an exit code, and no more is heard than a shell has to say. That a
shell has started and that it has ended we are told by a third way, which it closes before its first command.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# The shell's own files are /dev/null, so that neither `set -x` nor a trap writes into a command's output. A command is
# run by a sourced script: that is what a trap can `return` from, so that an interrupt ends all of the command at once
# and nothing of the shell.
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

# Files 56 to 60 are the script for each command, the commands, their output, the way for the status, and the one for
# the first word.
LOCAL_FILES = r"""
step=$1 commands=$2 status=$3
exec 56<&$step 57<&$commands 58>&1 59>&$status 60>&0 {step}<&- {commands}<&- {status}>&-
unset -v step commands status
set --
"""

# The first process of a sandbox, which nothing in it can end. Before it starts a new loop it can end all others; where
# it is not the first process, "all others" would be those of the host.
KEEPER = r"""
trap : INT QUIT TERM HUP
echo >&0
while read -r what; do
  exec 2>/dev/null
  if [[ $what == sweep ]]; then
    if [[ $$ == 1 ]]; then kill -KILL -1; fi
    echo swept >&0
  else
    "$1" --norc --noprofile -c "$2" bash "$3" "$4" "$5"
    printf 'ended %d\n' $? >&0
  fi
done
"""

SAID = re.compile(rb"([0-9a-f]{32}) (?:([0-9]{1,3})|.*)", re.DOTALL)


class StatusLine(NamedTuple):
    """What a shell says at the end of a command."""

    word: bytes
    """That of the command."""
    code: int | None
    """Its exit code; None where what came is none."""

    @classmethod
    def of(cls, line: bytes) -> StatusLine | None:
        """What a line says; None where it says nothing.

        >>> StatusLine.of(b"0123456789abcdef0123456789abcdef 7").code
        7
        >>> StatusLine.of(b"0123456789abcdef0123456789abcdef 256").code
        """
        if (found := SAID.fullmatch(line)) is None:
            return None
        code = int(found[2] or 256)
        return cls(found[1], code if code < 256 else None)
