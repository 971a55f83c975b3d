"""Does GRPO learn to call a tool? `nano` on `palaestra/Calculator-v0` with `tools=true`.

`nano` reads 256 tokens, so its tokenizer gets a short chat template with tools, whose calls are in the format `pythonic`.
A supervised warm-up teaches it the format of a call, and then to call in a third of the answers and to guess in the
others. The same held-out problems are played before and after GRPO with the same random numbers. Ratio: the lower end of
the gain's 95 % interval over 0.1 of reward (above 0 it excludes 0).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from _common import arguments, finish

TEMPLATE = (
    "{% for tool in tools or [] %}<|system|>{{ tool.function.name }}<|end|>{% endfor %}"
    "{% for message in messages %}{{ '<|' + message.role + '|>' }}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}[{{ call.function.name }}("
    "{% for name, value in call.function.arguments.items() %}{{ name }}={{ value | tojson }}{% endfor %})]{% endfor %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def main() -> None:
    from palaestra import train

    options = arguments(__doc__ or "")
    settings: dict[str, Any] = {
        "env": "palaestra/Calculator-v0", "env_kwargs": {"tools": True}, "iterations": 8, "episodes": 64, "num_envs": 64,
        "group_size": 8, "learning_rate": 2e-4, "max_tokens": 40, "evaluation": 96, "threads": options.threads, "device": "cpu",
    }  # fmt: skip
    settings |= {"iterations": 1, "episodes": 16, "num_envs": 16, "evaluation": 16} if options.quick else {}
    with tempfile.TemporaryDirectory() as folder:
        warm_up(Path(folder) / "warm", 8 if options.quick else 1)
        summary = train(out=Path(folder) / "run", model=str(Path(folder) / "warm"), **settings).summary
    names = ("before", "after", "gain", "gain_low", "gain_high", "seconds")
    finish(
        "tool_learning", summary["gain_low"] / 0.1, threads=options.threads, **{name: summary[name] for name in names}
    )


def warm_up(folder: Path, shorten: int) -> None:
    """Teach `nano` the format of a call, then to call in a third of its answers, and save it with the template."""
    from palaestra.core.seeding import Seeds
    from palaestra.models import registry as models
    from palaestra.students.supervised import Supervision, fine_tune

    model = models.load("nano", device="cpu")
    calls = [example for k in range(128 // shorten) for example in make_examples(k, call=True)]
    fine_tune(model.weights, model.tokenizer, calls, Supervision(learning_rate=1e-3, epochs=4), Seeds(0))
    mixed = [example for k in range(120 // shorten) for example in make_examples(1000 + k, call=k % 3 == 0)]
    fine_tune(model.weights, model.tokenizer, mixed, Supervision(learning_rate=5e-4, epochs=3), Seeds(0))
    model.tokenizer.chat_template = TEMPLATE
    model.weights.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)


def make_examples(number: int, call: bool) -> list[Any]:
    """The turns of one episode: a call and the answer with its result, or an answer at once."""
    from palaestra.core.records import Example, Message
    from palaestra.core.seeding import Seeds
    from palaestra.envs.turn.games import CalculatorEnv

    env = CalculatorEnv(offer=False)
    observation, _ = env.reset(seed=Seeds(0).derive("calculator").derive(number).integer() % 2**31)
    first, second = env.factors
    opening = (Message("system", "calculate"), *observation.messages)  # As the template writes the tool.
    answer, text = f"Answer: {first * second}", f'[calculate(expression="{first}*{second}")]'
    if not call:
        return [Example(opening, answer)]
    after = (*opening, Message("assistant", text), Message("tool", str(first * second)))
    return [Example(opening, text), Example(after, answer)]


if __name__ == "__main__":
    main()
