"""The part of the pretraining corpus of `nano-coder` that works in a research workspace, in the messages of `Research-v0`.

The tasks are invented: a file defines a function that is wrong, or a constant that is badly chosen. The agent looks at the file, changes
it, validates and submits. The outputs of its commands are written here; nothing is executed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace

import numpy as np

from palaestra.core.prompts import Prompts
from palaestra.core.records import Example, Json, Message
from palaestra.research.workspace.commands import documentation
from palaestra.research.workspace.env import PROMPTS
from palaestra.research.workspace.parsing import make_parser
from palaestra.tasks.code.corpus import Function, break_function, draw_call, draw_function
from palaestra.tasks.procedural import between, pick

_THOUGHTS = {
    "ls": ("First I look at the files.", "Which files are there?"),
    "open": ("I open the file.", "I look at the baseline.", "I read the code first."),
    "edit": ("I change it.", "I write a better version.", "This should be better."),
    "run": ("I run it.", "Does it work?"),
    "validate": ("I validate it.", "I measure the score."),
    "undo": ("That was worse, so I undo it.",),
    "submit": ("It is better than the baseline, so I submit.", "I hand it in."),
}
_METRICS = (("accuracy", "higher"), ("points", "higher"), ("score", "higher"), ("error", "lower"), ("loss", "lower"))
_ABOUT = (
    "The score is measured on examples that you do not see.",
    "Several hidden cases are scored.",
    "Keep it short.",
)


def corpus(generator: np.random.Generator) -> Iterator[Example]:
    """An endless stream of sessions; the assistant's earlier messages are to be learned too."""
    while True:
        yield _Session(generator).play()


@cache
def _load_prompts() -> tuple[Prompts, str]:
    return Prompts(PROMPTS), documentation()


class _Session:
    """A session that is being written."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.steps, self.validations = between(rng, 2, 6) * 10, between(rng, 3, 12)
        self.left, self.turn, self.opened = self.validations, 0, ""
        self.metric, self.direction = _METRICS[int(rng.integers(len(_METRICS)))]
        self.function: Function = draw_function(rng)
        self.file = f"{pick(rng, ('solution', 'model', 'strategy', 'player', 'submission'))}.py"
        self.baseline = self.best = round(float(rng.uniform(0.2, 0.6)), 5)
        self.messages: list[Message] = []

    def play(self) -> Example:
        """A session up to `submit`."""
        rng, is_constant = self.rng, self.rng.random() < 0.4
        broken, test = break_function(rng, self.function)
        if is_constant:
            name = pick(rng, ("RATE", "SCALE", "WIDTH", "LIMIT", "STEPS"))
            number = between(rng, 1, 9)
            code = f'"""The baseline."""\n\n{name} = {number}\n\n\n{self.function.code}'
            about = f"`{self.file}` has the constant `{name}`, which may be any whole number from 1 to 50. Find a better one."
        else:
            code = broken if rng.random() < 0.5 else f'"""The baseline."""\n\n\n{broken}'
            about = f"Submit `{self.file}` with a function `{self.function.head}` that returns {self.function.say}."
            about += f" For example, `{test}`." if rng.random() < 0.5 else ""
        self._open(f"{about} {pick(rng, _ABOUT)}")
        if rng.random() < 0.4:
            self._act("ls", "ls", self.file)
        self._act("open", f"open {self.file}", self._show(code), self.file)
        if is_constant:
            changes = 0
            for _ in range(between(rng, 1, 5)):
                changes += 1
                changed = code.replace(f"{name} = {number}", f"{name} = {between(rng, 1, 50)}")
                self._edit(code, changed)
                if self._validate(rng.random() < 0.5):
                    code = changed
                    number = int(code.partition(f"{name} = ")[2].partition("\n")[0])
                else:
                    changes -= 1
                    undone = f"Undone: edit /workspace/{self.file}. Changes that can still be undone: {changes}."
                    self._act("undo", "undo", f"{undone}\n{self._show(code)}", self.file)
        else:
            fixed = code.replace(broken, self.function.code)
            if rng.random() < 0.4:
                text = f"'{self.file}' was replaced; undo restores the old version.\n{self._show(fixed)}"
                self._act("edit", f"create {self.file}\n{fixed}end_of_file", text, self.file)
            else:
                self._edit(code, fixed)
            if rng.random() < 0.3:
                call, values = draw_call(rng, self.function)
                command = f'python -c "from {self.file[:-3]} import *; print({call})"'
                self._act("run", command, str(self.function.call(*values)), self.file)
            self._validate(True)
        return Example(tuple(self.messages), self._say("submit", "submit"), "session")

    def _open(self, about: str) -> None:
        prompts, documents = _load_prompts()
        submission = SimpleNamespace(files=[self.file], optional=[])
        metric = SimpleNamespace(name=self.metric, direction=SimpleNamespace(value=self.direction))
        task = SimpleNamespace(
            title=f"A task: {self.function.say}", description=about, submission=submission, metric=metric
        )
        variables: Json = {
            "task": task,
            "command_docs": documents,
            "workspace": "/workspace",
            "bash": True,
            "data": "",
            "instructions": make_parser("last_block").instructions,
            "command_seconds": str(between(self.rng, 1, 12) * 10),
            "baseline_validation": self.baseline,
            "split": pick(self.rng, ("test", "validation")),
            "validations": self.validations,
            "steps": self.steps,
            "seconds": str(between(self.rng, 1, 8) * 450),
            "files": f"- {self.file}",
        }
        self.messages = [
            Message("system", prompts.render("system", **variables)),
            Message("user", prompts.render("task", **variables)),
        ]

    def _say(self, kind: str, command: str) -> str:
        thought = f"{pick(self.rng, _THOUGHTS[kind])}\n" if self.rng.random() < 0.8 else ""
        return f"{thought}```\n{command}\n```"

    def _act(self, kind: str, command: str, output: str, opened: str = "") -> None:
        """Add a command and its output."""
        self.turn += 1
        self.opened = f"/workspace/{opened}" if opened else self.opened
        state = {"open_file": self.opened, "working_dir": "/workspace"}
        variables = {"observation": output, "note": "", "state": state, "remaining": self.steps - self.turn}
        reply = _load_prompts()[0].render("observation", **variables)
        self.messages += [Message("assistant", self._say(kind, command)), Message("user", reply)]

    def _show(self, code: str) -> str:
        lines = code.rstrip("\n").split("\n")
        shown = "\n".join(f"{number}|{line}" for number, line in enumerate(lines, 1))
        return f"[file /workspace/{self.file}, {len(lines)} line{'s' if len(lines) > 1 else ''}]\n{shown}"

    def _edit(self, code: str, changed: str) -> None:
        """Replace the lines that differ."""
        old, new = code.rstrip("\n").split("\n"), changed.rstrip("\n").split("\n")
        head = next((k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)) - 1)
        tail = 0
        while tail < min(len(old), len(new)) - head - 1 and old[-1 - tail] == new[-1 - tail]:
            tail += 1
        lines = new[head : len(new) - tail]
        last = len(old) - tail
        command = "\n".join([f"edit {head + 1}:{last}", *lines, "end_of_edit"])
        count = last - head
        summary = f"{count} line{'s' if count > 1 else ''} replaced by {len(lines)}. To revert: undo."
        self._act("edit", command, f"{summary}\n{self._show(changed)}", self.file)

    def _validate(self, is_better: bool) -> bool:
        if not self.left:
            return True
        self.left -= 1
        sign = 1 if is_better == (self.direction == "higher") else -1
        score = round(max(0.0, self.best + sign * float(self.rng.uniform(0.001, 0.2))), 5)
        self.best = score if is_better else self.best
        variables = {"metric": self.metric, "score": score, "baseline": self.baseline, "best": self.best}
        text = _load_prompts()[0].render("validated", **variables, direction=self.direction, left=self.left)
        self._act("validate", "validate", text)
        return is_better
