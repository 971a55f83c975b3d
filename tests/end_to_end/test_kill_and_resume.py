import json
from pathlib import Path

import processes

from palaestra.runs.run import Run


def test_run_killed_twenty_times_ends_as_if_left_alone(tmp_path: Path) -> None:
    result = processes.run_script(Path(__file__).with_name("killing.py"), tmp_path, "20", "7")
    assert result.returncode == 0, result.stderr[-3000:]
    outcome = json.loads(result.stdout.strip().splitlines()[-1])
    assert outcome["kills"] == 20
    alone, *disturbed = [{k: v for k, v in s.items() if k != "seconds"} for s in outcome["summaries"]]
    assert alone["examples"] == 16
    assert [row["round"] for row in alone["test_rounds"]] == [0, 1, 2]
    for summary in disturbed:
        assert summary == alone
    with Run.open(tmp_path / "alone") as first:
        for folder in sorted(tmp_path.glob("disturbed-*")):
            with Run.open(folder) as run:
                for phase in first.store.phases():
                    assert run.store.attempts(phase) == first.store.attempts(phase)
                assert run.store.curves() == first.store.curves()
            for file in ("lessons.jsonl", *(f"checkpoints/round-{round_}/model.safetensors" for round_ in (1, 2))):
                assert (folder / file).read_bytes() == (tmp_path / "alone" / file).read_bytes()
            assert not list(folder.rglob("*.partial"))


def test_a_killed_training_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    result = processes.run_script(Path(__file__).with_name("killing_train.py"), tmp_path, "4")
    assert result.returncode == 0, result.stderr[-3000:]
    for name, outcome in json.loads(result.stdout.strip().splitlines()[-1]).items():
        assert outcome["kills"] >= 1, name
        alone, disturbed = ({k: v for k, v in outcome[n].items() if k != "seconds"} for n in ("alone", "disturbed"))
        assert disturbed == alone
        with Run.open(tmp_path / name / "alone") as first, Run.open(tmp_path / name / "disturbed") as second:
            tables = [run.store.metrics() for run in (first, second)]
            assert tables[0].keys() == tables[1].keys()
            for iteration in tables[0]:
                timeless = [
                    {k: v for k, v in t[iteration].items() if "second" not in k and not k.startswith("system/")}
                    for t in tables
                ]
                assert timeless[0] == timeless[1]
