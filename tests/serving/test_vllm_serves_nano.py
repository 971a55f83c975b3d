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

import openai
import psutil
import pytest
import torch
from pydantic import BaseModel, Field

from palaestra.chat.structured import ask
from palaestra.core.errors import EngineError
from palaestra.core.records import Completion, Failure, FailureCause, Message, Request, Sampling, Split
from palaestra.engines.base import require_exact
from palaestra.engines.cached import CachedEngine
from palaestra.engines.openai import OpenAIEngine
from palaestra.engines.transformers import TransformersEngine
from palaestra.models import registry as models
from palaestra.models.registry import LoadedModel
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
    # The module, because the command `vllm serve` does not find the version of the CPU build.
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", models.locate("nano")]
    command += ["--served-model-name", "nano", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--max-model-len", "256", "--enforce-eager"]
    command += ["--enable-lora", "--max-lora-rank", "8", "--max-loras", "2"]
    # A model that knows no JSON would otherwise fill its answer with spaces, which the grammar allows.
    command += ["--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}']
    log = tmp_path_factory.mktemp("vllm") / "log.txt"
    with open(log, "w") as stream:
        environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
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
            processes = psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []
            server.terminate()
            server.wait(30)
            assert psutil.wait_procs(processes, timeout=30)[1] == []  # No process is left.


def test_vllm_over_http_gives_the_tokens_that_our_engine_gives(served: str, nano: LoadedModel, tmp_path: Path) -> None:
    requests = [Request(p.messages, Sampling(40)) for p in MathSkills().problems(Split.TEST, 3, 0)]
    ours = [several[0] for several in TransformersEngine.from_loaded(nano).generate(requests)]
    with Cache(tmp_path / "c.sqlite") as cache:
        engine = CachedEngine(OpenAIEngine(served, exact=True), cache)
        theirs = [several[0] for several in engine.generate(requests)]
        spent = engine.spent()
    same = 0
    logprobs: list[tuple[float, float]] = []
    for mine, answer in zip(ours, theirs, strict=True):
        assert isinstance(mine, Completion)
        assert isinstance(answer, Completion), answer
        assert len(answer.token_ids) == len(answer.logprobs) == answer.usage.completion_tokens
        assert answer.prompt_ids == mine.prompt_ids
        assert require_exact(answer, served) is answer
        if answer.token_ids == mine.token_ids:
            assert answer.text == mine.text
            same += 1
            logprobs += zip(answer.logprobs, mine.logprobs, strict=True)
    # Another implementation rounds differently: a tie may fall the other way once in a while.
    assert same >= 0.95 * len(requests)
    assert max(abs(theirs - ours) for theirs, ours in logprobs) < 1e-3
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


def test_the_official_client_gets_ids_and_log_probs(served: str, nano: LoadedModel) -> None:
    question = Message("user", "What is 3 + 4?")
    ((expected,),) = TransformersEngine.from_loaded(nano).generate([Request((question,), Sampling(40))])
    assert isinstance(expected, Completion)
    with openai.OpenAI(base_url=served.partition("#")[0], api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["nano"]
        answer = client.chat.completions.create(
            model="nano",
            messages=[{"role": "user", "content": question.text}],
            temperature=0,
            max_tokens=40,
            logprobs=True,
            extra_body={"return_token_ids": True},
        )
    choice = answer.choices[0]
    assert choice.message.content == expected.text
    assert tuple(choice.token_ids) == expected.token_ids  # type: ignore[attr-defined]
    assert tuple(answer.prompt_token_ids) == expected.prompt_ids  # type: ignore[attr-defined]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert [token.logprob for token in choice.logprobs.content] == pytest.approx(list(expected.logprobs), abs=1e-3)


def test_a_completion_without_ids_is_refused_for_training(served: str) -> None:
    request = Request((Message("user", "What is 3 + 4?"),), Sampling(40))
    ((answer,),) = OpenAIEngine(served).generate([request])
    assert isinstance(answer, Completion)
    assert not answer.is_exact
    with pytest.raises(EngineError, match="log-probs"):
        require_exact(answer, served)


def test_adapters_are_loaded_and_unloaded_on_the_live_server(served: str, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    requests = [Request(p.messages, Sampling(20)) for p in MathSkills().problems(Split.TEST, 1, 0)]
    engines = {seed: OpenAIEngine(served) for seed in (1, 2)}
    base, expected, identities = answer_texts(engines[1], requests), {}, {engines[1].identity}
    for seed, engine in engines.items():
        torch.manual_seed(seed)
        loaded = models.load("nano")
        config = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        adapted = get_peft_model(loaded.weights, config)
        adapted.save_pretrained(tmp_path / "adapter")  # The same folder: only the name tells them apart.
        expected[seed] = answer_texts(TransformersEngine(adapted, loaded.tokenizer), requests)
        engine.load_adapter(tmp_path / "adapter")
        identities.add(engine.identity)
    assert len(identities) == 3
    assert expected[1] != expected[2]
    for seed, engine in engines.items():  # Both are loaded now.
        assert answer_texts(engine, requests) == expected[seed]
        adapter = engine.endpoint.model
        engine.unload_adapter()
        assert answer_texts(engine, requests) == base
        with pytest.raises(EngineError, match="no model"):
            OpenAIEngine(f"{served.partition('#')[0]}#{adapter}").generate(requests)
    with pytest.raises(EngineError, match=r"load_lora_adapter .*nothing.*--enable-lora"):
        engines[1].load_adapter(tmp_path / "nothing")
    assert answer_texts(engines[1], requests) == base


def answer_texts(engine: OpenAIEngine | TransformersEngine, requests: list[Request]) -> list[str]:
    answers = [several[0] for several in engine.generate(requests)]
    assert all(isinstance(answer, Completion) for answer in answers), answers
    return [answer.text for answer in answers if isinstance(answer, Completion)]
