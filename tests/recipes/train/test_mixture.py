"""Several environments in one run: shares, exact tokens, exact resume, one-line errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import Stop, same, stop_after

from palaestra.core.errors import PalaestraError
from palaestra.core.records import ignore
from palaestra.recipes.train.build import build_loop
from palaestra.recipes.train.mixture import read_environments
from palaestra.recipes.train.presets import make_settings
from palaestra.recipes.train.recipe import TrainResult, resume, train
from palaestra.runs.run import Run

GUESS, COT = "palaestra/Guess-v0,high=4,max_tokens=8", "palaestra/CoT-v0,max_tokens=12,evaluation=1"
SMALL: dict[str, Any] = {
    "env": [f"{GUESS},weight=3", COT], "iterations": 2, "episodes": 16, "num_envs": 8, "group_size": 2, "evaluation": 4,
    "learning_rate": 1e-3, "threads": 1, "checkpoint_every": 1, "seed": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return train(out=tmp_path_factory.mktemp("mixture") / "run", **SMALL)


def test_environments_get_their_shares(result: TrainResult) -> None:
    with Run.open(result.folder) as run:
        table = run.store.metrics()
    names = ("Guess-v0,high=4", "CoT-v0")
    assert [[table[k][f"episodes/{name}"] for name in names] for k in (1, 2)] == [[12, 4], [12, 4]]
    assert table[1]["episodes"] == 16
    mean = (12 * table[1]["reward/Guess-v0,high=4"] + 4 * table[1]["reward/CoT-v0"]) / 16
    assert table[1]["reward"] == pytest.approx(mean)


def test_the_gain_is_the_mean_over_environments(result: TrainResult) -> None:
    parts = result.summary["environments"].values()
    assert result.summary["gain"] == pytest.approx(sum(part["gain"] for part in parts) / 2)
    assert result.summary["before"] == pytest.approx(sum(part["before"] for part in parts) / 2)
    assert result.summary["gain_episodes"] == sum(part["gain_episodes"] for part in parts)
    assert result.summary["environments"]["Guess-v0,high=4"]["before_episodes"] == 4


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_sampled_tokens_keep_their_log_probs(algorithm: str) -> None:
    settings = {name: value for name, value in SMALL.items() if name != "group_size" or algorithm == "grpo"}
    loop: Any = build_loop(make_settings({**settings, "algorithm": algorithm}), ignore)
    loop.choose_prompts(1)
    rollout = loop.play_iteration(1)
    learned_BT = loop.policy.logprobs_BT(rollout)
    difference = (learned_BT - rollout.logprobs_BT)[rollout.mask_BT].abs().max()
    assert float(difference) < 1e-4
    # Both scales are in the rollout: episodes of several turns, and responses that are one turn.
    assert rollout.turn_BT is not None
    turns = (rollout.turn_BT * rollout.mask_BT).amax(1)
    assert set(turns[12:].tolist()) == {0}
    assert int(turns[:12].max()) > 0
    groups = rollout.get_episodes().group_B
    assert torch.equal(groups, torch.arange(16) // loop.group_size)
    loop.close()


@pytest.mark.backends
@pytest.mark.parametrize("more", [{}, {"curriculum": "sfl", "env": [GUESS, COT]}], ids=["weights", "curriculum"])
def test_a_stopped_run_resumes_exactly(tmp_path: Path, result: TrainResult, more: dict[str, Any]) -> None:
    whole = train(out=tmp_path / "whole", **SMALL | more) if more else result
    with pytest.raises(Stop):
        train(out=tmp_path / "run", callbacks=[stop_after(1)], **SMALL | more)
    with Run.open(tmp_path / "run") as run:
        assert same(resume(run).summary, whole.summary)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a/B-v0,high=8", [("a/B-v0", {"high": 8}, None)]),
        (["A-v0,weight=2,skills=[1,2]", "B-v0"], [("A-v0", {"skills": [1, 2]}, 2), ("B-v0", {}, 1.0)]),
        ({"A-v0": 1, "B-v0,x=a,b": 0.5}, [("A-v0", {}, 1), ("B-v0", {"x": "a,b"}, 0.5)]),
    ],
)
def test_environments_are_read(value: object, expected: list[tuple[str, dict[str, Any], float | None]]) -> None:
    entries = read_environments(value, {})
    assert [(entry["env"], entry["env_kwargs"], entry.get("weight")) for entry in entries] == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"env": [GUESS, "CartPole-v1"]}, "CartPole-v1 has none"),
        ({"env": [f"{GUESS},weight=0", COT]}, "a weight above 0"),
        ({"env": f"{GUESS},weight=2"}, "no effect on a single environment"),
        ({"env": []}, "at least one environment"),
        ({"env": [GUESS, COT], "task": "math-skills"}, "ID,task=VALUE"),
        ({"env": [GUESS, COT], "env_kwargs": {"high": 3}}, "behind its environment"),
        ({"env": [GUESS, COT], "max_staleness": 1}, "expected one environment"),
        ({"env": [f"{GUESS},weight=2", COT], "curriculum": "sfl"}, "expected no weights"),
        ({"env": [GUESS, "palaestra/Gues-v0"]}, "Guess-v0"),
    ],
)
def test_wrong_environments_are_one_line(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(PalaestraError, match=message) as raised:
        train(out=tmp_path, **values)
    assert "\n" not in str(raised.value)
