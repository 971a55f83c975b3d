import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import palaestra  # noqa: F401  (registers the environments)
from palaestra.core.errors import EnvError, ModelError, RewardError
from palaestra.core.records import Message, StopReason
from palaestra.core.seeding import Seeds
from palaestra.envs.token import Prompt, Response, TokenEnv, TokenVectorEnv
from palaestra.models.registry import LoadedModel

COLOURS = [f"Name the colour {number}." for number in range(12)]
END, PAD, USER = 1, 0, 3


def count_tokens(response: Response) -> float:
    return float(len(response.token_ids))


@pytest.fixture
def make_env(nano: LoadedModel) -> Callable[..., TokenVectorEnv]:
    def build_env(prompts: Sequence[Any] = COLOURS, reward: Any = count_tokens, **arguments: Any) -> TokenVectorEnv:
        return TokenVectorEnv(prompts, reward, **{"tokenizer": nano.tokenizer, "max_tokens": 6, **arguments})

    return build_env


Make = Callable[..., TokenVectorEnv]


def encode_text(env: TokenVectorEnv, text: str) -> list[int]:
    return list(env.tokenizer.encode(text))


def step_tokens(env: TokenVectorEnv, tokens: Sequence[int]) -> tuple[Any, ...]:
    """Step all slots through the same tokens. Returns the last step."""
    result: tuple[Any, ...] = ()
    for token in tokens:
        result = env.step(np.full(env.num_envs, token))
    return result


def choose_token(episode: int, position: int, vocabulary: int) -> int:
    """Choose the token of an episode at a position, independent of its slot. Some episodes end early, some never."""
    generator = np.random.default_rng((episode, position))
    return END if generator.random() < 0.15 else int(generator.integers(6, vocabulary))


def list_prompts(env: TokenVectorEnv, count: int) -> list[str]:
    return [env.prompt(episode).text for episode in range(count)]


def check_single_line(caught: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


# Gymnasium's contract


class Colours(TokenVectorEnv):
    """An environment as a user would write it."""

    def prompts(self) -> Sequence[str]:
        return COLOURS

    def reward(self, response: Response) -> float:
        return float("red" in response.text)


class ColourEnv(TokenEnv):
    vector_class = Colours


@pytest.fixture
def registered() -> Iterator[str]:
    gymnasium.register("Colours-v0", entry_point=ColourEnv, kwargs={"max_tokens": 5})
    yield "Colours-v0"
    del gymnasium.registry["Colours-v0"]


def test_custom_token_env_passes_gymnasium_checker(registered: str) -> None:
    env = gymnasium.make(registered, stop=["red"], render_mode="ansi")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped, skip_render_check=False)
    assert env.unwrapped.vector.max_tokens == 5  # type: ignore[attr-defined]


def test_importing_environments_does_not_load_torch() -> None:
    code = (
        "import sys, palaestra, palaestra.envs, gymnasium\n"
        "gymnasium.spec('CoTEnv-v0'), gymnasium.spec('RLHFEnv-v0')\n"
        "import palaestra.envs.token, palaestra.envs.wrappers, palaestra.envs.factory\n"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "set()\n", "")


@dataclass
class Step:
    tokens: list[int]
    length: int
    reward: float
    terminated: bool
    truncated: bool


def test_vector_and_single_view_agree_step_by_step(nano: LoadedModel) -> None:
    arguments = {
        "prompts": [*COLOURS[:5], [8, 8, 8]], "reward": lambda r: len(r.text) / 7, "tokenizer": nano.tokenizer,
        "token_reward": lambda prompt, ids: ids[-1] / 1000, "max_tokens": 9, "group_size": 2, "stop": ["y"],
        "context": 22,
    }  # fmt: skip
    single, alone, answers = TokenEnv(**arguments), {}, {}
    observation, info = single.reset(seed=7)
    while info["episode"] < 14:
        episode, steps, done = int(info["episode"]), [], False
        while not done:
            token = choose_token(episode, len(steps), single.vector.vocabulary)
            observation, reward, terminated, truncated, info = single.step(token)
            steps.append(
                Step(observation["tokens"].tolist(), int(observation["length"]), reward, terminated, truncated)
            )
            done = terminated or truncated
        alone[episode], answers[episode] = steps, info["response"]
        observation, info = single.reset()
    env, together = TokenVectorEnv(**arguments, num_envs=4), {}  # type: ignore[arg-type, var-annotated]
    observation, infos = env.reset(seed=7, options={"episodes": 14})
    results = {}
    while infos["active"].any():
        active, episodes = infos["active"], infos["episode"]
        actions = np.array([choose_token(e, len(together.get(e, ())), env.vocabulary) for e in np.maximum(episodes, 0)])
        observation, rewards, terminated, truncated, infos = env.step(actions)
        for slot in np.flatnonzero(active):
            seen = {name: observation[name][slot] for name in observation}
            if terminated[slot] or truncated[slot]:
                seen = infos["final_obs"][slot]
            step = Step(seen["tokens"].tolist(), int(seen["length"]), rewards[slot], terminated[slot], truncated[slot])
            together.setdefault(int(episodes[slot]), []).append(step)
        results |= {response.episode: response for response in infos.get("responses", ())}
    assert together == alone
    assert results == answers
    reasons = {response.stop_reason for response in results.values()}
    assert reasons == set(StopReason), "the script should reach every way to end"


def test_observations_are_in_their_space(make_env: Make) -> None:
    env = make_env(num_envs=3, context=16)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observation, infos = env.reset(seed=3)
    assert observation in env.observation_space
    ended = 0
    for step in range(30):
        before, episodes = observation, infos["episode"]
        actions = np.array([choose_token(slot, step, env.vocabulary) for slot in range(3)])
        assert actions in env.action_space
        observation, _, terminated, truncated, infos = env.step(actions)
        assert observation in env.observation_space
        assert not (terminated & truncated).any()
        over = terminated | truncated
        assert (infos["fresh"] == over).all()
        for slot in np.flatnonzero(over):
            ended += 1
            final, length = infos["final_obs"][slot], int(before["length"][slot])
            assert infos["_final_obs"][slot]
            assert final in env.single_observation_space
            assert final["length"] == length + 1
            assert final["tokens"][: length + 1].tolist() == [*before["tokens"][slot, :length], actions[slot]]
            assert infos["episode"][slot] > episodes.max()
            prompt = env.prompt(int(infos["episode"][slot])).ids
            row = observation["tokens"][slot].tolist()
            assert row == [*prompt, *[PAD] * (env.width - len(prompt))]
            assert observation["length"][slot] == len(prompt)
    assert ended > 10


def test_what_was_handed_out_does_not_change_afterwards(make_env: Make) -> None:
    env = make_env(num_envs=2)
    observation, infos = env.reset(seed=0)
    kept = {name: values.copy() for name, values in (*observation.items(), *infos.items())}
    first = env.step(np.array([8, END]))
    last = first[4]["final_obs"][1]["tokens"].copy()
    step_tokens(env, [8, 8])
    for name, values in (*observation.items(), *infos.items()):
        assert (values == kept[name]).all(), name
    assert (first[4]["final_obs"][1]["tokens"] == last).all()
    observation["tokens"][:] = 5
    assert env.render_mode is None
    assert (env.step(np.array([8, 8]))[0]["tokens"] != 5).any()


def test_a_mask_restarts_slots_without_autoreset(make_env: Make) -> None:
    env = make_env(num_envs=3, autoreset=False)
    assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    env.reset(seed=0)
    *_, infos = env.step(np.array([END, 8, 8]))
    assert infos["active"].tolist() == [False, True, True]
    _, infos = env.reset(options={"reset_mask": np.array([True, False, False])})
    assert (infos["active"].tolist(), infos["episode"].tolist()) == ([True] * 3, [3, 1, 2])
    _, infos = env.reset(options={"reset_mask": np.array([False, True, False])})
    assert infos["fresh"].tolist() == [True, True, False], "a slot that nobody has acted in yet is still fresh"


def test_rendering_shows_the_text_so_far(make_env: Make) -> None:
    env = make_env(num_envs=2, render_mode="ansi", chat=False)
    env.reset(options={"initial_state": "Say"})
    step_tokens(env, encode_text(env, " it"))
    assert env.render() == ("Say it", "Say it")


# How episodes end


def test_the_end_token_terminates_and_is_no_part_of_the_text(make_env: Make) -> None:
    env = make_env()
    env.reset(seed=0)
    _, rewards, terminated, truncated, infos = step_tokens(env, [*encode_text(env, "ab"), END])
    response = infos["responses"][0]
    assert (terminated[0], truncated[0], rewards[0]) == (True, False, 3.0)
    assert (response.text, response.token_ids[-1], response.stop_reason) == ("ab", END, StopReason.END)


def test_further_end_tokens_end_as_well(make_env: Make) -> None:
    env = make_env(end_ids=[8])
    env.reset(seed=0)
    _, _, terminated, _, infos = step_tokens(env, [*encode_text(env, "a"), 8])
    assert terminated[0]
    assert infos["responses"][0].text == "a"


@pytest.mark.parametrize("stop", [["###"], "###", ["zz", "###"]])
def test_a_stop_string_of_several_tokens_is_cut_off(make_env: Make, stop: Any) -> None:
    env = make_env(stop=stop, max_tokens=20)
    env.reset(seed=0)
    tokens = encode_text(env, "ab###")
    assert len(encode_text(env, "###")) == 3
    _, _, terminated, *_ = step_tokens(env, tokens[:-1])
    assert not terminated[0]
    _, _, terminated, truncated, infos = step_tokens(env, tokens[-1:])
    response = infos["responses"][0]
    assert (terminated[0], truncated[0]) == (True, False)
    assert (response.text, response.stop_reason, response.token_ids) == ("ab", StopReason.STOP, tuple(tokens))


def test_a_stop_string_is_found_inside_a_token(make_env: Make) -> None:
    env = make_env(stop=["nswe"], max_tokens=60)
    env.reset(seed=0)
    tokens = [*encode_text(env, "ab " * 15), *encode_text(env, "Answer")]
    assert len(encode_text(env, "Answer")) == 1
    *_, infos = step_tokens(env, tokens)
    assert infos["responses"][0].text == "ab " * 15 + "A"


def test_a_stop_string_may_span_special_tokens(make_env: Make) -> None:
    env = make_env(stop=["ab"], max_tokens=40)
    env.reset(seed=0)
    a, b = encode_text(env, "a")[0], encode_text(env, "b")[0]
    _, _, terminated, _, infos = step_tokens(env, [8, a, *[USER] * 20, b])
    assert terminated[0]
    assert infos["responses"][0].text == "#"


def test_a_stop_string_in_the_prompt_stops_nothing(make_env: Make) -> None:
    env = make_env(["Say END"], stop=["END", "ENDx"])
    env.reset(seed=0)
    _, _, terminated, *_ = step_tokens(env, encode_text(env, "x"))
    assert not terminated[0]


def test_a_special_token_can_be_a_stop_string(make_env: Make) -> None:
    env = make_env(stop=["<|user|>"])
    env.reset(seed=0)
    _, _, terminated, _, infos = step_tokens(env, [*encode_text(env, "a"), USER])
    assert terminated[0]
    assert infos["responses"][0].text == "a"


def test_the_token_limit_truncates(make_env: Make) -> None:
    env = make_env(max_tokens=4)
    env.reset(seed=0)
    _, _, terminated, truncated, _ = step_tokens(env, [8, 8, 8])
    assert not truncated[0]
    _, rewards, terminated, truncated, infos = step_tokens(env, [8])
    response = infos["responses"][0]
    assert (terminated[0], truncated[0], rewards[0]) == (False, True, 4.0)
    assert (response.stop_reason, response.truncated, len(response.token_ids)) == (StopReason.LENGTH, True, 4)


def test_an_end_at_the_limit_terminates_and_does_not_truncate(make_env: Make) -> None:
    env = make_env(max_tokens=2, stop=["b"], num_envs=2)
    env.reset(seed=0)
    env.step(np.array([8, 8]))
    _, _, terminated, truncated, _ = env.step(np.array([END, encode_text(env, "b")[0]]))
    assert (terminated.tolist(), truncated.tolist()) == ([True, True], [False, False])


def test_prompt_and_response_fit_the_context(make_env: Make) -> None:
    env = make_env([[8] * 7, [9] * 9], context=10, max_tokens=50, num_envs=2)
    env.reset(seed=0)
    assert env.width == 10
    lengths = {}
    for _ in range(3):
        *_, infos = env.step(np.array([8, 8]))
        lengths |= {r.prompt.ids[0]: len(r.prompt.ids + r.token_ids) for r in infos.get("responses", ())}
    assert lengths == {8: 10, 9: 10}
    make_env([[8] * 9], context=10)
    with pytest.raises(EnvError, match=r"10 tokens; .*is 10") as caught:
        make_env([[8] * 10], context=10)
    check_single_line(caught)


# Prompts, seeds, episodes, groups


def test_a_seed_fixes_the_order_and_another_gives_another(make_env: Make) -> None:
    env, other = make_env(num_envs=2), make_env(num_envs=5)
    orders = []
    for seed in (1, 1, 2):
        env.reset(seed=seed)
        orders.append(list_prompts(env, 24))
    assert orders[0] == orders[1] != orders[2]
    other.reset(seed=[1, 1, 1, 1, 1])
    assert list_prompts(other, 24) == orders[0]


def test_every_prompt_comes_once_before_any_comes_again(make_env: Make) -> None:
    env = make_env(num_envs=4, max_tokens=1)
    _, infos = env.reset(seed=5)
    texts = []
    for _ in range(9):
        *_, infos = env.step(np.full(4, 8))
        texts += [response.prompt.text for response in infos["responses"]]
    laps = [texts[start : start + 12] for start in (0, 12, 24)]
    assert all(sorted(lap) == sorted(COLOURS) for lap in laps)
    assert laps[0] != laps[1]


def test_reset_without_a_seed_continues(make_env: Make) -> None:
    env = make_env(num_envs=3, max_tokens=1, group_size=2)

    def play(steps: int) -> list[tuple[int, int, tuple[int, ...]]]:
        results = []
        for _ in range(steps):
            *_, infos = env.step(np.full(3, 8))
            results += [(r.episode, r.group, r.prompt.ids) for r in infos["responses"]]
        return results

    env.reset(seed=4)
    undisturbed = play(10)
    env.reset(seed=4)
    assert play(2) == undisturbed[:6]
    assert env.next_episode == 9, "three more have been started"
    env.reset()
    assert play(1) == undisturbed[9:12]
    for first in (0, 7, 13):
        other = make_env(num_envs=3, max_tokens=1, group_size=2)
        env = other
        env.reset(seed=4, options={"episode": first})
        assert play(3) == undisturbed[first : first + 9]


def test_consecutive_episodes_of_a_group_share_their_prompt(make_env: Make) -> None:
    env = make_env(num_envs=6, group_size=3, max_tokens=1)
    observation, infos = env.reset(seed=2)
    assert infos["group"].tolist() == [0, 0, 0, 1, 1, 1]
    starts = [tuple(row[:length]) for row, length in zip(observation["tokens"], observation["length"], strict=True)]
    assert starts[0] == starts[1] == starts[2] != starts[3] == starts[4] == starts[5]
    *_, infos = env.step(np.full(6, 8))
    assert infos["group"].tolist() == [2, 2, 2, 3, 3, 3]
    assert [r.group for r in infos["responses"]] == [0, 0, 0, 1, 1, 1]
    seen = {env.prompt(episode).text for episode in range(0, 36, 3)}
    assert seen == set(COLOURS), "one lap has every prompt once, as a group"


def test_only_the_episodes_that_were_asked_for_are_started(make_env: Make) -> None:
    env = make_env(num_envs=3, max_tokens=2)
    _, infos = env.reset(seed=0, options={"episodes": 5})
    finished = []
    while infos["active"].any():
        idle = ~infos["active"]
        assert (infos["episode"][idle] == -1).all()
        # Whatever is said in a slot that has nothing to do counts for nothing.
        _, rewards, terminated, truncated, infos = env.step(np.where(idle, -5, 8))
        assert not rewards[idle].any()
        assert not (terminated | truncated)[idle].any()
        finished += [r.episode for r in infos.get("responses", ())]
    assert sorted(finished) == [0, 1, 2, 3, 4]
    with pytest.raises(EnvError, match="no slot is active") as caught:
        env.step(np.full(3, 8))
    check_single_line(caught)
    _, infos = env.reset(options={"episodes": 1})
    assert (infos["episode"].tolist(), infos["active"].tolist()) == ([5, -1, -1], [True, False, False])
    _, infos = env.reset(options={"episodes": 0})
    assert not infos["active"].any()


def test_a_step_before_the_first_reset_asks_for_one(make_env: Make) -> None:
    with pytest.raises(EnvError, match="call reset"):
        make_env().step(np.array([8]))


def test_an_initial_state_holds_until_the_next_reset(make_env: Make) -> None:
    env = make_env(num_envs=2, max_tokens=1, chat=False)
    observation, _ = env.reset(seed=0, options={"initial_state": "Red is"})
    ids = encode_text(env, "Red is")
    assert observation["tokens"][:, : len(ids)].tolist() == [ids] * 2
    observation, *_, infos = env.step(np.full(2, 8))
    assert infos["responses"][0].prompt.text == "Red is"
    assert observation["tokens"][:, : len(ids)].tolist() == [ids] * 2
    observation, _ = env.reset(seed=0, options={"initial_state": np.array([9, 9, 9])})
    assert observation["tokens"][0, :3].tolist() == [9, 9, 9]
    observation, _ = env.reset(seed=0)
    assert observation["tokens"][0, : observation["length"][0]].tolist() == list(env.prompt(0).ids)
    with pytest.raises(EnvError, match="initial_state has 500 tokens") as caught:
        env.reset(options={"initial_state": [9] * 500})
    check_single_line(caught)


def test_texts_use_the_chat_template_if_there_is_one(make_env: Make) -> None:
    asked, plain = make_env(["Hello"]), make_env(["Hello"], chat=False)
    conversation = make_env([[Message("user", "Hello")]])
    words = encode_text(plain, "Hello")
    assert asked.prompt(0).ids == conversation.prompt(0).ids == (USER, *words, END, 4)
    assert plain.prompt(0).ids == tuple(words)
    assert (asked.prompt(0).text, conversation.prompt(0).text) == ("Hello", "Hello")


# Rewards


def test_token_rewards_come_step_by_step_and_add_to_the_last(make_env: Make) -> None:
    env = make_env(reward=lambda r: 10.0, token_reward=lambda prompt, ids: 0.5 * len(ids), max_tokens=3)
    env.reset(seed=0)
    rewards = [env.step(np.array([8]))[1][0] for _ in range(2)]
    _, last, _, _, infos = env.step(np.array([8]))
    assert [*rewards, last[0]] == [0.5, 1.0, 11.5]
    response = infos["responses"][0]
    assert (response.reward, response.token_rewards) == (10.0, (0.5, 1.0, 1.5))


BAD = {
    "raises": (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
    "says nothing": (lambda: [].index(1) if False else (_ for _ in ()).throw(ValueError()), "ValueError"),
    "is nan": (lambda: float("nan"), "expected a finite number; got nan"),
    "is infinite": (lambda: float("-inf"), "expected a finite number; got -inf"),
    "is nothing": (lambda: None, "expected a number; got NoneType 'None'"),
    "is a text": (lambda: "1.0", "expected a number; got str '1.0'"),
    "has lines": (lambda: (_ for _ in ()).throw(KeyError("a\nb")), "KeyError"),
    "is an empty error": (lambda: (_ for _ in ()).throw(RewardError("")), "RewardError"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_reward_that_breaks_is_raised_in_one_line(make_env: Make, bad: str) -> None:
    broken, cause = BAD[bad]
    env = make_env(["Name\na colour"], lambda response: broken())
    env.reset(seed=0)
    with pytest.raises(RewardError) as caught:
        env.step(np.array([END]))
    assert cause in check_single_line(caught)
    assert "(test_token.py, line " in str(caught.value)
    assert r"its prompt: 'Name\na colour'" in str(caught.value)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", ["reward", "rewards", "token_reward"])
def test_a_failing_reward_is_marked_and_isolated(nano: LoadedModel, bad: str, where: str) -> None:
    broken, cause = BAD[bad]

    class Some(TokenVectorEnv):
        def reward(self, response: Response) -> Any:
            return broken() if where == "reward" and response.episode == 1 else 1.0

        def token_reward(self, prompt: Prompt, ids: Sequence[int]) -> Any:
            return broken() if where == "token_reward" and ids == (9,) else 0.25

    class Batch(Some):
        def rewards(self, responses: Sequence[Response]) -> Any:
            return [broken() if response.episode == 1 else 1.0 for response in responses]

    kind = Batch if where == "rewards" else Some
    env = kind(COLOURS, tokenizer=nano.tokenizer, num_envs=3, max_tokens=2, failures="mark")
    env.reset(seed=0)
    env.step(np.array([8, 9, 8]))
    _, rewards, _, truncated, infos = env.step(np.array([8, 8, 8]))
    first, second, third = infos["responses"]
    assert rewards.tolist() == [1.25, 0.0, 1.25]
    assert truncated.all()
    assert (first.reward, third.reward, first.failure, third.failure) == (1.0, 1.0, "", "")
    assert second.reward is None
    assert cause in second.failure
    assert "(test_token.py, line " in second.failure
    assert second.prompt.text in second.failure
    assert "\n" not in second.failure


@pytest.mark.parametrize("where", ["reward", "token_reward"])
def test_after_a_reward_was_raised_the_environment_goes_on(make_env: Make, where: str) -> None:
    def fail_once(*given: Any) -> float:
        if calls.append(0) or len(calls) == 1:  # type: ignore[func-returns-value]
            raise ValueError("not now")
        return 1.0

    calls: list[int] = []
    env = make_env(num_envs=2, max_tokens=1, **{where: fail_once})
    env.reset(seed=0)
    with pytest.raises(RewardError, match="not now"):
        env.step(np.array([8, 8]))
    observation, rewards, _, truncated, infos = env.step(np.array([8, 8]))
    assert [r.episode for r in infos["responses"]] == [2, 3]
    assert truncated.all()
    assert rewards.tolist() == ([1.0, 1.0] if where == "reward" else [2.0, 2.0])
    assert observation in env.observation_space


def test_a_reward_function_judges_each_response_once(make_env: Make) -> None:
    judged = []

    def reward(response: Response) -> float:
        judged.append(response.episode)
        return 1.0 if response.episode != 2 else float("nan")

    env = make_env(reward=reward, num_envs=4, max_tokens=1, failures="mark")
    env.reset(seed=0)
    env.step(np.full(4, 8))
    assert judged == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "0 values for 1 responses"),
        ([1.0, 2.0, 3.0], "3 values for 1 responses"),
        (None, "list of numbers; got None"),
        (1.0, r"list of numbers; got 1\.0"),
    ],
)
def test_a_batch_of_rewards_has_one_for_each_response(nano: LoadedModel, given: Any, reason: str) -> None:
    class Wrong(TokenVectorEnv):
        def rewards(self, responses: Sequence[Response]) -> Any:
            return given

    env = Wrong(COLOURS, tokenizer=nano.tokenizer, max_tokens=1, num_envs=2)
    env.reset(seed=0)
    with pytest.raises(RewardError, match=rf"{reason} \(test_token.py, line \d+\)") as caught:
        env.step(np.full(2, 8))
    check_single_line(caught)


def test_an_environment_without_a_reward_says_so(make_env: Make) -> None:
    env = make_env(reward=None, failures="mark")
    env.reset(seed=0)
    with pytest.raises(EnvError, match="no reward") as caught:
        env.step(np.array([END]))
    check_single_line(caught)


# Legal tokens


def test_legal_tokens_are_in_the_infos_and_others_are_refused(make_env: Make) -> None:
    asked = []

    def list_legal(prompt: Prompt, ids: Sequence[int]) -> Sequence[int] | None:
        asked.append(tuple(ids))
        return [8, 9] if not ids else {10} if len(ids) == 1 else None  # type: ignore[return-value]

    env = make_env(num_envs=2, legal_tokens=list_legal)
    _, infos = env.reset(seed=0)
    assert infos["action_mask"].dtype == np.int8
    assert infos["action_mask"].shape == (2, env.vocabulary)
    assert [np.flatnonzero(row).tolist() for row in infos["action_mask"]] == [[8, 9]] * 2
    with pytest.raises(EnvError, match=r"token 7 .*slot 1") as caught:
        env.step(np.array([8, 7]))
    check_single_line(caught)
    *_, infos = env.step(np.array([8, 9]))
    assert [np.flatnonzero(row).tolist() for row in infos["action_mask"]] == [[10]] * 2
    *_, infos = env.step(np.array([10, 10]))
    assert infos["action_mask"].all()
    assert len(asked) == 6, "once a slot and step"
    single = TokenEnv(COLOURS, count_tokens, tokenizer=env.tokenizer, legal_tokens=list_legal)
    _, info = single.reset(seed=0)
    assert single.action_space.sample(info["action_mask"]) in (8, 9)


@pytest.mark.parametrize(
    ("legal", "message"),
    [
        ([], "legal_tokens must return at least one token from 0 to 933; got []"),
        ([5000], "legal_tokens must return at least one token from 0 to 933; got [5000]"),
        ([-1], "legal_tokens must return at least one token from 0 to 933; got [-1]"),
        (["a"], "legal_tokens must return at least one token from 0 to 933; got ['a']"),
        (3, "legal_tokens failed in slot 0: TypeError"),
    ],
)
def test_legal_tokens_that_make_no_sense_are_named(make_env: Make, legal: Any, message: str) -> None:
    def tokens(prompt: Prompt, ids: Sequence[int]) -> Any:
        return len(legal) and legal if isinstance(legal, int) else legal

    with pytest.raises(EnvError) as caught:
        make_env(legal_tokens=tokens).reset(seed=0)
    assert message in check_single_line(caught)


def test_a_policy_samples_inside_the_action_mask(nano: LoadedModel) -> None:
    import torch

    from palaestra.rl.collection import collect_responses
    from palaestra.rl.policies.language_model import LanguageModelPolicy

    digits = [*range(21, 31)]

    def list_legal(prompt: Prompt, ids: Sequence[int]) -> list[int] | None:
        return None if len(ids) == 2 else digits if len(ids) < 4 else [*digits, END]

    env = TokenVectorEnv(
        COLOURS, count_tokens, tokenizer=nano.tokenizer, num_envs=4, max_tokens=8, legal_tokens=list_legal, group_size=2
    )
    policy = LanguageModelPolicy(nano.weights, temperature=1.3, vocabulary=env.vocabulary)
    rollout = collect_responses(env, policy, 10, Seeds(0), seed=1)
    assert [r.episode for r in rollout.get_episodes().records] == list(range(10))
    for response in rollout.get_episodes().records:
        for at, token in enumerate(response.token_ids):
            assert at == 2 or token in digits or (at >= 4 and token == END)
    assert len({response.token_ids for response in rollout.get_episodes().records}) > 5
    again = policy.logprobs_BT(rollout)
    assert torch.allclose(again, rollout.logprobs_BT * rollout.mask_BT, atol=1e-4)
    assert float(rollout.logprobs_BT[rollout.mask_BT].min()) < -0.5


# What is refused, each in one line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": []}, "TokenVectorEnv needs at least one prompt; got none"),
        ({"prompts": "Name a colour"}, "prompts must be a list; got one text"),
        ({"prompts": ["a", ""]}, "the prompt 2 of 2 is empty"),
        ({"prompts": ["a", ""], "chat": False}, "the prompt 2 of 2 is empty"),
        ({"prompts": [[]]}, "the prompt 1 of 1 is empty"),
        ({"prompts": [5]}, "the prompt 1 of 1 cannot be read: expected a text, token ids, messages or a problem; got int: '5'"),
        ({"prompts": [None]}, "got NoneType"),
        ({"prompts": [["a", "b\nc"]]}, "got list"),
        ({"prompts": [{"prompt": "a"}]}, "got dict"),
        ({"prompts": [[8, 934]]}, "the prompt 1 of 1 has the token 934; tokens must be from 0 to 933"),
        ({"prompts": [[-1]]}, "the prompt 1 of 1 has the token -1"),
        ({"prompts": ["word\n" * 300], "context": 256}, "the limit of prompt and response is 256: 'word"),
        ({"num_envs": 0}, "num_envs must be a whole number"),
        ({"max_tokens": 0}, "max_tokens must be a whole number"),
        ({"group_size": 0}, "group_size must be a whole number"),
        ({"failures": "ignore"}, "failures must be 'raise' or 'mark'; got 'ignore'"),
    ],
)  # fmt: skip
def test_an_environment_that_makes_no_sense_is_refused(make_env: Make, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError) as caught:
        make_env(**arguments)
    assert message in check_single_line(caught)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([8], "step expects one token per slot, shape (2,); got shape (1,)"),
        ([[8, 8]], "got shape (1, 2)"),
        (8, "got shape ()"),
        ([8, 934], "tokens must be from 0 to 933; got 934"),
        ([-1, 8], "tokens must be from 0 to 933; got -1"),
        ([8.0, 8.5], "tokens must be integers; got actions of type float64"),
    ],
)
def test_a_wrong_action_is_refused_and_changes_nothing(make_env: Make, actions: Any, message: str) -> None:
    env = make_env(num_envs=2)
    before, _ = env.reset(seed=0)
    with pytest.raises(EnvError) as caught:
        env.step(np.asarray(actions))
    assert message in check_single_line(caught)
    after, *_ = env.step(np.array([8, 8]))
    assert (after["length"] == before["length"] + 1).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"epsiode": 3}}, "reset options are episodes, episode, initial_state, prompts, reset_mask; got ['epsiode']"),
        ({"options": {"episode": -1}}, "the reset option episode must be a whole number"),
        ({"options": {"episodes": "many"}}, "the reset option episodes must be a whole number"),
        ({"options": {"initial_state": 5}}, "expected a text, token ids, messages or a problem; got int"),
        ({"options": {"initial_state": ""}}, "the prompt given as initial_state is empty"),
        ({"options": {"reset_mask": np.array([True])}}, "reset_mask must have one bool per slot, shape (2,)"),
        ({"seed": [1, 2]}, "TokenVectorEnv accepts one seed for all slots; got [1, 2]"),
    ],
)  # fmt: skip
def test_a_wrong_reset_is_refused_and_changes_nothing(make_env: Make, arguments: dict[str, Any], message: str) -> None:
    env = make_env(num_envs=2)
    env.reset(seed=9)
    expected = list_prompts(env, 12)
    with pytest.raises(EnvError) as caught:
        env.reset(**{"seed": 1, **arguments})
    assert message in check_single_line(caught)
    assert (env.next_episode, list_prompts(env, 12)) == (2, expected)


# Held-out prompts


def test_held_out_prompts_are_disjoint_and_stable(make_env: Make) -> None:
    many = [f"Question {number}" for number in range(40)]
    env, backwards = make_env(many, num_envs=16), make_env(many[::-1], num_envs=16)
    held, same = env.hold_out(5), backwards.hold_out(5)
    texts, left = set(map(str, held.items)), set(map(str, env.items))
    assert (len(held.items), len(env.items), texts | left, texts & left) == (5, 35, set(many), set())
    assert texts == set(map(str, same.items))
    held.reset(seed=0)
    assert sorted(list_prompts(held, 5)) == sorted(texts)
    env.reset(seed=0)
    assert set(list_prompts(env, 35)) == left
    assert len(make_env(many).hold_out(1000).items) == 8, "at most a fifth"


def test_a_held_out_environment_plays_beside_the_other(make_env: Make) -> None:
    many = [f"Question {number}" for number in range(40)]
    env = make_env(many, num_envs=16, group_size=4, max_tokens=1)
    held = env.hold_out(5)
    assert (held.num_envs, held.group_size, env.num_envs, env.group_size) == (5, 1, 16, 4)
    env.reset(seed=0)
    observation, infos = held.reset(seed=0, options={"episodes": 5})
    assert observation in held.observation_space
    *_, infos = held.step(np.full(5, 8))
    assert {r.prompt.text for r in infos["responses"]} == set(map(str, held.items))
    after, *_ = env.step(np.full(16, 8))
    assert env.next_episode == 32
    assert after in env.observation_space


def test_equal_prompts_are_held_out_together(make_env: Make) -> None:
    env = make_env([f"Question {number}" for number in range(10)] * 3)
    held = env.hold_out(2)
    assert set(held.items).isdisjoint(env.items)  # type: ignore[arg-type]
    assert (len(held.items), len(env.items)) == (6, 24)


@pytest.mark.parametrize("count", [1, 4])
def test_of_very_few_prompts_none_is_taken_and_both_have_them(make_env: Make, count: int) -> None:
    env = make_env(COLOURS[:count])
    held = env.hold_out(10)
    assert env.items == held.items == COLOURS[:count]
    assert env.items is not held.items


# Tokenizers


def test_a_tokenizer_whose_ids_have_holes_keeps_all_its_tokens() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inside = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 5, "[end]": 7}, unk_token="?"))
    inside.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inside, eos_token="[end]", unk_token="?")
    assert len(tokenizer) < 8
    env = TokenVectorEnv(["a b"], count_tokens, tokenizer=tokenizer, max_tokens=3)
    assert env.single_action_space.n == 8
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    assert observation["tokens"][0].tolist() == [0, 1, 7, 7, 7], "without a padding token the end pads"
    assert env.step(np.array([7]))[2][0]


def test_a_model_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"no tokenizer: .*tokenizer\.json") as caught:
        TokenVectorEnv(COLOURS, count_tokens, tokenizer=str(tmp_path))
    assert str(tmp_path) in check_single_line(caught)


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="load the tokenizer") as caught:
        TokenVectorEnv(COLOURS, count_tokens, tokenizer=str(tmp_path))
    assert str(tmp_path) in check_single_line(caught)


def test_a_tokenizer_without_an_end_needs_one(nano: LoadedModel) -> None:
    import copy

    tokenizer = copy.deepcopy(nano.tokenizer)
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match="end_ids"):
        TokenVectorEnv(COLOURS, count_tokens, tokenizer=tokenizer)
    env = TokenVectorEnv(COLOURS, count_tokens, tokenizer=tokenizer, end_ids=[END])
    env.reset(seed=0)
    assert env.step(np.array([END]))[2][0]
