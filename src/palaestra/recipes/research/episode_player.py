"""Playing an episode of research: an agent and an environment in turn, every step stored as it is done.

An episode whose process was killed can be resumed. Its workspace is gone, so the stored actions are run again in a
fresh one, without asking the agent; then the agent takes over. The conversation stays as it was stored, even if a command
prints something else this time: the agent's next request is then the one that it made before the kill, and an answer
that was already paid for is found in the cache. Steps whose output differs are marked `different` and counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palaestra.core.errors import EnvError
from palaestra.core.events import Event, Listener
from palaestra.core.records import Failure, Message
from palaestra.core.seeding import Seeds
from palaestra.envs.turn.base import transcript
from palaestra.envs.turn.records import Conversation, StopReason
from palaestra.research.agents import Agent, Halt
from palaestra.research.workspace.env import ResearchEnv
from palaestra.research.workspace.step_record import Step
from palaestra.runs.files import write_folder
from palaestra.runs.ledger import LedgerEntry, Spending
from palaestra.runs.run import Run

SUBMISSIONS = "submissions"
"""Below the run folder: what each episode handed in."""
AGENT, WORKSPACE, REPLAY = "agent", "workspace", "played again"
"""Phases of the ledger."""
OWN = ("action", "thought", "stop_reason", "failure", "turn")
"""What a step has fields of its own for, or can do without."""

Moved = tuple[Conversation, float, bool, bool, dict[str, Any]]


class Stopped(Exception):
    """Somebody wants the work to stop; an episode under way is left as it is, to go on later."""


@dataclass(slots=True)
class Player:
    """Plays the episodes of a run.

    Arguments:
        spent: what the agent's models have cost so far.
        stop: whether somebody wants to stop, asked between steps.
    """

    run: Run
    env: ResearchEnv
    agent: Agent
    seeds: Seeds
    listener: Listener
    spent: Callable[[], Spending] = Spending
    stop: Callable[[], bool] = lambda: False

    def play(self, episode: int) -> list[Step]:
        """The steps of an episode: those that are stored, and the rest of it.

        Raises:
            Stopped: `stop` said so.
        """
        known = self.run.store.steps(Step, episode)
        if known and known[-1].stop_reason:
            return known
        seeds, start = self.seeds.derive("episode", episode), time.perf_counter()
        # First the agent, which may load a model: the episode's time begins with the environment's.
        self.agent.begin(seeds.derive("agent").integer(), self.env.tools)
        loaded = time.perf_counter()
        observation, info = self.env.reset(seed=seeds.derive("environment").integer() & 0x7FFFFFFF)
        measured, metric = self.env.baseline, self.env.task.metric
        info = {
            "task": self.env.task.name, "metric": info["metric"], "direction": metric.direction.value, "baseline": measured.test.score,
            "baseline_validation": measured.validation.score, "steps": self.env.max_turns,
        }  # fmt: skip
        steps = [Step(episode, 0, observation=observation.messages, state=observation.state, info=info)]
        if known:
            steps[0] = _replayed(known[0], steps[0])
            observation = replace(self.env.restore_messages(0, known[0].observation), state=known[0].state)
        costs = [
            LedgerEntry(AGENT, seconds=loaded - start), LedgerEntry(WORKSPACE, seconds=time.perf_counter() - loaded),
        ]  # fmt: skip
        self.run.store.save_step(episode, 0, steps[0], costs)
        observation = self._again(known[1:], steps, observation)
        while not steps[-1].stop_reason:
            if self.stop():
                raise Stopped
            observation = self._step(steps, observation)
        return steps

    def _again(self, known: Sequence[Step], steps: list[Step], observation: Conversation) -> Conversation:
        """Run stored actions in the fresh workspace and append their steps to `steps`.

        Returns the conversation as the agent saw it before the kill.
        """
        used = 0.0
        for old in known:
            assert old.message is not None, "an episode that was ended from outside is over"
            if self.stop():
                raise Stopped
            start = time.perf_counter()
            self.env.spend(used)  # The episode's time is what it took the first time.
            before = len(observation.messages)
            moved = self.env.step(old.message)
            new = _step(old.episode, old.position, old.message, moved, before)
            new = replace(new, seconds=old.seconds, thinking=old.thinking, agent=old.agent)
            steps.append(_replayed(old, new))
            self.run.store.save_step(
                old.episode, old.position, steps[-1], [LedgerEntry(REPLAY, seconds=time.perf_counter() - start)]
            )
            self._keep(steps[-1])
            self.listener(self._event(steps[-1], "play again"))
            used += old.seconds
            if steps[-1].stop_reason:
                self.run.store.forget_steps(old.episode, old.position + 1)
                return moved[0]
            observation = self.env.restore_messages(before + 1, old.observation)
        if known:
            self.agent.restore(known[-1].agent)
            self.env.spend(used)
            observation = replace(observation, state=known[-1].state)
        return observation

    def _step(self, steps: list[Step], observation: Conversation) -> Conversation:
        start, before = time.perf_counter(), len(observation.messages)
        said: Message | Halt
        try:
            said = _said(self.agent.act(observation))
        except KeyboardInterrupt:
            said = Halt(StopReason.INTERRUPTED, "interrupted at the keyboard")
        thought = time.perf_counter() - start
        cut = said if isinstance(said, Halt) else None
        try:
            moved = self.env.stop(said.reason) if isinstance(said, Halt) else self.env.step(said)
        except KeyboardInterrupt:
            if self.env.over:
                raise  # The second time, while what is there was handed in: the run can be resumed.
            cut = Halt(StopReason.INTERRUPTED, "interrupted at the keyboard, during a command")
            moved = self.env.stop(cut.reason)
        seconds = time.perf_counter() - start
        message = None if isinstance(said, Halt) else said
        step = _step(steps[0].episode, len(steps), message, moved, before)
        step = replace(step, seconds=seconds, thinking=thought, agent=dict(self.agent.state()))
        if cut is not None:
            step = replace(step, note=cut.note, failure=cut.failure or step.failure)
            if message is not None and not step.action:
                step = replace(step, action=transcript(message))  # The command that was under way.
        self._keep(step)
        steps.append(step)
        costs = [self._cost(thought), LedgerEntry(WORKSPACE, seconds=seconds - thought)]
        self.run.store.save_step(step.episode, step.position, step, costs)
        self.listener(self._event(step, "step"))
        return moved[0]

    def _keep(self, step: Step) -> None:
        """Write what was handed in, before the step that says so."""
        files = self.env.handed_in
        if step.stop_reason and files is not None:

            def write(folder: Path) -> None:
                for name, content in files.items():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_bytes(content)

            write_folder(submission_folder(self.run, step.episode), write)

    def _cost(self, seconds: float) -> LedgerEntry:
        """What the models have cost since the last entry, that of a process that was killed in between included."""
        return self.spent().entry_since(self.run.store.total(), AGENT, seconds=seconds)

    def _event(self, step: Step, phase: str) -> Event:
        info: dict[str, Any] = {
            "action": step.action,
            "spoke": step.message is not None,
            "stop_reason": step.stop_reason,
            "note": step.note,
            "attempts": self.env.attempts,
        }
        if step.stop_reason:
            info["score"] = step.info.get("score")
        return Event(phase, self.env.turn, self.env.max_turns, step.episode, info)


def _said(answer: Any) -> Message | Halt:
    """What an agent's `act` gave; a text will do."""
    if isinstance(answer, str):
        return Message("assistant", answer)
    if isinstance(answer, Message | Halt):
        return answer
    raise EnvError(f"an agent's act gives a Message, a text or a Halt; got {type(answer).__name__}")


def submission_folder(run: Run, episode: int) -> Path:
    """Where the files lie that an episode handed in."""
    return run.folder / SUBMISSIONS / f"episode-{episode}"


def read_submission(run: Run, episode: int) -> dict[str, bytes]:
    """The files that an episode handed in."""
    folder = submission_folder(run, episode)
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _step(episode: int, position: int, message: Message | None, moved: Moved, before: int) -> Step:
    observation, reward, _, _, info = moved
    said = observation.messages[before + (message is not None) :]
    failure: Failure | None = info.get("failure")
    return Step(
        episode, position, message, str(info.get("action", "")), said, reward, state=observation.state,
        info={name: _plain(value) for name, value in info.items() if name not in OWN},
        stop_reason=str(info.get("stop_reason", "")), failure=failure,
    )  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return {str(name): _plain(part) for name, part in value.items()} if isinstance(value, Mapping) else value


def _replayed(old: Step, new: Step) -> Step:
    """The step as it is stored after a replay: the results of the new run, the conversation of the first.

    A step that ends the episode this time keeps its new messages, because nothing follows it.
    """
    same = [message.text for message in old.observation] == [message.text for message in new.observation]
    new = replace(new, replayed="same" if same else "different")
    return new if new.stop_reason else replace(new, observation=old.observation, state=old.state)
