"""GRPO learns to call a tool if the call is the only way to a reward, which comes in a later turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from palaestra.core.records import Example, Message
from palaestra.core.seeding import Seeds
from palaestra.envs.turn import Reply
from palaestra.envs.turn.tools import ToolEnv
from palaestra.models.registry import LoadedModel
from palaestra.recipes.train.recipe import train
from palaestra.runs.run import Run
from palaestra.students.supervised import Supervision, fine_tune

TEMPLATE = (
    "{% for tool in tools or [] %}<|system|>{{ tool.function.name }}<|end|>{% endfor %}"
    "{% for message in messages %}{{ '<|' + message.role + '|>' }}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}[{{ call.function.name }}("
    "{% for name, value in call.function.arguments.items() %}{{ name }}={{ value | tojson }}{% endfor %})]{% endfor %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""A short template with tools, because nano reads 256 tokens. Calls are in the format `pythonic`."""


class Buttons(ToolEnv):
    """Press the button of the question, then say anything: only a call with the right argument is rewarded, at the end."""

    def __init__(self) -> None:
        def press(number: int) -> str:
            """Press a button.

            Arguments:
                number: the button
            """
            self.pressed.append(number)
            return f"pressed {number}"

        super().__init__([press], max_turns=2)

    def opening(self, options: Mapping[str, Any]) -> str:
        self.wanted, self.pressed = int(self.np_random.integers(10)), list[int]()
        return f"What is {self.wanted}?"

    def answer(self, message: Message) -> Reply:
        return Reply(reward=float(self.pressed == [self.wanted]), stop="submitted")


@pytest.fixture
def buttons() -> Iterator[str]:
    gymnasium.register("Buttons-v0", entry_point=lambda **options: Buttons(**options))
    yield "Buttons-v0"
    del gymnasium.registry["Buttons-v0"]


def warm_up(model: LoadedModel, folder: Path) -> None:
    """Teach the model to call in a third of its answers, with a random argument in some of them."""
    generator, examples = Seeds(0).generator(), []
    for k in range(120):
        wanted = int(generator.integers(10))
        button = wanted if k % 2 else int(generator.integers(10))
        question = (Message("system", "press"), Message("user", f"What is {wanted}?"))
        call = f"[press(number={button})]"
        examples.append(Example(question, call if k % 5 < 2 else "Answer: 0"))
        after = (*question, Message("assistant", call), Message("tool", f"pressed {button}"))
        examples += [Example(after, "Answer: 1")] * (k % 5 < 2)
    fine_tune(
        model.weights,
        model.tokenizer,
        examples,
        Supervision(learning_rate=1e-3, epochs=12, batch_size=8),
        Seeds(0),
    )
    model.tokenizer.chat_template = TEMPLATE
    model.weights.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)


@pytest.mark.backends  # A minute of training.
def test_a_call_that_is_rewarded_in_a_later_turn_is_learned(
    fresh_nano: LoadedModel, buttons: str, tmp_path: Path
) -> None:
    warm_up(fresh_nano, tmp_path / "warm")
    result = train(
        env=buttons,
        model=str(tmp_path / "warm"),
        out=tmp_path / "run",
        iterations=8,
        episodes=64,
        num_envs=64,
        group_size=8,
        max_tokens=14,
        learning_rate=2e-4,
        evaluation=64,
        threads=1,
        device="cpu",
        progress=False,
    )
    summary = result.summary
    assert summary["before"] < 0.5
    assert summary["after"] > 0.8  # Measured: 0.23 before, 0.89 after, a gain of 0.66 [0.54, 0.78].
    assert summary["gain_low"] > 0.3
    with Run.open(result.folder, read_only=True) as run:
        metrics = run.store.metrics()
    assert metrics[8]["tools/call_frequency"] > metrics[1]["tools/call_frequency"]
    assert metrics[8]["tools/failure_frequency"] < 0.1
