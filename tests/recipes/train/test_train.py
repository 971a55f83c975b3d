"""Training runs: reproducible by seed, exact resume, one-line errors for bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from small_training import CONTROL, Stop, same, stop_after

from palaestra.core.errors import (
    EnvError,
    ModelError,
    PalaestraError,
    RewardError,
    SettingsError,
    UnknownNameError,
)
from palaestra.engines.transformers import TransformersEngine
from palaestra.envs.token import TokenVectorEnv
from palaestra.recipes.resume import load_policy
from palaestra.recipes.settings import build, list_settings, to_plain
from palaestra.recipes.train.presets import fill_presets, make_settings
from palaestra.recipes.train.recipe import Iteration, TrainResult, resume, train
from palaestra.recipes.train.settings import TrainSettings
from palaestra.report import write_report
from palaestra.rl.grpo import GRPOConfig
from palaestra.rl.ppo import PPOConfig
from palaestra.rl.reinforce import REINFORCEConfig
from palaestra.rl.rloo import RLOOConfig
from palaestra.runs.run import Run

TOKEN = {"env": "CoTEnv-v0", "env_kwargs": {"problems": 10, "skills": ["clock", "percent"]}, "iterations": 4, "episodes": 16,
             "num_envs": 16, "group_size": 4, "evaluation": 4, "checkpoint_every": 2, "threads": 1, "max_tokens": 32}  # fmt: skip


def train_into(folder: Path, **values: Any) -> TrainResult:
    return train(out=folder, **values)


@pytest.fixture(scope="module")
def token_run(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return train_into(tmp_path_factory.mktemp("train") / "whole", **TOKEN)


def test_run_leaves_metrics_records_checkpoints_and_a_model(token_run: TrainResult) -> None:
    summary = token_run.summary
    started = json.loads((token_run.folder / "provenance.json").read_text())["started"]
    assert started["models"]["nano"]["sha256"]
    assert started["palaestra"]["version"] in write_report(token_run.folder).read_text()
    assert (summary["iterations"], summary["episodes"], summary["problems"]) == (4, 64, 8)
    with Run.open(token_run.folder, read_only=True) as opened:
        metrics = opened.store.metrics()
        assert {
            "reward",
            "reward_low",
            "approx_kl",
            "clip_fraction",
            "entropy",
            "length",
            "frac_reward_zero_std",
            "seconds_model",
            "seconds_environment",
            "seconds_update",
            "tokens_per_second",
        } <= set(metrics[1])
        assert {"test_accuracy", "test_accuracy_low"} <= set(metrics[0])
        kept = opened.store.trajectories(4)
        assert len(kept) == 4
        assert len({t.infos[0]["group"] for t in kept}) == 1, "a whole group"
        given, chosen = kept[0].segments
        rewards = [t.total_reward for t in kept]
        spread = float(np.std(rewards, ddof=1))
        for trajectory in kept:
            own, expected = trajectory.segments[1], 0.0
            if spread:
                expected = (trajectory.total_reward - float(np.mean(rewards))) / spread
            assert own.advantages == pytest.approx([expected] * len(own.token_ids), abs=1e-3)
            assert len(own.entropies) == len(own.alternatives) == len(own.token_ids)
            assert {len(best) for best in own.alternatives} == {3}
            assert not own.reference_logprobs, "a run without a reference"
        assert not given.advantages + given.entropies + given.alternatives
        assert all(chosen.chosen) and all(p <= 0 for p in chosen.logprobs)  # noqa: PT018
        assert opened.store.phases() == ["0/test", "4/test"]
        assert opened.store.total().completion_tokens > 0
    from palaestra.models import registry as models

    assert models.load(str(token_run.folder / "model"), device="cpu").tokenizer.eos_token == "<|end|>"
    assert (
        json.loads((token_run.folder / "settings.json").read_text())["settings"]["hyperparameters"]["learning_rate"]
        == 1e-4
    )


def test_seed_determines_the_run(token_run: TrainResult, tmp_path: Path) -> None:
    assert same(train_into(tmp_path / "again", **TOKEN).summary, token_run.summary)
    other = train_into(tmp_path / "other", **{**TOKEN, "seed": 1, "iterations": 1, "evaluation": 0})
    assert other.summary["weights_sha256"] != token_run.summary["weights_sha256"]


@pytest.mark.parametrize("after", [1, 3])
def test_a_stopped_language_model_goes_on_to_the_same_weights(
    token_run: TrainResult, tmp_path: Path, after: int
) -> None:
    with pytest.raises(Stop):
        train(out=tmp_path / "run", callbacks=[stop_after(after)], **TOKEN)  # type: ignore[arg-type]
    with Run.open(tmp_path / "run") as opened:
        assert same(resume(opened).summary, token_run.summary)
        with Run.open(token_run.folder, read_only=True) as whole:
            mine, theirs = opened.store.metrics(), whole.store.metrics()
            timeless = [
                {k: v for k, v in f[4].items() if "second" not in k and not k.startswith("system/")}
                for f in (mine, theirs)
            ]
            assert timeless[0] == timeless[1]
            assert [opened.store.trajectories(k) for k in (1, 4)] == [whole.store.trajectories(k) for k in (1, 4)]


def test_a_policy_of_an_earlier_version_acts_without_a_scale(tmp_path: Path) -> None:
    result = train_into(tmp_path / "run", **{**CONTROL, "env": "Pendulum-v1", "iterations": 1, "evaluation": 0})
    assert load_policy(tmp_path / "run").head.half_range == result.policy.head.half_range == 2.0
    path = tmp_path / "run" / "settings.json"
    data = json.loads(path.read_text())
    assert data["settings"].pop("scale_actions") is True
    path.write_text(json.dumps(data))
    assert load_policy(tmp_path / "run").head.half_range == 1.0


@pytest.mark.parametrize("algorithm", ["ppo", "rloo", "reinforce"])
def test_every_algorithm_trains_a_language_model(tmp_path: Path, algorithm: str) -> None:
    settings = {**TOKEN, "algorithm": algorithm, "iterations": 1, "evaluation": 0}
    if algorithm != "rloo":
        del settings["group_size"]
    summary = train_into(tmp_path / "run", **settings).summary
    assert (summary["algorithm"], summary["episodes"]) == (algorithm, 16)


def test_ppo_trains_a_separate_critic_and_a_lora_adapter(tmp_path: Path) -> None:
    settings = {"env": "RLHFEnv-v0", "algorithm": "ppo", "critic": "separate", "method": "lora", "rank": 2, "iterations": 2, "episodes": 8,
                    "num_envs": 8, "max_tokens": 12, "evaluation": 4, "batch_size": 4, "n_epochs": 1, "threads": 1}  # fmt: skip
    result = train_into(tmp_path / "run", **settings)
    with Run.open(result.folder, read_only=True) as opened:
        metrics = opened.store.metrics()
        assert abs(metrics[1]["reference_kl"]) < 1e-4  # Before the first step policy and reference are one.
        assert metrics[2]["reference_kl"] != metrics[1]["reference_kl"]
        assert {"test_reward", "test_reference_kl"} <= set(metrics[2])
    assert (result.folder / "model" / "adapter_config.json").exists()
    assert opened.settings["hyperparameters"]["kl_coef"] == 0.05


def test_callbacks_add_metrics_and_stop_the_run(tmp_path: Path) -> None:
    def report_gold(iteration: Iteration) -> Any:
        return {"gold_reward": iteration.metrics["actions"]} if iteration.number < 3 else True

    result = train(out=tmp_path / "run", callbacks=[report_gold], **CONTROL)  # type: ignore[arg-type]
    assert (result.summary["iterations"], result.summary["stopped_early"]) == (3, True)
    with Run.open(result.folder, read_only=True) as opened:
        assert opened.store.metrics()[2]["gold_reward"] == opened.store.metrics()[2]["actions"] > 0


def test_stopped_run_without_its_summary_does_not_go_on(tmp_path: Path) -> None:
    result = train(out=tmp_path / "run", callbacks=[lambda iteration: iteration.number == 2], **CONTROL)  # type: ignore[arg-type]
    (tmp_path / "run" / "summary.json").unlink()
    with Run.open(tmp_path / "run") as opened:
        assert same(resume(opened).summary, result.summary)


def test_tensorboard_gets_the_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    result = train_into(tmp_path / "run", **{**CONTROL, "iterations": 1, "tensorboard": True})
    assert list((result.folder / "tensorboard").glob("events.*"))


def test_missing_tracker_is_answered_with_the_command() -> None:
    from importlib.util import find_spec

    if find_spec("wandb") is not None:
        pytest.skip("wandb is installed here")
    with pytest.raises(PalaestraError, match=r"palaestra\[wandb\]"):
        train(env="CartPole-v1", wandb="project")


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ({"env": "CartPoll-v1"}, UnknownNameError, "'CartPole-v1'"),
        (
            {"env": "CartPole-v1", "policy": "lm"},
            EnvError,
            "'lm' .*CartPole-v1, .*classic",
        ),
        ({"policy": "mlp"}, EnvError, "'mlp' .*palaestra/CoT-v0, .*tokens"),
        ({"env_kwargs": ("problems",)}, SettingsError, "names and values"),
        ({"env_kwargs": {"nonsense": 1}}, SettingsError, "palaestra/CoT-v0 .*'nonsense'"),
        ({"env": "CartPole-v1", "env_kwargs": {"nonsense": 1}}, EnvError, "CartPole-v1 .*options"),
        ({"episodes": 12, "group_size": 8}, SettingsError, "group size 8; got 12"),
        (
            {"env": "CartPole-v1", "group_size": 8},
            SettingsError,
            "'group_size' .*grpo .*rloo; .*'ppo'",
        ),
        ({"gae_lambda": 0.9}, SettingsError, "'gae_lambda' .*ppo; .*'grpo'"),
        ({"baseline": "none"}, SettingsError, "'baseline' .*reinforce; .*'grpo'"),
        ({"model": "nanoo"}, UnknownNameError, "'nano'"),
        ({"temperature": 0.0}, SettingsError, "'temperature': .*above 0"),
        ({"iterations": 0}, SettingsError, "'iterations': .*at least 1; got 0"),
        ({"learning_rate": -3.0}, SettingsError, "'learning_rate': .*at least 0; got -3"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    tmp_path: Path, values: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        train(out=tmp_path / "run", **values)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def register(name: str, **arguments: Any) -> str:
    def make(**given: Any) -> TokenVectorEnv:
        return TokenVectorEnv(**{**arguments, **given})

    gymnasium.register(
        name,
        vector_entry_point=type(
            "Made",
            (TokenVectorEnv,),
            {"__init__": lambda self, **given: TokenVectorEnv.__init__(self, **{**arguments, **given})},
        ),
        entry_point=make,
    )
    return name


@pytest.mark.parametrize(
    ("reward", "cause"),
    [
        (lambda r: float("nan"), "finite number; got nan"),
        (lambda r: None, "number; got NoneType"),
    ],
)
def test_reward_that_always_fails_stops_the_run(tmp_path: Path, reward: Any, cause: str) -> None:
    name = register("Failing-v0", prompts=["a", "b"], reward=reward)
    try:
        with pytest.raises(RewardError, match=f"8 of 8 episodes.*{cause}"):
            train(
                env=name,
                iterations=2,
                episodes=8,
                num_envs=8,
                max_tokens=4,
                evaluation=0,
                threads=1,
                out=tmp_path / "run",
            )
        with Run.open(tmp_path / "run", read_only=True) as opened:
            assert opened.summary is None
    finally:
        del gymnasium.registry[name]


def test_reward_that_fails_sometimes_is_counted_not_learned(tmp_path: Path) -> None:
    name = register("Flaky-v0", prompts=["a", "b"], reward=lambda r: 1 / 0 if r.episode == 5 else float(len(r.text)))
    try:
        result = train(
            env=name, iterations=1, episodes=16, num_envs=8, max_tokens=6, evaluation=0, threads=1, out=tmp_path / "run"
        )
    finally:
        del gymnasium.registry[name]
    assert result.summary["failures"] == {"reward": 1}
    assert result.summary["episodes"] == 15


class Halt(BaseException):
    """As a user's code may raise to leave everything."""


@pytest.mark.parametrize("error", [ValueError("a screw came loose"), SystemExit(3), Halt("stop"), GeneratorExit()])
def test_raising_environment_hurts_only_its_episode(tmp_path: Path, error: BaseException) -> None:
    class Fragile(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)
        instances = 0

        def __init__(self) -> None:
            Fragile.instances += 1
            self.number, self.steps = Fragile.instances, 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.at = 0
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.at += 1
            self.steps += 1
            if self.number == 3 and self.steps == 9:
                raise error
            return np.zeros(1, np.float32), 1.0, self.at == 4, False, {}

    gymnasium.register("Fragile-v0", Fragile)
    try:
        result = train_into(tmp_path / "run", **{**CONTROL, "env": "Fragile-v0", "iterations": 2, "evaluation": 0})
    finally:
        del gymnasium.registry["Fragile-v0"]
    assert result.summary["failures"] == {"environment": 1}
    assert result.summary["actions"] == 2 * 4 * 16 - 1
    assert result.summary["recent_return"] is None or result.summary["recent_return"] <= 4


class LeavingVector(CartPoleVectorEnv):
    def step(self, action: Any) -> Any:
        raise SystemExit(2)


def test_a_native_vector_environment_that_exits_is_an_error(tmp_path: Path) -> None:
    gymnasium.register("Leaving-v0", vector_entry_point=LeavingVector)
    try:
        with pytest.raises(EnvError, match=r"^Leaving-v0 .*SystemExit: 2 \(test_train.py, line \d+\)"):
            train_into(tmp_path / "run", **{**CONTROL, "env": "Leaving-v0", "evaluation": 0})
    finally:
        del gymnasium.registry["Leaving-v0"]


def leave(*_: Any, **__: Any) -> Any:
    raise SystemExit("enough")


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("reward", r"\breward .*SystemExit: enough"),
        ("token_reward", "token_reward .*SystemExit: enough"),
        ("legal_tokens", "legal_tokens .*slot 0: SystemExit: enough"),
        ("__init__", "Exits-v0: SystemExit: enough"),
    ],
)
def test_a_token_environment_that_exits_is_an_error(tmp_path: Path, method: str, message: str) -> None:
    kind = type(
        "Exits", (TokenVectorEnv,), {"prompts": lambda self: ["Hello"], "reward": lambda *_: 1.0, method: leave}
    )
    gymnasium.register("Exits-v0", vector_entry_point=kind)
    try:
        with pytest.raises((EnvError, RewardError), match=message):
            train_into(tmp_path / "run", **{**TOKEN, "env": "Exits-v0", "env_kwargs": {}, "evaluation": 0})
    finally:
        del gymnasium.registry["Exits-v0"]


def test_a_prompt_longer_than_the_context_is_named(tmp_path: Path) -> None:
    name = register("Long-v0", prompts=["word " * 400], reward=lambda r: 0.0)
    try:
        with pytest.raises(EnvError, match=r"prompt 1 of 1 .* tokens; .* 256"):
            train(env=name, iterations=1, out=tmp_path / "run")
    finally:
        del gymnasium.registry[name]


def test_a_model_without_a_tokenizer_is_named(tmp_path: Path, nano: Any) -> None:
    nano.weights.save_pretrained(tmp_path / "bare")
    with pytest.raises(ModelError, match=r"load the model|no tokenizer"):
        train(model=str(tmp_path / "bare"), iterations=1, out=tmp_path / "run")


def test_presets_fill_limits_by_environment() -> None:
    writer, game = (make_settings({"env": f"palaestra/{name}-v0", "model": "smollm2"}) for name in ("Writer", "Guess"))
    assert (writer.max_tokens, writer.episodes, writer.checkpoint_every) == (512, 64, 10)
    assert (game.max_tokens, game.episodes) == (72, 128)
    assert make_settings({"env": "palaestra/Writer-v0", "max_tokens": 9}).max_tokens == 9


def test_settings_are_documented_and_survive_a_file() -> None:
    for kind in (TrainSettings, PPOConfig, GRPOConfig, RLOOConfig, REINFORCEConfig):
        assert all(text.endswith(".") for _, _, text in list_settings(kind))
    settings = fill_presets(make_settings({"env": "CartPole-v1", "seed": 4}))
    assert build(TrainSettings, json.loads(json.dumps(to_plain(settings)))) == settings
    assert fill_presets(settings) == settings
    assert (settings.algorithm, settings.policy, settings.hyperparameters["gamma"]) == ("ppo", "mlp", 0.98)
    acrobot = {"env": "Acrobot-v1"}
    assert fill_presets(make_settings(acrobot)).normalize_observations is True
    assert fill_presets(make_settings({**acrobot, "normalize_observations": False})).normalize_observations is False


def test_training_ends_responses_where_the_engine_would(tmp_path: Path, fresh_nano: Any) -> None:
    """A model may name several end tokens in its generation settings (Llama 3, Qwen): both sides obey them."""
    from palaestra.models import registry as models

    other = fresh_nano.tokenizer.convert_tokens_to_ids("<|tool|>")
    fresh_nano.weights.generation_config.eos_token_id = [fresh_nano.tokenizer.eos_token_id, other]
    fresh_nano.weights.save_pretrained(tmp_path / "model")
    fresh_nano.tokenizer.save_pretrained(tmp_path / "model")
    from palaestra.recipes.train.build import build_loop

    loop = build_loop(fill_presets(make_settings({**TOKEN, "model": str(tmp_path / "model")})), lambda event: None)
    assert (
        set(loop.env.end_ids)
        == TransformersEngine.from_loaded(models.load(str(tmp_path / "model"), device="cpu")).end_ids
    )
    assert other in loop.env.end_ids
