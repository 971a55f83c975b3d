"""The part of the pretraining corpus of `nano-coder` that works in a research workspace, in the messages of `Research-v0`.

The tasks are invented: a file defines a function that is wrong, or a constant that is badly chosen. The agent reads the file, changes
it, validates and submits. The outputs of its commands are written here; nothing is executed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace

import numpy as np

from palaestra.core.prompts import Prompts
from palaestra.core.records import Example, Message, Values
from palaestra.research.workspace.commands import documentation
from palaestra.research.workspace.commands.files import Page, count_lines, select_around, show_window
from palaestra.research.workspace.commands.session import WINDOW
from palaestra.research.workspace.env import PROMPTS
from palaestra.research.workspace.parsing import make_parser
from palaestra.tasks.code.corpus import break_function, draw_function
from palaestra.tasks.content import read_content
from palaestra.tasks.procedural import between, pick

_CONTENT: Values = read_content("sessions")


def corpus(generator: np.random.Generator) -> Iterator[Example]:
    """An endless stream of sessions; the assistant's earlier messages are to be learned too."""
    prompts = Prompts(PROMPTS)
    while True:
        yield _Session(generator, prompts).play()


@cache
def _describe_commands() -> tuple[str, str]:
    return make_parser("last_block").instructions, documentation()


class _Session:
    """A session that is being written."""

    def __init__(self, rng: np.random.Generator, prompts: Prompts) -> None:
        self.rng, self.prompts = rng, prompts
        self.steps, self.validations, self.changes = between(rng, 2, 6) * 10, between(rng, 6, 12), 0
        self.metric, self.direction = _CONTENT["metrics"][int(rng.integers(len(_CONTENT["metrics"])))]
        self.file, self.opened = f"{pick(rng, _CONTENT['files'])}.py", ""
        self.baseline = self.best = round(float(rng.uniform(0.2, 0.6)), 5)
        self.messages: list[Message] = []

    def play(self) -> Example:
        """A session up to `submit`."""
        rng, function = self.rng, draw_function(self.rng)
        broken, test = break_function(rng, function)
        name, number, head = pick(rng, _CONTENT["constants"]), between(rng, 1, 9), '"""The baseline."""\n\n'
        is_constant = rng.random() < 0.4
        code = f"{head}{name} = {number}\n\n\n{function.code}" if is_constant else f"{head}\n{broken}"
        about = _CONTENT["about"]["constant" if is_constant else "function"]
        self._open(
            about.format(file=self.file, name=name, head=function.head, say=function.say, test=test), function.say
        )
        if rng.random() < 0.4:
            self._act("ls", "ls", self.file)
        self.opened = f"/workspace/{self.file}"
        self._act("open", f"open {self.file}", self._show(code))
        for _ in range(between(rng, 1, 5) if is_constant else 1):
            better = code.replace(broken, function.code)
            if is_constant:
                better = code.replace(f"{name} = {number}", f"{name} = {between(rng, 1, 50)}")
            first = 1
            if rng.random() < 0.3:
                text = f"'{self.file}' was replaced; undo restores the old version.\n{self._show(better)}"
                self._act("edit", f"create {self.file}\n{better}end_of_file", text)
            else:
                first = self._edit(code, better)
            self.changes += 1
            if self._validate(not is_constant or rng.random() < 0.5):
                code, number = better, int(better.partition(f"{name} = ")[2].partition("\n")[0] or 0)
            else:
                self.changes -= 1
                undone = f"Undone: edit {self.opened}. Changes that can still be undone: {self.changes}."
                self._act("undo", "undo", f"{undone}\n{self._show(code, first)}")
        return Example(tuple(self.messages), self._say("submit", "submit"), "session")

    def _open(self, about: str, say: str) -> None:
        instructions, documents = _describe_commands()
        metric = SimpleNamespace(name=self.metric, direction=SimpleNamespace(value=self.direction))
        submission = SimpleNamespace(files=[self.file], optional=[])
        task = SimpleNamespace(title=f"A task: {say}", description=about, submission=submission, metric=metric)
        seconds, limit = str(between(self.rng, 1, 8) * 450), str(between(self.rng, 1, 12) * 10)
        bound = self.prompts.bind(
            task=task, command_docs=documents, workspace="/workspace", bash=True, data="", tools=False
        )
        self.messages = [
            Message("system", bound.render("system", instructions=instructions, command_seconds=limit)),
            Message("user", bound.render(
                "task", baseline_validation=self.baseline, split="test", validations=self.validations, steps=self.steps,
                seconds=seconds, files=f"- {self.file}",
            )),
        ]  # fmt: skip

    def _say(self, kind: str, command: str) -> str:
        thought = f"{pick(self.rng, _CONTENT['thoughts'][kind])}\n" if self.rng.random() < 0.8 else ""
        return f"{thought}```\n{command}\n```"

    def _act(self, kind: str, command: str, output: str) -> None:
        """Add a command and its output."""
        state = {"open_file": self.opened, "working_dir": "/workspace"}
        left = self.steps - (len(self.messages) // 2)
        reply = self.prompts.render("observation", observation=output, note="", state=state, remaining=left)
        self.messages += [Message("assistant", self._say(kind, command)), Message("user", reply)]

    def _show(self, code: str, first: int = 1) -> str:
        lines = code.rstrip("\n").split("\n")
        return show_window(self.opened, Page(lines[first - 1 :], first, len(lines)))

    def _edit(self, code: str, changed: str) -> int:
        """Replace the lines from the first to the last that differs. Returns the first line of the window."""
        old, new = code.rstrip("\n").split("\n"), changed.rstrip("\n").split("\n")
        shorter = min(len(old), len(new))
        first = next((k for k in range(shorter) if old[k] != new[k]), shorter - 1)
        same = next((k for k in range(shorter - first - 1) if old[-1 - k] != new[-1 - k]), shorter - first - 1)
        last, lines = len(old) - same, new[first : len(new) - same]
        page = select_around(new, first + 1, first + len(lines), WINDOW)
        summary = f"{count_lines(last - first)} replaced by {len(lines)}. To revert: undo."
        command = "\n".join([f"edit {first + 1}:{last}", *lines, "end_of_edit"])
        self._act("edit", command, f"{summary}\n{show_window(self.opened, page)}")
        return page.first

    def _validate(self, is_better: bool) -> bool:
        """Validate, with a score that is better than the best one, or not. Returns `is_better`."""
        self.validations -= 1
        step = float(self.rng.uniform(0.001, 0.15)) * (1 if is_better == (self.direction == "higher") else -1)
        score = round(max(0.0, self.best + step), 5)
        self.best = score if is_better else self.best
        values = {"metric": self.metric, "score": score, "baseline": self.baseline, "best": self.best}
        text = self.prompts.render("validated", **values, direction=self.direction, left=self.validations)
        self._act("validate", "validate", text)
        return is_better
