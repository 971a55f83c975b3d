"""Servers that sample the rollouts of a learner: `train --rollout-servers http://A:8000/v1,http://B:8000/v1#MODEL`.

After every update the learners broadcast the weights, and rank 0 tells the servers to receive them. Every version has a name of
its own, which a server answers to `/weight_info`. A server that is lost, or that was started again and so has other weights, gets
no calls before it has received the newest ones; its calls run on the others.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from urllib.parse import urlsplit

import torch

from palaestra.core.access import find_own_address, is_loopback
from palaestra.core.errors import EngineError
from palaestra.core.records import Answer, Listener, Request, ignore, notice
from palaestra.engines.base import CallMonitor, Slot
from palaestra.engines.openai import CallBatch, OpenAIEngine
from palaestra.engines.served_weights import PREFIX, ServerLostError, read_weight_version, update_server
from palaestra.engines.server_pool import Server
from palaestra.executors.broadcast import SharedWeights
from palaestra.executors.meeting import LOCAL_HOST
from palaestra.rl.distributed.ranks import broadcast, rank
from palaestra.rl.distributed.weights import WeightPublisher

_CALLS_PER_SERVER = 128
_PATIENCE = 60.0
"""Seconds that a rollout waits for a first server."""
_ATTEMPTS = 3
"""How often a batch runs if a server was started again in the middle of it."""


class ServedRolloutEngine(OpenAIEngine):
    """One or several servers of the policy's model, with its weights. All learners must make it.

    Arguments:
        name: `http://A:8000/v1,http://B:8000/v1#MODEL`.
    """

    def __init__(self, name: str, *, listener: Listener = ignore) -> None:
        super().__init__(name, exact=True, listener=listener)
        self.in_flight = _CALLS_PER_SERVER * len(self.pool.servers)
        hosts = [urlsplit(server.endpoint.url).hostname or "" for server in self.pool.servers]
        self._publisher = WeightPublisher(LOCAL_HOST if all(map(is_loopback, hosts)) else find_own_address(), "gloo")
        self._shared: SharedWeights | None = None
        self._run, self._updates = broadcast(secrets.token_hex(8)), 0

    @property
    def weight_version(self) -> str:
        """The name of the newest weights: servers may have those of an earlier run."""
        return f"{self._run}-{self._updates}"

    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Send new weights to all servers. All learners must call this.

        Raises:
            EngineError: no server has received them.
        """
        self._updates += 1
        named = ((f"{PREFIX}{name}", tensor.cpu()) for name, tensor in weights)
        older, self._shared = self._shared, broadcast(self._publisher.publish(named, self._updates))
        if rank() == 0:
            self._send_weights()
        broadcast(None)  # The other learners wait for the servers.
        if older is not None:
            older.release()

    def generate_monitored(
        self, requests: Sequence[Request], monitor: CallMonitor, known: Mapping[Slot, Answer] = MappingProxyType({})
    ) -> list[list[Answer]]:
        """Generate with the newest weights. A batch in which a server had other ones runs again."""
        for _ in range(_ATTEMPTS):
            self._send_weights()
            answers = super().generate_monitored(requests, monitor, known)
            if not any(self._has_other_weights(server) for server in self.pool.servers if not server.is_lost):
                return answers
            self.listener(
                notice("a server was started again during a batch, without the weights; the batch runs again")
            )
        raise EngineError(f"the servers at {self.name} lost their weights {_ATTEMPTS} times during a batch")

    def close(self) -> None:
        self._publisher.close()

    async def _probe_lost(self, batch: CallBatch) -> None:
        """Do nothing: a lost server has to receive weights first."""

    def _send_weights(self) -> None:
        """Send the newest weights to the servers that do not have them. Those that do not answer are lost."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            with ThreadPoolExecutor(len(self.pool.servers)) as threads:
                errors = list(threads.map(self._send_to, self.pool.servers))
            if not all(errors):
                return
            if time.monotonic() > deadline:
                raise EngineError(f"no server has received the weights within {_PATIENCE:g} s: {errors[0]}")
            time.sleep(self.probe)

    def _send_to(self, server: Server) -> str:
        """Returns the error of a server that does not answer."""
        assert self._shared is not None, "update the weights first"
        url, key = server.endpoint.url.removesuffix("/v1"), server.endpoint.key()
        try:
            if self._has_other_weights(server):
                update_server(url, self._shared, self.timeout, weight_version=self.weight_version, api_key=key)
        except ServerLostError as error:
            if not server.is_lost:
                self.listener(notice(f"{error}; its calls run on the other servers"))
            server.is_lost = True
            return str(error)
        if server.is_lost:
            self.listener(notice(f"the server {server.endpoint.name} answers again and has the newest weights"))
        server.is_lost = False
        return ""

    def _has_other_weights(self, server: Server) -> bool:
        url, key = server.endpoint.url.removesuffix("/v1"), server.endpoint.key()
        return read_weight_version(url, api_key=key) != self.weight_version
