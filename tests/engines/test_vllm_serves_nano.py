"""`nano` served by vLLM over HTTP and asked by our engine for services. How to get vLLM: test_vllm_loads_nano.py."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from palaestra.core.records import Completion, Split
from palaestra.engines import shelf
from palaestra.engines.base import Request, Sampling
from palaestra.engines.cached import CachedEngine
from palaestra.engines.openai import OpenAIEngine
from palaestra.engines.shelf import Model
from palaestra.runs.cache import Cache
from palaestra.tasks.math.task import MathSkills

PYTHON = os.environ.get("PALAESTRA_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.backends,
    pytest.mark.skipif(not PYTHON, reason="PALAESTRA_VLLM_PYTHON names no interpreter with vLLM"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", shelf.locate("nano")]
    command += ["--served-model-name", "nano", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--max-model-len", "256", "--enforce-eager"]
    log = tmp_path_factory.mktemp("vllm") / "log.txt"
    with open(log, "w") as stream:
        environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"}
        server = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environment)
        try:
            for _ in range(600):
                assert server.poll() is None, log.read_text()[-3000:]
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                    break
                except (urllib.error.URLError, OSError):
                    time.sleep(1)
            yield f"http://127.0.0.1:{port}/v1#nano"
        finally:
            server.terminate()
            server.wait(30)


def test_vllm_over_http_gives_the_tokens_that_our_engine_gives(served: str, nano: Model, tmp_path: Path) -> None:
    requests = [Request(p.messages, Sampling(40)) for p in MathSkills().problems(Split.TEST, 3, 0)]
    ours = [several[0] for several in nano.engine().generate(requests)]
    with Cache(tmp_path / "c.sqlite") as cache:
        engine = CachedEngine(OpenAIEngine(served, exact=True), cache)
        theirs = [several[0] for several in engine.generate(requests)]
        spent = engine.spent()
    same = 0
    for mine, answer in zip(ours, theirs, strict=True):
        assert isinstance(mine, Completion)
        assert isinstance(answer, Completion), answer
        assert len(answer.token_ids) == len(answer.logprobs) == answer.usage.completion_tokens
        assert answer.prompt_ids == mine.prompt_ids
        same += answer.token_ids == mine.token_ids and answer.text == mine.text
    # Another implementation rounds differently: a tie may fall the other way once in a while.
    assert same >= 0.95 * len(requests)
    assert spent.calls == len(requests)
    assert spent.usage.completion_tokens == sum(len(answer.token_ids) for answer in theirs)  # type: ignore[union-attr]
    assert (spent.unpriced, spent.money) == (0, 0.0)


def test_several_samples_differ_and_come_back_the_same(served: str, nano: Model) -> None:
    request = Request(
        MathSkills().problems(Split.TEST, 1, 0)[0].messages, Sampling(40, temperature=4.0, count=8), seed=3
    )
    first, again = (OpenAIEngine(served).generate([request])[0] for _ in range(2))
    assert len({answer.text for answer in first}) > 1  # type: ignore[union-attr]
    assert [a.text for a in first] == [a.text for a in again]  # type: ignore[union-attr]
