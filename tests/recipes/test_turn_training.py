"""Training on turns: exact resume, held-out pairs, failures that teach nothing, and one line for what cannot be done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from talk import Talk

from palaestra.core.errors import EnvError, RewardError
from palaestra.core.records import Message
from palaestra.envs.making import kind_of
from palaestra.recipes.settings import build
from palaestra.recipes.train import Iteration, TrainResult, TrainSettings, filled, resume, train
from palaestra.runs.run import Run

SMALL: dict[str, Any] = {
    "env": "palaestra/Guess-v0", "env_options": ("high=4", "attempts=2"), "iterations": 3, "episodes": 8, "slots": 6, "group_size": 4,
    "evaluation": 6, "checkpoint_every": 2, "threads": 1, "max_tokens": 8, "learning_rate": 1e-3, "keep_trajectories": 8,
}  # fmt: skip


class Stop(Exception):
    pass


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return train(out=tmp_path_factory.mktemp("turns") / "run", **SMALL)


@pytest.fixture
def talk_env() -> Iterator[str]:
    gymnasium.register("Talk-v0", entry_point=lambda **options: Talk(**options))
    yield "Talk-v0"
    del gymnasium.registry["Talk-v0"]


def test_a_run_leaves_figures_conversations_and_a_model(whole: TrainResult) -> None:
    summary = whole.summary
    assert (summary["policy"], summary["algorithm"], summary["episodes"]) == ("lm", "grpo", 24)
    with Run.open(whole.folder, read_only=True) as run:
        figures = run.store.figures()
        wanted = {"reward", "reward_low", "turns", "entropy", "length", "truncated", "groups_without_variance",
                  "seconds_model", "seconds_environment", "seconds_update", "tokens_per_second"}  # fmt: skip
        assert wanted <= set(figures[1])
        assert {"test_reward", "test_turns", "test_count"} <= set(figures[0]) & set(figures[3])
        kept = run.store.trajectories(1)
        assert run.store.total("1/train").completion_tokens == figures[1]["decisions"]
    assert [t.infos[0]["episode"] for t in kept] == list(range(8))
    assert len({t.seed for t in kept[:4]}) == 1 and kept[0].seed != kept[4].seed  # noqa: PT018
    longer = [t for t in kept if t.infos[0]["turns"] == 2]
    assert longer
    for trajectory in longer:
        assert [segment.chosen[0] for segment in trajectory.segments] == [False, True, False, True]
        assert len(trajectory.rewards) == 2
        assert "[user] " in trajectory.infos[0]["response"]
    from palaestra.engines import shelf

    assert shelf.load(str(whole.folder / "model"), device="cpu").tokenizer.eos_token == "<|end|>"


def test_the_gain_is_paired_over_the_same_held_out_episodes(whole: TrainResult, tmp_path: Path) -> None:
    summary = whole.summary
    assert summary["test_gain_episodes"] == 6
    assert summary["test_gain"] == pytest.approx(summary["test_after"] - summary["test_before"])
    assert summary["test_gain_low"] <= summary["test_gain"] <= summary["test_gain_high"]
    still = train(out=tmp_path / "run", **{**SMALL, "learning_rate": 0.0, "iterations": 1}).summary
    assert (still["test_gain"], still["test_gain_low"], still["test_gain_high"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("after", [1, 2])
def test_a_stopped_run_goes_on_to_the_same_weights(whole: TrainResult, tmp_path: Path, after: int) -> None:
    def stop(done: Iteration) -> None:
        if done.number == after:
            raise Stop

    with pytest.raises(Stop):
        train(out=tmp_path / "run", callbacks=[stop], **SMALL)
    with Run.open(tmp_path / "run") as run:
        assert same(resume(run).summary, whole.summary)
        with Run.open(whole.folder, read_only=True) as other:
            for iteration in (1, 3):
                assert run.store.trajectories(iteration) == other.store.trajectories(iteration)


@pytest.mark.parametrize(
    "more",
    [{"algorithm": "ppo"}, {"algorithm": "ppo", "critic": "separate"}, {"algorithm": "rloo"}, {"algorithm": "reinforce"},
     {"algorithm": "grpo", "kl": 0.1, "variant": "dr_grpo"}, {"algorithm": "ppo", "kl": 0.1}],
    ids=["ppo", "critic of its own", "rloo", "reinforce", "grpo with a reference", "ppo with a reference"],
)  # fmt: skip
def test_every_algorithm_learns_from_turns(talk_env: str, tmp_path: Path, more: dict[str, Any]) -> None:
    told: list[Iteration] = []
    settings = {
        **SMALL,
        "env": talk_env,
        "env_options": ("turns=3",),
        "iterations": 1,
        "evaluation": 0,
        "minibatch": 4,
        **more,
    }
    result = train(out=tmp_path / "run", callbacks=[told.append], **settings)
    assert result.summary["decisions"] > 8
    assert told[0].figures["turns"] > 1
    assert {episode.turns for episode in told[0].responses} > {1}  # type: ignore[attr-defined]
    if "kl" in more:
        assert told[0].figures["reference_kl"] == pytest.approx(0.0, abs=1e-3)


def test_a_failed_episode_teaches_nothing_and_many_stop_the_run(talk_env: str, tmp_path: Path) -> None:
    settings = {**SMALL, "env": talk_env, "algorithm": "reinforce", "iterations": 1, "episodes": 40, "evaluation": 0}
    told: list[Iteration] = []
    train(out=tmp_path / "some", callbacks=[told.append], **{**settings, "env_options": ("failing=0.03",)})
    failed = [episode for episode in told[0].responses if episode.failure]
    assert failed and told[0].figures["failures"] == len(failed) and told[0].figures["episodes"] == 40 - len(failed)  # noqa: PT018
    assert failed[0].failure == "sandbox: the sandbox is gone"
    with pytest.raises(RewardError, match="episodes failed in one iteration; the first: sandbox: the sandbox is gone"):
        train(out=tmp_path / "many", **{**settings, "env_options": ("failing=0.6",)})


def test_a_conversation_without_room_is_stopped_and_an_opening_without_room_failed(
    talk_env: str, tmp_path: Path
) -> None:
    told: list[Iteration] = []
    settings = {**SMALL, "env": talk_env, "iterations": 1, "evaluation": 0, "max_tokens": 2}
    train(out=tmp_path / "run", callbacks=[told.append], **{**settings, "env_options": ("turns=6", "words=40")})
    assert "context" in {episode.stop_reason for episode in told[0].responses}
    with pytest.raises(RewardError, match=r"the opening of an episode has .* tokens; the model reads 256"):
        train(out=tmp_path / "long", **{**settings, "env_options": ("words=3000",)})


def test_what_cannot_be_trained_on_is_one_line(tmp_path: Path) -> None:
    for settings, said in (
        ({"env_options": ("hihg=3",)}, "does not take these options"),
        ({"env": "palaestra/Task-v0", "env_options": ("task=vision-skills", "problems=1")}, "holds an image"),
        ({"policy": "mlp"}, "whose actions are messages; use lm"),
        ({"episodes": 6}, "expected whole groups of 4"),
    ):
        with pytest.raises(Exception, match=said) as caught:
            train(out=tmp_path / "run", **{**SMALL, "iterations": 1, **settings})
        assert "\n" not in str(caught.value)


def test_an_environment_that_changes_what_was_said_is_refused(tmp_path: Path) -> None:
    class Rewriting(Talk):
        def conversation(self) -> Any:
            found = super().conversation()
            if self.turn:
                return type(found)((Message("user", "Something else."), *found.messages[1:]), found.state)
            return found

    gymnasium.register("Rewriting-v0", entry_point=lambda **options: Rewriting(**options))
    try:
        with pytest.raises(EnvError, match="a conversation may only grow at its end"):
            train(
                out=tmp_path / "run", **{**SMALL, "env": "Rewriting-v0", "env_options": ("turns=9",), "evaluation": 0}
            )
    finally:
        del gymnasium.registry["Rewriting-v0"]


def test_turn_environments_have_settings_of_their_own(talk_env: str) -> None:
    settings = filled(build(TrainSettings, {"env": "palaestra/Guess-v0"}))
    assert (settings.policy, settings.algorithm, settings.slots, settings.episodes) == ("lm", "grpo", 32, 128)
    assert (settings.evaluation, settings.learning_rate) == (64, 1e-4)
    assert kind_of("palaestra/Guess-v0", {}) == kind_of(talk_env, {}) == "turn"
    assert (kind_of("CoTEnv-v0", {}), kind_of("CartPole-v1", {})) == ("token", "control")
