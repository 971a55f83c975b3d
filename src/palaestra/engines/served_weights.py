"""New weights for servers that sample the rollouts of a learner: `vllm serve` and `palaestra serve --receive-weights`.

Both speak vLLM's protocol for weight updates. The weights come from the learners by a broadcast
(`palaestra.executors.broadcast`); only its description passes through HTTP.
"""

from __future__ import annotations

import json
import urllib.request
from urllib.error import HTTPError

import torch

from palaestra.core.errors import EngineError
from palaestra.core.records import Json
from palaestra.executors.broadcast import SharedWeights

PREFIX = "model."
"""Before the names of a checkpoint, in the names of a policy's weights. The value head has another one."""


class ServerLostError(Exception):
    """A server does not answer."""


def get_model_weights(shared: SharedWeights) -> dict[str, torch.Tensor]:
    """Wait for the weights of a version. Returns those of the model, by their names in its checkpoint.

    Raises:
        EngineError: they are those of an adapter.
        ExecutorError: see `SharedWeights.get`.
    """
    weights = {k.removeprefix(PREFIX): v for k, v in shared.get().items() if k.startswith(PREFIX)}
    if adapter := next((name for name in weights if ".lora_" in name), ""):
        raise EngineError(f"a weight update expects whole weights; got the adapter's {adapter}")
    return weights


def update_server(
    url: str, shared: SharedWeights, timeout: float = 600.0, *, weight_version: str = "", api_key: str = ""
) -> None:
    """Let a server receive the weights that the learners broadcast. Running requests are finished with the old weights.

    `palaestra serve` needs `--receive-weights`; `vllm serve` needs `VLLM_SERVER_DEV_MODE=1` and
    `--weight-transfer-config '{"backend": "palaestra"}'`.

    Arguments:
        url: without `/v1`.
        weight_version: the name of the version at the server; by default the number of updates.

    Raises:
        EngineError: the server refuses a step.
        ServerLostError: it does not answer.
    """
    steps: dict[str, Json] = {
        "pause?mode=wait": {},
        "start_weight_update": {},
        "update_weights": {"update_info": shared.describe()},
        "finish_weight_update": {"weight_version": weight_version or str(shared.version)},
        "reset_prefix_cache": {},
        "resume": {},
    }
    for step, body in steps.items():
        try:
            _call(f"{url}/{step}", body, timeout, api_key)
        except EngineError as error:
            raise EngineError(f"{url} refused '{step}' for the weights of version {shared.version}: {error}") from error


def read_weight_version(url: str, timeout: float = 60.0, *, api_key: str = "") -> str:
    """The name of the version that a server has. Raises like `update_server`."""
    return str(_call(f"{url}/weight_info", None, timeout, api_key).get("weight_version", ""))


def _call(url: str, body: Json | None, timeout: float, api_key: str) -> Json:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            text = answer.read()
    except HTTPError as error:
        raise EngineError(f"{error}: {error.read(500).decode(errors='replace')}") from error
    except OSError as error:
        raise ServerLostError(f"{url}: {error}") from error
    try:
        answered = json.loads(text or b"{}")
    except ValueError:
        return {}
    return answered if isinstance(answered, dict) else {}
