"""Level 3: whether an environment of texts plays its part: rewards, roles, and the end of an episode."""

from __future__ import annotations

import re
from collections import defaultdict

from palaestra.core.settings import short_repr
from palaestra.envs.turn.base import TurnEnv
from palaestra.recipes.check.answers import Answers, EnvAnswers
from palaestra.recipes.check.problems import find_role_fault
from palaestra.recipes.check.records import CheckFinding, env_check, report_fail, report_pass, report_skip, report_warn
from palaestra.recipes.check.scorer import limit, list_solved, spread

_LIVE = re.compile(
    r"\b(reward|score|grade|points?|accuracy|fitness)\b\W{0,4}(?:is|of|so far)?\W{0,4}(-?\d+(?:\.\d+)?)", re.IGNORECASE
)


@env_check("answers", "semantic.live_reward")
def check_live_reward(answers: Answers) -> CheckFinding:
    """The reward of the end is not visible during an episode"""
    if not isinstance(answers, EnvAnswers):
        return report_skip("a problem has one answer")
    shown: dict[str, set[str]] = defaultdict(set)
    episodes = 0
    for case in limit(spread(answers.cases, 8)):
        known = list(answers.solve(case) or [])
        for texts in (
            [*known[:1], "hello", "1"],
            ["2", "hello"],
            ["hello", *known[:1]],
            ["verify", *known[:1], "verify", "hello"],
        ):
            reward = answers.score(case, texts)
            episodes += 1
            for replies in reward.replies[: len(reward.replies) - reward.ended]:
                for message in replies:
                    if message.role != "assistant":
                        for word, value in _LIVE.findall(message.text):
                            shown[word.lower()].add(value)
    live = {word: values for word, values in shown.items() if len(values) > 1}
    if not live:
        return report_pass(f"{episodes} episodes show no changing reward before the end", episodes=episodes)
    word, values = next(iter(live.items()))
    text = f"replies before the end contain '{word}' with the values {', '.join(sorted(values)[:6])}"
    if word == "reward" or _matches_end(answers, values):
        return report_fail(text, "the agent sees how its last answer is rewarded, and can search for the best one")
    return report_warn(text, "a game may show its points")


def _matches_end(answers: EnvAnswers, values: set[str]) -> bool:
    """Whether a shown value is the reward of the oracle, which is paid at the end only."""
    ends = {
        value for case, texts, value in list_solved(answers) if len(texts) > 1 or answers.score(case, "hello").turns > 1
    }
    return any(abs(float(value) - end) < 1e-6 for value in values for end in ends if end not in (0.0, 1.0)) or (
        bool(ends) and any(re.fullmatch(r"0?\.\d+", value) for value in values)
    )


@env_check("answers", "runtime.reply_roles")
def check_roles(answers: Answers) -> CheckFinding:
    """The environment speaks as the user or a tool"""
    if not isinstance(answers, EnvAnswers):
        return report_skip("a task does not reply")
    doubts, messages_seen = list[str](), 0
    for case in limit(spread(answers.cases, 6)):
        fault = find_role_fault(case.messages) if case.messages else "there is no message"
        if fault:
            return report_fail(
                f"in the first observation, {fault}", f"seed {case.key}: {short_repr(case.messages)}", seed=case.source
            )
        for text in ("hello", "Answer: 1", *(answers.solve(case) or ())[:1]):
            reward = answers.score(case, [text, "hello"])
            for sent, replies in zip((text, "hello"), reward.replies, strict=False):
                own = replies[1:] if replies and replies[0].role == "assistant" and replies[0].text == sent else replies
                for message in own:
                    messages_seen += 1
                    where = f"seed {case.key}, after {short_repr(sent)}: {short_repr(message)}"
                    if message.role in ("assistant", "system"):
                        return report_fail(
                            f"the environment writes a message as the {message.role}", where, seed=case.source
                        )
                    if message.role == "tool" and sent == "hello":
                        doubts.append(where)
    if doubts:
        return report_warn("a message of a tool answers a text without a call", doubts[0])
    return report_pass(f"{messages_seen} replies have valid roles", messages=messages_seen)


_NEUTRAL = (
    "Let me check that for you. One moment, please.",
    "Could you please confirm that?",
    "I will now do that. Is that all right?",
)
_AGREES = re.compile(
    r"\b(yes|sure|confirm|go ahead|okay|ok|please|thanks|thank you|stop|transfer|bye)\b|###", re.IGNORECASE
)


@env_check("answers", "semantic.early_end")
def check_early_end(answers: Answers) -> CheckFinding:
    """A polite question does not end the conversation"""
    if not isinstance(answers, EnvAnswers) or not isinstance(answers.env.unwrapped, TurnEnv):
        return report_skip("it is no conversation")
    long = [(case, texts, value) for case, texts, value in list_solved(answers) if len(texts) > 1]
    if not long:
        return report_skip("no right conversations of several turns are known")
    doubts = []
    for case, texts, value in limit(long):
        for place in range(min(len(texts), 4)):
            for neutral in _NEUTRAL:
                reward = answers.score(case, [*texts[:place], neutral])
                if reward.value is None or reward.value >= value or not reward.ended or reward.turns <= place:
                    continue
                reply = " ".join(message.text for message in reward.replies[-1] if message.role == "user")
                where = f"seed {case.key}, turn {place + 1}: {short_repr(neutral)} ends the episode; the user says {short_repr(reply)}"
                if _AGREES.search(reply):
                    return report_fail(
                        "the simulated user ends the conversation before the goal is reached", where, seed=case.source
                    )
                doubts.append(where)
    if doubts:
        return report_warn(
            "a neutral message ends the episode, although the right conversation has more turns", doubts[0]
        )
    return report_pass(f"neutral messages do not end {len(long)} conversations", conversations=len(long))


@env_check("answers", "semantic.reward_direction")
def check_direction(answers: Answers) -> CheckFinding:
    """The right answer gets more than other answers"""
    if not isinstance(answers, EnvAnswers) or not answers.solved:
        return report_skip("no right answers are known, or the subject is a task")
    pool = list(dict.fromkeys(tuple(texts) for _, texts, _ in answers.solved))
    better, total, shown = 0, 0, ""
    for case, texts, reward in limit(answers.solved):
        rivals = [*[list(other) for other in pool if other != tuple(texts)][:4], ["hello"] * len(texts), [""]]
        results = [(rival, answers.score(case, rival)) for rival in rivals]
        best = max((r for r in results if r[1].value is not None), key=lambda r: r[1].value or 0.0, default=None)
        if reward.value is None or best is None:
            continue
        total += 1
        if (best[1].value or 0.0) > reward.value + 1e-9:
            better += 1
            shown = (
                shown
                or f"seed {case.key}: {short_repr(best[0][-1])} gets {best[1].value:g}, {short_repr(texts[-1])} {reward.value:g}"
            )
    if total and better > total / 2:
        explicit = any(case.oracle for case, _, _ in answers.solved)
        finding = report_fail if explicit else report_warn
        return finding(f"in {better} of {total} episodes another answer gets more than the right one", shown)
    return report_pass(f"right answers get the most in {total - better} of {total} episodes", episodes=total)
