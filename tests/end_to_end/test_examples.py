import re
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "teach_nano.py": r"gain -?[\d.]+ points",
    "lesson_by_hand.py": r"after: \d+% of 24 test problems",
    "own_task.py": r"^(\d|1\d)\.\d -> [5-9]\d\.\d % of 40 test problems",
    "own_teacher.py": r"examples by skill",
    "reward_model.py": r"after: [\d.]+ % of \d+ held-out pairs",
    "cartpole.py": r"of the first 20 episodes \d+, of all 120 \d+",
    "chain_of_thought.py": r"gain -?[\d.]+ points",
    "rlhf_ppo.py": r"KL to the reference -?[\d.]+ nats",
    "own_environment.py": r"32 summaries -?[\d.]+ -> -?[\d.]+",
    "torchrl_research.py": r"score [\d.]+, baseline [\d.]+, submitted",
}
ARGUMENTS = {
    "teach_nano.py": ["--rounds", "1", "--lesson-size", "8", "--test", "1"],
    "chain_of_thought.py": ["--iterations", "1"],
}


def test_every_example_is_run_here() -> None:
    assert set(EXPECTED) == {path.name for path in (ROOT / "examples").glob("*.py")}


@pytest.mark.parametrize("name", list(EXPECTED))
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    result = processes.run_script(ROOT / "examples" / name, *ARGUMENTS.get(name, []), cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    assert re.search(EXPECTED[name], result.stdout), result.stdout


@pytest.mark.parametrize(
    ("page", "example"), [("write_a_task.md", "own_task.py"), ("write_a_teacher.md", "own_teacher.py")]
)
def test_the_code_in_the_docs_is_the_code_of_the_example(page: str, example: str) -> None:
    shown = re.search(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.S)
    assert shown is not None
    code = (ROOT / "examples" / example).read_text()
    wanted = [line.strip() for line in shown.group(1).splitlines() if line.strip() and not line.strip().startswith("#")]
    assert all(re.sub(r"\s+", "", line) in re.sub(r"\s+", "", code) for line in wanted)
