"""Reward functions of the user: the signature of TRL's, several at once, weights, `None` and `async`."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from palaestra.core.errors import RewardError, SettingsError
from palaestra.core.records import Message, Problem, StopReason
from palaestra.envs.token import CoTVectorEnv, TokenVectorEnv
from palaestra.envs.token.prompts import Prompt, Response
from palaestra.envs.token.rewards import RewardFunctions, ScoredResponse, TrainerState, make_reward


def make_response(text: str, answer: str = "7", row: dict[str, Any] | None = None) -> Response:
    messages = (Message("user", "What is 3 + 4?"),)
    problem = Problem("p", messages, answer, "sums", "", {"row": row or {"prompt": "What is 3 + 4?", "level": 2}})
    return Response(Prompt((1, 2), "What is 3 + 4?", problem), (5, 6), text, StopReason.END)


def test_functions_get_what_trl_passes() -> None:
    received: dict[str, Any] = {}

    def reward(
        completions: list[str], prompts: list[str], completion_ids: list[list[int]], **columns: Any
    ) -> list[float]:
        received.update(columns, completions=completions, prompts=prompts, completion_ids=completion_ids)
        return [1.0] * len(completions)

    RewardFunctions([reward]).compute([make_response("7"), make_response("8", "9")])
    assert received["completions"] == ["7", "8"]
    assert received["prompts"] == ["What is 3 + 4?"] * 2
    assert received["completion_ids"] == [[5, 6], [5, 6]]
    assert received["answer"] == ["7", "9"]
    assert received["level"] == [2, 2]


def test_conversations_are_passed_as_messages() -> None:
    chat = [{"role": "user", "content": "What is 3 + 4?"}]

    def reward(completions: list[Any], prompts: list[Any]) -> list[float]:
        assert prompts == [chat]
        return [float(completion[0]["content"] == "7") for completion in completions]

    [score] = RewardFunctions([reward]).compute([make_response("7", row={"prompt": chat})])
    assert score == ScoredResponse(1.0, {"reward": 1.0})


CHAT = [{"role": "user", "content": "What is 3 + 4?"}]
TEXTS = ["<think>\n3 + 4\n</think>\n$7$", "7", "<think>3</think> $8$"]


@pytest.mark.parametrize(
    "make",
    [
        lambda trl: trl.think_format_reward,
        lambda trl: trl.reasoning_accuracy_reward,
        lambda trl: trl.accuracy_reward,
        lambda trl: trl.get_soft_overlong_punishment(max_completion_len=2, soft_punish_cache=1),
        lambda trl: trl.get_repetition_penalty_reward(ngram_size=1),
        lambda trl: trl.get_cosine_scaled_reward(max_len=4),
    ],
)
def test_rewards_of_trl_give_their_own_values(make: Callable[[Any], Callable[..., Any]]) -> None:
    reward = make(pytest.importorskip("trl.rewards"))
    responses = [make_response(text, row={"prompt": CHAT, "solution": "$7$"}) for text in TEXTS]
    expected = reward(
        prompts=[CHAT] * 3,
        completions=[[{"role": "assistant", "content": text}] for text in TEXTS],
        completion_ids=[[5, 6]] * 3,
        solution=["$7$"] * 3,
    )
    assert [score.reward for score in RewardFunctions([reward]).compute(responses)] == expected


def test_functions_get_what_the_trainer_of_trl_passes() -> None:
    def reward(completions: list[str], trainer_state: Any, log_extra: Any, log_metric: Any) -> list[float]:
        log_extra("words", [len(completion.split()) for completion in completions])
        log_metric("longest", max(map(len, completions)))
        assert trainer_state.log_history == []
        return [trainer_state.global_step / trainer_state.max_steps + trainer_state.epoch] * len(completions)

    responses = [make_response("7"), make_response("It is 7")]
    first, second = RewardFunctions([reward]).compute(responses, TrainerState(2, 8, 1.5))
    assert first == ScoredResponse(1.75, {"reward": 1.75}, {"words": 1}, {"longest": 7.0})
    assert second.columns == {"words": 3}


def test_logged_columns_have_a_value_for_each_response() -> None:
    def reward(completions: list[str], log_extra: Any, **columns: Any) -> list[float]:
        log_extra("words", [1])
        return [0.0] * len(completions)

    with pytest.raises(RewardError, match="expected 2 values"):
        RewardFunctions([reward]).compute([make_response("7"), make_response("8")])


def test_values_are_weighted_and_none_does_not_count() -> None:
    def right(completion: str, answer: str) -> float:
        return float(completion == answer)

    async def short(completion: str) -> float | None:
        await asyncio.sleep(0)
        return None if completion == "7" else 0.5

    both = RewardFunctions([right, short], [2.0, 10.0]).compute([make_response("7"), make_response("8")])
    assert both == [ScoredResponse(2.0, {"right": 1.0}), ScoredResponse(5.0, {"right": 0.0, "short": 0.5})]


def test_async_functions_run_at_the_same_time() -> None:
    waiting: list[str] = []
    together = asyncio.Event()

    async def meet(completions: list[str]) -> list[float]:
        waiting.append("meet")
        if len(waiting) == 2:
            together.set()
        await asyncio.wait_for(together.wait(), 5)
        return [1.0] * len(completions)

    [score] = RewardFunctions([meet, meet]).compute([make_response("7")])
    assert score == ScoredResponse(2.0, {"meet": 1.0, "meet_2": 1.0})


def test_no_applicable_function_is_a_failure_and_not_zero() -> None:
    [score] = RewardFunctions([lambda completions: [None]]).compute([make_response("7")])
    assert isinstance(score.reward, RewardError)
    assert score.parts == {}


@pytest.mark.parametrize("values", [[1.0], 1.0, "ab", None])
def test_a_wrong_number_of_values_is_an_error(values: Any) -> None:
    with pytest.raises(RewardError, match="list of 2 numbers"):
        RewardFunctions([lambda completions: values]).compute([make_response("7"), make_response("8")])


def test_wrong_signatures_and_weights_are_refused() -> None:
    with pytest.raises(SettingsError, match="completions"):
        RewardFunctions([lambda x, y: 1.0])
    with pytest.raises(SettingsError, match=r"expected 1.* got 2"):
        RewardFunctions([lambda completions: [1.0]], [1.0, 2.0])
    with pytest.raises(SettingsError, match="reward_weights"):
        make_reward(None, [1.0])


def test_functions_replace_the_reward_of_any_token_environment() -> None:
    class Fixed(TokenVectorEnv):
        def reward(self, response: Response) -> float:
            return -1.0

    env = Fixed(["Say yes"], [lambda completions: [math.pi] * len(completions)], num_envs=1, max_tokens=1)
    env.reset(seed=0)
    _, rewards, *_, infos = env.step([7])
    assert rewards.tolist() == [math.pi]
    assert infos["responses"][0].reward_parts == {"<lambda>": math.pi}


def test_a_function_of_a_response_replaces_a_tasks_reward() -> None:
    env = CoTVectorEnv(problems=1, skills="addition", reward=lambda response: 0.25, max_tokens=1)
    env.reset(seed=0)
    _, rewards, *_ = env.step([7])
    assert rewards.tolist() == [0.25]


def test_a_value_that_is_no_number_is_an_error_and_not_left_out() -> None:
    with pytest.raises(RewardError, match="finite"):
        RewardFunctions([lambda completions: [math.nan]]).compute([make_response("7")])
