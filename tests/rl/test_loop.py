"""A stopped loop resumes exactly, and a checkpoint that does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from small_training import CONTROL, Stop, same, stop_after

from palaestra.core.errors import (
    RunError,
)
from palaestra.recipes.train.recipe import resume, train
from palaestra.runs.run import Run


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"policy": "transformer"},
        {"env": "Pendulum-v1", "normalize_observations": True},
        {"algorithm": "grpo", "group_size": 2},
    ],
    ids=["mlp", "transformer", "slots", "groups"],
)
def test_control_policy_resumes_in_the_middle_of_episodes(tmp_path: Path, more: dict[str, Any]) -> None:
    settings = {**CONTROL, **more}
    if "algorithm" in more:
        del settings["batch_size"]
    whole = train(out=tmp_path / "whole", **settings)
    with pytest.raises(Stop):
        train(out=tmp_path / "run", callbacks=[stop_after(3)], **settings)
    with Run.open(tmp_path / "run") as opened:
        assert same(resume(opened).summary, whole.summary)


def test_a_checkpoint_of_an_earlier_version_resumes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "env": "CoTEnv-v0", "iterations": 3, "episodes": 8, "num_envs": 8, "group_size": 4, "evaluation": 0,
        "max_tokens": 8, "threads": 1, "checkpoint_every": 1, "keep_alternatives": 0,
    }  # fmt: skip
    whole = train(out=tmp_path / "whole", **settings)
    with pytest.raises(Stop):
        train(out=tmp_path / "run", callbacks=[stop_after(2)], **settings)
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        counters = json.loads((checkpoint / "counters.json").read_text())
        counters["decisions"] = counters.pop("actions")  # The name of the counter in earlier versions.
        del counters["tokens"]
        (checkpoint / "counters.json").write_text(json.dumps(counters))
    with Run.open(tmp_path / "run") as opened:
        assert same(resume(opened).summary, whole.summary)
    totals = []
    for name in ("run", "whole"):
        with Run.open(tmp_path / name, read_only=True) as opened:
            totals.append([row["total_actions"] for row in opened.store.metrics().values() if "total_actions" in row])
    assert totals[0] == totals[1]


@pytest.mark.parametrize("pickles_arguments", [False, True])
def test_unpicklable_environment_resumes_to_the_same_weights(tmp_path: Path, pickles_arguments: bool) -> None:
    class Stubborn(gymnasium.Wrapper[Any, Any, Any, Any]):
        def __reduce__(self) -> Any:
            raise TypeError("not today")

    class Forgetful(CartPoleEnv, gymnasium.utils.EzPickle):
        """As Atari's and Box2D's environments: a pickle has the arguments and no state."""

        def __init__(self, **arguments: Any) -> None:
            gymnasium.utils.EzPickle.__init__(self, **arguments)
            super().__init__(**arguments)

    make = Forgetful if pickles_arguments else lambda: Stubborn(gymnasium.make("CartPole-v1"))
    gymnasium.register("Stubborn-v0", make)
    try:
        settings = {**CONTROL, "env": "Stubborn-v0"}
        whole = train(out=tmp_path / "whole", **settings)
        with pytest.raises(Stop):
            train(out=tmp_path / "run", callbacks=[stop_after(3)], **settings)
        with Run.open(tmp_path / "run") as opened:
            assert same(resume(opened).summary, whole.summary)
    finally:
        del gymnasium.registry["Stubborn-v0"]


def test_a_checkpoint_of_another_shape_names_both_sides(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        train(out=tmp_path / "run", callbacks=[stop_after(3)], **CONTROL)  # type: ignore[arg-type]
    path = tmp_path / "run" / "settings.json"
    data = json.loads(path.read_text())
    data["settings"]["env"] = "Acrobot-v1"
    path.write_text(json.dumps(data))
    with (
        Run.open(tmp_path / "run") as opened,
        pytest.raises(RunError, match=r"actor.0.weight .*\(64, 4\); .*\(64, 6\)"),
    ):
        resume(opened)


@pytest.mark.parametrize(
    ("name", "value"), [("num_envs", 8), ("env_kwargs", ["max_episode_steps=7"]), ("env", "CartPole-v0")]
)
def test_changed_settings_of_an_environment_are_refused(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(Stop):
        train(out=tmp_path / "run", callbacks=[stop_after(3)], **CONTROL)  # type: ignore[arg-type]
    path = tmp_path / "run" / "settings.json"
    data = json.loads(path.read_text())
    data["settings"][name] = value
    path.write_text(json.dumps(data))
    with Run.open(tmp_path / "run") as opened, pytest.raises(RunError, match=f"'{name}'"):
        resume(opened)


def test_a_damaged_checkpoint_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        train(out=tmp_path / "run", callbacks=[stop_after(3)], **CONTROL)  # type: ignore[arg-type]
    (tmp_path / "run" / "checkpoints" / "iteration-2" / "policy.safetensors").write_bytes(b"junk")
    with Run.open(tmp_path / "run") as opened, pytest.raises(RunError, match=r"iteration-2"):
        resume(opened)
