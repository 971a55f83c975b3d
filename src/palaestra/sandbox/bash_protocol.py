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

from palaestra.core.tables import load_table

_SCRIPTS: dict[str, str] = load_table(__file__, "scripts")
LOOP, LOCAL_FILES, SUPERVISOR = (_SCRIPTS[name] for name in ("loop", "local_files", "supervisor"))
STEP = b'builtin eval "$PALAESTRA" 0</dev/null 1>&58 2>&1 56<&- 57<&- 58>&- 59>&-\n'
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
