import random
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from palaestra.core.errors import EnvError
from palaestra.core.records import StopReason
from palaestra.core.seeding import Seeds
from palaestra.envs.wrappers import PlainTokenVectorEnv, SlotVectorEnv
from palaestra.models.registry import LoadedModel

END = 1


class Summarization(gymnasium.Env[Any, Any]):
    """As in the seed's README: the state is one list that grows in place, the article is drawn by `random`."""

    ARTICLES = ("A new fish was found.", "Prices will fall again this year.", "The bridge is closed.")

    def __init__(self, tokenizer: Any, longest: int = 30) -> None:
        super().__init__()
        self.tokenizer, self.longest = tokenizer, longest
        self.action_space = spaces.Discrete(len(tokenizer))
        self.observation_space = spaces.Sequence(spaces.Discrete(len(tokenizer)))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        article = self.ARTICLES[random.randint(0, len(self.ARTICLES) - 1)]
        self.state = self.tokenizer.encode(f"Article: {article}\n\nWrite a concise summary:")
        self.prompt_len = len(self.state)
        return self.state, {"article": article}

    def step(self, action: Any) -> Any:
        self.state.append(action)
        text = self.tokenizer.decode(self.state[self.prompt_len :])
        done = action == self.tokenizer.eos_token_id or len(text) > self.longest
        reward: float = 0
        if done:
            reward += max(0, 1.0 - len(text) / 50)
        return self.state, reward, done, False, {"summary": text}


class Counting(gymnasium.Env[Any, Any]):
    """Starts by the seed; every token is rewarded with its number. What else it does is given by `habit`."""

    def __init__(self, habit: Callable[["Counting", int], Any] | None = None) -> None:
        self.habit, self.closed, self.steps = habit, False, 0
        self.action_space = spaces.Discrete(20)
        self.observation_space = spaces.Sequence(spaces.Discrete(20))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.state: Any = list(self.np_random.integers(2, 20, size=int(self.np_random.integers(2, 6))))
        if options:
            self.state = list(options["initial_state"])
        return tuple(self.state), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.state = [*self.state, action]
        step = tuple(self.state), float(action), action == END, False, {}
        return step if self.habit is None else self.habit(self, action) or step

    def close(self) -> None:
        self.closed = True


def check_single_line(caught: pytest.ExceptionInfo[BaseException]) -> str:
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Environments of tokens that were written one step at a time


def test_the_seeds_summarization_environment_is_played_as_it_is(nano: LoadedModel) -> None:
    from palaestra.rl.collection import collect_responses
    from palaestra.rl.policies.language_model import LanguageModelPolicy

    tokenizer = nano.tokenizer
    env = PlainTokenVectorEnv(lambda: Summarization(tokenizer), 3, tokenizer, max_tokens=12, context=128, group_size=2)
    random.seed(5)
    before = random.getstate()
    policy = LanguageModelPolicy(nano.weights, vocabulary=env.vocabulary)
    rollout = collect_responses(env, policy, 8, Seeds(0), seed=3)
    assert random.getstate() == before, "the global generator is only borrowed"
    assert [r.episode for r in rollout.get_episodes().records] == list(range(8))
    assert [r.group for r in rollout.get_episodes().records] == [0, 0, 1, 1, 2, 2, 3, 3]
    prompts = [r.prompt for r in rollout.get_episodes().records]
    assert prompts[::2] == prompts[1::2], "a group has one article"
    assert len(set(prompts)) > 1
    for response, rewards in zip(rollout.get_episodes().records, rollout.rewards_BT.tolist(), strict=True):
        assert response.prompt.text.startswith("Article: ")
        text = tokenizer.decode(response.token_ids)
        ended = response.token_ids[-1] == END or len(text) > 30
        assert response.stop_reason is (StopReason.END if ended else StopReason.LENGTH)
        assert response.reward == pytest.approx(max(0, 1 - len(text) / 50) if ended else 0.0)
        assert sum(rewards) == pytest.approx(response.reward)
    again = collect_responses(env, policy, 8, Seeds(0), seed=3)
    assert again.get_episodes().records == rollout.get_episodes().records


def test_rewards_and_observations_are_kept_by_step() -> None:
    env = PlainTokenVectorEnv(Counting, 3, max_tokens=4, context=9)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observation, infos = env.reset(seed=0)
    episodes: dict[int, list[float]] = {}
    responses = {}
    for step in range(20):
        assert observation in env.observation_space
        before, old = observation, infos["episode"]
        actions = np.random.default_rng(step).integers(1, 6, size=3)
        observation, rewards, terminated, truncated, infos = env.step(actions)
        assert rewards.tolist() == actions.tolist()
        assert not (terminated & truncated).any()
        for slot in range(3):
            episodes.setdefault(int(old[slot]), []).append(rewards[slot])
            length = int(before["length"][slot])
            expected = [*before["tokens"][slot, :length], actions[slot]]
            if terminated[slot] or truncated[slot]:
                assert infos["final_obs"][slot]["tokens"][: length + 1].tolist() == expected
                assert infos["final_obs"][slot] in env.single_observation_space
                assert infos["fresh"][slot]
                assert not observation["tokens"][slot, observation["length"][slot] :].any(), "nothing is left over"
            else:
                assert observation["tokens"][slot, : length + 1].tolist() == expected
        responses |= {r.episode: r for r in infos.get("responses", ())}
    assert len(responses) > 10
    for episode, response in responses.items():
        assert response.reward == sum(episodes[episode])
        assert len(response.prompt.ids + response.token_ids) <= 9
    limits = {len(r.token_ids) for r in responses.values() if r.truncated}
    assert max(limits) == 4


def test_groups_share_a_seed_and_episodes_resume_anywhere() -> None:
    def collect_prompts(first: int, slots: int) -> list[tuple[int, ...]]:
        env = PlainTokenVectorEnv(Counting, slots, max_tokens=1, context=20, group_size=3)
        _, infos = env.reset(seed=1, options={"episode": first, "episodes": 12 - first})
        prompts = {}
        while infos["active"].any():
            *_, infos = env.step(np.full(slots, 5))
            prompts |= {r.episode: r.prompt.ids for r in infos["responses"]}
        assert sorted(prompts) == list(range(first, 12))
        with pytest.raises(EnvError, match="no slot is active"):
            env.step(np.full(slots, 5))
        return [prompts[episode] for episode in sorted(prompts)]

    whole = collect_prompts(0, 4)
    assert [whole[e] == whole[e - 1] for e in range(1, 12)] == [True, True, False] * 3 + [True, True]
    assert collect_prompts(5, 2) == whole[5:]


def test_an_environment_that_ignores_its_seed_has_no_groups() -> None:
    start = iter(range(2, 20))

    class Wilful(Counting):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset()
            self.state = [next(start)]
            return tuple(self.state), {}

    PlainTokenVectorEnv(Wilful, 3).reset(seed=0)
    with pytest.raises(EnvError, match=r"Wilful .*same seed") as caught:
        PlainTokenVectorEnv(Wilful, 3, group_size=3).reset(seed=0)
    check_single_line(caught)


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: (_ for _ in ()).throw(RuntimeError()), "RuntimeError"),
        (
            lambda: ((2, 3), float("nan"), True, False, {}),
            "Counting.step returned the reward nan; expected finite numbers",
        ),
        (lambda: ((2, 3), None, True, False, {}), "Counting.step returned None as reward; expected a number"),
        (lambda: ((2, 3), 1.0), "Counting.step returned a tuple of 2; expected the tuple (observation, reward, "),
    ],
)
def test_a_failing_step_ends_only_its_own_episode(bad: Callable[[], Any], cause: str) -> None:
    instances: list[Counting] = []

    def make() -> Counting:
        instances.append(Counting(lambda env, action: bad() if action == 7 else None))
        return instances[-1]

    env = PlainTokenVectorEnv(make, 3, max_tokens=3, context=20, failures="mark")
    env.reset(seed=0)
    env.step(np.array([5, 5, 5]))
    _, rewards, terminated, truncated, infos = env.step(np.array([5, 7, 5]))
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == ([5, 0, 5], [False] * 3, [False, True, False])
    (failed,) = infos["responses"]
    assert (failed.reward, failed.episode, failed.token_ids) == (None, 1, (5, 7))
    assert failed.failure.startswith(cause if "returned" in cause else f"Counting raised {cause}")
    assert "(test_wrappers.py, line" in failed.failure
    assert infos["episode"].tolist() == [0, 3, 2]
    _, rewards, _, truncated, infos = env.step(np.array([5, 5, 5]))
    assert [(r.episode, r.reward) for r in infos["responses"]] == [(0, 15.0), (2, 15.0)]
    assert (len(instances), instances[1].closed, instances[0].closed) == (4, True, False)
    strict = PlainTokenVectorEnv(make, 1, max_tokens=3, context=20)
    strict.reset(seed=0)
    with pytest.raises(EnvError) as caught:
        strict.step(np.array([7]))
    assert cause in check_single_line(caught)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda env, action: (tuple(env.state[:-1]), 0.0, False, False, {}),
        lambda env, action: ((*env.state, 2), 0.0, False, False, {}),
        lambda env, action: ((*env.state[:-1], 3), 0.0, False, False, {}),
        lambda env, action: ((3, *env.state[1:]), 0.0, False, False, {}),
        lambda env, action: ((), 0.0, False, False, {}),
    ],
)
def test_observations_must_grow_by_the_action_and_keep_what_was(wrong: Any) -> None:
    env = PlainTokenVectorEnv(lambda: Counting(wrong), 1, failures="mark", context=20)
    env.reset(seed=0, options={"initial_state": [9, 9, 9]})
    with pytest.raises(EnvError, match=r"Counting .*expected 4") as caught:
        env.step(np.array([5]))
    check_single_line(caught)


def test_reset_options_hold_until_the_next_reset() -> None:
    env = PlainTokenVectorEnv(Counting, 2, max_tokens=1, context=0)
    assert env.width == 4096, "no limit"
    observation, _ = env.reset(seed=0, options={"initial_state": [9, 8, 7], "episodes": 4})
    assert observation["tokens"][:, :3].tolist() == [[9, 8, 7]] * 2
    observation, *_ = env.step(np.full(2, 5))
    assert observation["tokens"][:, :4].tolist() == [[9, 8, 7, 0]] * 2
    observation, _ = env.reset(seed=0)
    assert observation["tokens"][0, :3].tolist() != [9, 8, 7]


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda env: env.step(np.array([5])), "step expects one token per slot, shape (2,); got shape (1,)"),
        (lambda env: env.step(np.array([5, 20])), "tokens must be from 0 to 19; got 20"),
        (lambda env: env.reset(seed=[1, 2]), "Counting accepts one seed for all slots"),
        (lambda env: env.reset(options={"episode": -1}), "the reset option episode must be a whole number"),
        (lambda env: env.reset(options={"initial_state": []}), "Counting starts with 0 tokens; expected 1 to 19"),
        (lambda env: env.reset(options={"initial_state": [5] * 20}), "Counting starts with 20 tokens; expected 1 to 19"),
        (lambda env: env.reset(options={"initial_state": [5, 20]}), "tokens must be from 0 to 19"),
        (lambda env: env.reset(options={"other": 1}), "Counting raised KeyError: 'initial_state' (test_wrappers.py, line 60) in reset"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(work: Any, message: str) -> None:
    env = PlainTokenVectorEnv(Counting, 2, context=20)
    env.reset(seed=np.int64(0))
    with pytest.raises(EnvError) as caught:
        work(env)
    assert message in check_single_line(caught)


def test_an_environment_without_tokens_is_refused() -> None:
    with pytest.raises(EnvError, match="CartPole-v1 has Discrete") as caught:
        PlainTokenVectorEnv(lambda: gymnasium.make("CartPole-v1"), 1)
    check_single_line(caught)


# Classic environments side by side


class Trouble(gymnasium.Env[Any, Any]):
    """Counts its steps in one array that it keeps writing into; breaks where it is told to."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-1e9, 1e9, (2,), np.float64)

    def __init__(self, trouble: Callable[["Trouble"], Any] = lambda env: 1.0, length: int = 5) -> None:
        self.trouble, self.length, self.closed = trouble, length, False
        self.at = np.zeros(2)
        self.resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.resets += 1
        self.at[:] = 0, self.np_random.integers(1000)
        return self.at, {}

    def step(self, action: Any) -> Any:
        self.at[0] += 1
        return self.at, self.trouble(self), bool(self.at[0] >= self.length), False, {}

    def close(self) -> None:
        self.closed = True


def make_failing(
    trouble: Callable[[Trouble], Any], which: int = 1, slots: int = 3
) -> tuple[SlotVectorEnv, list[Trouble]]:
    """Slots of which one has a trouble; what is made later has it too."""
    instances: list[Trouble] = []

    def make() -> Trouble:
        instances.append(Trouble(trouble if len(instances) == which or len(instances) >= slots else lambda env: 1.0))
        return instances[-1]

    return SlotVectorEnv(make, slots, "Trouble-v0"), instances


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_slots_agree_with_gymnasiums_own_step_by_step(name: str) -> None:
    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.make(name, max_episode_steps=40)

    ours, theirs = SlotVectorEnv(make, 4), SyncVectorEnv([make] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
    assert ours.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    assert (ours.reset(seed=3)[0] == theirs.reset(seed=3)[0]).all()
    theirs.action_space.seed(0)
    ends = 0
    for _ in range(120):
        actions = theirs.action_space.sample()
        mine, other = ours.step(actions), theirs.step(actions)
        assert mine[0].dtype == other[0].dtype
        for a, b in zip(mine[:4], other[:4], strict=True):
            assert (a == b).all()
        assert ("final_obs" in mine[4]) == ("final_obs" in other[4])
        if "final_obs" in mine[4]:
            assert (mine[4]["_final_obs"] == other[4]["_final_obs"]).all()
            for slot in np.flatnonzero(mine[4]["_final_obs"]):
                ends += 1
                assert (mine[4]["final_obs"][slot] == other[4]["final_obs"][slot]).all()
    assert ends > 3
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("trouble", "cause"),
    [
        (
            lambda env: 1 / 0,
            "Trouble-v0 raised ZeroDivisionError: division by zero (test_wrappers.py, line ",
        ),
        (
            lambda env: float("nan"),
            "Trouble.step returned the reward nan; expected finite numbers (test_wrappers.py, line ",
        ),
    ],
)
def test_a_failing_environment_is_made_again(trouble: Any, cause: str) -> None:
    env, instances = make_failing(lambda env: trouble(env) if env.at[0] == 3 else 1.0)
    quiet = SlotVectorEnv(Trouble, 3)
    env.reset(seed=7)
    quiet.reset(seed=7)
    for step in range(1, 8):
        observation, rewards, terminated, truncated, infos = env.step(np.zeros(3, dtype=int))
        calm = quiet.step(np.zeros(3, dtype=int))
        for mine, other in zip((observation, rewards, terminated, truncated), calm[:4], strict=True):
            assert (mine[[0, 2]] == other[[0, 2]]).all(), "the others are unharmed"
        if step in (3, 6):
            assert infos["failed"].tolist() == [False, True, False]
            assert cause in infos["failures"][0]
            assert (truncated[1], terminated[1], rewards[1]) == (True, False, 0.0)
            assert observation[1, 0] == 0, "the next episode has begun"
        else:
            assert "failed" not in infos
            assert "failures" not in infos
    assert len(instances) == 5
    assert [instance.closed for instance in instances] == [False, True, False, True, False]
    assert instances[3].np_random_seed != instances[4].np_random_seed, "each one has a seed of its own"


def test_an_environment_that_always_breaks_is_given_up() -> None:
    env, _ = make_failing(lambda env: 1 / 0)
    env.reset(seed=0)
    for _ in range(2):
        env.step(np.zeros(3, dtype=int))
    with pytest.raises(
        EnvError,
        match=r"ZeroDivisionError: .*\(test_wrappers.py, line \d+\) in slot 1, .*3rd time",
    ) as caught:
        env.step(np.zeros(3, dtype=int))
    check_single_line(caught)


def test_good_steps_between_breaks_are_not_given_up() -> None:
    env, _ = make_failing(lambda env: 1 / 0 if env.at[0] == 2 else 1.0)
    env.reset(seed=0)
    failed = sum("failed" in env.step(np.zeros(3, dtype=int))[4] for _ in range(20))
    assert failed == 10


def test_a_failing_reset_is_retried_a_few_times() -> None:
    class Sleepy(Trouble):
        def reset(self, **arguments: Any) -> Any:
            if self.resets:
                raise OSError("asleep")
            return super().reset(**arguments)

    env = SlotVectorEnv(Sleepy, 2, "Sleepy-v0")
    env.reset(seed=0)
    for _ in range(12):
        observation, *_ = env.step(np.zeros(2, dtype=int))
    assert observation[:, 0].tolist() == [2, 2]

    class Dead(Sleepy):
        graves = 0

        def reset(self, **arguments: Any) -> Any:
            Dead.graves += 1
            if Dead.graves > 2:
                raise OSError("dead")
            return Trouble.reset(self, **arguments)

    env = SlotVectorEnv(Dead, 2, "Dead-v0")
    env.reset(seed=0)
    for _ in range(4):
        env.step(np.zeros(2, dtype=int))
    with pytest.raises(EnvError, match=r"OSError: dead \(test_wrappers.py, line \d+\) .*slot 0, .*3rd time"):
        env.step(np.zeros(2, dtype=int))
    with pytest.raises(EnvError, match=r"Dead-v0 .*OSError: dead \(test_wrappers.py, line \d+\) .*slot 0") as caught:
        env.reset(seed=0)
    check_single_line(caught)


def test_the_final_observation_is_a_copy() -> None:
    env = SlotVectorEnv(Trouble, 1)
    first, _ = env.reset(seed=0)
    kept = first.copy()
    for _ in range(5):
        observation, _, terminated, _, infos = env.step(np.zeros(1, dtype=int))
    assert terminated[0]
    assert infos["final_obs"][0][0] == 5
    assert observation[0, 0] == 0
    assert (first == kept).all()


def test_a_list_gives_every_slot_its_seed() -> None:
    env = SlotVectorEnv(Trouble, 3)
    observation, _ = env.reset(seed=[4, 4, 5])
    assert observation[0, 1] == observation[1, 1] != observation[2, 1]
    with pytest.raises(EnvError, match="3 in total; got 2"):
        env.reset(seed=[4, 4])


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=5),
        spaces.MultiDiscrete([2, 3]),
        spaces.Box(-1, 1, (2, 2), np.float32),
        spaces.MultiBinary(4),
    ],
)
def test_actions_of_every_space_reach_their_environment(space: gymnasium.Space[Any]) -> None:
    taken = []

    class RecordingActions(Trouble):
        action_space = space  # type: ignore[assignment]

        def step(self, action: Any) -> Any:
            assert action in space
            taken.append(action)
            return super().step(action)

    env = SlotVectorEnv(RecordingActions, 3)
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = env.action_space.sample()
    *_, infos = env.step(actions)
    assert "failed" not in infos
    assert (np.stack(taken) == actions).all()


@pytest.mark.parametrize(
    "space", [spaces.Discrete(3), spaces.Box(-1, 1, (2, 2), np.float32), spaces.Dict(a=spaces.Discrete(2))]
)
def test_observations_of_every_space_come_in_a_batch(space: gymnasium.Space[Any]) -> None:
    class SamplingObservations(Trouble):
        observation_space = space  # type: ignore[assignment]

        def reset(self, **arguments: Any) -> Any:
            super().reset(**arguments)
            return space.sample(), {}

        def step(self, action: Any) -> Any:
            return space.sample(), *super().step(action)[1:]

    env = SlotVectorEnv(SamplingObservations, 3)
    assert env.reset(seed=0)[0] in env.observation_space
    assert env.step(np.zeros(3, dtype=int))[0] in env.observation_space
