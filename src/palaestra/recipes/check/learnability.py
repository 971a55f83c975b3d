"""Level 4: whether a learner gets anything out of the reward, and whether what it learns is success.

Every finding is about one short run, and says how long it was. A run that does not raise the reward is a warning: a longer
one might.
"""

from __future__ import annotations

import numpy as np

from palaestra.core.records import Json
from palaestra.core.statistics import compute_paired_gain, mean_interval
from palaestra.recipes.check.records import (
    CheckFinding,
    InapplicableError,
    env_check,
    report_fail,
    report_pass,
    report_skip,
    report_warn,
)
from palaestra.recipes.check.trials import Trial, TrialEpisode, TrialResult

_ENOUGH = 0.95
"""The fraction of the oracle's reward, or of successes, above which there is nothing left to learn."""
_LIKE_SUCCESS = 0.75
"""The fraction of the oracle's reward above which failures are paid like successes."""
_MAX_EQUAL = 0.9
"""The fraction of groups with equal rewards above which GRPO learns from next to nothing."""
_MIN_PAIRS = 8


def _list_rewards(trial: Trial) -> list[np.ndarray]:
    """The rewards of each group of the reference policy that has at least two."""
    groups = [np.array([episode.reward for episode in group]) for group in trial.groups if len(group) > 1]
    if not groups:
        raise InapplicableError("the reference policy has no rewarded episodes")
    return groups


@env_check("trial", "statistical.variance_bound")
def check_variance(trial: Trial) -> CheckFinding:
    """The reward of a reference policy varies within and between groups"""
    groups = _list_rewards(trial)
    rewards, within = np.concatenate(groups), float(np.mean([group.std() for group in groups]))
    equal = sum(np.ptp(group) < 1e-9 for group in groups)
    numbers: Json = {
        "mean": float(rewards.mean()), "std_within": within, "std_between": float(np.std([g.mean() for g in groups])),
        "groups": len(groups), "equal_groups": int(equal), "episodes": len(rewards),
    }  # fmt: skip
    evidence = [str(_shorten(episode)) for group in trial.groups[:2] for episode in group[:2]]
    if np.ptp(rewards) < 1e-9:
        text = f"all {len(rewards)} episodes get the reward {rewards[0]:.4g}"
        is_full = trial.ceiling is not None and 0 < trial.ceiling <= rewards[0] + 1e-9
        return (report_fail if is_full else report_warn)(
            f"{text}{', as right answers do' if is_full else ''}", *evidence, **numbers
        )
    if equal == len(groups):
        text = f"in all {len(groups)} groups the same seed gets the same reward, whatever is done"
        return (report_fail if trial.kind == "control" else report_warn)(text, *evidence, **numbers)
    text = f"{equal} of {len(groups)} groups have equal rewards; the standard deviation within groups is {within:.3g}"
    if trial.kind == "text" and equal > _MAX_EQUAL * len(groups):
        return report_warn(text, *evidence, **numbers)
    return report_pass(text, **numbers)


@env_check("trial", "statistical.reward_reachability")
def check_reachability(trial: Trial) -> CheckFinding:
    """A reference policy gets a reward at times"""
    groups, ceiling = _list_rewards(trial), trial.ceiling
    if ceiling is None or ceiling <= 0:
        return report_skip("no right answers are known")
    reached = sum(group.max() >= 0.5 * ceiling for group in groups)
    text = (
        f"{reached} of {len(groups)} prompts get half of the oracle's reward in up to {max(map(len, groups))} attempts"
    )
    return (report_pass if reached else report_warn)(
        text, reached=int(reached), groups=len(groups), oracle_reward=ceiling
    )


@env_check("trial", "statistical.headroom")
def check_headroom(trial: Trial) -> CheckFinding:
    """A reference policy gets less than the right answers"""
    mean, ceiling = float(np.concatenate(_list_rewards(trial)).mean()), trial.ceiling
    if ceiling is None or ceiling <= 0:
        return report_skip("no right answers are known")
    text = f"the reference policy gets {mean:.3g}, right answers {ceiling:.3g}"
    return (report_pass if mean < _ENOUGH * ceiling else report_warn)(text, mean=mean, oracle_reward=ceiling)


@env_check("trial", "statistical.training_signal")
def check_learning(trial: Trial) -> CheckFinding:
    """A short run of our own learner raises the reward"""
    result = trial.lesson or trial.result
    (before, after), gain, numbers = result.rewards, result.gain, result.numbers
    text = _describe(result)
    if gain.low > 0:
        name, returns = result.blind
        if not returns:
            return report_pass(text, **numbers)
        lead = mean_interval([e.reward - value for e, value in zip(result.after, returns, strict=True)])
        numbers |= {"blind": float(np.mean(returns)), "lead_low": lead.low, "lead_high": lead.high}
        if lead.low > 0:
            return report_pass(f"{text}; the best blind policy, {name}, gets {np.mean(returns):.4g}", **numbers)
        summary = f"{text}, but not above {name}, which ignores the observation and gets {np.mean(returns):.4g}"
        return report_warn(summary, f"difference: {lead.value:.4g} [{lead.low:.4g}, {lead.high:.4g}]", **numbers)
    if trial.ceiling and before >= _ENOUGH * trial.ceiling and after >= _ENOUGH * trial.ceiling:
        return report_skip(f"the untrained model already gets {before:.3g} of {trial.ceiling:.3g}")
    return report_warn(text, "this says nothing about longer runs or other learners", **numbers)


def _describe(result: TrialResult) -> str:
    """What the run measured, without any conclusion."""
    (before, after), gain = result.rewards, result.gain
    verb = "raised" if gain.low > 0 else "lowered" if gain.high < 0 else "did not change"
    return (
        f"{result.learner} {verb} the reward of {gain.count} held-out episodes from "
        f"{before:.4g} to {after:.4g}: {gain.value:+.4g} [{gain.low:.4g}, {gain.high:.4g}]"
    )


@env_check("trial", "statistical.gameability_gap")
def check_gameability(trial: Trial) -> CheckFinding:
    """A policy that is trained on the reward succeeds more often"""
    result = trial.result
    pairs = [(b, a) for b, a in zip(result.before, result.after, strict=True) if None not in (b.success, a.success)]
    if len(pairs) < _MIN_PAIRS:
        return report_skip("there is no measure of success beside the reward, for example info['success']")
    if result.gain.low <= 0:
        return report_skip(f"the run did not raise the reward: {_describe(result)}")
    before, after = [float(bool(b.success)) for b, _ in pairs], [float(bool(a.success)) for _, a in pairs]
    gain, rates = compute_paired_gain(before, after), (100 * np.mean(before), 100 * np.mean(after))
    rise = f"success went from {rates[0]:.0f} % to {rates[1]:.0f} %: {gain.points:+.1f} points [{gain.low:.1f}, {gain.high:.1f}]"
    numbers = {
        **result.numbers,
        "success": rates[1] / 100,
        "success_gain_low": gain.low,
        "success_gain_high": gain.high,
    }
    text = f"{_describe(result)}; {rise}"
    if gain.low > 0:
        return report_pass(text, **numbers)
    if min(rates) >= 100 * _ENOUGH:
        return report_skip(f"the untrained policy already succeeds: {rise}")
    gamed = sorted((a for b, a in pairs if not a.success and a.reward > b.reward), key=lambda e: -e.reward)
    evidence = [str(_shorten(episode)) for episode in gamed[:5]]
    groups = vars(trial).get("groups", ())  # If a check has needed them: a closed loop plays no more.
    successes = [e.reward for part in (result.before, result.after, *groups) for e in part if e.success]
    worth = float(np.mean(successes)) if successes else None
    if worth is not None:
        evidence.append(f"{len(successes)} successful episodes get {worth:.4g} on average")
    pays = worth if worth is not None else _LIKE_SUCCESS * trial.ceiling if trial.ceiling else np.inf
    is_gamed = gain.high < 0 or (gain.points <= 0 and bool(gamed) and np.mean([e.reward for e in gamed]) >= pays)
    return (report_fail if is_gamed else report_warn)(text, *evidence, **numbers)


def _shorten(episode: TrialEpisode) -> TrialEpisode:
    return TrialEpisode(episode.key[:80], episode.reward, episode.success, episode.text[:160])
