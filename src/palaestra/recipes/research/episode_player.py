"""Plays research episodes: agent and environment in turn, with every step stored.

An episode whose process was killed can be resumed. Its workspace is lost, so the stored actions run again in a fresh
one without asking the agent; then the agent continues. The conversation stays as stored, even if a command prints
something else this time: the agent's next request is then the same as before the kill, and a paid answer is found in
the cache. Steps whose output differs are marked `different` and counted.
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
from palaestra.envs.turn.records import Conversation, TurnStopReason
from palaestra.research.agents import Agent, Halt
from palaestra.research.workspace.env import ResearchEnv
from palaestra.research.workspace.step_record import Step
from palaestra.runs.files import write_folder
from palaestra.runs.ledger import LedgerEntry, Spending
from palaestra.runs.run import Run

SUBMISSIONS = "submissions"
"""The folder of the submissions below the run folder."""
AGENT, WORKSPACE, REPLAY = "agent", "workspace", "played again"
"""Phases of the ledger."""
OWN = ("action", "thought", "stop_reason", "failure", "turn")
"""Info entries that a step stores in fields of its own, or does not need."""

Moved = tuple[Conversation, float, bool, bool, dict[str, Any]]


class EpisodeStopped(Exception):
    """A stop was requested. The unfinished episode can be resumed."""


@dataclass(slots=True)
class Player:
    """Plays the episodes of a run.

    Arguments:
        spent: returns what the agent's models have cost so far.
        stop: asked between steps whether to stop.
    """

    run: Run
    env: ResearchEnv
    agent: Agent
    seeds: Seeds
    listener: Listener
    spent: Callable[[], Spending] = Spending
    stop: Callable[[], bool] = lambda: False

    def play(self, episode: int) -> list[Step]:
        """Return the steps of an episode: the stored ones, then the rest.

        Raises:
            EpisodeStopped: `stop` returned true.
        """
        known = self.run.store.steps(Step, episode)
        if known and known[-1].stop_reason:
            return known
        seeds, start = self.seeds.derive("episode", episode), time.perf_counter()
        # The agent first, since it may load a model: the episode's time begins with the environment.
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
            steps[0] = _merge_replay(known[0], steps[0])
            observation = replace(self.env.restore_messages(0, known[0].observation), state=known[0].state)
        costs = [
            LedgerEntry(AGENT, seconds=loaded - start), LedgerEntry(WORKSPACE, seconds=time.perf_counter() - loaded),
        ]  # fmt: skip
        self.run.store.save_step(episode, 0, steps[0], costs)
        observation = self._again(known[1:], steps, observation)
        while not steps[-1].stop_reason:
            if self.stop():
                raise EpisodeStopped
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
                raise EpisodeStopped
            start = time.perf_counter()
            self.env.spend(used)  # Use the time of the first run.
            before = len(observation.messages)
            moved = self.env.step(old.message)
            new = _step(old.episode, old.position, old.message, moved, before)
            new = replace(new, seconds=old.seconds, thinking=old.thinking, agent=old.agent)
            steps.append(_merge_replay(old, new))
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
        answer: Message | Halt
        try:
            answer = _check_answer(self.agent.act(observation))
        except KeyboardInterrupt:
            answer = Halt(TurnStopReason.INTERRUPTED, "interrupted at the keyboard")
        thought = time.perf_counter() - start
        cut = answer if isinstance(answer, Halt) else None
        try:
            moved = self.env.stop(answer.reason) if isinstance(answer, Halt) else self.env.step(answer)
        except KeyboardInterrupt:
            if self.env.over:
                raise  # The second interrupt, during the submission: the run can be resumed.
            cut = Halt(TurnStopReason.INTERRUPTED, "interrupted at the keyboard, during a command")
            moved = self.env.stop(cut.reason)
        seconds = time.perf_counter() - start
        message = None if isinstance(answer, Halt) else answer
        step = _step(steps[0].episode, len(steps), message, moved, before)
        step = replace(step, seconds=seconds, thinking=thought, agent=dict(self.agent.state()))
        if cut is not None:
            step = replace(step, note=cut.note, failure=cut.failure or step.failure)
            if message is not None and not step.action:
                step = replace(step, action=transcript(message))  # The interrupted command.
        self._keep(step)
        steps.append(step)
        costs = [self._cost(thought), LedgerEntry(WORKSPACE, seconds=seconds - thought)]
        self.run.store.save_step(step.episode, step.position, step, costs)
        self.listener(self._event(step, "step"))
        return moved[0]

    def _keep(self, step: Step) -> None:
        """Write the submission before the step that reports it."""
        files = self.env.handed_in
        if step.stop_reason and files is not None:

            def write(folder: Path) -> None:
                for name, content in files.items():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_bytes(content)

            write_folder(submission_folder(self.run, step.episode), write)

    def _cost(self, seconds: float) -> LedgerEntry:
        """Return the cost of the models since the last entry, including that of a killed process."""
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


def _check_answer(answer: Any) -> Message | Halt:
    """Check the return value of an agent's `act`; a text is accepted too."""
    if isinstance(answer, str):
        return Message("assistant", answer)
    if isinstance(answer, Message | Halt):
        return answer
    raise EnvError(f"an agent's act gives a Message, a text or a Halt; got {type(answer).__name__}")


def submission_folder(run: Run, episode: int) -> Path:
    """Return the folder of an episode's submission."""
    return run.folder / SUBMISSIONS / f"episode-{episode}"


def read_submission(run: Run, episode: int) -> dict[str, bytes]:
    """Read the files of an episode's submission."""
    folder = submission_folder(run, episode)
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _step(episode: int, position: int, message: Message | None, moved: Moved, before: int) -> Step:
    observation, reward, _, _, info = moved
    observed = observation.messages[before + (message is not None) :]
    failure: Failure | None = info.get("failure")
    return Step(
        episode, position, message, str(info.get("action", "")), observed, reward, state=observation.state,
        info={name: _plain(value) for name, value in info.items() if name not in OWN},
        stop_reason=str(info.get("stop_reason", "")), failure=failure,
    )  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return {str(name): _plain(part) for name, part in value.items()} if isinstance(value, Mapping) else value


def _merge_replay(old: Step, new: Step) -> Step:
    """Merge a replayed step: the results of the new run, the conversation of the first.

    A step that ends the episode this time keeps its new messages, because nothing follows it.
    """
    same = [message.text for message in old.observation] == [message.text for message in new.observation]
    new = replace(new, replayed="same" if same else "different")
    return new if new.stop_reason else replace(new, observation=old.observation, state=old.state)
