"""`palaestra serve --receive-weights`: the weights of the served model are replaced by those of a learner.

The routes are those of vLLM's server in its development mode, so a learner updates both in the same way
(`palaestra.engines.served_weights.update_server`). The weights come by the learner's broadcast.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import PalaestraError
from palaestra.core.records import Json
from palaestra.engines.base import RolloutEngine
from palaestra.engines.served_weights import get_model_weights
from palaestra.executors.broadcast import SharedWeights
from palaestra.serving.request_bodies import RequestError, StrictBody, parse_body, read_bytes
from palaestra.serving.server import OpenAIServer, to_json_response

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response as HttpResponse

    from palaestra.serving.server import Handler

_STEPS = ("pause", "start_weight_update", "reset_prefix_cache", "resume")
"""Steps of vLLM's protocol that nothing has to be done for here: `update_weights` itself waits for running requests."""


class _UpdateInfo(StrictBody):
    meeting: dict[str, Any]
    number: int
    version: int
    checksums: list[int]


class _Update(StrictBody):
    update_info: _UpdateInfo


class _Finish(StrictBody):
    weight_version: str


class RolloutServer(OpenAIServer):
    """A server that samples the rollouts of a learner.

    Arguments:
        engine: its log-probs must be those of the sampled distribution.
    """

    engine: RolloutEngine
    weight_version = ""
    """The name of the current weights; empty before an update."""

    def _list_routes(self) -> list[tuple[str, str, Handler]]:
        updates: list[tuple[str, str, Handler]] = [
            ("GET", "/weight_info", self._show_version),
            ("POST", "/update_weights", self._update),
            ("POST", "/finish_weight_update", self._finish_update),
        ]
        return [*super()._list_routes(), *updates, *(("POST", f"/{step}", _agree) for step in _STEPS)]

    async def _show_version(self, http: HttpRequest) -> HttpResponse:
        return to_json_response({"weight_version": self.weight_version})

    async def _update(self, http: HttpRequest) -> HttpResponse:
        body = parse_body(await read_bytes(http, self.max_body), _Update)
        # In a thread of its own: the threads that encode prompts go on while the weights arrive.
        await asyncio.to_thread(self._receive, body.update_info.model_dump())
        return to_json_response({})

    def _receive(self, description: Json) -> None:
        """Wait for the weights, then for the running requests, and load the weights."""
        try:
            weights = get_model_weights(SharedWeights.from_description(**description))
            with self.batcher.pause():
                self.weight_version = ""
                self.engine.update_weights(weights.items())
        except (PalaestraError, KeyError, TypeError, RuntimeError) as error:
            raise RequestError(f"the weights were not loaded: {error}") from error

    async def _finish_update(self, http: HttpRequest) -> HttpResponse:
        self.weight_version = parse_body(await read_bytes(http, self.max_body), _Finish).weight_version
        return to_json_response({})


async def _agree(http: HttpRequest) -> HttpResponse:
    return to_json_response({})
