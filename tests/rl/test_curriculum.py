"""Curricula: which prompts they choose, what they remember, and that training uses them."""

from pathlib import Path

import numpy as np
import pytest

from palaestra import train
from palaestra.core.errors import PalaestraError
from palaestra.core.seeding import Seeds
from palaestra.envs.token import TokenVectorEnv
from palaestra.recipes.resume import resume
from palaestra.rl.curriculum import CURRICULA, EXPLORATION, Averages, Curriculum
from palaestra.runs.run import Run

SKILLS = ["easy/"] * 20 + ["middle/"] * 20 + ["hard/"] * 20
RATES = np.array([1.0] * 20 + [0.5] * 20 + [0.0] * 20)


def play(
    name: str, iterations: int = 30, rates: np.ndarray = RATES, drift: float = 0.0
) -> tuple[Curriculum, np.ndarray]:
    """Play a policy with fixed success rates. Returns the curriculum and the prompts that it chose in the last ten iterations."""
    curriculum: Curriculum = CURRICULA.get(name)(SKILLS, Seeds(0))
    generator, chosen = np.random.default_rng(0), []
    for iteration in range(1, iterations + 1):
        prompts = curriculum.choose(iteration, 16)
        now = np.clip(rates + drift * iteration * (np.arange(60) < 20), 0, 1)
        curriculum.record(prompts, [(generator.random(8) < now[prompt]).astype(float).tolist() for prompt in prompts])
        if iteration > iterations - 10:
            chosen += prompts
    return curriculum, np.array(chosen)


def test_averages_weigh_recent_values_more() -> None:
    averages = Averages(np.zeros(1, dtype=int), half_life=1)
    averages.add([0], [0.0])
    averages.add([0], [1.0])
    assert averages.sums_P[0] / averages.weights_P[0] == pytest.approx(1 / 1.5)


def test_unseen_prompts_get_the_average_of_their_skill() -> None:
    averages = Averages(np.array([0, 0, 1, 1]), half_life=10)
    averages.add([0] * 50 + [2] * 50, [1.0] * 50 + [0.0] * 50)
    estimates = averages.by_prompt()
    assert estimates[0] > estimates[1] > 0.95
    assert estimates[2] < estimates[3] < 0.05


@pytest.mark.parametrize("name", ["sfl", "pools"])
def test_prompts_solved_sometimes_are_preferred(name: str) -> None:
    _, chosen = play(name)
    middle = np.mean((chosen >= 20) & (chosen < 40))
    assert middle > 0.6
    assert {prompt // 20 for prompt in chosen} == {0, 1, 2}, "the others are still explored"


def test_pools_prefer_hard_to_easy_prompts() -> None:
    _, chosen = play("pools")
    assert np.mean(chosen >= 40) > np.mean(chosen < 20)


def test_progress_prefers_the_skill_that_changes() -> None:
    rates = np.array([0.1] * 20 + [0.5] * 20 + [0.0] * 20)
    _, chosen = play("progress", rates=rates, drift=0.03)
    assert np.mean(chosen < 20) > 0.5


@pytest.mark.parametrize("name", CURRICULA.names())
def test_every_prompt_keeps_a_chance(name: str) -> None:
    curriculum, _ = play(name)
    counts = np.bincount([p for k in range(400) for p in curriculum.choose(1000 + k, 15)], minlength=60)
    assert counts.min() > 0.5 * EXPLORATION * 400 * 15 / 60


@pytest.mark.parametrize("name", CURRICULA.names())
def test_state_restores_the_choices(name: str) -> None:
    curriculum, _ = play(name)
    restored: Curriculum = CURRICULA.get(name)(SKILLS, Seeds(0))
    restored.load_state(curriculum.state())
    assert restored.choose(77, 16) == curriculum.choose(77, 16)


def test_failed_groups_teach_nothing() -> None:
    curriculum: Curriculum = CURRICULA.get("sfl")(SKILLS, Seeds(0))
    assert curriculum.record([0, 1], [[], []]) == {}
    assert curriculum.record([0, 1], [[], [0.0, 1.0]])["groups_frontier"] == 1.0


def test_environment_takes_the_prompts_of_groups() -> None:
    env = TokenVectorEnv([f"say {k}" for k in range(5)], lambda response: 0.0, num_envs=4, group_size=2, max_tokens=1)
    env.reset(seed=0, options={"episode": 6, "episodes": 4, "prompts": [4, 1]})
    assert [env.prompt(episode).text for episode in range(6, 10)] == ["say 4", "say 4", "say 1", "say 1"]
    env.reset(seed=0)
    assert sorted({env.prompt(episode).text for episode in range(10)}) == [f"say {k}" for k in range(5)]


def run_train(out: Path, **changes: object) -> Run:
    settings = {
        "iterations": 3,
        "episodes": 32,
        "num_envs": 32,
        "max_tokens": 24,
        "evaluation": 0,
        "checkpoint_every": 1,
    }
    folder = train(env="palaestra/CoT-v0", curriculum="sfl", out=out, **settings | changes).folder
    return Run.open(folder)


def test_training_stores_the_difficulty(tmp_path: Path) -> None:
    run = run_train(tmp_path / "run")
    row = run.store.metrics()[3]
    assert row["groups_hard"] + row["groups_frontier"] + row["groups_easy"] == pytest.approx(1)
    assert sum(value for name, value in row.items() if name.startswith("groups/")) == pytest.approx(1)


@pytest.mark.backends
def test_workers_and_resumed_runs_choose_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_train(tmp_path / "whole")
    workers = run_train(tmp_path / "workers", executor="processes:2")
    for name in ("num_tokens", "reward", "groups_frontier"):  # The weights differ by rounding.
        assert [row[name] for row in workers.store.metrics().values()] == [
            row[name] for row in whole.store.metrics().values()
        ]
    record, calls = Curriculum.record, []

    def fail_once(self: Curriculum, *arguments: object) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return record(self, *arguments)

    monkeypatch.setattr(Curriculum, "record", fail_once)
    with pytest.raises(KeyboardInterrupt):
        run_train(tmp_path / "stopped")
    resume(tmp_path / "stopped")
    assert Run.open(tmp_path / "stopped").summary["weights_sha256"] == whole.summary["weights_sha256"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"curriculum": "sf1"}, "sfl"),
        ({"algorithm": "ppo"}, "grpo or rloo"),
        ({"env": "palaestra/Guess-v0"}, "expected uniform"),
        ({"env": "CartPole-v1"}, "language models"),
    ],
)
def test_curricula_that_do_not_fit_are_refused(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(PalaestraError, match=message):
        train(**{"env": "palaestra/CoT-v0", "curriculum": "sfl", "out": tmp_path / "run"} | changes)
