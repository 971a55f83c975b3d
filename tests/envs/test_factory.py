import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv

from palaestra import train
from palaestra.core.errors import EnvError, PalaestraError, UnknownNameError
from palaestra.envs.factory import (
    detect_kind,
    get_spec,
    make_control_env,
    make_single_turn_env,
    make_token_env,
    make_turn_env,
)
from palaestra.envs.token import CoTVectorEnv, Response, RLHFVectorEnv, TokenEnv, TokenVectorEnv
from palaestra.envs.turn import TurnEnv
from palaestra.envs.wrappers import PlainTokenVectorEnv, SlotVectorEnv
from palaestra.models.registry import LoadedModel

RHYMES = ["Rhyme on red", "Rhyme on blue"]


class Rhymes(TokenVectorEnv):
    """Prompts and reward by a subclass."""

    def __init__(self, theme: str = "colours", **arguments: Any) -> None:
        self.theme = theme
        super().__init__(RHYMES, **arguments)

    def reward(self, response: Response) -> float:
        return 1.0


class RhymeEnv(TokenEnv):
    vector_class = Rhymes


class OwnInit(TokenEnv):
    """Prompts and reward by the single view's own arguments."""

    def __init__(self, words: Sequence[str] = ("red",), max_tokens: int = 3, **arguments: Any) -> None:
        super().__init__([f"Say {word}" for word in words], lambda r: 1.0, max_tokens=max_tokens, **arguments)


class Closed(TokenEnv):
    """Takes nothing of what whoever trains would like to set."""

    def __init__(self, word: str = "red") -> None:
        super().__init__([f"Say {word}"], lambda r: 1.0)


class Letters(gymnasium.Env[Any, Any]):
    """A plain environment whose actions are tokens."""

    def __init__(self, size: int = 9) -> None:
        self.action_space = spaces.Discrete(size)
        self.observation_space = spaces.Sequence(spaces.Discrete(size))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.state = [3, 4]
        return self.state, {}

    def step(self, action: Any) -> Any:
        self.state.append(action)
        return self.state, 1.0, False, False, {}


class Mistaken(TokenVectorEnv):
    def prompts(self) -> Sequence[str]:
        return RHYMES + 5  # type: ignore[operator, no-any-return]


@pytest.fixture
def register() -> Iterator[Callable[..., str]]:
    names = []

    def registered(name: str = "Test-v0", **spec: Any) -> str:
        gymnasium.register(name, **spec)
        names.append(name)
        return name

    yield registered
    for name in names:
        del gymnasium.registry[name]


@pytest.fixture
def own(nano: LoadedModel) -> dict[str, Any]:
    """What a recipe sets by itself."""
    return {"tokenizer": nano.tokenizer, "max_tokens": 7, "context": 40, "group_size": 2, "failures": "mark"}


def is_token_env(name: str, options: dict[str, Any]) -> bool:
    return detect_kind(name, options) == "token"


def check_single_line(caught: pytest.ExceptionInfo[BaseException]) -> str:
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("CartPol-v1", "CartPole-v1"), ("CotEnv-v0", "CoTEnv-v0"), ("palaestra/RLFH-v0", "palaestra/RLHF-v0")],
)  # fmt: skip
def test_an_unknown_id_suggests_the_nearest(wrong: str, right: str) -> None:
    for ask in (get_spec, lambda name: is_token_env(name, {}), lambda name: make_control_env(name, 2, {})):
        with pytest.raises(UnknownNameError) as caught:
            ask(wrong)
        assert f"did you mean '{right}" in check_single_line(caught)


@pytest.mark.parametrize(
    ("old", "hint"),
    [
        ("Taxi-v3", "Environment version v3 for `Taxi` is deprecated. Please use `Taxi-v4` instead."),
        ("LunarLander-v2", "Please use `LunarLander-v3` instead."),
        ("ALE/Pong-v5", "Namespace ALE not found. Have you installed the proper package for ALE?"),
        ("CartPole-v9", "It provides versioned environments: [ `v0`, `v1` ]."),
    ],
)
def test_an_old_or_wrong_version_shows_gymnasiums_own_hint(old: str, hint: str) -> None:
    for ask in (get_spec, lambda name: detect_kind(name, {})):
        with pytest.raises(EnvError) as caught:
            ask(old)
        assert check_single_line(caught).endswith(hint)
        assert "did you mean" not in str(caught.value)


def test_an_id_that_is_none_is_refused_in_one_line() -> None:
    for name in ("", "what is this?", "a/b/c"):
        with pytest.raises(UnknownNameError) as caught:
            get_spec(name)
        check_single_line(caught)


def test_a_wrong_class_of_a_file_suggests_one_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "my_walks.py"
    file.write_text("import gymnasium\n\n\nclass Walk(gymnasium.Env):\n    pass\n")
    with pytest.raises(UnknownNameError) as caught:
        get_spec(f"{file}:Wlak")
    assert check_single_line(caught).endswith("did you mean 'Walk'? Known: Walk")
    with pytest.raises(EnvError, match="name its class"):
        get_spec(str(file))


def test_a_module_before_the_id_is_imported_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_letters.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('MyPole-v0', entry_point=CartPoleEnv)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert get_spec("my_letters:MyPole-v0").id == "MyPole-v0"
        assert not is_token_env("my_letters:MyPole-v0", {})
        assert make_control_env("my_letters:MyPole-v0", 2, {}).reset(seed=0)[0].shape == (2, 4)
    finally:
        gymnasium.registry.pop("MyPole-v0", None)
        sys.modules.pop("my_letters", None)
    with pytest.raises(EnvError, match=r"'no_such_module', .*X-v0") as caught:
        get_spec("no_such_module:X-v0")
    check_single_line(caught)


@pytest.mark.parametrize(
    "work",
    [
        lambda: is_token_env("CartPole-v1", {"gravitiy": 1}),
        lambda: make_control_env("CartPole-v1", 2, {"gravitiy": 1}),
        lambda: make_control_env("Pendulum-v1", 2, {"gravitiy": 1}),
        lambda: make_token_env("CoTEnv-v0", 2, {"gravitiy": 1}),
        lambda: make_token_env("RLHFEnv-v0", 2, {"gravitiy": [{"a\nb": 1}]}),
        lambda: make_token_env("CoTEnv-v0", 2, {"num_envs": 3}),
    ],
)
def test_options_that_an_environment_does_not_take_are_named(work: Callable[[], Any]) -> None:
    with pytest.raises(EnvError, match=r"v\d .*(gravitiy|num_envs)") as caught:
        work()
    assert "kwargs (" not in check_single_line(caught)


def test_options_with_a_wrong_value_keep_their_own_message() -> None:
    with pytest.raises(PalaestraError, match="'addition'"):
        make_token_env("CoTEnv-v0", 2, {"skills": ["adition"]})


def test_error_inside_an_env_is_not_blamed_on_options(register: Callable[..., str]) -> None:
    name = register(entry_point=Mistaken)
    with pytest.raises(EnvError, match=r"Test-v0: TypeError: .*test_factory.py, line") as caught:
        make_token_env(name, 2, {})
    check_single_line(caught)


def test_a_dependency_that_is_missing_is_named(register: Callable[..., str]) -> None:
    name = register(entry_point="no_such_package.envs:Env")
    for work in (lambda: is_token_env(name, {}), lambda: make_control_env(name, 1, {})):
        with pytest.raises(EnvError, match="no_such_package") as caught:
            work()
        check_single_line(caught)


def test_classic_environments_use_their_native_vector_form() -> None:
    env = make_control_env("CartPole-v1", 3, {})
    assert isinstance(env.unwrapped, CartPoleVectorEnv)
    assert env.num_envs == 3
    assert env.reset(seed=0)[0] in env.observation_space
    slots = make_control_env("CartPole-v1", 3, {}, own_seeds=True)
    assert isinstance(slots, SlotVectorEnv)
    observation, _ = slots.reset(seed=[1, 1, 2])
    assert (observation[0] == observation[1]).all()
    assert (observation[0] != observation[2]).any()


def test_other_classic_environments_run_in_slots() -> None:
    env = make_control_env("Pendulum-v1", 2, {"g": 3.0, "max_episode_steps": 4})
    assert isinstance(env, SlotVectorEnv)
    assert [item.unwrapped.g for item in env.envs] == [3.0, 3.0]  # type: ignore[attr-defined]
    env.reset(seed=0)
    cut = [env.step(np.zeros((2, 1), dtype=np.float32))[3].tolist() for _ in range(4)]
    assert cut == [[False, False]] * 3 + [[True, True]]


def test_option_without_native_form_is_served_by_slots(register: Callable[..., str]) -> None:
    from gymnasium.envs.classic_control import CartPoleEnv

    class Heavy(CartPoleEnv):
        def __init__(self, weight: float = 1.0, **arguments: Any) -> None:
            super().__init__(**arguments)
            self.weight = weight

    name = register(entry_point=Heavy, vector_entry_point=CartPoleVectorEnv, max_episode_steps=9)
    assert isinstance(make_control_env(name, 2, {}).unwrapped, CartPoleVectorEnv)
    env = make_control_env(name, 2, {"weight": 5.0})
    assert isinstance(env, SlotVectorEnv)
    assert [item.unwrapped.weight for item in env.envs] == [5.0, 5.0]  # type: ignore[attr-defined]


def test_a_native_form_with_other_observations_is_not_used(register: Callable[..., str]) -> None:
    class Positions(gymnasium.ObservationWrapper[Any, Any, Any]):
        """As in Atari, where only the native form resizes the image."""

        def __init__(self) -> None:
            super().__init__(gymnasium.make("CartPole-v1").unwrapped)
            self.observation_space = gymnasium.spaces.Box(-5.0, 5.0, (1,))

        def observation(self, observation: Any) -> Any:
            return observation[:1]

    name = register(entry_point=Positions, vector_entry_point=CartPoleVectorEnv)
    env = make_control_env(name, 2, {})
    assert isinstance(env, SlotVectorEnv)
    assert env.reset(seed=0)[0].shape == (2, 1)


def test_our_token_environments_are_recognised_and_made(own: dict[str, Any]) -> None:
    assert is_token_env("CoTEnv-v0", {})
    assert is_token_env("RLHFEnv-v0", {"reward": "no/such/folder"}), "nothing is loaded to know it"
    assert not is_token_env("CartPole-v1", {})
    assert not is_token_env("FrozenLake-v1", {})
    env = make_token_env("CoTEnv-v0", 5, {"skills": ["addition"], "problems": 4, "max_tokens": 9}, **own)
    assert isinstance(env, CoTVectorEnv)
    assert (env.num_envs, env.max_tokens, env.context, env.group_size, env.failures) == (5, 9, 40, 2, "mark")
    assert isinstance(make_token_env("RLHFEnv-v0", 2, {"prompts": RHYMES}, **own), RLHFVectorEnv)


@pytest.mark.parametrize(
    "spec",
    [
        {"entry_point": RhymeEnv},
        {"entry_point": Rhymes},
        {"entry_point": RhymeEnv, "vector_entry_point": Rhymes},
        {"entry_point": Letters, "vector_entry_point": Rhymes},
        {"entry_point": RhymeEnv, "vector_entry_point": CartPoleVectorEnv},
        {"entry_point": lambda **given: RhymeEnv(**given)},
    ],
)
def test_user_token_environments_are_recognized(
    register: Callable[..., str], own: dict[str, Any], spec: dict[str, Any]
) -> None:
    name = register(**spec, kwargs={"theme": "autumn", "max_tokens": 99})
    assert is_token_env(name, {})
    env = make_token_env(name, 3, {}, **own)
    assert isinstance(env, Rhymes)
    assert (env.num_envs, env.theme, env.max_tokens, env.group_size, env.autoreset) == (3, "autumn", 7, 2, True)
    assert make_token_env(name, 3, {"theme": "sea"}, **own).theme == "sea"
    env.reset(seed=0)
    *_, infos = env.step(np.full(3, 1))
    assert [r.reward for r in infos["responses"]] == [1.0] * 3


@pytest.mark.parametrize("entry", [OwnInit, lambda **given: OwnInit(**given)])
def test_what_a_single_view_gives_itself_is_kept_in_slots(
    register: Callable[..., str], own: dict[str, Any], entry: Any
) -> None:
    name = register(entry_point=entry)
    env = make_token_env(name, 4, {"words": ["red", "blue", "green"]}, **own)
    assert env.items == ["Say red", "Say blue", "Say green"]
    assert (env.num_envs, env.max_tokens, env.tokenizer) == (4, 7, own["tokenizer"])
    assert make_token_env(name, 4, {"max_tokens": 5}, **own).max_tokens == 5
    closed = make_token_env(register("Closed-v0", entry_point=Closed), 4, {"word": "blue"}, **own)
    assert (closed.items, closed.max_tokens, closed.failures) == (["Say blue"], 7, "mark")


@pytest.mark.parametrize("entry", [Letters, lambda **given: Letters(**given)])
def test_a_plain_environment_of_tokens_is_recognised_and_made(
    register: Callable[..., str], own: dict[str, Any], entry: Any
) -> None:
    name = register(entry_point=entry)
    assert is_token_env(name, {})
    env = make_token_env(name, 3, {"size": 6}, **own)
    assert isinstance(env, PlainTokenVectorEnv)
    assert (env.num_envs, env.vocabulary, env.max_tokens, env.width) == (3, 6, 7, 40)
    env.reset(seed=0)
    assert env.step(np.full(3, 5))[1].tolist() == [1.0] * 3
    with pytest.raises(EnvError, match="sice"):
        make_token_env(name, 3, {"sice": 6}, **own)


def test_an_unknown_id_is_told_the_newest_of_each() -> None:
    with pytest.raises(UnknownNameError) as caught:
        get_spec("Nothing-v0")
    assert "Ant-v5" in str(caught.value)
    assert "Ant-v4" not in str(caught.value)


def test_our_ids_have_our_namespace_and_the_old_ones_stay_valid() -> None:
    ours = {
        spec.id
        for spec in gymnasium.registry.values()
        if isinstance(spec.entry_point, str) and spec.entry_point.startswith("palaestra.")
    }
    assert {name for name in ours if not name.startswith("palaestra/")} == {"CoTEnv-v0", "RLHFEnv-v0"}
    for old, new in (("CoTEnv-v0", "palaestra/CoT-v0"), ("RLHFEnv-v0", "palaestra/RLHF-v0")):
        first, second = get_spec(old), get_spec(new)
        assert (first.entry_point, first.vector_entry_point) == (second.entry_point, second.vector_entry_point)


class Endless(gymnasium.Env[Any, Any]):
    """A classic environment whose limit is part of the task."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)
    bootstrap_truncated = False


class Patient(TurnEnv):
    bootstrap_truncated = True


class EndlessCartPole(CartPoleVectorEnv):
    bootstrap_truncated = False


class PatientWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    bootstrap_truncated = True


class PatientRhymes(Rhymes):
    bootstrap_truncated = True


class PatientLetters(Letters):
    bootstrap_truncated = True


class PatientRhymeEnv(RhymeEnv):
    bootstrap_truncated = True


class PatientOwnInit(OwnInit):
    bootstrap_truncated = True


@pytest.mark.parametrize(
    ("spec", "declared"),
    [
        ({"entry_point": "gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv", "max_episode_steps": 9}, True),
        ({"entry_point": Endless, "max_episode_steps": 9}, False),
        ({"entry_point": lambda: PatientWrapper(Endless()), "max_episode_steps": 9}, True),
        ({"entry_point": CartPoleEnv, "vector_entry_point": EndlessCartPole}, False),
        ({"vector_entry_point": EndlessCartPole}, False),
        ({"vector_entry_point": CartPoleVectorEnv}, True),
        ({"entry_point": RhymeEnv}, False),
        ({"entry_point": RhymeEnv, "vector_entry_point": PatientRhymes}, True),
        ({"entry_point": PatientRhymeEnv, "vector_entry_point": Rhymes}, True),
        ({"entry_point": PatientRhymeEnv}, True),
        ({"entry_point": PatientOwnInit}, True),
        ({"vector_entry_point": PatientRhymes}, True),
        ({"vector_entry_point": lambda **arguments: PatientRhymes(**arguments)}, True),
        ({"entry_point": Letters}, False),
        ({"entry_point": PatientLetters}, True),
        ({"entry_point": TurnEnv}, False),
        ({"entry_point": Patient}, True),
    ],
)
def test_an_environment_declares_what_its_limit_means(
    register: Callable[..., str], own: dict[str, Any], spec: dict[str, Any], declared: bool
) -> None:
    name = register(**spec)
    kind = detect_kind(name, {})
    if kind == "control":
        env: Any = make_control_env(name, 2, {})
    else:
        env = make_token_env(name, 2, {}, **own) if kind == "token" else make_turn_env(name, 2, {})
    assert env.bootstrap_truncated is declared


@pytest.mark.parametrize(("entry_point", "declared"), [(Endless, False), (lambda: PatientWrapper(Endless()), True)])
def test_text_versions_keep_the_declaration(register: Callable[..., str], entry_point: Any, declared: bool) -> None:
    name = register(entry_point=entry_point)
    assert make_single_turn_env(f"text:{name}", {"verify_seed": False}).bootstrap_truncated is declared
    assert make_single_turn_env("text:FrozenLake-v1", {}).bootstrap_truncated is False


def test_a_vector_only_environment_trains(register: Callable[..., str], tmp_path: Path) -> None:
    name = register(vector_entry_point=CartPoleVectorEnv)
    settings: Any = {"env": name, "iterations": 2, "num_envs": 4, "n_steps": 8, "evaluation": 3}
    summary = train(out=tmp_path / "run", progress=False, **settings).summary
    assert (summary["policy"], summary["after_episodes"]) == ("mlp", 3)
    with pytest.raises(EnvError, match="one seed per slot"):
        train(out=tmp_path / "groups", progress=False, algorithm="grpo", group_size=2, **settings)
    with pytest.raises(EnvError, match=f"{name} .*nonsense"):
        make_control_env(name, 2, {"nonsense": 1})
