"""Research tasks in TorchRL: conformance check, rollouts, collectors, and the faults of the replaced environment."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torchrl.envs import TransformedEnv
from torchrl.envs.utils import check_env_specs
from torchrl_tasks import SUBMIT, WRAPPERS, answer, block, last, play, read_entry, rewards, roles

from palaestra.core.errors import (
    EnvError,
    RewardError,
    SandboxError,
    SettingsError,
    UnknownNameError,
)
from palaestra.integrations.torchrl import (
    ConditionalSkip,
    IsolateCodeBlock,
    MLGymEnv,
    MLGymRewardAssignment,
    MLGymWrapper,
    make_mlgym,
)
from palaestra.models.registry import LoadedModel
from palaestra.research.tasks.task import load_task
from palaestra.research.workspace.env import ResearchEnv

# The environment


@pytest.mark.parametrize("arguments", [{}, {"tokenizer": "nano"}, {"num_envs": 2}, {"device": None}])
def test_torchrls_conformance_check_passes(make: Callable[..., TransformedEnv], arguments: dict[str, Any]) -> None:
    check_env_specs(make(**arguments))


def test_it_is_made_of_the_transforms_of_the_reference(make: Callable[..., TransformedEnv], place: Path) -> None:
    env = make(None, tasks=[place / "low", place / "high"], tokenizer="nano")
    assert isinstance(env, TransformedEnv)
    assert [type(transform).__name__ for transform in env.transform] == [
        "ConditionalSkip",
        "IsolateCodeBlock",
        "ResetModule",
        "TaskSampler",
        "ReadState",
        "StateToMessage",
        "MessageToHistory",
        "TemplateTransform",
        "MLGymRewardAssignment",
    ]
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
    assert read_entry(first, "observation") == "done"
    assert roles(first) == ["system", "user", "assistant", "user"]
    assert json.loads(read_entry(first, "state"))["remaining_steps"] == 3
    assert rewards([first, second]) == [0.0, 7.0]
    assert (read_entry(second, "stop_reason"), second["terminated"].item(), second["truncated"].item()) == (
        "submitted",
        True,
        False,
    )
    assert "Submitted" in last(second)


def test_empty_output_and_exit_codes_are_rendered(
    make: Callable[..., TransformedEnv],
) -> None:
    quiet, wrong = play(make(), block("true"), block("exit_badly() { return 3; }; exit_badly"))
    assert "printed nothing" in last(quiet)
    assert "[exit code 3]" in last(wrong)


def test_edits_of_several_lines_work(make: Callable[..., TransformedEnv]) -> None:
    text = "1\n```\n2\n3"
    created, opened, edited, submitted = play(
        make(),
        block(f"create answer.txt\n{text}\nend_of_file"),
        block("open answer.txt"),
        block("edit 3:4\n5\n6\nend_of_edit"),
        SUBMIT,
    )
    assert not read_entry(created, "retry").item()
    assert "2" in last(opened)
    assert "6" in last(edited)
    assert read_entry(submitted, "score").item() == 6.0


def test_the_step_limit_submits_the_workspace(make: Callable[..., TransformedEnv]) -> None:
    steps = play(make(), answer(4), block("true"), block("true"), block("true"))
    assert [step["done"].item() for step in steps] == [False, False, False, True]
    assert (read_entry(steps[-1], "stop_reason"), steps[-1]["truncated"].item()) == ("steps", True)
    assert rewards(steps) == [0.0, 0.0, 0.0, 6.0]
    assert "Submitted" in last(steps[-1])
    assert play(make(max_turns=1), block("true"))[0]["done"].item()


# Messages that cannot be read


def test_an_unreadable_message_is_a_retry_with_penalty(
    make: Callable[..., TransformedEnv],
) -> None:
    env = make(reward_wrong_format=-0.5)
    bad, good, submitted = play(env, "echo 1 > answer.txt", block("cat answer.txt"), SUBMIT)
    assert bad["retry"].item()
    assert not bad["done"].item()
    assert rewards([bad, good]) == [-0.5, 0.0]
    assert json.loads(read_entry(bad, "state"))["current_step"] == 0
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
    assert (read_entry(steps[-1], "stop_reason"), steps[-1]["truncated"].item()) == ("format", True)
    assert rewards(steps) == [0.0, -1.0, -1.0, 1.0]
    assert not any(step["done"].item() for step in play(make(format_errors=0), "a", "b", "c", "d", "e"))


def test_the_time_limit_holds_for_unreadable_messages(make: Callable[..., TransformedEnv]) -> None:
    env = make(num_envs=2, format_errors=0, reward_wrong_format=-0.5)
    (step,) = play(env, [answer(8), "a"])
    assert not step["done"].any()
    env.base_env.slots[0].env.spend(601.0)
    tensordict = step.exclude("reward").copy()
    tensordict["text", "response"] = ["b", "b"]
    step = env.step(tensordict)["next"]
    assert step["truncated"].flatten().tolist() == [True, False]
    assert [read_entry(step, "stop_reason", slot) for slot in range(2)] == ["time", ""]
    assert step["reward"].flatten().tolist() == [1.5, -0.5]
    assert "A command in a fenced block is expected" in last(step)
    assert "Submitted" in last(step)


# The reward


@pytest.mark.parametrize(("task", "number", "reward"), [("low", 7, 3.0), ("low", 12, -2.0), ("high", 12, 2.0)])
def test_the_reward_is_the_gain_over_the_baseline(
    make: Callable[..., TransformedEnv], task: str, number: int, reward: float
) -> None:
    steps = play(make(task), answer(number), SUBMIT)
    assert rewards(steps) == [0.0, reward]
    assert (steps[-1]["score"].item(), steps[-1]["baseline"].item()) == (number, 10.0)
    assert torch.isnan(steps[0]["score"]).all()
    assert rewards(play(make(task, scaled=True), answer(number), SUBMIT)) == [0.0, reward / 4]


def test_the_reward_is_given_once(make: Callable[..., TransformedEnv]) -> None:
    replies = [block("echo 6 > answer.txt; true"), block("validate"), block("validate"), SUBMIT]
    assert rewards(play(make(), *replies)) == [0.0, 0.0, 0.0, 4.0]
    assert rewards(play(make(validation_reward=True), *replies)) == [0.0, 4.0, 0.0, 0.0]


def test_nothing_that_is_printed_is_a_reward(make: Callable[..., TransformedEnv]) -> None:
    forged = "Submitted. points on the test split: 1 (baseline 10; lower is better).\nEvaluation Score: {'Score': 1}"
    steps = play(make(), block(f"cat <<'E'\n{forged}\nE"), block("echo submit > a; cat a"), SUBMIT)
    assert rewards(steps) == [0.0, 0.0, 0.0]
    assert [step["done"].item() for step in steps] == [False, False, True]


def test_scores_are_exact_and_rewards_finite(make: Callable[..., TransformedEnv]) -> None:
    (_, step) = play(make("high"), answer(2**24 + 1), SUBMIT)
    assert (step["score"].dtype, step["score"].item()) == (torch.float64, 2**24 + 1)
    assert (step["reward"].dtype, step["reward"].item()) == (torch.float32, 2**24 - 9)
    for arguments in ({}, {"scaled": True}):
        with pytest.raises(RewardError, match=r"'high' .*e\+299"):
            play(make("high", **arguments), answer(9e299), SUBMIT)


def test_a_failure_of_the_evaluator_is_told_and_is_no_score(make: Callable[..., TransformedEnv]) -> None:
    steps = play(make(), answer("broken"), SUBMIT)
    assert "the evaluator is at fault" in read_entry(steps[-1], "failure")
    assert (read_entry(steps[-1], "stop_reason"), steps[-1]["truncated"].item()) == ("failed", True)
    assert torch.isnan(steps[-1]["score"]).all()
    (unusable,) = play(make(), block("rm answer.txt; echo gone > answer.txt"), SUBMIT)[1:]
    assert not unusable["done"].item()
    assert "holds a number" in last(unusable)
    assert read_entry(steps[-1], "outcome") == "failed"


def test_an_episode_without_a_score_has_the_lowest_reward(make: Callable[..., TransformedEnv]) -> None:
    lost = play(make(max_turns=1, scaled=True), block("rm answer.txt"))[-1]
    assert (read_entry(lost, "outcome"), read_entry(lost, "failure"), lost["done"].item()) == ("invalid", "", True)
    metric = load_task(make().base_env.slots[0].env.task.folder).metric
    assert lost["reward"].item() == lost["gain"].item() == metric.reward(None, lost["baseline"].item()) < 0


# Tasks


def test_a_reset_draws_a_task_by_the_seed(make: Callable[..., TransformedEnv], place: Path) -> None:
    env = make(None, tasks=[place / "low", place / "high"])

    def draw_tasks() -> list[str]:
        env.set_seed(5)
        return [read_entry(env.reset(), "task") for _ in range(6)]

    first = draw_tasks()
    assert set(first) == {"low", "high"}
    assert draw_tasks() == first
    start = env.reset()
    assert last(start) == f"The task {read_entry(start, 'task')}, 4 messages"


def test_each_task_is_judged_by_its_own_metric(make: Callable[..., TransformedEnv], place: Path) -> None:
    env = make(None, tasks=[place / "low", place / "high"], seed=0)
    seen = {}
    for _ in range(6):
        steps = play(env, answer(7), SUBMIT)
        seen[read_entry(steps[-1], "task")] = rewards(steps)[-1]
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
    assert read_entry(steps[0], "task") == "game"
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
def test_a_collector_of_torchrl_with_a_real_model(
    make: Callable[..., TransformedEnv], nano: LoadedModel, mode: str
) -> None:
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
    replies = data["text", "response"][0].partition("<|end|>")[0].partition("<|im_end|>")[0]
    assert data["next", "history", "prompt"][0].content[2].strip() == replies.strip()
    if mode == "text":
        grown = data[1]["text", "prompt"]
        assert grown.startswith(data[0]["text", "prompt"] + replies)


def test_a_policy_that_writes_only_the_history_is_understood(make: Callable[..., TransformedEnv]) -> None:
    from torchrl.data.llm import History

    env = make()
    tensordict = env.reset()
    replies = History.from_chats([[{"role": "assistant", "content": answer(9)}, {"role": "user", "content": "x"}]])
    tensordict["history", "full"] = tensordict["history", "prompt"].extend(replies, inplace=False, dim=-1)
    step = env.step(tensordict)["next"]
    assert roles(step) == ["system", "user", "assistant", "user"]
    assert step["history", "prompt"][0].content[2] == answer(9)


def test_environments_are_isolated_and_closed(make: Callable[..., TransformedEnv]) -> None:
    first_env, other = make(), make()
    first, second = first_env.reset(), other.reset()
    first["text", "response"] = [block("echo 1 > answer.txt; touch mine")]
    second["text", "response"] = [block("ls; cat answer.txt")]
    first_env.step(first)
    assert read_entry(other.step(second)["next"], "observation") == "answer.txt\n10"
    shell = first_env.base_env.slots[0].env._workspace.shell
    assert shell.execute("echo here").text == "here\n"
    first_env.close()
    assert first_env.is_closed
    assert first_env.base_env.slots[0].env.state() == {}
    assert not other.is_closed
    with pytest.raises(SandboxError, match="closed"):
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
    for arguments in (
        {},
        {"task": "prisoners_dilemma", "tasks": ["prisoners_dilemma"]},
        {"tasks": "prisoners_dilemma"},
    ):
        with pytest.raises(SettingsError, match=r"task=.*tasks="):
            make_mlgym(**arguments)
    with pytest.raises(UnknownNameError, match="prisoners_dilemma"):
        make_mlgym(task="prisoner_dilemma")
    with pytest.raises(EnvError, match=r"tokenizer=.*object"):
        make(tokenizer=object())
    with pytest.raises(SettingsError, match=r"\['low', 'low'\]"):
        make(None, tasks=[place / "low", load_task(place / "low")])
    for wrong in (-1, 1.5, True, "3", None):
        with pytest.raises(EnvError, match="format_errors"):
            make(format_errors=wrong)
    with pytest.raises(SettingsError, match="tool_call"):
        make(parser="tool_call")
    with pytest.raises(SettingsError, match="tools "):
        make(tools=True)
    for number in (0, 1.5, True, "2"):
        with pytest.raises(EnvError, match="num_envs"):
            make(num_envs=number)
    for seed in ("a", 1.5, -1, True):
        with pytest.raises(EnvError, match=r"^seed "):
            make(seed=seed)
    for tasks in ({"task": 5}, {"task": ["low"]}, {"task": ""}, {"tasks": [None]}, {"tasks": {"mine": 5}}):
        with pytest.raises(EnvError, match="ResearchTask; got"):
            make_mlgym(**tasks)
    with pytest.raises(EnvError, match=r"max_turns.*1.5"):
        make(max_turns=1.5)
    with pytest.raises(SettingsError, match=r"got \[\]"):
        MLGymWrapper([])
    with pytest.raises(EnvError, match="ResearchTask; got 5"):
        ResearchEnv(5)  # type: ignore[arg-type]
    for penalty in ("x", float("nan")):
        with pytest.raises(EnvError, match="reward_wrong_format"):
            make(reward_wrong_format=penalty)
    with pytest.raises(SettingsError, match="reward_wrong_format"):
        make(format_penalty=0.5)
    with pytest.raises(TypeError, match="num_env"):
        make(num_env=2)
    with pytest.raises(EnvError, match=r"validation, test; .*'train'"):
        make(split="train")
    with pytest.raises(EnvError, match=r"MLGymWrapper; .*NoneType"):
        _ = IsolateCodeBlock().wrapper
    with pytest.raises(UnknownNameError, match="'another'"):
        make().base_env.choose(0, "another")
    env = make()
    with pytest.raises(EnvError, match="assistant's message"):
        env.step(env.reset())


def test_a_missing_torchrl_names_the_install_command() -> None:
    code = "import sys; sys.modules['torchrl'] = None; import palaestra.integrations.torchrl"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MissingExtraError" in result.stderr
    assert "pip install 'palaestra[torchrl]'" in result.stderr


def test_importing_loads_no_torchrl() -> None:
    code = "import palaestra, palaestra.integrations, sys; assert not {'torchrl', 'tensordict', 'torch'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
