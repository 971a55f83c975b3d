"""Two fast research tasks, and helpers that run scripted messages in a TorchRL environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensordict import TensorDictBase
from torchrl.envs import TransformedEnv

EVALUATOR = """
from palaestra.research.tasks.task import SubmissionError

def evaluate(evaluation):
    text = evaluation.text("answer.txt").split()[-1]
    if text == "broken":
        raise RuntimeError("the evaluator is at fault")
    try:
        return {"points": float(text) + (evaluation.split == "validation")}
    except ValueError:
        raise SubmissionError("answer.txt holds a number") from None
"""
WRAPPERS = (
    "ignore:size_average and reduce:UserWarning",
    "ignore:The env passed to LLMCollector:FutureWarning",
    "ignore:Creating .*WeightUpdater:DeprecationWarning",
)
"""What TorchRL's own wrapper and collector warn of."""


def write_tasks(root: Path) -> Path:
    """Write two tasks in which a number is handed in: of `low` less is better, of `high` more. The baseline is 10."""
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
    return root


def block(command: str) -> str:
    return f"I try this.\n```\n{command}\n```"


def answer(number: object) -> str:
    return block(f"echo {number} > answer.txt")


SUBMIT = block("submit")


def read_entry(tensordict: TensorDictBase, key: Any, slot: int = 0) -> Any:
    return tensordict[slot][key]


def roles(tensordict: TensorDictBase, slot: int = 0) -> list[str]:
    return list(tensordict["history", "prompt"][slot].role)


def last(tensordict: TensorDictBase, slot: int = 0) -> str:
    return str(tensordict["history", "prompt"][slot].content[-1])


def play(env: TransformedEnv, *messages: str | Sequence[str]) -> list[TensorDictBase]:
    """What comes of each of these messages, from a reset on."""
    tensordict, results = env.reset(), []
    for reply in messages:
        tensordict["text", "response"] = [reply] if isinstance(reply, str) else list(reply)
        stepped = env.step(tensordict)
        results.append(stepped["next"])
        tensordict = env.step_mdp(stepped)
    return results


def rewards(steps: Sequence[TensorDictBase]) -> list[float]:
    return [step["reward"][0].item() for step in steps]
