"""Agents without a model of their own: a user, a script, the task's own solutions, the best of several episodes."""

from __future__ import annotations

import base64
import gzip
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from palaestra.core.errors import SettingsError
from palaestra.core.records import Json, Message, ToolCall
from palaestra.envs.turn.base import Conversation, TurnStopReason
from palaestra.research.agents.base import (
    Agent,
    AgentContext,
    Halt,
    absolute_path,
    count_turns,
    make_agent,
    resolve_agent,
    split_spec,
)
from palaestra.research.workspace.commands import load_commands
from palaestra.research.workspace.workspace import submission_files

_MARK = "%%"
"""The line between two actions of a script."""
_MAX_BYTES = 1 << 20
"""The maximum bytes of files that are written by commands; larger ones are created by the task's own command."""
_FENCE = "```"
_HELP = (
    "Type a command and press Enter. Write several lines between two lines of ```; edit and insert end with "
    "their own last line. Ctrl-D gives up, Ctrl-C submits the current workspace."
)


class HumanAgent(Agent):
    """Shows new messages and reads a command: one line, or several between two lines of ```.

    After `edit ...` or `insert ...` it reads on to the line that ends the text. The end of the input (Ctrl-D) gives up
    without a submission. Ctrl-C ends the episode as `TurnStopReason.INTERRUPTED` and submits the current workspace.
    """

    parser = "identity"
    interactive = True

    def begin(self, seed: int, tools: Sequence[Mapping[str, object]]) -> None:
        self._shown = 0

    def act(self, conversation: Conversation) -> Message | Halt:
        for message in conversation.messages[self._shown :]:
            if message.role != "assistant":
                self.context.show(f"\n{message.text}\n")
        if not self._shown:
            self.context.show(_HELP)
        try:
            command = self._read_command()
        except EOFError:
            return Halt(TurnStopReason.GAVE_UP, "the input ended")
        self._shown = len(conversation.messages)
        return Message("assistant", command)

    def state(self) -> Json:
        return {"shown": self._shown}

    def restore(self, state: Json) -> None:
        self._shown = int(state.get("shown", 0))

    def _read_command(self) -> str:
        line = ""
        while not line.strip():
            line = self.context.ask("> ")
        if line.strip() == _FENCE:
            return "\n".join(self._read_until(_FENCE))
        command = load_commands().get(line.split()[0])
        if command is None or command.body is None or not command.body.required:
            return line
        return "\n".join([line, *self._read_until(command.end), command.end])

    def _read_until(self, end: str) -> list[str]:
        lines: list[str] = []
        while (line := self.context.ask("  ")).strip() != end:
            lines.append(line)
        return lines


class ScriptAgent(Agent):
    """Plays a file of actions in order, regardless of the output, and gives up after the last one.

    An action is a command as it would be typed. A line `%%` separates two actions:

        cat strategy.py
        %%
        create strategy.py
        ...
        end_of_file
        %%
        submit

    A `.jsonl` file has one JSON value per line: a text, or a tool call such as `{"name": "bash", "arguments":
    {"command": "ls"}}`. `{task}` in the file's name is replaced by the name of the task.

    Raises:
        SettingsError: the file does not exist or cannot be read.
    """

    takes = "FILE"
    parser = "identity"

    def __init__(self, argument: str, context: AgentContext) -> None:
        super().__init__(argument, context)
        if not argument:
            raise SettingsError("the agent 'script' needs a file; use script:FILE")
        self.messages = read_script(Path(argument.replace("{task}", context.task.name)).expanduser())
        self._calls = any(message.tool_calls for message in self.messages)
        if self._calls and not all(message.tool_calls for message in self.messages):
            raise SettingsError(f"the script {argument} mixes text and tool calls; use only one of them")

    @classmethod
    def resolve_argument(cls, argument: str) -> str:
        return absolute_path(argument)

    def environment(self) -> Json:
        return {"tools": True} if self._calls else {"parser": self.parser, "tools": False}

    def act(self, conversation: Conversation) -> Message | Halt:
        turn = count_turns(conversation)
        if turn >= len(self.messages):
            return Halt(TurnStopReason.GAVE_UP, f"the script has {len(self.messages)} actions and did not submit")
        return self.messages[turn]


def read_script(path: Path) -> list[Message]:
    """Read the actions of a file as messages.

    Raises:
        SettingsError: the file does not exist, contains no action, or has an invalid JSON line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the script {path} cannot be read: {error}") from error
    lines = text.splitlines()
    if path.suffix == ".jsonl":
        messages = [_parse_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    else:
        actions = "\n".join("\0" if line.strip() == _MARK else line for line in lines).split("\0")
        messages = [Message("assistant", action.strip("\n")) for action in actions if action.strip()]
    if not messages:
        raise SettingsError(f"the script {path} contains no action; write actions separated by lines {_MARK}")
    return messages


def _parse_line(path: Path, number: int, line: str) -> Message:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise SettingsError(f"{path}, line {number}, is not JSON: {error}") from error
    if isinstance(value, str):
        return Message("assistant", value)
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        call = ToolCall(value["name"], json.dumps(value.get("arguments", {})), f"call_{number}")
        return Message("assistant", str(value.get("thought", "")), (call,))
    raise SettingsError(
        f"{path}, line {number}: expected a string, or an object with name and arguments; got {line[:80]}"
    )


class BaselineAgent(Agent):
    """Writes the measured baseline's submission, validates it and submits it."""

    parser = "identity"

    def list_actions(self) -> list[str]:
        """Return the commands to play."""
        assert self.context.baseline is not None
        task, files = self.context.task, submission_files(self.context.baseline())
        starter = task.starter_files()
        changed = {name: content for name, content in files.items() if starter.get(name) != content}
        if files and sum(map(len, changed.values())) <= _MAX_BYTES:
            return [*write_command(changed), "validate", "submit"]
        return [*([task.baseline] if task.baseline else []), "validate", "submit"]

    def environment(self) -> Json:
        return {**super().environment(), "commands": ()}  # All commands: files are written with bash.

    def begin(self, seed: int, tools: Sequence[Mapping[str, object]]) -> None:
        self._actions = self.list_actions()

    def act(self, conversation: Conversation) -> Message | Halt:
        turn = count_turns(conversation)
        if turn >= len(self._actions):
            return Halt(TurnStopReason.GAVE_UP, "the solution could not be submitted")
        return Message("assistant", self._actions[turn])


class ReferenceAgent(BaselineAgent):
    """Writes the task's `reference` solution, runs it, validates it and submits it.

    Raises:
        SettingsError: the task has no reference solution.
    """

    def __init__(self, argument: str, context: AgentContext) -> None:
        super().__init__(argument, context)
        if not context.task.reference_files():
            raise SettingsError(f"task '{context.task.name}' has no reference solution")

    def list_actions(self) -> list[str]:
        task = self.context.task
        commands = [task.reference] if task.reference not in ("", "true") else []
        return [*write_command(task.reference_files()), *commands, "validate", "submit"]


def write_command(files: Mapping[str, bytes]) -> list[str]:
    """Return the command that writes these files, whatever bytes they contain; empty for no files."""
    lines = []
    for name, content in files.items():
        coded = base64.b64encode(gzip.compress(content, mtime=0)).decode()
        folder, where = shlex.quote(str(PurePosixPath(name).parent)), shlex.quote(name)
        lines.append(f"mkdir -p {folder} && base64 -d <<'END' | gzip -d > {where}\n{coded}\nEND")
    return ["\n".join(lines)] if lines else []


class BestOfAgent(Agent):
    """Plays n episodes of another agent with different seeds.

    Each submission is judged on the validation split only. The best one is judged on the test split, and that is the
    agent's score; the test split plays no part in the selection.

    Raises:
        SettingsError: `argument` is not `N:AGENT`.
    """

    takes = "N:AGENT"

    def __init__(self, argument: str, context: AgentContext) -> None:
        super().__init__(argument, context)
        count, _, spec = argument.partition(":")
        if not count.isdecimal() or int(count) < 1 or not spec:
            raise SettingsError(f"expected best_of:N:AGENT, for example best_of:4:model; got 'best_of:{argument}'")
        self.inner = make_agent(spec, context)
        self.episodes, self.parser, self.model = int(count) * self.inner.episodes, self.inner.parser, self.inner.model
        self.interactive = self.inner.interactive
        if self.episodes > 1 and split_spec(spec)[0] == "model" and context.sampling.temperature == 0:
            raise SettingsError(f"{count} episodes at temperature 0 would all be the same; set a temperature")

    @classmethod
    def resolve_argument(cls, argument: str) -> str:
        count, colon, spec = argument.partition(":")
        return f"{count}{colon}{resolve_agent(spec)}" if spec else argument

    def environment(self) -> Json:
        return self.inner.environment()

    def begin(self, seed: int, tools: Sequence[Mapping[str, object]]) -> None:
        self.inner.begin(seed, tools)

    def act(self, conversation: Conversation) -> Message | Halt:
        return self.inner.act(conversation)

    def state(self) -> Json:
        return self.inner.state()

    def restore(self, state: Json) -> None:
        self.inner.restore(state)
