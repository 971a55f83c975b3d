"""Plays research episodes: agent and environment in turn, with every step stored.

An episode whose process was killed can be resumed. Its workspace is lost, so the stored actions run again in a fresh
one without asking the agent; then the agent continues. The conversation stays as stored, even if a command prints
something else this time: the agent's next request is then the same as before the kill, and a paid answer is found in
the cache. Steps whose output differs are marked `different` and counted.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from palaestra.chat.rendering import to_chat_message
from palaestra.core.errors import EnvError
from palaestra.core.records import Event, Failure, Json, Listener, Message, notice
from palaestra.core.seeding import Seeds
from palaestra.envs.turn.base import Conversation, TurnStopReason, transcript
from palaestra.recipes.research.settings import RECIPE, ResearchSettings
from palaestra.research.agents import Agent, Halt
from palaestra.research.tasks.task import Grade, SubmissionOutcome
from palaestra.research.workspace.env import ResearchEnv
from palaestra.research.workspace.workspace import Step
from palaestra.runs.files import write_folder
from palaestra.runs.provenance import LedgerEntry, Spending
from palaestra.runs.run import Run

SUBMISSIONS = "submissions"
"""The folder of the submissions below the run folder."""
AGENT, WORKSPACE, REPLAY = "agent", "workspace", "played again"
"""Phases of the ledger."""
OWN = ("action", "thought", "stop_reason", "failure", "turn")
"""Info entries that a step stores in separate fields or does not need."""

ONCE = ("seconds", "thinking", "agent", "calls", "usage", "money")
"""Fields of a step that keep their values when it is played again."""

Moved = tuple[Conversation, float, bool, bool, Json]


class EpisodeStopped(Exception):
    """A stop was requested. The unfinished episode can be resumed."""


@dataclass(slots=True)
class Player:
    """Plays the episodes of a run.

    Arguments:
        spent: returns the cost of the agent's models so far.
        stop: called between steps; true stops the episode.
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
        baselines = {"baseline": measured.test.score, "baseline_validation": measured.validation.score}
        named = {"task": self.env.task.name, "metric": info["metric"], "direction": metric.direction.value}
        info = {**named, **baselines, "steps": self.env.max_turns}
        self.env.take_file_changes()  # The files at the beginning.
        steps = [Step(episode, 0, observation=observation.messages, state=observation.state, info=info)]
        if known:
            steps[0] = _merge_replay(known[0], steps[0])
            observation = replace(self.env.restore_messages(0, known[0].observation), state=known[0].state)
        opened = LedgerEntry(WORKSPACE, seconds=time.perf_counter() - loaded)
        self.run.store.save_step(episode, 0, steps[0], [LedgerEntry(AGENT, seconds=loaded - start), opened])
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
            assert old.message is not None, "an episode that was ended from outside has no next step"
            if self.stop():
                raise EpisodeStopped
            start = time.perf_counter()
            self.env.spend(used)  # Use the time of the first run.
            before = len(observation.messages)
            moved = self.env.step(old.message)
            new = _make_step(old.episode, old.position, old.message, moved, before)
            new = replace(new, **{name: getattr(old, name) for name in ONCE}, files=self.env.take_file_changes())
            steps.append(self._compare(_merge_replay(old, new), steps))
            cost = LedgerEntry(REPLAY, seconds=time.perf_counter() - start)
            self.run.store.save_step(old.episode, old.position, steps[-1], [cost])
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
        step = _make_step(steps[0].episode, len(steps), message, moved, before)
        # The cost of the models since the last entry, including that of a killed process.
        cost = self.spent().entry_since(self.run.store.total(), AGENT, seconds=thought)
        step = replace(step, seconds=seconds, thinking=thought, calls=cost.calls, usage=cost.usage, money=cost.money)
        step = replace(step, agent=dict(self.agent.state()), files=self.env.take_file_changes())
        if cut is not None:
            action = step.action or (transcript(message) if message is not None else "")  # The interrupted command.
            step = replace(step, note=cut.note, failure=cut.failure or step.failure, action=action)
        self._keep(step)
        step = self._compare(step, steps)
        steps.append(step)
        costs = [cost, LedgerEntry(WORKSPACE, seconds=seconds - thought)]
        self.run.store.save_step(step.episode, step.position, step, costs)
        self.listener(self._event(step, "step"))
        return moved[0]

    def _compare(self, step: Step, before: Sequence[Step]) -> Step:
        """Add to a step how it departs from the recorded one. The first departure is reported at once."""
        step = replace(step, departure=self.agent.find_departure(step, "\n".join(self.env.outputs)))
        if step.departure and not any(earlier.departure for earlier in before):
            self.listener(notice(describe_departure(step.position, step.departure)))
        return step

    def _keep(self, step: Step) -> None:
        """Write the submission before the step that reports it."""
        files = self.env.handed_in
        if step.stop_reason and files is not None:

            def write(folder: Path) -> None:
                for name, content in files.items():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_bytes(content)

            write_folder(submission_folder(self.run, step.episode), write)

    def _event(self, step: Step, phase: str) -> Event:
        turn, limit = self.env.turn, self.env.max_turns
        again = " (again)" if phase == "play again" else ""
        text = f"{turn}/{limit}{again} {describe_step(step, self.env.attempts)}"
        return Event(phase, turn, limit, step.episode, {"text": text, "stop_reason": step.stop_reason})


def describe_step(step: Step, attempts: Sequence[float]) -> str:
    """Describe a step in one line: the first line of its action, and why the episode ended, if it did."""
    lines = [line for line in step.action.splitlines() if line.strip()]
    shown = (lines[0][:70] if lines else "no readable action") + (" ..." if len(lines) > 1 else "")
    if lines and lines[0].startswith("validate") and attempts:
        shown += f": {attempts[-1]:.4g}"
    parts = [shown] if step.message is not None else []
    if step.stop_reason not in ("", "submitted"):
        parts.append(f"ended: {describe_end(step.stop_reason, step.note)}")
    return "; ".join(parts)


def describe_departure(position: int, reason: str) -> str:
    """Describe where and why a replay departs from the recorded run."""
    return f"warning: the replay departs from the recorded run in message {position}: {reason}"


def describe_end(reason: str, note: str) -> str:
    """Describe why an episode ended."""
    return f"{reason.replace('_', ' ')}: {note}" if note else reason.replace("_", " ")


def _check_answer(answer: object) -> Message | Halt:
    """Check the return value of an agent's `act`. A text is also accepted."""
    if isinstance(answer, str):
        return Message("assistant", answer)
    if isinstance(answer, Message | Halt):
        return answer
    raise EnvError(f"expected a Message, a text or a Halt from an agent's act; got {type(answer).__name__}")


def submission_folder(run: Run, episode: int) -> Path:
    """Return the folder of an episode's submission."""
    return run.folder / SUBMISSIONS / f"episode-{episode}"


def read_submission(run: Run, episode: int) -> dict[str, bytes]:
    """Read the files of an episode's submission."""
    folder = submission_folder(run, episode)
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _make_step(episode: int, position: int, message: Message | None, moved: Moved, before: int) -> Step:
    observation, reward, _, _, info = moved
    observed = observation.messages[before + (message is not None) :]
    stored = {name: _to_plain(value) for name, value in info.items() if name not in OWN}
    action, stop = str(info.get("action", "")), str(info.get("stop_reason", ""))
    step = Step(episode, position, message, action, observed, reward, state=observation.state, info=stored)
    return replace(step, stop_reason=stop, failure=info.get("failure"))


def _to_plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_to_plain(part) for part in value]
    return {str(name): _to_plain(part) for name, part in value.items()} if isinstance(value, Mapping) else value


def _merge_replay(old: Step, new: Step) -> Step:
    """Merge a replayed step: the results of the new run, the conversation of the first.

    A step that ends the episode this time keeps its new messages, because nothing follows it.
    """
    same = [message.text for message in old.observation] == [message.text for message in new.observation]
    new = replace(new, replayed="same" if same else "different")
    return new if new.stop_reason else replace(new, observation=old.observation, state=old.state)


TRAJECTORY = "trajectory.json"
"""File name of the selected episode's conversation, in OpenAI's format, in the folder of a finished run."""


@dataclass(frozen=True, slots=True)
class _Result:
    """The selected episode and its score on the test split."""

    episode: int
    outcome: SubmissionOutcome
    score: float | None = None
    scores: dict[str, float] = field(default_factory=dict)
    failure: Failure | None = None


def _select_episode(run: Run, env: ResearchEnv, episodes: Sequence[Sequence[Step]], listener: Listener) -> _Result:
    """Select the episode to score: the only one, or the one with the best submission on the validation split. Without a
    score, it is the last one that did not fail.
    """
    ends = [steps[-1] for steps in episodes]
    scored = {k: float(end.info["score"]) for k, end in enumerate(ends) if end.info.get("score") is not None}
    best = env.task.metric.best(list(scored.values()))
    if env.split == "test" or best is None:
        kept = max(range(len(ends)), key=lambda k: (ends[k].failure is None, k))
        info = ends[kept].info
        known = SubmissionOutcome.MISSING if best is None else SubmissionOutcome.SCORED  # For runs of earlier versions.
        return _Result(kept, SubmissionOutcome(info.get("outcome", known)), best, dict(info.get("scores") or {}))
    kept = next(k for k, score in scored.items() if score == best)
    listener(Event("judge the best"))
    judged = env.judge_finally(read_submission(run, kept), "test")
    if isinstance(judged, Grade):
        run.store.add_cost(LedgerEntry(WORKSPACE, seconds=judged.seconds))
        return _Result(kept, SubmissionOutcome.SCORED, judged.score, dict(judged.scores))
    if isinstance(judged, Failure):
        return _Result(kept, SubmissionOutcome.FAILED, failure=judged)
    return _Result(kept, SubmissionOutcome.INVALID)


def summarize(
    run: Run,
    settings: ResearchSettings,
    env: ResearchEnv,
    agent: Agent,
    episodes: Sequence[Sequence[Step]],
    listener: Listener,
    spent: Spending,
) -> Json:
    """Return the summary of a run whose episodes have ended. The best of several is scored on the test split.

    Arguments:
        spent: the cost of the agent's models.
    """
    result = _select_episode(run, env, episodes, listener)
    metric, measured = env.task.metric, env.baseline
    steps = [step for several in episodes for step in several]
    ends = [several[-1] for several in episodes]
    attempts = [float(score) for end in ends for score in end.info.get("attempts", ())]
    validations = len(attempts)
    # Submissions count as validations too if several episodes compete, or if an MLGym task has one data set.
    if env.split == "validation" or settings.mlgym:
        attempts += [float(end.info["score"]) for end in ends if end.info.get("score") is not None]
    failed = (*(end.failure for end in ends), result.failure)
    failures = Counter(str(failure.cause) for failure in failed if failure is not None)
    for end in ends:
        failures.update(end.info.get("failures", {}))
    end, total = ends[result.episode], run.store.total()
    played = [step.replayed for step in steps if step.replayed and step.message is not None]  # Not the reset.
    gain = None if result.score is None else metric.scale * metric.gain(result.score, measured.test.score)
    kind = agent.environment()
    failure = result.failure or end.failure
    return {
        "recipe": RECIPE,
        "task": env.task.name,
        "agent": settings.agent,
        "model": agent.model,
        "seed": settings.seed,
        "metric": metric.name,
        "direction": metric.direction.value,
        "before": measured.test.score,
        "after": result.score,
        "gain": gain,
        **dict.fromkeys(("gain_low", "gain_high")),
        "unit": metric.name,
        "baseline": measured.test.score,
        "baseline_validation": measured.validation.score,
        "best_attempt": metric.best(attempts),
        "best_submission": result.score,
        "outcome": str(result.outcome),
        "reward": None if failure is not None else _reward(env, episodes[result.episode], result.score),
        "scores": result.scores,
        "attempts": attempts,
        "steps": sum(step.message is not None for step in steps),
        "silent": all(step.message is None for step in episodes[result.episode]),
        "validations": validations,
        "format_errors": sum("format_error" in step.info for step in steps),
        "stop_reason": str(TurnStopReason.FAILED) if result.failure is not None else end.stop_reason,
        "note": end.note,
        "failures": dict(sorted(failures.items())),
        "failure": None if failure is None else {"cause": str(failure.cause), "message": failure.message},
        "episodes": len(episodes),
        "kept_episode": result.episode,
        "parser": str(kind.get("parser", settings.parser)),
        "tools": bool(kind.get("tools", settings.tools)),
        "commands": list(kind.get("commands", settings.commands)),
        "replay": summarize_replay(episodes[result.episode]) if agent.replays else None,
        "replayed": len(played),
        "different": played.count("different"),
        "calls": total.calls,
        "calls_again": spent.again,
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "cost": total.money,
        **spent.gaps(),
        "seconds": round(total.seconds, 1),
    }


def summarize_replay(steps: Sequence[Step]) -> Json:
    """Return how many steps of a replay were compared and identical, and where and why it first departs."""
    departures = [(step.position, step.departure) for step in steps if step.departure]
    first, reason = departures[0] if departures else (None, "")
    count = len(steps) - 1
    return {"steps": count, "identical": count - len(departures), "first_departure": first, "reason": reason}


def _reward(env: ResearchEnv, steps: Sequence[Step], score: float | None) -> float:
    """Return the sum of an episode's rewards including penalties. For one of several episodes, the validation reward is
    replaced by the test reward.
    """
    total, metric = math.fsum(step.reward for step in steps), env.task.metric
    if env.split == "validation":
        total -= metric.reward(steps[-1].info.get("score"), env.baseline.validation.score)
        total += metric.reward(score, env.baseline.test.score)
    return total


def is_silent(summary: Json) -> bool:
    """Whether the agent wrote no message in the selected episode. Its score is then that of the starter files."""
    return bool(summary.get("silent", not summary["steps"]))


def list_messages(steps: Sequence[Step]) -> list[Message]:
    """Return the messages of the steps in order."""
    return [m for step in steps for m in (*((step.message,) if step.message else ()), *step.observation)]


def export_conversation(summary: Json, steps: Sequence[Step]) -> Json:
    """Return the conversation in OpenAI's format with the reward of each assistant message."""
    kept = ("task", "agent", "model", "seed", "metric", "direction", "baseline", "best_submission", "stop_reason")
    return {
        **{name: summary[name] for name in kept},
        "rewards": [step.reward for step in steps if step.message is not None],
        # With unanswered tool calls, which requests to servers leave out.
        "messages": list(map(to_chat_message, list_messages(steps))),
    }
