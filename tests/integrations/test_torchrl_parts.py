"""Each transform alone over the command environment, every prefix of the chain, and custom chains."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrl")

from tensordict import TensorDictBase
from torchrl.data.llm import History
from torchrl.envs import Compose
from torchrl.envs.utils import check_env_specs
from torchrl_tasks import SUBMIT, block, last, play, read_entry, roles

from palaestra.core.errors import EnvError
from palaestra.integrations.torchrl import (
    ConditionalSkip,
    IsolateCodeBlock,
    MessageToHistory,
    MLGymEnv,
    MLGymRewardAssignment,
    MLGymWrapper,
    ReadState,
    ResetModule,
    StateToMessage,
    TaskSampler,
    TemplateTransform,
)
from palaestra.integrations.torchrl.make import _to_retry
from palaestra.models.registry import LoadedModel
from palaestra.research.tasks.task import load_task

Chained = Callable[..., MLGymEnv]
DOCS = Path(__file__).parents[2] / "docs" / "mlgym.md"


@pytest.fixture
def parts(nano: LoadedModel) -> dict[str, Callable[[], Any]]:
    """Makes every transform, in the order of the chain."""
    return {
        "ConditionalSkip": lambda: ConditionalSkip(_to_retry),
        "IsolateCodeBlock": lambda: IsolateCodeBlock(-1.0),
        "ResetModule": ResetModule,
        "TaskSampler": lambda: TaskSampler(["low", "high"]),
        "ReadState": ReadState,
        "StateToMessage": StateToMessage,
        "MessageToHistory": MessageToHistory,
        "TemplateTransform": lambda: TemplateTransform(tokenizer=nano.tokenizer),
        "MLGymRewardAssignment": MLGymRewardAssignment,
    }


@pytest.fixture
def make_chain(place: Path, parts: dict[str, Callable[[], Any]]) -> Iterator[Chained]:
    """Makes an environment with the named transforms, and closes it."""
    instances: list[MLGymEnv] = []

    def build(*names: str, **arguments: Any) -> MLGymEnv:
        base = MLGymWrapper([place / "low", place / "high"], prompts=place / "prompts", seed=0, **arguments)
        instances.append(MLGymEnv(base, Compose(*(parts[name]() for name in names))))
        return instances[-1]

    yield build
    for env in instances:
        env.close()


def step_with_command(
    env: MLGymEnv, tensordict: TensorDictBase, command: str, names: tuple[str, ...]
) -> TensorDictBase:
    """A step with this command in every slot, said as the chain wants it."""
    slots = env.batch_size.numel()
    if "IsolateCodeBlock" in names:
        tensordict["text", "response"] = [block(command)] * slots
    else:
        tensordict["action"] = [command] * slots
    return env.step(tensordict)


NAMES = (
    "ConditionalSkip", "IsolateCodeBlock", "ResetModule", "TaskSampler", "ReadState", "StateToMessage", "MessageToHistory",
    "TemplateTransform", "MLGymRewardAssignment",
)  # fmt: skip
CHAINS = [
    *((name,) for name in NAMES),
    *(NAMES[:length] for length in range(2, len(NAMES) + 1)),
    *(tuple(name for name in NAMES if name != left_out) for left_out in NAMES[1:-1]),
    ("StateToMessage", "MessageToHistory"),
    ("ResetModule", "MessageToHistory"),
    ("ResetModule", "StateToMessage", "TemplateTransform"),
]


@pytest.mark.parametrize("names", CHAINS, ids="+".join)
def test_each_transform_works_alone_and_in_a_chain(make_chain: Chained, names: tuple[str, ...]) -> None:
    slots = 2 if len(names) % 2 else 1
    env = make_chain(*names, num_envs=slots)
    check_env_specs(env)
    tensordict = step_with_command(env, env.reset(), "echo 3 > answer.txt; echo q-$((6*6))", names)
    assert all(read_entry(tensordict["next"], "observation", slot) == "q-36" for slot in range(slots))
    tensordict = step_with_command(env, env.step_mdp(tensordict), "submit", names)
    assert tensordict["next", "done"].all()
    if "MLGymRewardAssignment" in names:
        paid = {"low": 7.0, "high": -7.0}
        expected = [paid[slot.name] for slot in env.base_env.slots]
        assert tensordict["next", "reward"].flatten().tolist() == expected


def test_a_message_without_a_state_before_it_says_the_same(make_chain: Chained) -> None:
    messages = []
    for names in (("StateToMessage",), ("ReadState", "StateToMessage")):
        env = make_chain(*names)
        messages.append(read_entry(step_with_command(env, env.reset(), "echo hi", names)["next"], "message"))
    assert messages[0] == messages[1]
    assert messages[0].startswith("hi\n\n(open file: none; folder: /workspace; 3 messages left)")


def test_a_history_that_nobody_began_begins_with_the_message(make_chain: Chained) -> None:
    env = make_chain("StateToMessage", "MessageToHistory", num_envs=2)
    tensordict = env.reset()
    assert roles(tensordict) == ["user"]
    tensordict = step_with_command(env, tensordict, "echo hi", ())["next"]
    assert [roles(tensordict, slot) for slot in (0, 1)] == [["user", "user"]] * 2
    assert last(tensordict).startswith("hi")
    assert ("history", "prompt") not in make_chain("MessageToHistory").reset().keys(True)


def test_a_history_without_messages_has_the_commands_alone(make_chain: Chained) -> None:
    env = make_chain("ResetModule", "MessageToHistory")
    after = step_with_command(env, env.reset(), "echo hi", ())["next"]
    assert roles(after) == ["system", "assistant"]
    assert last(after) == "echo hi", "without a message around it the command is what was said"


def test_a_whole_history_is_read_though_there_was_none_before(make_chain: Chained) -> None:
    env = make_chain("IsolateCodeBlock", "MessageToHistory")
    tensordict = env.reset()
    full = History(role=[["user", "assistant"]], content=[["Go.", block("echo hi")]], batch_size=(1, 2))
    tensordict["history", "full"] = full
    assert read_entry(env.step(tensordict)["next"], "observation") == "hi"


def test_a_template_without_a_history_shows_what_was_heard(make_chain: Chained) -> None:
    env = make_chain("TemplateTransform")
    tensordict = env.reset()
    assert read_entry(tensordict, "observation") in read_entry(tensordict, ("text", "prompt"))
    prompt = read_entry(step_with_command(env, tensordict, "echo zebra", ())["next"], ("text", "prompt"))
    assert "zebra" in prompt and "The task" not in prompt  # noqa: PT018
    env = make_chain("StateToMessage", "TemplateTransform")
    assert "(open file" in read_entry(step_with_command(env, env.reset(), "echo hi", ())["next"], ("text", "prompt"))


def test_a_sampler_alone_chooses_the_task(make_chain: Chained) -> None:
    env = make_chain("TaskSampler")
    drawn = [(read_entry(results := env.reset(), "task"), read_entry(results, "observation")) for _ in range(6)]
    assert {name for name, _ in drawn} == {"low", "high"}
    assert all(observation.startswith(f"The task {name}") for name, observation in drawn)


def test_the_environment_of_commands_takes_tasks_in_every_way(place: Path) -> None:
    task = load_task(place / "high")
    for given, names in (
        ("prisoners_dilemma", ["prisoners_dilemma"]),
        (place / "low", ["low"]),
        (task, ["high"]),
        (["prisoners_dilemma", place / "low"], ["prisoners_dilemma", "low"]),
        ((name for name in [place / "low", task]), ["low", "high"]),
        ({"mine": task, "other": place / "low"}, ["mine", "other"]),
    ):
        env = MLGymWrapper(given, prompts=place / "prompts")
        try:
            assert list(env.slots[0].tasks) == names
        finally:
            env.close(raise_if_closed=False)


def test_the_example_in_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n([^`]*MLGymEnv\(MLGymWrapper[^`]*)```", DOCS.read_text(encoding="utf-8"))
    exec(code, {})
    assert "messages left" in capsys.readouterr().out


def test_a_new_episode_has_its_own_history_shape(
    make: Callable[..., MLGymEnv],
) -> None:
    env = make(tokenizer="nano")
    tensordict = env.reset()
    tensordict["text", "response"] = [SUBMIT]
    stepped, after = env.step_and_maybe_reset(tensordict)
    assert stepped["next", "done"].item() and stepped["next", "history", "prompt"].shape == (1, 4)  # noqa: PT018
    assert after["history", "prompt"].shape == (1, 2)
    assert roles(after) == ["system", "user"]
    kept = env.maybe_reset(after)
    assert kept["history", "prompt"].shape == (1, 2), "an episode that goes on is left alone"


def test_a_closed_environment_cannot_be_used_again(make: Callable[..., MLGymEnv]) -> None:
    env = make()
    tensordict = env.reset()
    env.close()
    with pytest.raises(EnvError, match="closed"):
        env.reset()
    tensordict["text", "response"] = [block("ls")]
    with pytest.raises(EnvError, match="closed"):
        env.step(tensordict)
    assert env.is_closed
    env.close()


def test_templates_have_the_variables_that_they_have_everywhere(
    make: Callable[..., MLGymEnv], place: Path, tmp_path: Path
) -> None:
    for name in ("observation", "no_output", "format_error"):
        text = f"{name}: {{{{ task.name }}}} {{{{ current_step }}}} {{{{ remaining_steps }}}} {{{{ working_dir }}}}"
        (tmp_path / f"{name}.md.j2").write_text(text)
    env = make(prompts=tmp_path, tokenizer=None)
    messages = [last(results) for results in play(env, block("echo hello"), block("cd /tmp"), "nothing to run")]
    assert messages == ["observation: low 1 3 /workspace", "no_output: low 2 2 /tmp", "format_error: low 2 2 /tmp"]
