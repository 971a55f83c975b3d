"""vLLM's workers receive the weights that learners broadcast, in this process and in a server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra.core.errors import EngineError
from palaestra.core.records import Message, Request, Sampling
from palaestra.executors.broadcast import SharedWeights, WeightSender
from palaestra.executors.meeting import LOCAL_HOST, open_meeting
from palaestra.executors.weight_parts import Piece
from palaestra.models import registry as models

pytest.importorskip("vllm")
from palaestra.engines.served_weights import update_server
from palaestra.engines.vllm import VLLMEngine

pytestmark = [pytest.mark.backends, pytest.mark.filterwarnings("ignore")]
CONFIG = {"backend": "palaestra"}
PROMPT = "What is 12 + 35?"


class Learners:
    """Two learners, each with half of the elements of every tensor."""

    def __init__(self) -> None:
        self.meeting, self.store = open_meeting(LOCAL_HOST, 2, "gloo")
        self.senders = [WeightSender(self.meeting, rank) for rank in range(2)]

    def publish(self, weights: dict[str, torch.Tensor], version: int) -> SharedWeights:
        checksums = []
        for rank, sender in enumerate(self.senders):
            parts = []
            for name, tensor in weights.items():
                start, end = (tensor.numel() * k // 2 for k in (rank, rank + 1))
                dtype = str(tensor.dtype).removeprefix("torch.")
                piece = Piece(f"model.{name}", dtype, tuple(tensor.shape), start, end - start)
                parts.append((piece, tensor.flatten()[start:end]))
            checksums.append(sender.store_part(parts))
        return self.senders[0].publish(version, checksums)

    def close(self) -> None:
        for sender in self.senders:
            sender.close()


@pytest.fixture
def learners() -> Iterator[Learners]:
    learners = Learners()
    yield learners
    learners.close()


def make_weights() -> dict[str, torch.Tensor]:
    """The weights of nano with noise."""
    generator = torch.Generator().manual_seed(0)
    named = models.load("nano").weights.named_parameters()
    return {name: p.detach() * (1 + 0.2 * torch.randn(p.shape, generator=generator)) for name, p in named}


def test_an_engine_in_this_process_receives_a_version(learners: Learners) -> None:
    engine = VLLMEngine(
        models.locate("nano"), "nano", dtype="float32", enforce_eager=True, weight_transfer_config=CONFIG
    )
    weights = make_weights()

    def ask() -> Any:
        ((answer,),) = engine.generate([Request((Message("user", PROMPT),), Sampling(24))])
        return answer.token_ids, answer.logprobs  # type: ignore[union-attr]

    before = ask()
    engine.receive_weights(learners.publish(weights, 1))
    after = ask()
    assert after != before
    engine.update_weights(weights.items())
    assert ask() == after
    shared = learners.publish(weights, 2)
    wrong = SharedWeights(shared.meeting, shared.number, 2, (0, 0))
    with pytest.raises(Exception, match="version 2 from learner 0"):
        engine.receive_weights(wrong)
    engine.close()


def test_a_server_receives_a_version(learners: Learners, tmp_path: Path) -> None:
    with socket.create_server((LOCAL_HOST, 0)) as free:
        port = free.getsockname()[1]
    url = f"http://{LOCAL_HOST}:{port}"
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(models.locate("nano")), "--host", LOCAL_HOST, "--port", str(port),
        "--dtype", "float32", "--enforce-eager", "--weight-transfer-config", json.dumps(CONFIG), "--served-model-name", "nano",
    ]  # fmt: skip
    settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 600
        while not is_ready(url):
            assert server.poll() is None, (tmp_path / "log").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(1)
        before = complete(url)
        update_server(url, learners.publish(make_weights(), 7))
        assert complete(url) != before
        with urllib.request.urlopen(f"{url}/weight_info") as answer:
            assert json.load(answer) == {"weight_version": "7"}
        shared = learners.publish(make_weights(), 8)
        wrong = SharedWeights(shared.meeting, shared.number, 8, (0, 0))
        with pytest.raises(EngineError, match="'update_weights' for the weights of version 8"):
            update_server(url, wrong)
    finally:
        server.kill()
        server.wait()


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except OSError:
        return False


def complete(url: str) -> str:
    body = {"model": "nano", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["text"])
