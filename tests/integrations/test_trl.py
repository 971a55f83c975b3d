"""Turn environments and tasks in TRL's `GRPOTrainer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from guess_player import ENV_ID, OPTIONS, SEEDS, play_ours, write_guess

from palaestra.chat.encoder import ChatEncoder
from palaestra.core.errors import EnvError
from palaestra.core.records import Completion, Failure, FailureCause, Message, Problem, Score
from palaestra.envs.turn.base import Reply, TurnEnv
from palaestra.envs.turn.games import CalculatorEnv
from palaestra.integrations.trl import (
    TaskReward,
    make_dataset,
    make_environment_class,
    make_plain_tokenizer,
    score_episodes,
)
from palaestra.models import registry as models
from palaestra.tasks.evaluate import score


class Faulty(TurnEnv):
    """Fails in the way that its argument names."""

    def __init__(self, fault: str) -> None:
        super().__init__(max_turns=2)
        self.fault = fault

    def opening(self, options: Mapping[str, Any]) -> Sequence[Message]:
        return [Message("user", "Go.")]

    def respond(self, message: Message) -> Reply:
        if self.fault == "raises":
            raise RuntimeError("broken")
        if self.fault == "interface":
            return "nothing"  # type: ignore[return-value]
        return Reply(reward=float("nan"), stop="solved")


def play_in_trl(seed: int, kind: Any) -> float | None:
    """Play an episode as TRL's loop of tool calls does."""
    environment = kind()
    environment.reset(prompt=[{"role": "user", "content": "..."}], seed=seed)
    for turn in range(2):
        environment.reply(message=write_guess(seed, turn))
    last = {"role": "assistant", "content": write_guess(seed, 2)}
    return score_episodes([environment], [[last]])[0]


def test_200_seeds_give_the_same_rewards_in_trl() -> None:
    kind = make_environment_class(ENV_ID, OPTIONS)
    ours = [play_ours(seed) for seed in SEEDS]
    assert len(set(ours)) > 4
    assert [play_in_trl(seed, kind) for seed in SEEDS] == ours


def test_a_trainer_of_trl_learns_in_our_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl import GRPOConfig, GRPOTrainer

    model = models.load("nano", trainable=True)
    tokenizer = make_plain_tokenizer(model.tokenizer)
    before = {name: tensor.clone() for name, tensor in model.weights.state_dict().items()}
    settings = GRPOConfig(
        str(tmp_path),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=48,
        max_tool_calling_iterations=3,
        max_steps=2,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        seed=0,
    )
    episodes: list[list[float | None]] = []

    def record_rewards(environments: Any, completions: Any, seed: Any, **columns: Any) -> list[float | None]:
        assert seed == [first for first in seed[::4] for _ in range(4)]  # A group starts from one state.
        episodes.append(score_episodes(environments, completions, **columns))
        return episodes[-1]

    trainer = GRPOTrainer(
        model.weights,
        reward_funcs=record_rewards,
        args=settings,
        processing_class=tokenizer,
        train_dataset=make_dataset(ENV_ID, range(8), {"high": 3}),
        environment_factory=make_environment_class(ENV_ID, {"high": 3}),
    )
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert [entry["reward"] for entry in logs] == pytest.approx([sum(r) / 8 for r in episodes])  # type: ignore[arg-type]
    assert {reward for rewards in episodes for reward in rewards} == {0.0, 1.0}
    assert logs[0]["tools/call_frequency"] > 1
    assert logs[0]["tools/failure_frequency"] == 0
    assert logs[0]["failures"] == 0
    assert any((tensor != before[name]).any() for name, tensor in model.weights.state_dict().items())


def test_a_plain_tokenizer_renders_our_conversations() -> None:
    tokenizer = models.load("nano").tokenizer
    plain = make_plain_tokenizer(tokenizer)
    call = {"type": "function", "function": {"name": "reply", "arguments": {"message": "4"}}}
    conversation = [
        {"role": "user", "content": "Guess."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "reply", "content": "Higher."},
    ]
    messages = [Message("user", "Guess."), Message("assistant", "4"), Message("user", "Higher.")]
    environment = make_environment_class(ENV_ID)()
    rendered = plain.apply_chat_template(
        conversation, tools=[environment.reply], add_generation_prompt=True, return_dict=False
    )
    assert rendered == list(ChatEncoder(tokenizer, "nano").encode_opening(messages))
    parsed = plain.parse_response(plain.encode("I guess 4<|end|>"), prefix=rendered)
    assert parsed["tool_calls"][0]["function"] == {"name": "reply", "arguments": {"message": "I guess 4"}}


def test_environment_tools_are_methods() -> None:
    from transformers.utils import get_json_schema

    kind = make_environment_class("palaestra/Calculator-v0", {"tools": True})
    environment = kind()
    schema = get_json_schema(environment.calculate)["function"]
    expected = CalculatorEnv(tools=True).tools[0]["function"]
    assert schema["description"] == expected["description"]
    assert {**schema["parameters"], "additionalProperties": False} == expected["parameters"]
    environment.reset(seed=0)
    first, second = environment._session.env.factors
    product = environment.calculate(expression=f"{first}*{second}")
    assert product == str(first * second)
    answer = {"role": "assistant", "content": f"Answer: {product}"}
    assert score_episodes([environment], [[answer]]) == [1.0]


def test_a_failure_has_no_reward_and_is_counted() -> None:
    counts: dict[str, float] = {}
    for fault in ("raises", "nan"):
        kind = make_environment_class(f"{__file__}:Faulty", {"fault": fault})
        environment = kind()
        environment.reset(seed=0)
        environment.reply(message="1")
        assert score_episodes([environment], [[]], counts.__setitem__) == [None]
        assert counts == {"failures": 1.0}


def test_a_wrong_environment_or_data_set_is_an_error() -> None:
    environment = make_environment_class(f"{__file__}:Faulty", {"fault": "interface"})()
    environment.reset(seed=0)
    with pytest.raises(EnvError, match=" Reply"):
        environment.reply(message="1")  # TRL reports this to the model.
    with pytest.raises(EnvError, match=" Reply"):
        score_episodes([environment], [[]])
    with pytest.raises(EnvError, match="'seed'"):
        environment.reset(prompt="Go.")
    with pytest.raises(EnvError, match=r"CartPole-v1 .*turn environment"):
        make_environment_class("CartPole-v1")


def test_a_task_is_a_reward_function() -> None:
    reward = TaskReward("math-skills", skills="addition", problems=20)
    rows = list(reward.make_dataset())
    answers = [
        "Answer: 5" if n % 2 else f"Answer: {reward.problems[row['problem']].reference}" for n, row in enumerate(rows)
    ]
    task, problems = reward.problem_set.task, reward.problem_set.problems
    expected = [score(task, p, Completion(a)) for p, a in zip(problems, answers, strict=True)]
    completions = [[{"role": "assistant", "content": answer}] for answer in answers]
    columns = {"problem": [row["problem"] for row in rows]}
    assert reward(completions, **columns) == [outcome.value for outcome in expected if isinstance(outcome, Score)]
    assert reward.__name__ == "math-skills"


def test_a_failing_scorer_gives_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    reward = TaskReward("math-skills", skills="addition", problems=1)

    def fail(problem: Problem, text: str) -> Failure:
        return Failure(FailureCause.SCORER, "broken")

    monkeypatch.setattr(reward.problem_set, "score", fail)
    assert reward(["Answer: 5"], problem=list(reward.problems)) == [None]
