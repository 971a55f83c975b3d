"""A small model that knows the format of tool calls of `examples/agents/react.py`, and guesses at random."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from palaestra.chat.encoder import ChatEncoder
from palaestra.core.records import Example, Message
from palaestra.core.seeding import Seeds
from palaestra.models import registry
from palaestra.students.supervised import Supervision, fine_tune

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "guess",
        "description": "Guess the number.",
        "parameters": {"properties": {"number": {"type": "integer"}}, "required": ["number"], "type": "object"},
    },
}
"""The tool as LangChain offers it."""


def write_warm_model(folder: Path, episodes: int = 200) -> str:
    """Fine-tune `nano-coder` on games with random guesses. Returns the folder of its weights."""
    model, generator = registry.load("nano-coder", device="cpu"), random.Random(0)
    tokenizer = model.tokenizer
    opening = ChatEncoder(tokenizer, tools=json.dumps([TOOL])).encode_opening(
        [Message("system", "Be short."), Message("user", "")]
    )
    system = tokenizer.decode(opening).split("<|system|>")[1].split("<|end|>")[0]
    examples = []
    for _ in range(episodes):
        low, high = sorted(generator.choices(range(1, 9), k=2))
        messages = (Message("system", system), Message("user", f"Guess a number from {low} to {high}."))
        for reply in [*generator.choice((["Higher."], ["Lower."], [])), "The game is over."]:
            call = json.dumps({"name": "guess", "arguments": {"number": generator.randint(1, 8)}})
            text = f"<tool_call>\n{call}\n</tool_call>"
            examples.append(Example(messages, text))
            messages = (*messages, Message("assistant", text), Message("tool", reply))
        examples.append(Example(messages, "Done."))
    fine_tune(model.weights, tokenizer, examples, Supervision(learning_rate=1e-3), Seeds(0))
    model.weights.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
