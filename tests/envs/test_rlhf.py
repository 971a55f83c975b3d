import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import palaestra  # noqa: F401  (registers the environments)
from palaestra.core.errors import EnvError, PalaestraError
from palaestra.core.records import Message, Problem
from palaestra.envs.token import Response, RLHFEnv, RLHFVectorEnv
from palaestra.models.registry import LoadedModel

END = 1
ASKED = ["Say red", "Say blue", "Say green"]


def finish_responses(env: RLHFVectorEnv, text: str = "red") -> list[Response]:
    """Step every slot through the tokens of `text` and the end token. Returns the responses."""
    for token in [*env.tokenizer.encode(text), END]:
        *_, infos = env.step(np.full(env.num_envs, token))
    outcomes: list[Response] = infos["responses"]
    return outcomes


class Judge:
    """What a reward model offers to the environment."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[Any], list[str]]] = []

    def score_responses(self, prompts: Sequence[Any], responses: Sequence[str]) -> list[float]:
        self.seen.append((list(prompts), list(responses)))
        if "poison" in prompts:
            raise ValueError("poisoned")
        return [float(len(str(prompt))) for prompt in prompts]


@pytest.mark.parametrize(
    "arguments", [{}, {"prompts": ASKED, "max_tokens": 4, "reward": lambda r: 1.0, "render_mode": "ansi"}]
)
def test_it_passes_gymnasiums_checker(arguments: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make("RLHFEnv-v0", **arguments).unwrapped, skip_render_check=False)


def test_the_default_reward_prefers_brief_answers() -> None:
    env = gymnasium.make("RLHFEnv-v0")
    assert isinstance(env.unwrapped, RLHFEnv)
    rewards = []
    for length in (0, 5):
        env.reset(seed=0)
        for _ in range(length):
            env.step(8)
        _, reward, terminated, _, _ = env.step(END)
        assert terminated
        rewards.append(reward)
    assert 1 > rewards[0] > rewards[1] > 0
    env.reset(seed=0)
    steps = [env.step(8) for _ in range(64)]
    assert (steps[-1][1], steps[-1][3]) == (0.0, True), "cut at the limit"


def test_the_reward_may_read_the_response_or_two_texts(nano: LoadedModel) -> None:
    def score_response(response: Response) -> float:
        return float(response.prompt.text == f"Say {response.text}")

    def score_texts(prompt: str, response: str) -> float:
        return float(prompt == f"Say {response}")

    class Callable:
        def __call__(self, prompt: str, response: str, scale: float = 1.0) -> float:
            return scale * score_texts(prompt, response)

    for reward in (score_response, score_texts, Callable()):
        env = RLHFVectorEnv(ASKED, reward, tokenizer=nano.tokenizer, num_envs=3)
        env.reset(seed=0)
        outcomes = {response.prompt.text: response.reward for response in finish_responses(env)}
        assert outcomes == {"Say red": 1.0, "Say blue": 0.0, "Say green": 0.0}


def test_a_reward_model_judges_all_that_finished_in_one_call(nano: LoadedModel) -> None:
    judge = Judge()
    env = RLHFVectorEnv(ASKED, judge, tokenizer=nano.tokenizer, num_envs=3)  # type: ignore[arg-type]
    env.reset(seed=0)
    responses = finish_responses(env)
    assert [response.reward for response in responses] == [len(r.prompt.text) for r in responses]
    assert judge.seen == [([r.prompt.text for r in responses], ["red"] * 3)]


def test_a_reward_model_reads_a_whole_conversation(nano: LoadedModel) -> None:
    judge = Judge()
    talk = [Message("system", "Be kind."), Message("user", "Hello")]
    problem = Problem("p", (Message("user", "One question"),), "")
    env = RLHFVectorEnv([talk, problem], judge, tokenizer=nano.tokenizer, num_envs=2)  # type: ignore[arg-type]
    env.reset(seed=0)
    finish_responses(env)
    assert set(judge.seen[0][0]) == {tuple(talk), "One question"}


def test_a_failing_response_does_not_affect_the_others(nano: LoadedModel) -> None:
    env = RLHFVectorEnv([*ASKED, "poison"], Judge(), tokenizer=nano.tokenizer, num_envs=4, failures="mark")  # type: ignore[arg-type]
    env.reset(seed=0)
    outcomes = {r.prompt.text: (r.reward, "ValueError: poisoned" in r.failure) for r in finish_responses(env)}
    assert outcomes == {**{text: (float(len(text)), False) for text in ASKED}, "poison": (None, True)}


def test_a_function_that_breaks_is_not_asked_again(nano: LoadedModel) -> None:
    asked = []

    def reward(prompt: str, response: str) -> float:
        asked.append(prompt)
        return 1 / 0 if prompt == "Say blue" else 1.0

    env = RLHFVectorEnv(ASKED, reward, tokenizer=nano.tokenizer, num_envs=3, failures="mark")
    env.reset(seed=0)
    finish_responses(env)
    assert sorted(asked) == sorted(ASKED)


def test_the_cost_of_divergence_is_for_whoever_trains(nano: LoadedModel) -> None:
    env = RLHFVectorEnv(ASKED, lambda r: 2.0, tokenizer=nano.tokenizer, kl_coef=0.5, reference="nano")
    env.reset(seed=0)
    assert (env.kl_coef, env.reference, finish_responses(env)[0].reward) == (0.5, "nano", 2.0)


def test_prompts_come_from_a_text_a_line(nano: LoadedModel, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeffSay red\r\n\r\nSay blau\u2028grün\n  \nSay green".encode())
    env = RLHFVectorEnv(str(file), tokenizer=nano.tokenizer)
    assert env.items == ["Say red", "Say blau\u2028grün", "Say green"]


def test_prompts_come_from_json_lines(nano: LoadedModel, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Say\\nred", "other": 1}\n\n{"prompt": "Say \u2028 blue"}\n', encoding="utf-8")
    env = RLHFVectorEnv(file, tokenizer=nano.tokenizer)
    assert env.items == ["Say\nred", "Say \u2028 blue"]
    (table := tmp_path / "prompts.csv").write_text("prompt,other\nSay red,1\n", encoding="utf-8-sig")
    assert RLHFVectorEnv(table, tokenizer=nano.tokenizer).items == ["Say red"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"prompt": "a"}\n\n{"prompt": "b"\n', "a.jsonl, row 3: expected a JSON object"),
        ("a.jsonl", '\n{"text": "a"}\n', "a.jsonl, row 2: expected an object"),
        ("a.jsonl", '"a"\n', "a.jsonl, row 1: expected an object"),
        ("a.jsonl", '{"prompt": 5}\n', "a.jsonl, row 1: expected an object"),
        ("a.jsonl", '{"prompt": " "}\n', "a.jsonl, row 1: expected an object"),
        ("a.json", '[\n{"prompt": "a"}, 5]', "a.json, row 2: expected an object"),
        ("a.csv", "text\na\n", "a.csv, line 2: expected an object with a text 'prompt'"),
        ("a.txt", " \n\n", "a.txt has no prompts"),
        ("a.jsonl", "", "a.jsonl has no prompts"),
        ("a.txt", None, "cannot read"),
        ("a.txt", b"\xff\xfe", "cannot read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_its_line(
    nano: LoadedModel, tmp_path: Path, name: str, content: str | bytes | None, message: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(EnvError) as caught:
        RLHFVectorEnv(file, tokenizer=nano.tokenizer)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kl_coef": -1.0}, r"kl_coef .*at least 0; got -1\.0"),
        ({"prompts": []}, "at least one prompt"),
        ({"reward": 5}, "reward .*RewardModel; got int"),
        ({"reward": "no/such/folder"}, "no/such/folder"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(nano: LoadedModel, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PalaestraError, match=message) as caught:
        RLHFVectorEnv(**{"prompts": ASKED, **arguments}, tokenizer=nano.tokenizer)
    assert "\n" not in str(caught.value)
