"""Runs inside the sandbox of the tools: executes one call at a time. The host has checked the arguments.

The tools are pure, so calls cannot affect each other.
"""

from __future__ import annotations

import json
import os
import sys

MAX_BYTES = 32_768
"""Maximum size of a result."""


def main() -> None:
    """Make calls until the host closes the channel."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from channel import HostChannel  # type: ignore[import-not-found]

    from palaestra.tasks.tools.library import LIBRARY

    channel = HostChannel()
    while (call := channel.receive()) is not None:
        try:
            reply = {"value": LIBRARY[call["tool"]].function(**call["arguments"])}
        except (ValueError, OverflowError) as error:  # A tool rejects its arguments.
            reply = {"error": str(error)[:1000]}
        except Exception as error:  # The arguments have the right types, so the tool is at fault.
            reply = {"broken": f"{type(error).__name__}: {error}"[:1000]}
        size = len(json.dumps(reply)) + 1
        if size > MAX_BYTES:
            reply = {"error": f"the result is too large: {size} bytes, {MAX_BYTES} at most"}
        channel.send(reply)


if __name__ == "__main__":
    main()
