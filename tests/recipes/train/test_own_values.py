"""Training with what a user brings: rows, rewards, environments and configs as Python values."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from palaestra import GRPOConfig, RLOOConfig, resume, train
from palaestra.core.errors import PalaestraError, RunError
from palaestra.core.records import Event
from palaestra.recipes.train.recipe import TrainResult
from palaestra.runs.run import Run

ROWS = [{"prompt": f"What is {n} + 4?", "answer": str(n + 4)} for n in range(3, 33)]
SMALL: dict[str, Any] = {
    "iterations": 1,
    "episodes": 8,
    "num_envs": 8,
    "evaluation": 4,
    "max_tokens": 8,
    "progress": False,
}
SMALL |= {"threads": 1, "keep_trajectories": 1}
CONTROL = {"iterations": 1, "evaluation": 2, "num_envs": 4, "n_steps": 16, "progress": False, "threads": 1}


def count_digits(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    assert all(answer)
    return [float(sum(sign.isdigit() for sign in completion)) for completion in completions]


def is_short(completion: str) -> float:
    return float(len(completion) < 20)


class LongCartPole(CartPoleEnv):
    """A class of the user."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))


def read_settings(result: TrainResult) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((result.folder / "settings.json").read_text())["settings"]
    return settings


def test_rows_and_functions_train_a_model(tmp_path: Path) -> None:
    result = train(
        prompts=ROWS, reward=[count_digits, is_short], reward_weights=[1.0, 0.5], out=tmp_path / "run", **SMALL
    )
    settings = read_settings(result)
    assert settings["env"] == "palaestra/Prompts-v0"
    assert [json.loads(line) for line in Path(settings["prompts"]).read_text().splitlines()] == ROWS
    assert settings["reward"] == [f"{__name__}:count_digits", f"{__name__}:is_short"]
    curve = result.curve
    assert {"rewards/count_digits/mean", "rewards/is_short/std", "reward"} <= set(curve.columns)
    means = curve.dropna(subset=["rewards/is_short/mean"]).iloc[-1]
    expected = means["rewards/count_digits/mean"] + 0.5 * means["rewards/is_short/mean"]
    assert means["reward"] == pytest.approx(expected)
    assert (result.folder / "code" / Path(__file__).name).read_bytes() == Path(__file__).read_bytes()
    assert result.before is not None
    assert result.unit == "return"


def test_a_reward_gets_all_groups_of_an_iteration_in_one_call(tmp_path: Path) -> None:
    calls: list[tuple[list[str], int, int]] = []

    def rank(
        prompts: list[str], completions: list[str], trainer_state: Any, log_extra: Any, log_metric: Any, **kwargs: Any
    ) -> list[float]:
        calls.append((prompts, trainer_state.global_step, trainer_state.max_steps))
        places = {text: place for place, text in enumerate(sorted(completions))}
        log_extra("place", [places[text] for text in completions])
        log_metric("distinct", len(places))
        return [float(places[text]) for text in completions]

    settings = SMALL | {"iterations": 2, "num_envs": 3, "group_size": 4, "evaluation": 0, "keep_trajectories": 4}
    result = train(prompts=ROWS, reward=rank, out=tmp_path / "run", **settings)
    assert [(len(prompts), step, last) for prompts, step, last in calls] == [(8, 0, 2), (8, 1, 2)]
    for prompts, *_ in calls:
        assert len(set(prompts[:4])) == len(set(prompts[4:])) == 1
    assert all(1 <= count <= 8 for count in result.curve["distinct"])
    with Run.open(result.folder, read_only=True) as run:
        stored = [trajectory for iteration in (1, 2) for trajectory in run.store.trajectories(iteration)]
    assert stored
    assert all(trajectory.total_reward == trajectory.infos[0]["columns"]["place"] for trajectory in stored)


def test_a_task_with_a_reward_is_evaluated_by_its_scorer(tmp_path: Path) -> None:
    result = train(task=ROWS, task_kwargs={"scorer": "number"}, reward=is_short, out=tmp_path / "run", **SMALL)
    assert result.unit == "percent"
    assert result.gain is not None
    low, high = result.gain_interval or (1.0, 0.0)
    assert low <= result.gain <= high
    assert set(result.curve["reward"].dropna()) <= set(np.linspace(0, 1, 9))


def test_a_run_with_functions_of_a_file_is_resumed(tmp_path: Path) -> None:
    whole = train(
        prompts=ROWS, reward=is_short, out=tmp_path / "whole", **{**SMALL, "iterations": 2, "checkpoint_every": 1}
    )

    class StopError(Exception):
        pass

    def stop(iteration: object) -> None:
        raise StopError

    with pytest.raises(StopError):
        train(
            prompts=ROWS, reward=is_short, out=tmp_path / "part", callbacks=[stop], **{**SMALL, "iterations": 2, "checkpoint_every": 1}
        )  # fmt: skip
    part = resume(tmp_path / "part")
    assert part.summary["weights_sha256"] == whole.summary["weights_sha256"]


def test_an_object_that_no_file_defines_is_named_at_the_start(tmp_path: Path) -> None:
    notices: list[str] = []

    def listen(event: Event) -> None:
        notices.append(str(event.data.get("text", "")))

    train(prompts=ROWS, reward=lambda completion: 1.0, out=tmp_path / "run", listener=listen, **SMALL)
    assert sum("cannot be resumed" in text for text in notices) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: gymnasium.make("CartPole-v1", max_episode_steps=9),
        lambda: gymnasium.wrappers.TimeLimit(LongCartPole(), 9),
        lambda: lambda: gymnasium.wrappers.TimeLimit(LongCartPole(), 9),
    ],
    ids=["registered instance", "instance", "function"],
)
def test_an_environment_may_be_an_instance_or_a_function(make: Callable[[], Any], tmp_path: Path) -> None:
    result = train(env=make(), out=tmp_path / "run", **CONTROL)
    assert result.after is not None
    assert 1.0 <= result.after <= 9.0


def test_a_registered_instance_is_named_by_its_id(tmp_path: Path) -> None:
    result = train(env=gymnasium.make("CartPole-v1", sutton_barto_reward=True), out=tmp_path / "run", **CONTROL)
    settings = read_settings(result)
    assert (settings["env"], settings["env_kwargs"]) == ("CartPole-v1", {"sutton_barto_reward": True})


def test_an_environment_may_be_a_class(tmp_path: Path) -> None:
    result = train(env=LongCartPole, out=tmp_path / "run", **CONTROL)
    assert read_settings(result)["env"] == f"{__name__}:LongCartPole"


def test_an_algorithm_may_be_its_config(tmp_path: Path) -> None:
    result = train(prompts=ROWS, reward=is_short, algorithm=RLOOConfig(group_size=4), out=tmp_path / "run", **SMALL)
    settings = read_settings(result)
    assert settings["algorithm"] == "rloo"
    assert settings["hyperparameters"]["group_size"] == 4


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"env": "CartPole-v1", "model": "nano"}, "'model' .*language models.*'mlp'"),
        ({"env": "CartPole-v1", "max_tokens": 9}, "'max_tokens' .*'mlp'"),
        ({"env": "CartPole-v1", "temperature": 1.0}, "'temperature'"),
        ({"env": "CartPole-v1", "task": "math-skills"}, "'task' .*language models"),
        ({"env": "CartPole-v1", "reward": is_short}, "'reward' .*language models"),
        ({"env": "CartPole-v1", "window": 4}, "'window' .*transformer"),
        ({"env": "CartPole-v1", "policy": "transformer", "activation": "tanh"}, "'activation' .*mlp"),
        ({"n_steps": 5}, "'n_steps' .*classic"),
        ({"width": 64}, "'width' .*mlp and transformer.*'lm'"),
        ({"agent_timeout": 3.0}, "'agent_timeout' .*'agent'"),
        ({"reward_weights": [1.0]}, "'reward_weights' .*'reward'"),
        ({"prompts": ROWS}, "'reward'; .*as the task"),
        ({"method": "full", "rank": 8}, "'rank' .*'full'"),
        ({"importance_clip_max": 2.0}, "'importance_clip_max' .*max_staleness"),
        ({"evaluation": 0, "evaluate_every": 2}, "'evaluate_every' .*'evaluation'"),
        ({"prompts": [], "reward": is_short}, "no rows"),
        ({"prompts": [1], "reward": is_short}, "row 1.*got 1"),
        ({"prompts": [{"prompt": "a", "x": {1}}], "reward": is_short}, "row 1 .*JSON"),
        ({"prompts": [{"text": "a"}], "reward": is_short}, "no question: .*text"),
        ({"prompts": ROWS, "reward": "none.py:f"}, "'none.py:f'|none.py"),
        ({"prompts": ROWS, "reward": f"{__file__}:nothing"}, "no 'nothing'"),
        ({"prompts": ROWS, "reward": lambda x, y: 1.0}, "completions.*x, y|completions.*y, x"),
        ({"prompts": ROWS, "reward": [is_short], "reward_weights": [1.0, 2.0]}, "expected 1.*got 2"),
        ({"env": 3}, "id, a class.*got 3"),
        ({"env": "palaestra/Guess-v0", "reward": is_short}, "'reward'"),
        ({"env_kwargs": ("a=1",)}, "'env_kwargs': .*names and values"),
        ({"algorithm": GRPOConfig(), "n_epochs": "x"}, "'n_epochs'"),
    ],
)
def test_settings_without_effect_and_wrong_values_are_refused(
    values: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(PalaestraError, match=expected):
        train(out=tmp_path / "run", progress=False, **values)
    assert not (tmp_path / "run").exists()


def test_a_vector_environment_is_passed_as_its_class(tmp_path: Path) -> None:
    class OwnVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
        pass

    with pytest.raises(PalaestraError, match="OwnVectorEnv"):
        train(env=OwnVectorEnv(), out=tmp_path / "run")


def test_settings_of_another_run_are_no_options_of_the_user(tmp_path: Path) -> None:
    from palaestra.recipes.train.presets import make_settings

    first = train(env="CartPole-v1", out=tmp_path / "run", **CONTROL)
    again = make_settings({**read_settings(first), "seed": 1}, given=["seed"])
    assert (again.policy, again.seed) == ("mlp", 1)
    with pytest.raises(RunError, match=r"not a run folder|does not exist"):
        resume(tmp_path / "none")
