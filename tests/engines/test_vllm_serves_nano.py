"""`nano` served by vLLM over HTTP and called by the OpenAI engine. To install vLLM, see test_vllm_loads_nano.py."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from palaestra.core.records import Completion, Failure, FailureCause, Message, Split
from palaestra.engines import models
from palaestra.engines.base import Request, Sampling
from palaestra.engines.cached import CachedEngine
from palaestra.engines.models import LoadedModel
from palaestra.engines.openai import OpenAIEngine
from palaestra.engines.structured import ask
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
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", models.locate("nano")]
    command += ["--served-model-name", "nano", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--max-model-len", "256", "--enforce-eager"]
    # A model that knows no JSON would otherwise fill its answer with spaces, which the grammar allows.
    command += ["--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}']
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


def test_vllm_over_http_gives_the_tokens_that_our_engine_gives(served: str, nano: LoadedModel, tmp_path: Path) -> None:
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


def test_several_samples_differ_and_come_back_the_same(served: str) -> None:
    problems = MathSkills().problems(Split.TEST, 1, 0)
    requests = [Request(p.messages, Sampling(40, temperature=2.0, count=8), seed=3) for p in problems]
    first, again = (OpenAIEngine(served).generate(requests) for _ in range(2))
    assert all(isinstance(answer, Completion) for several in first for answer in several), first
    assert any(len({answer.text for answer in several}) > 1 for several in first)  # type: ignore[union-attr]
    assert first == again


def test_vllm_holds_the_model_to_a_schema(served: str) -> None:
    """`nano` knows no JSON at all; whatever it says here is the server's doing."""

    class Digits(BaseModel):
        digits: list[Literal["1", "2"]] = Field(min_length=2, max_length=2)

    engine = OpenAIEngine(served)
    asked = [Request((Message("user", "What is 3 + 4?"),), Sampling(100, temperature=1.0), seed=k) for k in range(4)]
    answers = ask(engine, asked, Digits)
    assert all(isinstance(answer, Digits) for answer in answers), answers


def test_a_prompt_beyond_the_context_is_told_apart(served: str) -> None:
    long = Request((Message("user", "What is 1 + 2? " * 100),), Sampling(8))
    short = Request((Message("user", "What is 3 + 4?"),), Sampling(40))
    failed, answer = (several[0] for several in OpenAIEngine(served).generate([long, short]))
    assert isinstance(failed, Failure)
    assert failed.cause is FailureCause.CONTEXT_LENGTH, failed
    assert isinstance(answer, Completion)
    assert answer.text == "3+4=7. Answer: 7"
