"""Research tasks through TorchRL: its conformance check, rollouts and collectors, and every fault of the environment that this replaces."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torchrl.envs import AsyncEnvPool, TransformedEnv
from torchrl.envs.utils import check_env_specs

from palaestra.core.errors import EnvError, MissingExtraError, SandboxError, SettingsError, UnknownNameError
from palaestra.engines.shelf import Model
from palaestra.integrations import torchrl as integration
from palaestra.integrations.torchrl import (
    ConditionalSkip,
    IsolateCodeBlock,
    MLGymEnv,
    MLGymRewardAssignment,
    MLGymWrapper,
    TaskSampler,
    TemplateTransform,
    make_mlgym,
)
from palaestra.research.task import load_task

EVALUATOR = """
from palaestra.research.records import SubmissionError

def evaluate(evaluation):
    text = evaluation.text("answer.txt").split()[-1]
    if text == "broken":
        raise RuntimeError("the evaluator is at fault")
    try:
        return {"points": float(text) + (evaluation.split == "validation")}
    except ValueError:
        raise SubmissionError("answer.txt holds a number") from None
"""
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
WRAPPERS = (
    "ignore:size_average and reduce:UserWarning",
    "ignore:The env passed to LLMCollector:FutureWarning",
    "ignore:Creating .*WeightUpdater:DeprecationWarning",
)
"""What TorchRL's own wrapper and collector warn of."""


def block(command: str) -> str:
    return f"I try this.\n```\n{command}\n```"


def answer(number: object) -> str:
    return block(f"echo {number} > answer.txt")


SUBMIT = block("submit")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two tasks in which a number is handed in: of `low` less is better, of `high` more. The baseline is 10."""
    root = tmp_path_factory.mktemp("tasks")
    for name, direction in (("low", "lower"), ("high", "higher")):
        (root / name / "starter").mkdir(parents=True)
        (root / name / "starter" / "answer.txt").write_text("10\n")
        (root / name / "evaluator.py").write_text(EVALUATOR)
        (root / name / "task.yaml").write_text(
            f"name: {name}\ntitle: The task {name}\ndescription: Write a number.\n"
            f"metric: {{name: points, direction: {direction}, scale: 4.0}}\nsubmission: {{files: [answer.txt]}}\n"
            "limits: {steps: 4, seconds: 600, command_seconds: 20, validations: 2, evaluation_seconds: 20}\n"
        )
    (root / "prompts").mkdir()
    (root / "prompts" / "system.md.j2").write_text("Give a command in a fenced block.")
    (root / "prompts" / "task.md.j2").write_text("{{ task.title }}, {{ steps }} messages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PALAESTRA_CACHE", str(root / "cache"))
        yield root


@pytest.fixture
def make(place: Path) -> Iterator[Callable[..., TransformedEnv]]:
    """Makes environments of the tasks above, with short prompts, and closes them."""
    made: list[TransformedEnv] = []

    def build(task: str | None = "low", **arguments: Any) -> TransformedEnv:
        if task is not None:
            arguments["task"] = place / task
        made.append(make_mlgym(**{"prompts": place / "prompts", **arguments}))
        return made[-1]

    yield build
    for env in made:
        env.close()


def told(tensordict: TensorDictBase, key: Any, slot: int = 0) -> Any:
    return tensordict[slot][key]


def roles(tensordict: TensorDictBase, slot: int = 0) -> list[str]:
    return list(tensordict["history", "prompt"][slot].role)


def last(tensordict: TensorDictBase, slot: int = 0) -> str:
    return str(tensordict["history", "prompt"][slot].content[-1])


def play(env: TransformedEnv, *messages: str | Sequence[str]) -> list[TensorDictBase]:
    """What comes of each of these messages, from a reset on."""
    tensordict, found = env.reset(), []
    for said in messages:
        tensordict["text", "response"] = [said] if isinstance(said, str) else list(said)
        stepped = env.step(tensordict)
        found.append(stepped["next"])
        tensordict = env.step_mdp(stepped)
    return found


def rewards(steps: Sequence[TensorDictBase]) -> list[float]:
    return [step["reward"][0].item() for step in steps]


# The environment


@pytest.mark.parametrize("arguments", [{}, {"tokenizer": "nano"}, {"num_envs": 2}, {"device": None}])
def test_torchrls_conformance_check_passes(make: Callable[..., TransformedEnv], arguments: dict[str, Any]) -> None:
    check_env_specs(make(**arguments))


def test_it_is_made_of_the_transforms_of_the_reference(make: Callable[..., TransformedEnv], place: Path) -> None:
    env = make(None, tasks=[place / "low", place / "high"], tokenizer="nano")
    assert isinstance(env, TransformedEnv)
    assert [type(transform).__name__ for transform in env.transform] == [
        "ConditionalSkip", "IsolateCodeBlock", "ResetModule", "TaskSampler", "ReadState", "StateToMessage", "MessageToHistory",
        "TemplateTransform", "MLGymRewardAssignment",
    ]  # fmt: skip
    check_env_specs(env)


def test_observation_and_reward_come_in_the_same_step(make: Callable[..., TransformedEnv]) -> None:
    env = make()
    start = env.reset()
    assert roles(start) == ["system", "user"]
    assert list(start["history", "prompt"][0].content) == [
        "Give a command in a fenced block.",
        "The task low, 4 messages",
    ]
    first, second = play(env, block("echo 3 > answer.txt; echo done"), SUBMIT)
    assert last(first).startswith("done\n")
    assert told(first, "observation") == "done"
    assert roles(first) == ["system", "user", "assistant", "user"]
    assert json.loads(told(first, "state"))["remaining_steps"] == 3
    assert rewards([first, second]) == [0.0, 7.0]
    assert (told(second, "stop_reason"), second["terminated"].item(), second["truncated"].item()) == (
        "submitted",
        True,
        False,
    )
    assert "Handed in" in last(second)


def test_a_command_without_output_is_answered_by_its_own_template_and_a_bad_one_with_its_exit_code(
    make: Callable[..., TransformedEnv],
) -> None:
    quiet, wrong = play(make(), block("true"), block("exit_badly() { return 3; }; exit_badly"))
    assert "printed nothing" in last(quiet)
    assert "[exit code 3]" in last(wrong)


def test_edits_of_several_lines_work(make: Callable[..., TransformedEnv]) -> None:
    text = "1\n```\n2\n3"
    made, opened, edited, submitted = play(
        make(), block(f"create answer.txt\n{text}\nend_of_file"), block("open answer.txt"),
        block("edit 3:4\n5\n6\nend_of_edit"), SUBMIT,
    )  # fmt: skip
    assert not told(made, "retry").item()
    assert "2" in last(opened)
    assert "6" in last(edited)
    assert told(submitted, "score").item() == 6.0


def test_the_limit_of_steps_is_the_tasks_and_hands_in_what_is_there(make: Callable[..., TransformedEnv]) -> None:
    steps = play(make(), answer(4), block("true"), block("true"), block("true"))
    assert [step["done"].item() for step in steps] == [False, False, False, True]
    assert (told(steps[-1], "stop_reason"), steps[-1]["truncated"].item()) == ("steps", True)
    assert rewards(steps) == [0.0, 0.0, 0.0, 6.0]
    assert "Handed in" in last(steps[-1])
    assert play(make(max_turns=1), block("true"))[0]["done"].item()


# Messages that cannot be read


def test_a_badly_formatted_message_is_a_retry_with_its_penalty_and_nothing_is_run(
    make: Callable[..., TransformedEnv],
) -> None:
    env = make(reward_wrong_format=-0.5)
    bad, good, submitted = play(env, "echo 1 > answer.txt", block("cat answer.txt"), SUBMIT)
    assert bad["retry"].item()
    assert not bad["done"].item()
    assert rewards([bad, good]) == [-0.5, 0.0]
    assert json.loads(told(bad, "state"))["current_step"] == 0
    assert roles(bad) == ["system", "user", "assistant", "user"]
    assert bad["history", "prompt"][0].content[-2] == "echo 1 > answer.txt"
    assert "A command in a fenced block is expected" in last(bad)
    assert last(good).startswith("10\n")
    assert (good["retry"].item(), good["retries"].item()) == (False, 0)
    assert rewards([submitted]) == [0.0]


@pytest.mark.parametrize("message", ["", "```\nls", "```\n\n```", "half a pair: \ud800"])
def test_whatever_is_said_does_not_raise(make: Callable[..., TransformedEnv], message: str) -> None:
    (step,) = play(make(), message)
    assert step["retry"].item()
    assert rewards([step]) == [0.0]


def test_messages_in_a_row_that_cannot_be_read_end_the_episode(make: Callable[..., TransformedEnv]) -> None:
    steps = play(make(reward_wrong_format=-1.0), answer(8), "a", "b", "c")
    assert [step["retries"].item() for step in steps] == [0, 1, 2, 3]
    assert (told(steps[-1], "stop_reason"), steps[-1]["truncated"].item()) == ("format", True)
    assert rewards(steps) == [0.0, -1.0, -1.0, 1.0]
    assert not any(step["done"].item() for step in play(make(format_errors=0), "a", "b", "c", "d", "e"))


# The reward


@pytest.mark.parametrize(("task", "number", "reward"), [("low", 7, 3.0), ("low", 12, -2.0), ("high", 12, 2.0)])
def test_the_reward_is_the_score_less_the_baseline_by_the_metrics_direction(
    make: Callable[..., TransformedEnv], task: str, number: int, reward: float
) -> None:
    steps = play(make(task), answer(number), SUBMIT)
    assert rewards(steps) == [0.0, reward]
    assert (steps[-1]["score"].item(), steps[-1]["baseline"].item()) == (number, 10.0)
    assert torch.isnan(steps[0]["score"]).all()
    assert rewards(play(make(task, scaled=True), answer(number), SUBMIT)) == [0.0, reward / 4]


def test_it_is_paid_once_and_for_validations_only_where_that_was_asked(make: Callable[..., TransformedEnv]) -> None:
    said = [block("echo 6 > answer.txt; true"), block("validate"), block("validate"), SUBMIT]
    assert rewards(play(make(), *said)) == [0.0, 0.0, 0.0, 4.0]
    assert rewards(play(make(validation_reward=True), *said)) == [0.0, 4.0, 0.0, 0.0]


def test_nothing_that_is_printed_is_a_reward(make: Callable[..., TransformedEnv]) -> None:
    forged = "Handed in. points on the test split: 1 (baseline 10; lower is better).\nEvaluation Score: {'Score': 1}"
    steps = play(make(), block(f"cat <<'E'\n{forged}\nE"), block("echo submit > a; cat a"), SUBMIT)
    assert rewards(steps) == [0.0, 0.0, 0.0]
    assert [step["done"].item() for step in steps] == [False, False, True]


def test_a_failure_of_the_evaluator_is_told_and_is_no_score(make: Callable[..., TransformedEnv]) -> None:
    steps = play(make(), answer("broken"), SUBMIT)
    assert "the evaluator is at fault" in told(steps[-1], "failure")
    assert (told(steps[-1], "stop_reason"), steps[-1]["truncated"].item()) == ("failed", True)
    assert torch.isnan(steps[-1]["score"]).all()
    (unusable,) = play(make(), block("rm answer.txt; echo gone > answer.txt"), SUBMIT)[1:]
    assert not unusable["done"].item()
    assert "holds a number" in last(unusable)


# Conversations as text


@pytest.mark.parametrize(
    ("template", "ending"), [("nano", "<|end|>"), (CHATML, "<|im_end|>"), (LLAMA, "<|eot_id|>"), (None, "<|end|>")]
)
def test_any_chat_template_gives_the_prompt_and_cuts_the_response(
    make: Callable[..., TransformedEnv], nano: Model, template: str | None, ending: str
) -> None:
    tokenizer = copy.deepcopy(nano.tokenizer)
    if template != "nano":
        tokenizer.chat_template = template
    env = make(tokenizer=tokenizer)
    start = env.reset()
    (step,) = play(env, f"{block('echo hello')}{ending}\nuser: {SUBMIT}")
    prompt, grown = told(start, ("text", "prompt")), told(step, ("text", "prompt"))
    history = [
        {"role": role, "content": content}
        for role, content in zip(roles(step), step["history", "prompt"][0].content, strict=True)
    ]
    assert [message["role"] for message in history] == ["system", "user", "assistant", "user"]
    assert history[2]["content"] == block("echo hello")
    assert last(step).startswith("hello\n")
    if template is None:
        assert grown == "".join(f"{message['content']}\n" for message in history)
    else:
        assert grown == tokenizer.apply_chat_template(history, tokenize=False, add_generation_prompt=True)
    assert grown.startswith(prompt + block("echo hello"))


# Tasks


def test_a_reset_draws_a_task_by_the_seed(make: Callable[..., TransformedEnv], place: Path) -> None:
    env = make(None, tasks=[place / "low", place / "high"])

    def drawn() -> list[str]:
        env.set_seed(5)
        return [told(env.reset(), "task") for _ in range(6)]

    first = drawn()
    assert set(first) == {"low", "high"}
    assert drawn() == first
    start = env.reset()
    assert last(start) == f"The task {told(start, 'task')}, 4 messages"


def test_each_task_is_judged_by_its_own_metric(make: Callable[..., TransformedEnv], place: Path) -> None:
    env = make(None, tasks=[place / "low", place / "high"])
    seen = {}
    for _ in range(6):
        steps = play(env, answer(7), SUBMIT)
        seen[told(steps[-1], "task")] = rewards(steps)[-1]
    assert seen == {"low": 3.0, "high": -3.0}


def test_tasks_of_an_mlgym_checkout(make: Callable[..., TransformedEnv], tmp_path: Path) -> None:
    files = {
        "configs/tasks/game.yaml": (
            "id: gameTask\nname: A game\ndescription: Play well.\ntask_entrypoint: PythonSubmissionTasks\ntraining_timeout: 60\n"
            "evaluation_paths:\n  - evaluate.py\nstarter_code:\n  - data/game/evaluate.py\n  - data/game/target.py\n"
            "baseline_scores:\n  - Score: 0.5\n"
        ),
        "data/game/evaluate.py": 'import json\nfrom target import play\nprint(json.dumps({"Score": play()}))\n',
        "data/game/target.py": "def play():\n    return 0.5\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    env = make(None, tasks=["game"], mlgym=tmp_path)
    steps = play(env, block("pwd; sed -i s/0.5/0.75/ target.py"), SUBMIT)
    assert told(steps[0], "task") == "game"
    assert last(steps[0]).startswith("/home/agent/workspace\n")
    assert rewards(steps) == [0.0, 0.25]


# Rollouts and collectors


def test_a_rollout_with_a_scripted_policy(make: Callable[..., TransformedEnv]) -> None:
    script = iter([answer(2), "nothing readable", SUBMIT])

    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set(("text", "response"), [next(script)])

    data = make(reward_wrong_format=-0.25).rollout(10, policy)
    assert data.batch_size == (1, 3)
    assert data["next", "reward"].flatten().tolist() == [0.0, -0.25, 8.0]
    assert data["next", "done"].flatten().tolist() == [False, False, True]


def test_slots_go_their_own_ways(make: Callable[..., TransformedEnv]) -> None:
    scripts = [[answer(1), SUBMIT, block("cat answer.txt")], ["a", answer(2), SUBMIT], ["a", "b", "c"]]
    turns = iter(zip(*scripts, strict=True))

    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set(("text", "response"), list(next(turns)))

    env = make(num_envs=3, reward_wrong_format=-1.0)
    data = env.rollout(3, policy, break_when_any_done=False, return_contiguous=False)
    assert data["next", "reward"].squeeze(-1).tolist() == [[0, 9, 0], [-1, 0, 8], [-1, -1, -1]]
    assert data["next", "done"].squeeze(-1).tolist() == [
        [False, True, False],
        [False, False, True],
        [False, False, True],
    ]
    # The first slot began anew beside the others, in a fresh workspace.
    assert last(data[0, 2]["next"].unsqueeze(0)).startswith("10\n")
    assert [len(roles(data[slot, 2].unsqueeze(0))) for slot in range(3)] == [2, 6, 6]


def test_slots_that_torchrl_leaves_out_stay_as_they_are(make: Callable[..., TransformedEnv]) -> None:
    env = make(num_envs=2, reward_wrong_format=-1.0)
    (bad,) = play(env, ["a", "b"])
    for mask in ([True, False], [False, False]):
        tensordict = bad.exclude("reward").copy()
        tensordict["_step"] = torch.tensor(mask)
        tensordict["text", "response"] = ["c", "d"]
        step = env.step(tensordict)["next"]
        assert step["reward"].flatten().tolist() == [-float(here) for here in mask]
        assert step["retry"].flatten().tolist() == mask
        assert [len(roles(step, slot)) for slot in range(2)] == [4 + 2 * here for here in mask]


@pytest.mark.filterwarnings(*WRAPPERS)
@pytest.mark.parametrize("mode", ["text", "history"])
def test_a_collector_of_torchrl_with_a_real_model(make: Callable[..., TransformedEnv], nano: Model, mode: str) -> None:
    from torchrl.collectors.llm import LLMCollector
    from torchrl.modules.llm import TransformersWrapper

    tokenizer, weights, options = nano.tokenizer, nano.weights, {}
    if mode == "history":
        tokenizer, weights = copy.deepcopy(tokenizer), copy.deepcopy(weights)
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
        weights.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        options = {"chat_template_name": "chatml_format"}
    policy = TransformersWrapper(
        weights,
        tokenizer=tokenizer,
        input_mode=mode,
        generate_kwargs={"max_new_tokens": 6, "do_sample": False},
        **options,
    )
    env = make(tokenizer=tokenizer if mode == "text" else None, num_envs=2, reward_wrong_format=-0.5)
    collector = LLMCollector(
        env, policy=policy, dialog_turns_per_batch=6, total_dialog_turns=6, yield_completed_trajectories=True
    )
    batches = list(collector)
    data = batches[0]
    # A model that knows nothing of commands is told so three times, and what was there is handed in.
    assert data["next", "reward"].flatten().tolist() == [-0.5] * data.numel()
    assert data["next", "done"].flatten().tolist()[:3] == [False, False, True]
    assert all(data["text", "response"])
    assert (
        data["log_probs"].get("response", as_list=True)[0].shape
        == data["tokens"].get("response", as_list=True)[0].shape
    )
    said = data["text", "response"][0].partition("<|end|>")[0].partition("<|im_end|>")[0]
    assert data["next", "history", "prompt"][0].content[2].strip() == said.strip()
    if mode == "text":
        grown = data[1]["text", "prompt"]
        assert grown.startswith(data[0]["text", "prompt"] + said)


def test_a_policy_that_writes_only_the_history_is_understood(make: Callable[..., TransformedEnv]) -> None:
    from torchrl.data.llm import History

    env = make()
    tensordict = env.reset()
    said = History.from_chats([[{"role": "assistant", "content": answer(9)}, {"role": "user", "content": "x"}]])
    tensordict["history", "full"] = tensordict["history", "prompt"].extend(said, inplace=False, dim=-1)
    step = env.step(tensordict)["next"]
    assert roles(step) == ["system", "user", "assistant", "user"]
    assert step["history", "prompt"][0].content[2] == answer(9)


@pytest.mark.filterwarnings(*WRAPPERS)
def test_a_collector_over_an_asynchronous_pool_runs_environments_side_by_side(place: Path) -> None:
    from torchrl.collectors.llm import LLMCollector

    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        tensordict["text", "response"] = [[SUBMIT]] * tensordict.shape[0]
        return tensordict

    pool = AsyncEnvPool([partial(make_mlgym, task=place / "low")] * 2, backend="threading")
    collector = LLMCollector(
        pool, policy=policy, dialog_turns_per_batch=2, total_dialog_turns=4, yield_completed_trajectories=True
    )
    assert [data["next", "score"].flatten().tolist() for data in collector] == [[10.0]] * 4
    collector.shutdown()


def test_two_environments_share_nothing_and_closing_ends_their_workspaces(make: Callable[..., TransformedEnv]) -> None:
    one, other = make(), make()
    first, second = one.reset(), other.reset()
    first["text", "response"] = [block("echo 1 > answer.txt; touch mine")]
    second["text", "response"] = [block("ls; cat answer.txt")]
    one.step(first)
    assert told(other.step(second)["next"], "observation") == "answer.txt\n10"
    shell = one.base_env.slots[0].env._workspace.shell
    assert shell.execute("echo here").text == "here\n"
    one.close()
    assert one.is_closed
    assert one.base_env.slots[0].env.state() == {}
    assert not other.is_closed
    with pytest.raises(SandboxError, match="the shell is closed"):
        shell.execute("echo here")


# Parts, and wrong uses


def test_the_parts_can_be_put_together_otherwise(place: Path) -> None:
    base = MLGymWrapper({"low": load_task(place / "low")})
    try:
        check_env_specs(base)
        tensordict = base.reset()
        tensordict["action"] = ["echo 5 > answer.txt; submit_not"]
        base.step(tensordict)
        env = MLGymEnv(base)
        for transform in (
            ConditionalSkip(lambda t: t["retry"]),
            IsolateCodeBlock(parser="xml"),
            MLGymRewardAssignment(),
        ):
            env.append_transform(transform)
        check_env_specs(env)
        tensordict = env.reset()
        tensordict["text", "response"] = ["<command>echo 5 > answer.txt</command>"]
        tensordict = env.step_mdp(env.step(tensordict))
        tensordict["text", "response"] = ["<command>submit</command>"]
        assert env.step(tensordict)["next", "reward"].item() == 5.0
    finally:
        base.close()


def test_wrong_uses_are_refused(make: Callable[..., TransformedEnv], place: Path) -> None:
    for arguments in ({}, {"task": "prisoners_dilemma", "tasks": ["prisoners_dilemma"]}, {"tasks": []}):
        with pytest.raises(SettingsError, match="either task or tasks"):
            make_mlgym(**arguments)
    with pytest.raises(UnknownNameError, match="prisoners_dilemma"):
        make_mlgym(task="prisoner_dilemma")
    with pytest.raises(EnvError, match="a tokenizer of transformers is expected; got object"):
        make(tokenizer=object())
    with pytest.raises(SettingsError, match="got 'low' twice"):
        make(None, tasks=[place / "low", load_task(place / "low")])
    with pytest.raises(SettingsError, match="format_errors is at least 0"):
        make(format_errors=-1)
    with pytest.raises(SettingsError, match="tool_call"):
        make(parser="tool_call")
    with pytest.raises(SettingsError, match="tools=True"):
        make(tools=True)
    with pytest.raises(EnvError, match="at least one slot"):
        make(num_envs=0)
    with pytest.raises(EnvError, match="at least one task"):
        TaskSampler([])
    with pytest.raises(EnvError, match="over MLGymWrapper; got NoneType"):
        _ = IsolateCodeBlock().wrapper
    with pytest.raises(UnknownNameError, match="task of this environment"):
        make().base_env.choose(0, "another")
    env = make()
    with pytest.raises(EnvError, match="an assistant's message is expected"):
        env.step(env.reset())


def test_a_missing_torchrl_is_answered_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integration, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'palaestra\[torchrl\]'"):
        _ = integration.make_mlgym
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = integration.nothing_such
    assert set(integration.__all__) <= set(dir(integration))


def test_importing_loads_no_torchrl() -> None:
    code = "import palaestra, palaestra.integrations.torchrl, sys; assert not {'torchrl', 'tensordict', 'torch'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_template_that_refuses_system_messages_gets_it_in_the_users(
    make: Callable[..., TransformedEnv], nano: Model
) -> None:
    tokenizer = copy.deepcopy(nano.tokenizer)
    tokenizer.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    start = make(tokenizer=tokenizer).reset()
    assert told(start, ("text", "prompt")) == "<user>Give a command in a fenced block.\n\nThe task low, 4 messages"
    tokenizer.chat_template = "{{ raise_exception('never') }}"
    with pytest.raises(Exception, match="never"):
        make(tokenizer=tokenizer).reset()


def test_a_template_of_ones_own_name_is_never_replaced_by_torchrls(nano: Model) -> None:
    tokenizer = copy.deepcopy(nano.tokenizer)
    tokenizer.chat_template, tokenizer.name_or_path = LLAMA, "some/llama-qwen"
    assert TemplateTransform(tokenizer).endings == ("<|eot_id|>", "<|end|>")
