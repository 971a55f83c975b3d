"""The SDK's client of the Model Context Protocol, connected to a server process."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any


def with_client(work: Callable[[Any], Awaitable[None]], *arguments: str) -> None:
    """Start `python ARGUMENTS` as a server, work with it as a client, and leave."""
    import anyio
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def run() -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        server = StdioServerParameters(command=sys.executable, args=list(arguments), env=environment)
        with anyio.fail_after(60):
            async with Client(stdio_client(server)) as client:
                await work(client)

    anyio.run(run)


def text_of(result: Any) -> str:
    (part,) = result.content
    return str(part.text)
