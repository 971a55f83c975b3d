"""Servers that sample rollouts and receive the learner's weights: the runs of one process, also after a server was lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from model_server import ModelServer

from palaestra.core.errors import EngineError, SettingsError
from palaestra.core.records import Event, Failure, Request, Sampling
from palaestra.core.seeding import Seeds
from palaestra.engines.served_weights import read_weight_version
from palaestra.engines.transformers import TransformersEngine
from palaestra.envs.token import TokenVectorEnv
from palaestra.models import registry as models
from palaestra.recipes.train.presets import make_settings
from palaestra.recipes.train.recipe import Iteration, TrainResult, train
from palaestra.rl.collection import collect_responses
from palaestra.rl.policies import served
from palaestra.rl.policies.engine import EnginePolicy
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.policies.served import ServedRolloutEngine
from palaestra.runs.run import Run
from palaestra.serving.gateway import ServerThread
from palaestra.serving.server import OpenAIServer
from palaestra.serving.weight_updates import RolloutServer

SMALL: dict[str, Any] = {
    "env": "CoTEnv-v0", "env_kwargs": {"problems": 10, "skills": ["clock", "percent"]}, "iterations": 3, "episodes": 16,
    "group_size": 4, "evaluation": 2, "threads": 1, "max_tokens": 16, "learning_rate": 1e-3, "keep_trajectories": 16,
    "model": "nano",
}  # fmt: skip


def make_engine() -> TransformersEngine:
    loaded = models.load("nano", device="cpu")
    return TransformersEngine(loaded.weights, loaded.tokenizer, "nano", processed_logprobs=True)


class Nano:
    """A server of nano in a thread of this process. It can be stopped and started again with the first weights."""

    def __init__(self) -> None:
        self.thread: ServerThread | None = None
        self.start()

    def start(self) -> None:
        self.server = RolloutServer(make_engine(), "nano")
        self.thread = ServerThread(self.server)
        self.url = self.thread.url

    def close(self) -> None:
        if self.thread is not None:
            self.thread.close()
            self.thread = None


@pytest.fixture
def servers() -> Iterator[list[Nano]]:
    servers = [Nano(), Nano()]
    yield servers
    for server in servers:
        server.close()


def name(servers: list[Nano]) -> str:
    return ",".join(f"{server.url}/v1" for server in servers) + "#nano"


def scale(weights: dict[str, torch.Tensor], factor: float) -> dict[str, torch.Tensor]:
    return {key: tensor * factor for key, tensor in weights.items()}


def make_requests(count: int = 12) -> list[Request]:
    return [Request((), Sampling(12, temperature=1.3), seed, prompt_ids=(5, 6, 7 + seed // 4)) for seed in range(count)]


def ask(engine: Any) -> list[tuple[int, ...]]:
    """The tokens of some answers. Log-probs are rounded differently in other batches."""
    answers = [answer for (answer,) in engine.generate(make_requests())]
    assert all(not isinstance(answer, Failure) and answer.is_exact for answer in answers)
    return [answer.token_ids for answer in answers]


@pytest.fixture
def engine(servers: list[Nano]) -> Iterator[ServedRolloutEngine]:
    engine = ServedRolloutEngine(name(servers), listener=lambda event: NOTICES.append(str(event.data.get("text"))))
    NOTICES.clear()
    yield engine
    engine.close()


NOTICES: list[str] = []


def test_servers_answer_with_the_newest_weights(servers: list[Nano], engine: ServedRolloutEngine) -> None:
    loaded = models.load("nano", device="cpu", trainable=True)
    policy = LanguageModelPolicy(loaded.weights, temperature=1.3)
    first = {key: tensor.clone() for key, tensor in loaded.weights.state_dict().items()}
    for factor in (1.0, 0.97):
        weights = scale(first, factor)
        loaded.weights.load_state_dict(weights)
        engine.update_weights(weights.items())
        assert {read_weight_version(server.url) for server in servers} == {engine.weight_version}
        env = TokenVectorEnv(
            ["What is 3 + 4?", "What is 6 * 7?"], lambda _: 0.0, num_envs=8, max_tokens=12, group_size=4
        )
        sampler = EnginePolicy(engine, 1.3, env.vocabulary, 12, policy.context)
        rollout = collect_responses(env, sampler, 8, Seeds(0), seed=0, first=0)
        # The log-probs are those of the sampled distribution under these weights.
        torch.testing.assert_close(rollout.logprobs_BT, policy.logprobs_BT(rollout), atol=1e-3, rtol=0)


def test_a_server_that_was_started_again_receives_the_weights(servers: list[Nano], engine: ServedRolloutEngine) -> None:
    first = make_engine().model.state_dict()
    engine.update_weights(scale(first, 0.9).items())
    expected = ask(engine)

    def start_again(server: RolloutServer) -> None:
        server.engine.update_weights(first.items())
        server.weight_version = ""

    start_again(servers[0].server)
    assert ask(engine) == expected
    submits, calls = [server.server.batcher.submit for server in servers], []
    for server, submit in zip(servers, submits, strict=True):

        def submit_late(*arguments: Any, own: RolloutServer = server.server, submit: Any = submit) -> Any:
            if not calls:  # In the middle of a batch.
                start_again(own)
            calls.append(arguments)
            return submit(*arguments)

        server.server.batcher.submit = submit_late  # type: ignore[method-assign]
    assert ask(engine) == expected
    assert len(calls) == 2 * len(expected)
    assert any("the batch runs again" in text for text in NOTICES)


def test_lost_servers_lose_no_answer(
    servers: list[Nano], engine: ServedRolloutEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.update_weights(make_engine().model.state_dict().items())
    expected = ask(engine)
    servers[0].close()
    assert ask(engine) == expected
    assert any("its calls run on the other servers" in text for text in NOTICES)
    servers[1].close()
    monkeypatch.setattr(served, "_PATIENCE", 0.1)
    with pytest.raises(EngineError, match="no server has received the weights"):
        ask(engine)


def test_a_server_refuses_weights_that_it_was_not_started_for() -> None:
    thread = ServerThread(OpenAIServer(make_engine(), "nano"))
    try:
        engine = ServedRolloutEngine(f"{thread.url}/v1#nano")
        with pytest.raises(EngineError, match="404"):
            engine.update_weights(make_engine().model.state_dict().items())
        engine.close()
    finally:
        thread.close()


def test_wrong_weights_are_refused_and_named(servers: list[Nano]) -> None:
    engine = ServedRolloutEngine(name(servers[:1]))
    with pytest.raises(EngineError, match=r"refused 'update_weights'.*lm_head_of_another"):
        engine.update_weights([("lm_head_of_another", torch.zeros(2))])
    engine.close()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"engine": "vllm"}, "neither an engine.*got engine"),
        ({"executor": "processes:2"}, "got executor"),
        ({"rollout": "step"}, "got rollout step"),
    ],
)
def test_settings_that_exclude_servers(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_settings({**SMALL, "rollout_servers": "http://127.0.0.1:1/v1#nano", **values})


def list_tokens(result: TrainResult) -> list[Any]:
    with Run.open(result.folder, read_only=True) as run:
        stored = [t for n in range(1, result.summary["iterations"] + 1) for t in run.store.trajectories(n)]
        assert stored
        assert not any("failure" in t.infos[0] for t in stored)
        return [[segment.token_ids for segment in t.segments] for t in stored]


def find_difference(result: TrainResult) -> float:
    with Run.open(result.folder, read_only=True) as run:
        rows = run.store.metrics().values()
        return max(row["sampling_logprob_difference_max"] for row in rows if "grad_norm" in row)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_run_with_servers_has_the_weights_of_the_learner(servers: list[Nano], tmp_path: Path, method: str) -> None:
    two = train(out=tmp_path / "two", rollout_servers=name(servers), method=method, **SMALL)
    # The learner evaluates the tokens with its own weights and finds the same log-probs.
    assert 0 < find_difference(two) < 1e-3
    if method == "full":
        single = train(out=tmp_path / "one", rollout_servers=name(servers[:1]), method=method, **SMALL)
        assert list_tokens(single) == list_tokens(two)


@pytest.mark.backends
def test_a_killed_server_process_is_replaced_during_a_run(tmp_path: Path) -> None:
    with ExitStack() as stack:
        processes = [ModelServer(stack, "--receive-weights") for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.wait()
        servers = ",".join(process.url for process in processes) + "#nano"
        settings = {**SMALL, "iterations": 5, "rollout_servers": servers}
        whole = train(out=tmp_path / "whole", **settings)
        events: list[Event] = []

        times: dict[int, float] = {}

        def disturb(done: Iteration) -> None:
            times[done.number] = time.monotonic()
            if done.number == 2:
                processes[0].kill()
            if done.number == 3:
                assert times[3] - times[2] < 60, "the other server noticed at once that the group was lost"
                processes[0].start()
                processes[0].wait()
            if done.number == 4:
                versions = {read_weight_version(process.root) for process in processes}
                assert len(versions) == 1
                assert versions != {""}

        killed = train(out=tmp_path / "killed", callbacks=[disturb], listener=events.append, **settings)
        texts = [str(event.data.get("text")) for event in events]
        assert any("its calls run on the other servers" in text for text in texts)
        assert any("has the newest weights" in text for text in texts)
        assert list_tokens(killed) == list_tokens(whole)
        assert find_difference(killed) < 1e-3
