"""Training on turns: exact resume, paired held-out episodes, failures without effect, one-line errors."""

from __future__ import annotations

import copy
import io
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from dialogue_env import DialogueEnv
from published_templates import load_tokenizer

from palaestra.core.errors import EnvError, SettingsError
from palaestra.core.records import Message
from palaestra.envs.factory import detect_kind, turn_options
from palaestra.envs.turn import Reply, TurnEnv, TurnStopReason
from palaestra.envs.turn.games import CalculatorEnv
from palaestra.models.registry import LoadedModel
from palaestra.recipes.progress import list_metrics
from palaestra.recipes.train.build import build_loop
from palaestra.recipes.train.presets import fill_presets, make_settings
from palaestra.recipes.train.recipe import Iteration, TrainResult, resume, train
from palaestra.runs.run import Run

SMALL: dict[str, Any] = {
    "env": "palaestra/Guess-v0", "env_kwargs": {"high": 4, "attempts": 2}, "iterations": 3, "episodes": 8, "num_envs": 6, "group_size": 4,
    "evaluation": 6, "checkpoint_every": 2, "threads": 1, "max_tokens": 8, "learning_rate": 1e-3, "keep_trajectories": 8,
}  # fmt: skip


class Stop(Exception):
    pass


def are_equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return train(out=tmp_path_factory.mktemp("turns") / "run", **SMALL)


@pytest.fixture
def dialogue_env() -> Iterator[str]:
    gymnasium.register("Dialogue-v0", entry_point=lambda **options: DialogueEnv(**options))
    yield "Dialogue-v0"
    del gymnasium.registry["Dialogue-v0"]


def test_a_run_leaves_metrics_conversations_and_a_model(whole_run: TrainResult) -> None:
    summary = whole_run.summary
    assert (summary["policy"], summary["algorithm"], summary["episodes"]) == ("lm", "grpo", 24)
    with Run.open(whole_run.folder, read_only=True) as run:
        metrics = run.store.metrics()
        wanted = {"reward", "reward_low", "turns", "entropy", "length", "truncated", "frac_reward_zero_std",
                  "seconds_model", "seconds_environment", "seconds_update", "tokens_per_second"}  # fmt: skip
        assert wanted <= set(metrics[1])
        assert {"test_reward", "test_turns", "test_count"} <= set(metrics[0]) & set(metrics[3])
        kept = run.store.trajectories(1)
        assert run.store.total("1/train").completion_tokens == metrics[1]["actions"]
    assert [t.infos[0]["episode"] for t in kept] == list(range(8))
    assert len({t.seed for t in kept[:4]}) == 1 and kept[0].seed != kept[4].seed  # noqa: PT018
    longer = [t for t in kept if t.infos[0]["turns"] == 2]
    assert longer
    for trajectory in longer:
        assert [segment.chosen[0] for segment in trajectory.segments] == [False, True, False, True]
        assert len(trajectory.rewards) == 2
        for segment in trajectory.segments:
            known = len(segment.token_ids) if segment.chosen[0] else 0
            assert len(segment.advantages) == len(segment.entropies) == len(segment.alternatives) == known
        assert "[user] " in trajectory.infos[0]["response"]
    from palaestra.models import registry as models

    assert models.load(str(whole_run.folder / "model"), device="cpu").tokenizer.eos_token == "<|end|>"


def test_the_gain_is_paired_over_the_same_held_out_episodes(whole_run: TrainResult, tmp_path: Path) -> None:
    summary = whole_run.summary
    assert summary["gain_episodes"] == 6
    assert summary["gain"] == pytest.approx(summary["after"] - summary["before"])
    assert summary["gain_low"] <= summary["gain"] <= summary["gain_high"]
    still = train(out=tmp_path / "run", **{**SMALL, "learning_rate": 0.0, "iterations": 1}).summary
    assert (still["gain"], still["gain_low"], still["gain_high"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("after", [1, 2])
def test_a_stopped_run_goes_on_to_the_same_weights(whole_run: TrainResult, tmp_path: Path, after: int) -> None:
    def stop(done: Iteration) -> None:
        if done.number == after:
            raise Stop

    with pytest.raises(Stop):
        train(out=tmp_path / "run", callbacks=[stop], **SMALL)
    with Run.open(tmp_path / "run") as run:
        assert are_equal(resume(run).summary, whole_run.summary)
        with Run.open(whole_run.folder, read_only=True) as other:
            for iteration in (1, 3):
                assert run.store.trajectories(iteration) == other.store.trajectories(iteration)


@pytest.mark.parametrize(
    "more",
    [{"algorithm": "ppo"}, {"algorithm": "ppo", "critic": "separate"}, {"algorithm": "rloo"}, {"algorithm": "reinforce"},
     {"algorithm": "grpo", "kl_coef": 0.1, "variant": "dr_grpo"}, {"algorithm": "ppo", "kl_coef": 0.1}],
    ids=["ppo", "critic of its own", "rloo", "reinforce", "grpo with a reference", "ppo with a reference"],
)  # fmt: skip
def test_every_algorithm_learns_from_turns(dialogue_env: str, tmp_path: Path, more: dict[str, Any]) -> None:
    iterations: list[Iteration] = []
    settings = {
        **SMALL,
        "env": dialogue_env,
        "env_kwargs": {"turns": 3},
        "iterations": 1,
        "evaluation": 0,
        **more,
    }
    if more["algorithm"] in ("ppo", "reinforce"):
        del settings["group_size"]
    result = train(out=tmp_path / "run", callbacks=[iterations.append], **settings)
    assert result.summary["actions"] > 8
    assert iterations[0].metrics["turns"] > 1
    assert {episode.turns for episode in iterations[0].responses} > {1}  # type: ignore[attr-defined]
    if "kl_coef" in more:
        assert iterations[0].metrics["reference_kl"] == pytest.approx(0.0, abs=1e-3)


def test_the_messages_that_the_token_limit_cut_are_counted(whole_run: TrainResult) -> None:
    with Run.open(whole_run.folder, read_only=True) as run:
        metrics, episodes = run.store.metrics()[1], run.store.trajectories(1)
    spoken = [segment.token_ids for episode in episodes for segment in episode.segments if segment.chosen[0]]
    ends = {ids[-1] for ids in spoken if len(ids) < SMALL["max_tokens"]}
    assert len(ends) == 1  # A message below the limit ended by itself.
    cut = [ids for ids in spoken if len(ids) == SMALL["max_tokens"] and ids[-1] not in ends]
    assert 0 < len(cut) < len(spoken)
    assert metrics["truncated"] == pytest.approx(len(cut) / len(spoken))
    assert 0 < whole_run.summary["truncated"] < 1
    assert ("truncated", f"{metrics['truncated']:.0%}") in list_metrics(metrics)
    assert sum(episode.infos[0]["cut_messages"] for episode in episodes) == len(cut)


def test_a_failed_episode_teaches_nothing_and_many_stop_the_run(dialogue_env: str, tmp_path: Path) -> None:
    settings = {
        **SMALL,
        "env": dialogue_env,
        "algorithm": "reinforce",
        "iterations": 1,
        "episodes": 40,
        "evaluation": 0,
    }
    del settings["group_size"]
    iterations: list[Iteration] = []
    train(out=tmp_path / "some", callbacks=[iterations.append], **{**settings, "env_kwargs": {"failing": 0.03}})
    failed = [episode for episode in iterations[0].responses if episode.failure]
    assert failed
    assert iterations[0].metrics["failures"] == len(failed)
    assert iterations[0].metrics["episodes"] == 40 - len(failed)
    assert failed[0].failure == "sandbox: the sandbox is gone"
    with pytest.raises(EnvError, match="sandbox: the sandbox is gone"):
        train(out=tmp_path / "many", **{**settings, "env_kwargs": {"failing": 0.6}})


def test_full_context_stops_a_conversation_or_fails_its_start(dialogue_env: str, tmp_path: Path) -> None:
    iterations: list[Iteration] = []
    settings = {**SMALL, "env": dialogue_env, "iterations": 1, "evaluation": 0, "max_tokens": 2}
    train(out=tmp_path / "run", callbacks=[iterations.append], **{**settings, "env_kwargs": {"turns": 6, "words": 40}})
    assert "context" in {episode.stop_reason for episode in iterations[0].responses}
    message = r"context_length: .* tokens; .* 256"
    with pytest.raises(EnvError, match=message):
        train(out=tmp_path / "long", **{**settings, "env_kwargs": {"words": 3000}})


def test_what_cannot_be_trained_on_is_refused_in_one_line(tmp_path: Path) -> None:
    for settings, message in (
        ({"env_kwargs": {"hihg": 3}}, "'hihg'; .*'high'"),
        ({"env_kwargs": {"high": "a"}}, "high .*whole number .*; got 'a'"),
        (
            {"env": "palaestra/Task-v0", "env_kwargs": {"task": "vision-skills", "problems": 1}},
            "message with an image",
        ),
        ({"policy": "mlp"}, "actions are messages"),
        ({"episodes": 6}, "group size 4"),
    ):
        with pytest.raises(Exception, match=message) as caught:
            train(out=tmp_path / "run", **{**SMALL, "iterations": 1, **settings})
        assert "\n" not in str(caught.value)


def test_an_environment_that_changes_what_was_said_is_refused(tmp_path: Path) -> None:
    class Rewriting(DialogueEnv):
        def conversation(self) -> Any:
            conversation = super().conversation()
            if self.turn:
                return type(conversation)(
                    (Message("user", "Something else."), *conversation.messages[1:]), conversation.state
                )
            return conversation

    gymnasium.register("Rewriting-v0", entry_point=lambda **options: Rewriting(**options))
    try:
        with pytest.raises(EnvError, match="only append"):
            train(out=tmp_path / "run", **{**SMALL, "env": "Rewriting-v0", "env_kwargs": {"turns": 9}, "evaluation": 0})
    finally:
        del gymnasium.registry["Rewriting-v0"]


def test_turn_environments_have_settings_of_their_own(dialogue_env: str) -> None:
    settings = fill_presets(make_settings({"env": "palaestra/Guess-v0"}))
    assert (settings.policy, settings.algorithm, settings.num_envs, settings.episodes) == ("lm", "grpo", 32, 128)
    assert (settings.evaluation, settings.hyperparameters["learning_rate"]) == (64, 1e-4)
    assert detect_kind("palaestra/Guess-v0", {}) == detect_kind(dialogue_env, {}) == "turn"
    assert (detect_kind("CoTEnv-v0", {}), detect_kind("CartPole-v1", {})) == ("token", "control")


class Paying(TurnEnv):
    """Pays the same for every message; in some episodes, by their seed, it breaks."""

    held_out = {"broken": True}  # noqa: RUF012

    def __init__(self, pay: float = 0.3, broken: bool = False, how: str = "raise", share: float = 1.0) -> None:
        super().__init__(max_turns=1)
        self.pay, self.broken, self.how, self.share = pay, broken, how, share

    def opening(self, options: Mapping[str, Any]) -> Sequence[Message]:
        self.breaking = self.broken and self.np_random.random() < self.share
        return [Message("user", "Guess.")]

    def respond(self, message: Message) -> Reply:
        if self.breaking and self.how == "exit":
            raise SystemExit(3)
        if self.breaking and self.how == "raise":
            raise OSError("the held-out data\nis gone")
        return Reply(reward=math.nan if self.breaking else self.pay, stop=TurnStopReason.ATTEMPTS)


@pytest.fixture
def paying_env() -> Iterator[str]:
    gymnasium.register("Paying-v0", Paying)
    yield "Paying-v0"
    del gymnasium.registry["Paying-v0"]


ONCE: dict[str, Any] = {**SMALL, "iterations": 1, "env_kwargs": {}, "max_tokens": 4}


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "reinforce"])
def test_episodes_that_are_paid_alike_teach_nothing(
    paying_env: str, nano: LoadedModel, tmp_path: Path, algorithm: str
) -> None:
    """The mean of six times 0.3 is not 0.3 in 32 bits; an optimiser takes a full step of the difference."""
    iterations: list[Iteration] = []
    settings = {
        **ONCE,
        "env": paying_env,
        "episodes": 18,
        "max_tokens": 12,
        "group_size": 6,
        "evaluation": 0,
        "algorithm": algorithm,
    }
    if algorithm == "reinforce":
        del settings["group_size"]
    result = train(out=tmp_path / "run", callbacks=[iterations.append], **settings)
    weights = nano.weights.state_dict()
    assert all((tensor == weights[name]).all() for name, tensor in result.policy.model.state_dict().items())
    assert algorithm == "reinforce" or iterations[0].metrics["frac_reward_zero_std"] == 1.0


def test_failing_held_out_episodes_stop_the_run_with_the_cause(paying_env: str, tmp_path: Path) -> None:
    settings = {**ONCE, "env": paying_env, "evaluation": 4}
    with pytest.raises(EnvError) as caught:
        train(out=tmp_path / "run", **settings)
    assert str(caught.value) == (
        "4 of 4 held-out episodes failed; first failure: environment: OSError: the held-out data is gone"
    )
    with pytest.raises(EnvError, match=r"NoRewardError: Paying\.respond"):
        train(out=tmp_path / "nan", **{**settings, "env_kwargs": {"how": "nan"}})
    with pytest.raises(EnvError, match="environment: SystemExit: 3"):
        train(out=tmp_path / "exit", **{**settings, "env_kwargs": {"how": "exit"}})


def test_an_environment_that_breaks_is_counted_as_one(paying_env: str, tmp_path: Path) -> None:
    iterations: list[Iteration] = []
    settings = {
        **ONCE,
        "env": paying_env,
        "env_kwargs": {"share": 0.08},
        "episodes": 24,
        "evaluation": 24,
        "num_envs": 12,
    }
    result = train(out=tmp_path / "run", callbacks=[iterations.append], **settings)
    summary = result.summary
    failed = int(summary["before_failures"])
    assert failed == summary["after_failures"] == 2, "the seed has failures, and no more than a tenth"
    assert summary["failures"] == {"environment": 4} and iterations[0].metrics["failures"] == 0  # noqa: PT018
    assert (summary["before_episodes"], summary["gain_episodes"]) == (22, 22)


def test_summary_without_a_held_out_reward_is_valid_json(paying_env: str, tmp_path: Path) -> None:
    from rich.console import Console

    from palaestra.cli.terminal import outcome_table
    from palaestra.recipes.progress import TrainProgress

    console = Console(record=True, width=120, file=io.StringIO())
    with TrainProgress(console) as progress:
        train(out=tmp_path / "run", listener=progress, **{**ONCE, "env": paying_env, "evaluation": 1})

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    summary = json.loads((tmp_path / "run" / "summary.json").read_text(), parse_constant=refuse)
    assert [summary[name] for name in ("before", "after", "gain", "gain_low")] == [None] * 4
    assert (summary["failures"], summary["gain_episodes"]) == ({"environment": 2}, 0)
    console.print(outcome_table(summary))
    printed = " ".join(console.export_text().split())
    assert "held-out reward after 0: unknown, no episode was scored, 1 failed" in printed
    assert "held out, before: reward not known 0 episodes, 1 failed" in printed
    assert "gain, paired not known 0 episodes" in printed
    assert "nan" not in printed.replace("nano", "")
    single = train(out=tmp_path / "one", **{**SMALL, "iterations": 1, "evaluation": 1})
    json.loads((single.folder / "summary.json").read_text(), parse_constant=refuse)
    assert single.summary["gain"] is not None
    assert single.summary["gain_low"] is None


def test_all_that_the_model_read_is_counted(whole_run: TrainResult) -> None:
    with Run.open(whole_run.folder, read_only=True) as run:
        kept, total = run.store.trajectories(1), run.store.total("1/train")
    ids = [segment for trajectory in kept for segment in trajectory.segments]
    assert len(kept) == 8
    assert total.prompt_tokens == sum(len(s.token_ids) for s in ids if not s.chosen[0])
    assert total.completion_tokens == sum(len(s.token_ids) for s in ids if s.chosen[0])
    assert total.prompt_tokens > sum(len(trajectory.segments[0].token_ids) for trajectory in kept)


def test_nobody_learns_from_what_is_held_out() -> None:
    def build_with(env: str, **options: str) -> Any:
        return build_loop(fill_presets(make_settings({**SMALL, "env": env, "env_kwargs": options})), lambda event: None)

    for env in ("palaestra/Calculator-v0", "palaestra/Task-v0", "palaestra/Research-v0"):
        with pytest.raises(SettingsError, match="split=test") as caught:
            build_with(env, split="test")
        assert "\n" not in str(caught.value)
    loop = build_with("palaestra/Research-v0")
    assert [{e.unwrapped.split for e in env.envs} for env in (loop.env, loop.held_out)] == [{"validation"}, {"test"}]
    assert loop.config.env_kwargs == {"split": "validation"}, "the run says what was learned from"
    loop.close()


def test_a_held_out_default_needs_another_value_to_learn_from() -> None:
    class Alike(CalculatorEnv):
        def __init__(self, split: str = "test", **arguments: Any) -> None:
            super().__init__(split=split, **arguments)

    gymnasium.register("Alike-v0", Alike)
    gymnasium.register("Given-v0", CalculatorEnv, kwargs={"split": "test"})
    try:
        for env in ("Alike-v0", "Given-v0"):
            with pytest.raises(SettingsError, match=f"{env} .*split=test"):
                turn_options(env, {"digits": 3})
            assert turn_options(env, {"split": "train"}) == {"split": "train"}
        Alike.learned_from = {"split": "validation"}
        assert turn_options("Alike-v0", {"digits": 3}) == {"digits": 3, "split": "validation"}
        assert turn_options("Alike-v0", {"split": "train"}) == {"split": "train"}
        with pytest.raises(SettingsError):
            turn_options("Alike-v0", {"split": "test"})
        assert turn_options("palaestra/Guess-v0", {"high": 4}) == {"high": 4}
    finally:
        del gymnasium.registry["Alike-v0"], gymnasium.registry["Given-v0"]


def test_the_documented_command_trains(tmp_path: Path) -> None:
    """As it is in the documentation; beside that only what makes it small."""
    from typer.testing import CliRunner

    from palaestra.cli.main import app

    page = (Path(__file__).parents[3] / "docs" / "turn_training.md").read_text(encoding="utf-8")
    (command,) = [line for line in page.splitlines() if line.startswith("palaestra train --env palaestra/Task-v0")]
    small = "--iterations 1 --episodes 8 --evaluation 4 --num-envs 8 --max-tokens 12 --threads 1"
    arguments = [*shlex.split(command)[1:], *shlex.split(small), "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["episodes"], summary["gain_episodes"]) == (8, 4)


MODULE = """
import gymnasium
from palaestra.core.records import Message
from palaestra.envs.turn import Reply, TurnStopReason, TurnEnv

class Colours(TurnEnv):
    def opening(self, options):
        return [Message("user", "Which colour?")]
    def respond(self, message):
        return Reply(reward=1.0, stop=TurnStopReason.SOLVED)

gymnasium.register("Colours-v0", Colours)
"""


def test_a_module_of_the_current_folder_is_found_by_the_command(tmp_path: Path) -> None:
    """The command as it is installed has its own folder on the path, and not the current one."""
    (tmp_path / "my_module.py").write_text(MODULE)
    (tmp_path / "typer.py").write_text("raise RuntimeError('a file of the user came before an installed package')")
    code = (
        "import sys; sys.path[0] = '/nowhere'\n"
        "from palaestra.envs.factory import detect_kind; print(detect_kind('my_module:Colours-v0', {}))\n"
        "import typer"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert (process.returncode, process.stdout.strip()) == (0, "turn"), process.stderr


def test_a_module_that_misses_something_says_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", copy.copy(sys.path))
    (tmp_path / "needy.py").write_text("import a_package_that_nobody_has")
    with pytest.raises(EnvError, match=r"'needy', .*X-v0: .*a_package_that_nobody_has"):
        detect_kind("needy:X-v0", {})
    with pytest.raises(EnvError, match="'nowhere_at_all'"):
        detect_kind("nowhere_at_all:X-v0", {})


def save_with_template(model: LoadedModel, family: str, folder: Path) -> Any:
    """Save a model with a published template. Returns its tokenizer."""
    tokenizer = load_tokenizer(model, family)
    model.weights.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.weights.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def test_grpo_trains_under_the_published_template_of_qwen3(fresh_nano: LoadedModel, tmp_path: Path) -> None:
    """The template removes earlier reasoning, but sampled tokens stay: one pass over an episode gives their log-probs."""
    import torch

    tokenizer = save_with_template(fresh_nano, "qwen3", tmp_path / "model")
    notices: list[str] = []
    result = train(
        out=tmp_path / "run",
        listener=lambda event: notices.append(str(event.data.get("text", ""))),
        **{
            **SMALL,
            "model": str(tmp_path / "model"),
            "iterations": 1,
            "env_kwargs": {"attempts": 3, "high": 8, "format_penalty": 0.1},
        },
    )
    assert any("changes earlier turns" in text for text in notices)
    with Run.open(result.folder, read_only=True) as run:
        metrics, trajectories = run.store.metrics()[1], run.store.trajectories(1)
    assert metrics["turns"] > 2
    assert math.isfinite(metrics["approx_kl"])
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    for trajectory in trajectories:
        opening, *rest = trajectory.segments
        assert tokenizer.decode(opening.token_ids) == (
            "<|im_start|>user\nGuess a number from 1 to 8.<|im_end|>\n<|im_start|>assistant\n"
        )
        for sampled, given in zip(rest[::2], rest[1::2], strict=False):
            assert all(sampled.chosen) and not any(given.chosen)  # noqa: PT018
            closing = "" if sampled.token_ids[-1] == end else "<|im_end|>"
            assert tokenizer.decode(given.token_ids) in [
                f"{closing}\n<|im_start|>user\n{reply}<|im_end|>\n<|im_start|>assistant\n"
                for reply in ("Higher.", "Lower.", "Say a number.")
            ]
        ids = torch.tensor([token for segment in trajectory.segments for token in segment.token_ids])
        chosen = torch.tensor([own for segment in trajectory.segments for own in segment.chosen])
        logprobs = torch.tensor([value for segment in trajectory.segments for value in segment.logprobs])
        with torch.no_grad():
            again = (
                fresh_nano.weights(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
            )
        assert float((again - logprobs[1:])[chosen[1:]].abs().max()) < 1e-4


def test_tools_are_offered_and_calls_are_counted(fresh_nano: LoadedModel, tmp_path: Path) -> None:
    fresh_nano.weights.config.max_position_embeddings = 1024  # The description of the tool is longer than 256 tokens.
    tokenizer = save_with_template(fresh_nano, "qwen3", tmp_path / "model")
    tokenizer.model_max_length = 1024
    tokenizer.save_pretrained(tmp_path / "model")
    settings = {
        **SMALL,
        "env": "palaestra/Calculator-v0",
        "env_kwargs": {"tools": True},
        "model": str(tmp_path / "model"),
    }
    loop = build_loop(
        fill_presets(make_settings({**settings, "iterations": 1, "episodes": 4, "group_size": 2, "evaluation": 0})),
        lambda event: None,
    )
    try:
        # nano cannot call tools; these are its words instead.
        written = iter(
            [
                '<tool_call>\n{"name": "calculate", "arguments": {"expression": "6*7"}}\n</tool_call>',
                '<tool_call>\n{"name": "calculate", "argu',
                '<tool_call>\n{"name": "calculator", "arguments": {}}\n</tool_call>',
            ]
        )
        decode = loop.encoder.decode_message  # type: ignore[attr-defined]

        def decode_call(ids: Sequence[int], number: int = 0) -> Message:
            text = next(written, None)
            return decode(ids if text is None else tokenizer.encode(text, add_special_tokens=False), number)  # type: ignore[no-any-return]

        loop.encoder.decode_message = decode_call  # type: ignore[attr-defined]
        metrics, trajectories = loop.iterate(1, 1.0, lambda event: None)
    finally:
        loop.close()
    assert metrics["tools/call_frequency"] == 3 / 4
    assert metrics["tools/failure_frequency"] == pytest.approx(2 / 3)
    assert metrics["tools/malformed"] == 1.0
    assert ("malformed tool calls", "1") in list_metrics(metrics)
    opening = tokenizer.decode(trajectories[0].segments[0].token_ids)
    assert '"name": "calculate"' in opening
    assert "<tools>" in opening
    replies = [tokenizer.decode(trajectory.segments[2].token_ids) for trajectory in trajectories[:3]]
    assert "<tool_response>\n42\n</tool_response>" in replies[0]
    assert "error: expected a call with a name and a JSON object of arguments" in replies[1]
    assert "error: there is no tool 'calculator'; the tools are calculate" in replies[2]
    assert trajectories[1].infos[0]["malformed_calls"] == 1
