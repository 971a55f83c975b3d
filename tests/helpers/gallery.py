"""Write `docs/gallery.md`: every registered environment and generated task, with its spaces, an excerpt and the result of its check.

Run it with `python -m tests.helpers.gallery` after a change of environments or of `docs/checked.md`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium

import palaestra
from palaestra.core.records import Message, Split
from palaestra.envs import DESCRIPTIONS, PREFIXES
from palaestra.envs.turn import TurnEnv
from palaestra.research.tasks.task import load_task, task_names

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "gallery.md"
TASKS = ("math-skills", "code-skills", "tools-skills", "vision-skills")
"""Tasks whose problems are generated."""
REWARDS = {
    "Lesson": "the change of the student's validation accuracy since the last round",
    "RLHF": "the score of a reward model or a function, minus `kl_coef` per nat of divergence from the reference",
    "CoT": "the task's score of the answer, from 0 to 1, and `format_reward`",
    "Prompts": "your own functions, with the signature of TRL's",
    "Task": "the task's score of the last answer",
    "Guess": "1 for the number, 0 otherwise",
    "Calculator": "1 for the right product, 0 otherwise",
    "Text": "the rewards of the Gymnasium environment",
    "TextArena": "the reward of the game",
    "GEM": "the rewards of the environment",
    "OpenEnv": "the rewards of the server",
    "Verifiers": "the reward of the rubric, with the last turn",
    "Research": "the improvement over the baseline in units of the metric's scale, with the submission",
    "Writer": "how much more likely the answers to the student's hard problems become by training on the written examples",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "CoT": {"skills": ["clock"]},
    "Lesson": {"skills": ["addition", "clock"], "validation": 4, "test": 1, "rehearsal": 0, "rounds": 1, "budget": 8},
    "Task": {"skills": ["clock"]},
    "Text": {"env_id": "FrozenLake-v1"},
    "TextArena": {"env_id": "GuessTheNumber-v0"},
    "Research": {"task": "prisoners_dilemma", "parser": "identity"},
}
"""Options of the environments that are played for an excerpt."""
MOVES = {
    "Task": "Answer: 7:45",
    "Guess": "Answer: 5",
    "Calculator": "calc: 86*67",
    "Text": "right",
    "TextArena": "[10]",
    "Research": "ls",
}
"""An action of each turn environment that is played."""


def read_verdicts() -> dict[str, str]:
    """The result of each check, by subject."""
    rows = re.findall(
        r"^\| `([^`]+)`[^|]*\| (pass|warn|fail) \| (\d+) \|", (DOCS / "checked.md").read_text(), re.MULTILINE
    )
    verdicts = {name: f"{verdict}, {count} checks passed" for name, verdict, count in rows}
    for prefix, env in PREFIXES.items():
        own = [verdict.partition(",")[0] for name, verdict in verdicts.items() if name.startswith(f"{prefix}:")]
        if own and env not in verdicts:
            verdicts[env] = f"{len(own)} environments checked: {own.count('pass')} pass, {own.count('warn')} warn"
    rows = re.findall(
        r"^\| `(\w+)` \| (\d+) \| (\d+) \| (\d+) \| \d+ \|", (DOCS / "checked.md").read_text(), re.MULTILINE
    )
    return verdicts | {name: f"{passed} checks passed, {failed} failed" for name, passed, _, failed in rows}


def describe_space(space: Any) -> str:
    text = repr(space)
    if record := re.match(r"RecordSpace\(<class '[\w.]+\.(\w+)'>", text):
        return {"Lesson": "a `Lesson`: a set of examples", "Conversation": "the `Conversation` so far"}.get(
            record[1], f"a `{record[1]}`"
        )
    if text == "AssistantSpace()":
        return "a message of the assistant: a text, or an OpenAI message"
    return f"`{text}`"


def show_messages(messages: tuple[Message, ...], limit: int = 600) -> str:
    texts = [f"{message.role}: {message.text.strip()}" for message in messages]
    return "\n".join(text if len(text) <= limit else f"{text[:limit].rstrip()} ..." for text in texts)


def describe_env(env_id: str) -> Iterator[str]:
    """The lines about an environment; one that needs another package or a server is not played."""
    name = env_id.removeprefix("palaestra/").removesuffix("-v0")
    scale, _, text = DESCRIPTIONS[env_id].partition(": ")
    yield f"\n### {env_id}\n"
    yield f"{text[:1].upper()}{text[1:]}. Scale: {scale.removesuffix(' scale')}.\n"
    excerpt = ""
    if name in OPTIONS or name == "Guess" or name == "Calculator" or name == "RLHF":
        env = gymnasium.make(env_id, **OPTIONS.get(name, {}))
        observation, _ = env.reset(seed=0)
        yield f"- **Action**: {describe_space(env.action_space)}"
        yield f"- **Observation**: {describe_space(env.observation_space)}"
        if isinstance(env.unwrapped, TurnEnv):
            first = len(observation.messages)
            observation = env.step(MOVES[name])[0]
            excerpt = show_messages((*observation.messages[first - 1 : first], *observation.messages[first:]))
        elif name == "Lesson":
            rows = [f"{part.name}: {part.correct} of {part.count} right" for part in observation.report.slices]
            excerpt = "\n".join(rows)
        else:
            tokens = observation["tokens"][: int(observation["length"])]
            excerpt = env.unwrapped.tokenizer.decode(tokens)  # type: ignore[attr-defined]
        env.close()
    else:
        yield f"- **Action**: {'a token' if scale.startswith(('token', 'lesson')) else 'a message of the assistant'}"
        yield f"- **Observation**: {'the tokens so far' if scale.startswith(('token', 'lesson')) else 'the conversation so far'}"
    yield f"- **Reward**: {REWARDS[name]}"
    if verdict := read_verdicts().get(env_id):
        yield f"- **[Check](checked.md)**: {verdict}"
    if excerpt:
        yield f"\n```text\n{excerpt}\n```"


def describe_task(name: str) -> Iterator[str]:
    task = palaestra.make_task(name)
    problem = task.problems(Split.TEST, 1, seed=0)[0]
    message = problem.messages[-1]
    yield f"\n### {name}\n"
    yield f"- **Skills**: {', '.join(task.skills())}"
    yield f"- **[Check](checked.md)**: {read_verdicts()[name]}"
    for part in message.content if not isinstance(message.content, str) else ():
        if url := getattr(part, "url", None) or getattr(part, "data", None):
            picture = DOCS / "images" / f"gallery_{name.replace('-', '_')}.png"
            picture.write_bytes(base64.b64decode(str(url).partition("base64,")[2]))
            yield f"\n![The picture of a problem of {name}](images/{picture.name})"
    yield f"\n```text\n{message.text.strip()[:700]}\n```\n"
    yield f"Expected: `{str(problem.reference)[:200]}`" if len(str(problem.reference)) <= 200 else ""


def write_page() -> str:
    verdicts = read_verdicts()
    lines = [
        "# Gallery of environments\n",
        "Every environment, generated task and research task of the package: what an action and an observation are, what is rewarded, an excerpt, and what",
        "`palaestra check` says about it ([known environments, checked](checked.md)). Written from the registry by `python -m tests.helpers.gallery`.\n",
        "`palaestra list environments` prints the names. Environments of other packages are played by a prefix, for example `text:FrozenLake-v1`",
        "([environments of other packages](environments.md)); any other Gymnasium id works as it is, for example `CartPole-v1`.\n",
        "## Environments",
    ]
    for env_id in DESCRIPTIONS:
        lines += describe_env(env_id)
    lines += [
        "\n## Generated tasks\n",
        "Their problems are drawn from a seed, so they need no download. `palaestra/CoT-v0` and `palaestra/Task-v0` play them, ",
    ]
    lines += [
        "`evaluate` and `teach` take them by name. Data sets and your own files are tasks, too ([tasks](tasks.md), [your own data](data.md))."
    ]
    for name in TASKS:
        lines += describe_task(name)
    lines += [
        "\n## Research tasks\n",
        "Tasks in a workspace, for `palaestra research --task NAME` and `palaestra/Research-v0` ([research](research.md)).\n",
    ]
    lines += ["| task | title | metric | check |", "|---|---|---|---|"]
    for name in task_names():
        task = load_task(name)
        lines.append(
            f"| `{name}` | {task.title} | {task.metric.name}, {task.metric.direction} is better | {verdicts.get(name, '')} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
