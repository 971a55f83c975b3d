"""Runs inside the sandbox of the tools: makes one call after another, each with arguments that were checked outside.

The tools are pure, so a call leaves nothing that the next one could see.
"""

from __future__ import annotations

import json
import os
import sys

LONGEST = 32_768
"""Bytes of the largest result."""


def main() -> None:
    """Make calls until there are no more."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from palaestra.tasks.tools.library import LIBRARY

    told, line = os.fdopen(os.dup(0), "rb"), os.dup(1)
    for text in told:
        call = json.loads(text)
        try:
            reply = {"value": LIBRARY[call["tool"]].function(**call["arguments"])}
        except (ValueError, OverflowError) as error:  # So a tool says what it does not take.
            reply = {"error": str(error)[:1000]}
        except Exception as error:  # Its arguments were of the right types: the fault is the tool's.
            reply = {"broken": f"{type(error).__name__}: {error}"[:1000]}
        rest = json.dumps(reply).encode() + b"\n"
        if len(rest) > LONGEST:
            rest = (
                json.dumps({"error": f"the result is too large: {len(rest)} bytes, {LONGEST} at most"}).encode() + b"\n"
            )
        while rest:
            rest = rest[os.write(line, rest) :]


if __name__ == "__main__":
    main()
