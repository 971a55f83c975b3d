"""`palaestra rescore`: score the stored episodes of a run again, with another reward or scorer. Nothing is sampled."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from palaestra.core.errors import RewardError, RunError, SettingsError
from palaestra.core.records import (
    Attempt,
    Completion,
    Event,
    Failure,
    FailureCause,
    Json,
    Listener,
    Message,
    Problem,
    Score,
    Split,
    StopReason,
    Trajectory,
)
from palaestra.core.registry import describe_error, load_plugins
from palaestra.core.statistics import Mean, get_cluster, mean_interval, rate_interval
from palaestra.envs.factory import detect_kind, make_single_turn_env, make_token_env
from palaestra.envs.token.base import TokenVectorEnv
from palaestra.envs.token.prompts import Prompt, Response, compute_rewards, load_tokenizer
from palaestra.envs.token.rewards import RewardFunctions, RewardLike
from palaestra.envs.turn.base import format_transcript
from palaestra.envs.turn.tasks import TaskEnv
from palaestra.recipes.evaluate.recipe import make_run_task
from palaestra.recipes.evaluate.settings import EvaluateSettings
from palaestra.recipes.progress import RunProgress, show_progress
from palaestra.recipes.runs import NotebookResult
from palaestra.recipes.settings import load_run_settings
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.recipes.train.settings import TrainSettings
from palaestra.runs.files import from_data, to_data, to_json, write_json
from palaestra.runs.run import Run
from palaestra.tasks.base import Task, TaskHooks, get_hooks
from palaestra.tasks.evaluate import score_all
from palaestra.tasks.scorers import TaskScorer, make_scorer

RESCORE = "rescore.json"
"""The file of a run folder with its last rescoring."""
MOST_CHANGED = 10
"""Episodes that are listed as the most changed."""
TRAINING, RESEARCH = "training", "research"
"""The sources of episodes that are not answers of an evaluation."""
_MAX_REASONS = 5
_NO_PROMPT = Prompt((), "")
_MAX_TEXT = 2000
"""Characters of a text in the list of the most changed episodes."""
_TOLERANCE = 1e-6
"""Relative difference up to which two rewards are the same: training stores 32 bits."""


@dataclass(frozen=True, slots=True)
class RescoredEpisode:
    """One stored episode with its old and its new value.

    Arguments:
        source: `training`, `research`, or the phase of an evaluation, for example `2/test`.
        name: `training/ITERATION/POSITION`, `research/EPISODE` or `PHASE/PROBLEM/SAMPLE`.
        group: episodes of one group or problem are not independent.
        before, after: the values; `None` if the episode had or has none.
        reason: why there is no new value.
    """

    source: str
    name: str
    group: str
    before: float | None
    after: float | None
    reason: str = ""
    prompt: str = ""
    response: str = ""

    @property
    def change(self) -> float | None:
        """The new value minus the old one; 0.0 if they are equal up to rounding."""
        if self.before is None or self.after is None:
            return None
        same = math.isclose(self.before, self.after, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
        return 0.0 if same else self.after - self.before


@dataclass(frozen=True, slots=True)
class Rescoring:
    """The comparison of the old and the new values of one source.

    Arguments:
        before, after, change: means over the `count` episodes that have both values, with 95 % intervals. Episodes of
            one group count as dependent.
        rose, fell: episodes whose value changed.
        correlation: Pearson's; `None` if all values on one side are equal.
        unscored: episodes without a new value, by reason.
        new: episodes that had no old value and have a new one.
    """

    source: str
    before: Mean
    after: Mean
    change: Mean
    count: int
    rose: int
    fell: int
    correlation: float | None
    unscored: dict[str, int]
    new: int


@dataclass(frozen=True, slots=True)
class RescoreResult(NotebookResult):
    """The rescoring of a run.

    Arguments:
        scorer: what scored the episodes.
        parts: one per source; the last is `all` if there are several.
    """

    folder: Path
    scorer: str
    parts: tuple[Rescoring, ...]
    episodes: tuple[RescoredEpisode, ...]

    @property
    def most_changed(self) -> list[RescoredEpisode]:
        """The episodes with the largest differences, at most `MOST_CHANGED`."""
        changed = [episode for episode in self.episodes if episode.change]
        return sorted(changed, key=lambda episode: -abs(episode.change or 0.0))[:MOST_CHANGED]

    @property
    def summary(self) -> Json:
        """The comparison over all episodes, with the keys of a run's summary."""
        whole = self.parts[-1]
        gain = {"gain": whole.change.value, "gain_low": whole.change.low, "gain_high": whole.change.high}
        values: Json = {"before": whole.before.value, "after": whole.after.value, **gain}
        known = {name: value if math.isfinite(value) else None for name, value in values.items()}
        counts = {"episodes": whole.count, "changed": whole.rose + whole.fell, "correlation": whole.correlation}
        return {"recipe": "rescore", **known, "unit": "score", "seconds": None, "scorer": self.scorer, **counts}

    def to_data(self) -> Json:
        """The result as plain values: the comparison, the most changed episodes with their texts, and all values."""
        columns = ("source", "name", "before", "after", "reason")
        return {
            **self.summary,
            "parts": [json.loads(to_json(part)) for part in self.parts],  # A number that is not finite becomes null.
            "most_changed": [
                {**to_data(episode), "prompt": episode.prompt[:_MAX_TEXT], "response": episode.response[:_MAX_TEXT]}
                for episode in self.most_changed
            ],
            "values": [{name: getattr(episode, name) for name in columns} for episode in self.episodes],
        }


@dataclass(frozen=True, slots=True)
class _StoredEpisode:
    """An episode with what a scorer may read. Without a completion, `reason` says why."""

    source: str
    name: str
    group: str
    before: float | None
    completion: Completion | None = None
    prompt: Prompt = _NO_PROMPT
    messages: tuple[Message, ...] = ()
    reason: str = ""

    @property
    def problem(self) -> Problem | None:
        return self.prompt.source if isinstance(self.prompt.source, Problem) else None

    def to_response(self) -> Response:
        assert self.completion is not None
        answer = self.completion
        return Response(self.prompt, answer.token_ids, answer.text, answer.stop_reason, messages=self.messages)


_Judge = Callable[[Sequence[_StoredEpisode]], Sequence[float | str]]
"""Returns the new value of each episode, or why it has none."""


def rescore(
    run: str | Path,
    *,
    reward: RewardLike | Sequence[RewardLike] | None = None,
    reward_weights: Sequence[float] = (),
    scorer: str = "",
    episode: str = "",
    trust: bool = False,
    listener: Listener | None = None,
    progress: bool = True,
) -> RescoreResult:
    """Score the stored episodes of a run again and compare the values with the old ones. Nothing is sampled.

    Arguments:
        run: the folder of a `train`, `evaluate`, `teach` or `research` run.
        reward: a function or several, or references `file.py:function`, as for `train`.
        reward_weights: a weight for each reward.
        scorer: the name of a scorer, for example `number`, `judge:MODEL` or `file.py:function`. Without it and `reward`,
            the task or the environment of the run scores, as it is now.
        episode: only the episode of this name, see `RescoredEpisode`.
        trust: run the code that the run names, although this user has not started it on this machine.
        listener, progress: as for `evaluate`.

    Raises:
        RunError: the run has no episodes that can be rescored; the message says why.
        SettingsError: both a reward and a scorer are given, or one of them is unknown.

    Example:
        >>> from palaestra import rescore                                                     # doctest: +SKIP
        >>> rescore("runs/train-1", reward="my_reward.py:f").summary["correlation"]           # doctest: +SKIP
    """
    if reward is not None and scorer:
        raise SettingsError("give a reward or a scorer, not both")
    if reward_weights and reward is None:
        raise SettingsError("setting 'reward_weights' has no effect without 'reward'")
    folder, rescored = Path(run), list[RescoredEpisode]()
    with (
        Run.open(folder, read_only=True, trust=trust) as opened,
        show_progress(listener, progress, RunProgress) as tell,
    ):
        subject = _open_subject(opened)
        judge, name = _make_judge(subject, reward, reward_weights, scorer)
        for batch in _read_episodes(opened, subject):
            batch = [stored for stored in batch if episode in ("", stored.name)]
            ready = [stored for stored in batch if stored.completion is not None]
            values = dict(zip((stored.name for stored in ready), judge(ready) if ready else (), strict=True))
            rescored += [_to_rescored(stored, values.get(stored.name, stored.reason)) for stored in batch]
            tell(Event("rescore", len(rescored)))
        for task in subject.tasks.values():
            get_hooks(task).close()
    if not rescored:
        missing = f"episode '{episode}'; `palaestra rescore RUN --json` lists the names" if episode else "episodes"
        raise RunError(f"{folder} has stored no {missing}")
    if all(known.after is None for known in rescored):
        [(reason, _)] = Counter(known.reason for known in rescored).most_common(1)
        raise RunError(f"none of the {len(rescored)} episodes of {folder} could be rescored: {reason}")
    sources = list(dict.fromkeys(known.source for known in rescored))
    parts = [_compare([known for known in rescored if known.source == source], source) for source in sources]
    parts += [_compare(rescored, "all")] if len(parts) > 1 else []
    return RescoreResult(folder, name, tuple(parts), tuple(rescored))


def write_rescoring(result: RescoreResult) -> Path:
    """Write a result into the folder of its run, where its report shows it. Returns the path."""
    path = result.folder / RESCORE
    write_json(path, result.to_data())
    return path


@dataclass(frozen=True, slots=True)
class _Subject:
    """What scores the episodes of a run unless another scorer is given.

    Arguments:
        tasks: the tasks of answers by split; the empty name is for the others.
        env: the token environment of a train run; `prompts` are its prompts by their token ids.
        problems: the problems of an environment of turns, by their messages.
        refusal: why its training episodes cannot be rescored without a reward.
    """

    tasks: Mapping[str, Task] = field(default_factory=dict)
    env: TokenVectorEnv | None = None
    prompts: Mapping[tuple[int, ...], Prompt] = field(default_factory=dict)
    problems: Mapping[tuple[Message, ...], Problem] = field(default_factory=dict)
    refusal: str = ""

    def find_task(self, stored: _StoredEpisode) -> Task | None:
        """The task of an episode; `None` if its problem is not one of a task."""
        split = stored.source.rpartition("/")[2]
        return self.tasks.get(split, self.tasks.get("")) if stored.problem and stored.problem.id else None


def _open_subject(run: Run) -> _Subject:
    """Make the task or the environment of a run, without its model."""
    match run.recipe:
        case "evaluate":
            return _Subject({"": make_run_task(load_run_settings(EvaluateSettings, run))})
        case "teach":
            from palaestra.recipes.teach.skills import make_tasks

            teach_settings = load_run_settings(TeachSettings, run)
            load_plugins(teach_settings.plugins)
            tasks = make_tasks(teach_settings)
            return _Subject({"": tasks.taught, Split.TEST: tasks.tested or tasks.taught})
        case "train":
            return _open_env(run, load_run_settings(TrainSettings, run))
        case "research":
            return _Subject(refusal="a research episode is graded in its workspace, which is not stored; give --reward")
    raise RunError(f"{run.folder} is a {run.recipe} run; expected a train, evaluate, teach or research run")


def _open_env(run: Run, settings: TrainSettings) -> _Subject:
    if settings.policy != "lm":
        raise RunError(
            f"{run.folder} trains in the classic environment {settings.env}: its episodes have no text, and its rewards come "
            "from the state of the environment; measure the policy again with `palaestra train`"
        )
    if settings.environments:
        return _Subject(refusal=f"{run.folder} has several environments; give --reward")
    load_plugins(settings.plugins)
    refusal = f"the rewards of {settings.env} depend on the state of the environment; give --reward"
    if detect_kind(settings.env, settings.options) == "turn":
        single = make_single_turn_env(settings.env, settings.options)
        if isinstance(single, TaskEnv):
            known = single.problem_set
            return _Subject({"": known.task}, problems={problem.messages: problem for problem in known.problems})
        single.close()
        return _Subject(refusal=refusal)
    own = {"tokenizer": load_tokenizer(settings.model), "max_tokens": settings.max_tokens, "context": 0, "end_ids": ()}
    env = make_token_env(settings.env, 1, settings.options, **own, group_size=1, failures="mark")
    if not isinstance(env, TokenVectorEnv):
        return _Subject(refusal=refusal)
    prompts = {prompt.ids: prompt for prompt in env.list_prompts()}
    return _Subject({} if env.task is None else {"": env.task}, env, prompts)


def _make_judge(
    subject: _Subject, reward: RewardLike | Sequence[RewardLike] | None, weights: Sequence[float], scorer: str
) -> tuple[_Judge, str]:
    """What scores the episodes, and its name."""
    if reward is not None:
        functions = RewardFunctions([reward] if isinstance(reward, str) or callable(reward) else list(reward), weights)

        def judge_rewards(episodes: Sequence[_StoredEpisode]) -> list[float | str]:
            def compute(responses: Sequence[Response]) -> list[float | RewardError]:
                return [scored.reward for scored in functions.compute(responses)]

            values = compute_rewards(compute, [stored.to_response() for stored in episodes], batch=True)
            return [describe_error(value) if isinstance(value, BaseException) else value for value in values]

        return judge_rewards, "reward " + " + ".join(functions.names)
    if scorer:
        task = cast(Task, _ScorerTask(make_scorer(scorer)))
        missing = "it has no problem that a scorer could read"
        return lambda episodes: _score(episodes, lambda stored: task, missing), scorer

    def judge_again(episodes: Sequence[_StoredEpisode]) -> Sequence[float | str]:
        if subject.env is not None and episodes[0].source == TRAINING:
            if subject.env.has_token_rewards:
                return ["its tokens were rewarded one by one; give --reward"] * len(episodes)
            responses = [replace(stored.to_response(), episode=k) for k, stored in enumerate(episodes)]
            return [scored.failure or float(scored.reward or 0.0) for scored in subject.env.score_responses(responses)]
        return _score(episodes, subject.find_task, subject.refusal or "its problem is not in the environment any more")

    return judge_again, "the run's own"


class _ScorerTask(TaskHooks):
    """A scorer as a task, to score many answers."""

    def __init__(self, scorer: TaskScorer) -> None:
        scorer.check()
        self.scorer, self.concurrent_scoring = scorer, scorer.concurrent

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        if self.scorer.needs_answer and not problem.reference:
            return Failure(FailureCause.SCORER, "the problem has no reference answer, which this scorer needs")
        return self.scorer(completion.text, problem)


def _score(
    episodes: Sequence[_StoredEpisode], find_task: Callable[[_StoredEpisode], Task | None], missing: str
) -> list[float | str]:
    """Score episodes by a task. Without a problem or a task the value is `missing`."""
    values: list[float | str] = [missing] * len(episodes)
    for task in {id(task): task for task in map(find_task, episodes) if task is not None}.values():
        places = [k for k, stored in enumerate(episodes) if stored.problem is not None and find_task(stored) is task]
        answers = [(stored.problem, stored.completion) for stored in (episodes[k] for k in places)]
        for k, outcome in zip(places, score_all(task, cast(list[tuple[Problem, Completion]], answers)), strict=True):
            values[k] = outcome.value if isinstance(outcome, Score) else f"{outcome.cause}: {outcome.message}"
    return values


def _read_episodes(run: Run, subject: _Subject) -> Iterator[list[_StoredEpisode]]:
    """Yield the stored episodes: those of each iteration, then the answers of each evaluation or the research episodes."""
    for iteration in run.store.trajectory_iterations():
        trajectories = enumerate(run.store.trajectories(iteration))
        yield [_read_trajectory(f"{iteration}/{position}", stored, subject) for position, stored in trajectories]
    for phase in run.store.phases():
        yield [_read_attempt(phase, attempt) for attempt in run.store.attempts(phase)]
    if run.recipe == "research":
        from palaestra.recipes.research.episode_player import list_messages
        from palaestra.research.workspace.workspace import Step

        for number in run.store.episodes():
            steps = run.store.steps(Step, number)
            failed, name = any(step.failure for step in steps), f"{RESEARCH}/{number}"
            before = None if failed else float(sum(step.reward for step in steps))
            opening = len(steps[0].observation)
            yield [_read_turns(RESEARCH, name, name, before, tuple(list_messages(steps)), opening, subject)]


def _read_attempt(phase: str, attempt: Attempt) -> _StoredEpisode:
    problem, answer, outcome = attempt.problem, attempt.completion, attempt.outcome
    return _StoredEpisode(
        phase,
        f"{phase}/{problem.id}/{attempt.sample}",
        get_cluster(problem),
        outcome.value if isinstance(outcome, Score) else None,
        answer,
        Prompt(() if answer is None else answer.prompt_ids, problem.messages[-1].text, problem),
        reason=f"the model gave no answer: {outcome.message}" if isinstance(outcome, Failure) else "",
    )


def _read_trajectory(place: str, trajectory: Trajectory, subject: _Subject) -> _StoredEpisode:
    info = trajectory.infos[0] if trajectory.infos else {}
    name, before = f"{TRAINING}/{place}", None if info.get("failure") else trajectory.total_reward
    group = f"{place.partition('/')[0]}/{info.get('group', place)}"
    if "turns" in info:
        messages = tuple(from_data(Message, message) for message in info.get("messages", ()))
        return _read_turns(TRAINING, name, group, before, messages, int(info.get("opening", 0)), subject)
    ids, chosen = (segment.token_ids for segment in trajectory.segments)
    prompt = subject.prompts.get(ids)
    answer = Completion(str(info["response"]), chosen, stop_reason=StopReason(info["stop_reason"]))
    if prompt is None and subject.env is not None:
        reason = "its prompt is not in the environment any more"
        return _StoredEpisode(TRAINING, name, group, before, reason=reason)
    return _StoredEpisode(TRAINING, name, group, before, answer, prompt or Prompt(ids, str(info["prompt"])))


def _read_turns(
    source: str,
    name: str,
    group: str,
    before: float | None,
    messages: tuple[Message, ...],
    opening: int,
    subject: _Subject,
) -> _StoredEpisode:
    """An episode of several turns. Its answer is the model's last message."""
    answers = [message.text for message in messages[opening:] if message.role == "assistant"]
    if not answers:
        reason = "the model wrote nothing" if messages else "it was stored by an earlier version, without its messages"
        return _StoredEpisode(source, name, group, before, reason=reason)
    first = messages[:opening]
    problem = subject.problems.get(first) or Problem("", first, "")
    prompt = Prompt((), first[-1].text, problem)
    return _StoredEpisode(source, name, group, before, Completion(answers[-1]), prompt, messages[opening:])


def _to_rescored(stored: _StoredEpisode, value: float | str) -> RescoredEpisode:
    after, reason = (value, "") if isinstance(value, float) else (None, value)
    prompt = format_transcript(stored.problem.messages) if stored.problem is not None else stored.prompt.text
    answer = stored.messages or (() if stored.completion is None else (Message("assistant", stored.completion.text),))
    place = (stored.source, stored.name, stored.group, stored.before)
    return RescoredEpisode(*place, after, reason, prompt, format_transcript(answer))


def _compare(episodes: Sequence[RescoredEpisode], source: str) -> Rescoring:
    """Compare the old and the new values of some episodes."""
    both = [known for known in episodes if known.change is not None]
    before, after, changes = ([getattr(k, name) for k in both] for name in ("before", "after", "change"))
    groups = [known.group for known in both]
    is_rate = all(0.0 <= value <= 1.0 for value in (*before, *after))
    limit = 1.0 if is_rate else math.inf
    try:
        correlation = round(statistics.correlation(before, after), 4)
    except statistics.StatisticsError:
        correlation = None

    def average(values: list[float]) -> Mean:
        return rate_interval(values, groups) if is_rate else mean_interval(values, clusters=groups)

    return Rescoring(
        source,
        average(before),
        average(after),
        mean_interval(changes, -limit, limit, groups),
        len(both),
        sum(change > 0 for change in changes),
        sum(change < 0 for change in changes),
        correlation,
        dict(Counter(known.reason for known in episodes if known.after is None).most_common(_MAX_REASONS)),
        sum(known.before is None and known.after is not None for known in episodes),
    )
