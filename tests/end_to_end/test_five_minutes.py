"""The first five minutes with own data, as docs/data.md shows them: look, evaluate, teach, train, compare, a picture."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEPS = re.findall(
    r"^palaestra (.+)$", (ROOT / "docs" / "data.md").read_text().partition("## Five minutes")[2], re.MULTILINE
)


def test_own_data_is_evaluated_taught_and_trained_on(tmp_path: Path) -> None:
    rows = [{"question": f"Is {n} odd or even?", "answer": "even" if n % 2 == 0 else "odd"} for n in range(100, 300)]
    (tmp_path / "numbers.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code = re.search(
        r"```python\n(def .*?)```", (ROOT / "docs" / "data.md").read_text().partition("## Five minutes")[2], re.DOTALL
    )
    assert code is not None
    (tmp_path / "my_reward.py").write_text(code[1])
    assert len(code[1].strip().splitlines()) <= 3
    start = time.perf_counter()
    for step in STEPS:
        arguments = step.partition("#")[0].split()
        result = subprocess.run(
            [sys.executable, "-m", "palaestra", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, (step, result.stderr)
    assert time.perf_counter() - start < 300
    summaries = {name: json.loads((tmp_path / name / "summary.json").read_text()) for name in ("taught", "trained")}
    assert summaries["taught"]["gain_low"] > 0
    assert summaries["trained"]["gain"] is not None
    assert (tmp_path / "comparison.html").is_file()
    assert list((tmp_path / "trained" / "figures").glob("*.png"))


def test_the_page_has_all_steps() -> None:
    assert [step.split()[0] for step in STEPS] == [
        "data",
        "evaluate",
        "teach",
        "train",
        "evaluate",
        "compare",
        "report",
    ]
