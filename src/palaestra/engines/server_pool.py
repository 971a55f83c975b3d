"""Several servers with the same model: which one gets the next call, and which ones are lost.

The calls of a group share a prompt, so they go to one server, which computes the prompt once; so do the calls of one
conversation, which begin alike. If that server has many more running calls than another one, the call goes to the shortest
queue. A server that breaks or refuses a connection is lost until it answers a probe; its calls run again on the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from palaestra.core.records import Request
from palaestra.engines.openai_endpoint import Endpoint

OVERLOAD = 8
"""A server that has so many more running calls than the shortest queue gets no calls for the sake of their prompts."""
_SHARED_MESSAGES = 2
_SHARED_TOKENS = 64
"""The start of a conversation, or of token ids, that decides about its server."""


@dataclass(slots=True, eq=False)
class Server:
    """A server, the calls of this process that it runs, and whether it is lost."""

    endpoint: Endpoint
    running: int = 0
    is_lost: bool = False


class ServerPool:
    """The servers of an engine. All calls of an event loop."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.servers = [Server(endpoint) for endpoint in endpoints]

    def choose(self, request: Request) -> Server:
        """The server for a call. If all are lost, they are tried like healthy ones."""
        healthy = [server for server in self.servers if not server.is_lost] or self.servers
        prefix = repr(
            request.prompt_ids[:_SHARED_TOKENS] or [(m.role, m.text) for m in request.messages[:_SHARED_MESSAGES]]
        )
        # The highest hash of prefix and address: a lost server moves its own prefixes only.
        home = max(healthy, key=lambda server: zlib.crc32(f"{server.endpoint.url} {prefix}".encode()))
        shortest = min(healthy, key=lambda server: server.running)
        return home if home.running - shortest.running < OVERLOAD else shortest

    def lose(self, server: Server) -> bool:
        """Take a server out, unless it is the only one. Returns whether a healthy one is left for its call."""
        server.is_lost = len(self.servers) > 1
        return server.is_lost and any(not other.is_lost for other in self.servers)

    @property
    def lost(self) -> list[Server]:
        """The servers to probe."""
        return [server for server in self.servers if server.is_lost]
