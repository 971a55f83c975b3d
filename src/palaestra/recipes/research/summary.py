"""The summary of a research run, and its conversation as a file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palaestra.core.events import Event, Listener
from palaestra.core.records import Failure, Message
from palaestra.engines.openai_format import to_chat_call
from palaestra.envs.turn.records import TurnStopReason
from palaestra.recipes.research.episode_player import WORKSPACE, read_submission
from palaestra.recipes.research.settings import RECIPE, ResearchSettings
from palaestra.research.agents import Agent
from palaestra.research.tasks.records import Grade
from palaestra.research.workspace.env import ResearchEnv
from palaestra.research.workspace.step_record import Step
from palaestra.runs.ledger import LedgerEntry, Spending
from palaestra.runs.run import Run

TRAJECTORY = "trajectory.json"
"""The conversation that counts, in OpenAI's format; in the folder of a finished run."""


@dataclass(frozen=True, slots=True)
class _Result:
    """The episode that counts and its score on the test split."""

    episode: int
    score: float | None
    scores: dict[str, float]
    failure: Failure | None = None


def _select_episode(run: Run, env: ResearchEnv, episodes: Sequence[Sequence[Step]], listener: Listener) -> _Result:
    """Select the episode that counts: the only one, or the one with the best submission on the validation split."""
    ends = [steps[-1] for steps in episodes]
    if env.split == "test":
        return _Result(0, ends[0].info.get("score"), dict(ends[0].info.get("scores") or {}))
    scored = {k: float(end.info["score"]) for k, end in enumerate(ends) if end.info.get("score") is not None}
    best = env.task.metric.best(list(scored.values()))
    if best is None:
        return _Result(len(ends) - 1, None, {})
    kept = next(k for k, score in scored.items() if score == best)
    listener(Event("judge the best"))
    outcome = env.judge(read_submission(run, kept), "test")
    if isinstance(outcome, Grade):
        run.store.add_cost(LedgerEntry(WORKSPACE, seconds=outcome.seconds))
        return _Result(kept, outcome.score, dict(outcome.scores))
    return _Result(kept, None, {}, outcome if isinstance(outcome, Failure) else None)


def summarise(
    run: Run,
    settings: ResearchSettings,
    env: ResearchEnv,
    agent: Agent,
    episodes: Sequence[Sequence[Step]],
    listener: Listener,
    spent: Spending,
) -> dict[str, Any]:
    """Return the summary of a run whose episodes have ended. Of several, the best is judged on the test split now.

    Arguments:
        spent: the cost of the agent's models.
    """
    result = _select_episode(run, env, episodes, listener)
    metric, measured = env.task.metric, env.baseline
    steps = [step for several in episodes for step in several]
    ends = [several[-1] for several in episodes]
    attempts = [float(score) for end in ends for score in end.info.get("attempts", ())]
    validations = len(attempts)
    # Submissions count as validations too if several compete, or if an MLGym task has one set of data.
    if env.split == "validation" or settings.mlgym:
        attempts += [float(end.info["score"]) for end in ends if end.info.get("score") is not None]
    failures: Counter[str] = Counter()
    for end in ends:
        failures.update(end.info.get("failures", {}))
        failures.update([str(end.failure.cause)] if end.failure is not None else [])
    failures.update([str(result.failure.cause)] if result.failure is not None else [])
    end, total = ends[result.episode], run.store.total()
    played = [step.replayed for step in steps if step.replayed and step.message is not None]  # Without the opening.
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
        "gain_low": None,
        "gain_high": None,
        "unit": metric.name,
        "baseline": measured.test.score,
        "baseline_validation": measured.validation.score,
        "best_attempt": metric.best(attempts),
        "best_submission": result.score,
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


def _reward(env: ResearchEnv, steps: Sequence[Step], score: float | None) -> float:
    """Return the sum of an episode's rewards including penalties. For one of several episodes, the validation gain is
    replaced by the test gain.
    """
    total, metric, paid = math.fsum(step.reward for step in steps), env.task.metric, steps[-1].info.get("score")
    if env.split == "validation" and paid is not None:
        total -= metric.gain(float(paid), env.baseline.validation.score)
        total += 0.0 if score is None else metric.gain(score, env.baseline.test.score)
    return total


def is_silent(summary: Mapping[str, Any]) -> bool:
    """Whether the agent wrote nothing in the episode that counts; its score is then that of the starter files."""
    return bool(summary.get("silent", not summary["steps"]))


def export_conversation(summary: dict[str, Any], steps: Sequence[Step]) -> dict[str, Any]:
    """Return the conversation in OpenAI's format with the reward of each assistant message."""
    messages = [m for step in steps for m in (*((step.message,) if step.message else ()), *step.observation)]
    kept = ("task", "agent", "model", "seed", "metric", "direction", "baseline", "best_submission", "stop_reason")
    return {
        **{name: summary[name] for name in kept},
        "rewards": [step.reward for step in steps if step.message is not None],
        "messages": [_export_message(message) for message in messages],
    }


def _export_message(message: Message) -> dict[str, Any]:
    """Export a message, including unanswered tool calls, which requests to servers leave out."""
    exported: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        exported["tool_calls"] = [to_chat_call(call) for call in message.tool_calls]
    return exported | ({"tool_call_id": message.tool_call_id} if message.tool_call_id else {})
