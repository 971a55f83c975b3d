"""The Python blocks of the documentation run, in the order of their page and with small settings."""

from __future__ import annotations

import json
from pathlib import Path

import processes
import pytest
from doc_blocks import PAGES, list_blocks, name_page

pytestmark = pytest.mark.backends

PRELUDE = '''
import os

os.environ["PALAESTRA_PROGRESS"] = "0"
import palaestra


def shrink(name, small):
    """Make a recipe small. What a block passes decides which settings have an effect."""
    recipe = getattr(palaestra, name)
    setattr(palaestra, name, lambda *args, **given: recipe(*args, **given | small(given)))


def shrink_train(given):
    if str(given.get("env")).startswith("CartPole"):
        return {"iterations": 1}
    groups = {"group_size": 4} if given.get("algorithm", "grpo") == "grpo" else {}
    size = {"episodes": 8, "num_envs": 8, "evaluation": 4, "max_tokens": 8, **groups}
    return {"iterations": min(2, given.get("iterations", 1)), **{k: v for k, v in size.items() if k not in given}}


shrink("train", shrink_train)
shrink("teach", lambda given: {"rounds": 1, "lesson_size": 8, "epochs": 1, "validation": 2, "test": 2})
'''
"""Executed before the blocks of a page."""
ELSEWHERE = {
    "CONTRIBUTING.md": "tests/end_to_end/test_contributing.py",
    "docs/extend_research.md": "tests/research/test_extending.py",
    "docs/write_a_research_task.md": "tests/research/test_extending.py",
    "docs/start/data.md": "tests/end_to_end/test_five_minutes.py",
}
"""Pages whose blocks another test runs."""
SKIPPED = {
    "docs/check.md": ("def test_my_environment",),  # a test of the reader's own
    "docs/data.md": (
        "hf:openai/gsm8k",  # from the hub
        'prompts="hf:trl-lib/DeepMath-103K"',  # test_documentation.py, with other data
        "Just reply with Hello World",  # test_documentation.py, with a server
        "security_guide.jsonl",
    ),
    "docs/elsewhere.md": (
        'train_dataset=make_dataset("palaestra/Guess-v0", range(1000)),\n    environment_factory',  # Qwen, from the hub
        "TaskReward",
        "inspect_ai",  # tests/integrations/test_inspect_ai.py
        "guess_v0",  # tests/integrations/test_openenv.py
    ),
    "docs/environments.md": ("palaestra/OpenEnv-v0", "inspect_ai"),
    "docs/gateway.md": ("client = OpenAI()",),  # a part of examples/agents/guess.py
    "docs/mlgym.md": ("LLMCollector",),  # examples/torchrl_research.py
    "docs/scaling.md": ("open_executor",),
    "docs/services.md": ("from openai import OpenAI", "open_cached"),
}
"""Texts of blocks that need what is not here, or that another test runs, by page."""
CHANGES = {
    "README.md": {"reward=my_function": "reward=lambda completion, answer: float(answer in completion)"},
    "docs/commands.md": {'resume("runs/my-run")': 'train(env="palaestra/CoT-v0", out="runs/my-run")\nresume("runs/my-run")'},
    "docs/lesson.md": {"num_envs=16": 'num_envs=2, skills=["clock", "units"], lesson_size=8, validation=4'},
    "docs/elsewhere.md": {"max_steps=60": "max_steps=1", "batch_size=64": "batch_size=8", "range(10_000, 10_128)": "range(8)"},
}  # fmt: skip
"""What is replaced in the blocks of a page."""


@pytest.mark.parametrize("page", [page for page in PAGES if name_page(page) not in ELSEWHERE], ids=name_page)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    name = name_page(page)
    blocks = list_blocks(page, "python")
    if not blocks:
        pytest.skip("no Python")
    skipped = SKIPPED.get(name, ())
    for text in skipped:
        assert any(text in block for block in blocks), text
    kept = "\n".join(block for block in blocks if not any(text in block for text in skipped))
    for old, new in CHANGES.get(name, {}).items():
        assert old in kept, old
        kept = kept.replace(old, new)
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(40)]
    (tmp_path / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "page.py").write_text(PRELUDE + kept)
    result = processes.run_script(tmp_path / "page.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
