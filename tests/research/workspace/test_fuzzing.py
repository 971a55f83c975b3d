"""Fuzzed agents: every episode ends with a stop reason, and nothing raises."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palaestra.core.records import Message, ToolCall
from palaestra.envs.turn import Conversation, TurnStopReason
from palaestra.recipes.research.recipe import run_research
from palaestra.research.workspace.env import ResearchEnv
from palaestra.research.workspace.workspace import Step
from palaestra.runs.run import Run

EPISODES = 200 if os.environ.get("HYPOTHESIS_PROFILE") == "search" else 30
MESSAGES = 11
"""The most of an episode: one that opens it, and then what is useful and what is not in turn."""

names = st.sampled_from(
    ["strategy.py", "new.py", "missing/x.py", "../out.py", "/etc/passwd", "a b.py", "strategy.py\x00", "-rf", "*"]
)
anything = st.text(max_size=60)
commands = st.one_of(
    st.builds("open {} {}".format, names, st.integers(-5, 10**7)),
    st.builds("goto {}".format, st.integers(-3, 10**9)),
    st.sampled_from(["submit", "create own.py", "scroll_up", "scroll_down", "undo", "validate", "submit now", "memory_read", "exit", "vim x", "python3"]),
    st.builds("create {}\n{}\nend_of_file".format, names, anything),
    st.builds("create {}\n{}\nend_of_create".format, names, anything),
    st.builds("edit {}:{}\n{}\nend_of_edit".format, st.integers(-2, 9), st.integers(-2, 9), anything),
    st.builds("edit 1:{}\n# {}\nend_of_edit".format, st.integers(1, 3), st.sampled_from(["x" * 3_000_000, "ok", "\u00e9" * 99, "\x1b[2J"])),
    st.builds("edit 1:1\n{}\nend_of_edit".format, st.sampled_from(["x" * 200_000, "\n" * 5_000, "def f(:", "\ufeff\u2028"])),
    st.builds("insert {}\n{}\nend_of_insert".format, st.integers(-2, 9), anything),
    st.builds("search_dir {} {}".format, anything, names),
    st.builds("search_file {} {}".format, anything, names),
    st.builds("find_file {}".format, names),
    st.builds("memory_write {} {}".format, anything, anything),
    st.sampled_from(["head -c 20000 /dev/urandom", "yes | head -c 300000", "printf '\\x00\\xff\\x1b[2J'", "kill -9 $$", "rm -rf .",
                     "cat <<'E'\nunclosed", "echo \"unclosed", "sleep 0.01 &", ": > strategy.py", "cd / && ls", "(((", "}"]),
    anything,
)  # fmt: skip
USEFUL = [
    "edit 1:1\n# changed\nend_of_edit",
    "insert 0\nimport random\nend_of_insert",
    "create own.py\nx = 1\nend_of_file",
    "undo",
    "validate",
]
texts = st.one_of(
    commands.map(lambda command: f"A thought.\n```\n{command}\n```"),
    commands.map(lambda command: f"```bash\n{command}\n```\nand\n```\n{command}"),
    anything,
    st.just("```" * 300),
    st.just(""),
)
calls = st.builds(
    ToolCall,
    st.one_of(st.sampled_from(["bash", "open", "edit", "goto", "validate", "submit"]), anything),
    st.one_of(
        st.sampled_from(
            [
                "{}",
                '{"command": "ls"}',
                '{"path": "strategy.py", "line": "x"}',
                '{"line": "\\ud800"}',
                '{"first": 1, "last": 1, "text": "# new"}',
            ]
        ),
        anything,
    ),
    anything,
)
actions = st.one_of(texts, st.builds(Message, st.just("assistant"), anything, st.lists(calls, max_size=3).map(tuple)))


OPENED = ["```\nopen strategy.py\n```", Message("assistant", "", (ToolCall("open", '{"path": "strategy.py"}', "c"),))]
SUCCESSES = (
    "[file /workspace/",
    "was created.",
    "To revert: undo.",
    "Undone:",
    "Submitted",
    "validation split:",
)
seen: Counter[str] = Counter()


@pytest.fixture(scope="module")
def envs() -> Iterator[list[ResearchEnv]]:
    created = [
        ResearchEnv("prisoners_dilemma", max_turns=MESSAGES, format_errors=4, format_penalty=0.1),
        ResearchEnv("prisoners_dilemma", max_turns=MESSAGES, tools=True),
    ]
    yield created
    for env in created:
        env.close()


@pytest.mark.backends
@settings(
    max_examples=EPISODES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    which=st.integers(0, 1),
    opened=st.booleans(),
    useful=st.permutations(USEFUL),
    expected=st.lists(actions, min_size=6, max_size=6),
)
def test_every_episode_of_a_fuzzing_agent_ends_with_a_reason(
    envs: list[ResearchEnv], which: int, opened: bool, useful: list[str], expected: list[str | Message]
) -> None:
    env = envs[which]
    observation, _ = env.reset(seed=0)
    before: Conversation = observation
    first, *rest = expected
    pairs = zip((f"```\n{command}\n```" for command in useful), rest, strict=True)
    for action in (OPENED[which] if opened else first, *chain.from_iterable(pairs)):
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation.messages[: len(before.messages)] == before.messages
        assert observation in env.observation_space
        assert reward == reward
        observation.messages[-1].text.encode()
        for mark in SUCCESSES:
            seen[mark] += sum(mark in message.text for message in observation.messages[len(before.messages) + 1 :])
        before = observation
        if terminated or truncated:
            break
    else:
        raise AssertionError(f"{MESSAGES} messages are the most of this episode")
    assert isinstance(info["stop_reason"], TurnStopReason)
    assert info["stop_reason"] is not TurnStopReason.FAILED, info["failure"]
    assert info["score"] is None or 0 <= info["score"] <= 5


@pytest.mark.backends
def test_the_fuzzing_agent_also_does_what_works() -> None:
    """An agent that only ever misuses its commands would find little."""
    assert all(seen[mark] for mark in SUCCESSES), seen


def test_the_store_holds_every_step_of_fuzzed_episodes(tmp_path: Path) -> None:
    """The same kind of actions, played by the recipe: what was said and what came back is all there."""
    generator = np.random.default_rng(0)
    pieces = [
        "open strategy.py 1000000", "goto -4", "scroll_up", "undo", "validate", "edit 1:1\ndef f(:\nend_of_edit", "exit 4", "kill -9 $$",
        "head -c 9000 /dev/urandom", "rm -rf .", "cat <<'E'\nunclosed", ": > strategy.py", "\x00\x01", "create ../x\ny\nend_of_file", "\ufeff", "vim",
    ]  # fmt: skip
    for episode in range(6):
        output = [pieces[k] for k in generator.integers(len(pieces), size=6)]
        script = tmp_path / f"{episode}.jsonl"
        script.write_text("\n".join(json.dumps(text) for text in output), encoding="utf-8")
        out = tmp_path / f"run-{episode}"
        summary = run_research(task="prisoners_dilemma", agent=f"script:{script}", steps=6, out=out).summary
        assert summary["stop_reason"] in set(TurnStopReason) - {TurnStopReason.FAILED}
        with Run.open(out, read_only=True) as run:
            steps = run.store.steps(Step, 0)
        assert [step.message.text for step in steps[1:] if step.message is not None] == output[: summary["steps"]]
        assert all(step.observation for step in steps)
        assert steps[-1].stop_reason == summary["stop_reason"]
