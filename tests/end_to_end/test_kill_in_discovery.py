import json
from collections import Counter
from pathlib import Path

import processes
import pytest
from chat_server import Call, Reply, Server
from skilled_model import SHY, question_of, skilled, stage_of

SETTINGS = {
    "skills": ["addition", "geometry"], "rounds": 1, "lesson_size": 6, "validation": 4, "test": 3, "epochs": 1,
    "threads": 1, "teacher": "skill_list", "answer_tokens": 24, "categories": 2, "in_flight": 1,
}  # fmt: skip


def instant(call: Call) -> str:
    """Which part of the discovery a call belongs to."""
    stage = stage_of(call)
    return "test" if stage == "assign" and question_of(call) != SHY else stage


@pytest.mark.backends
def test_discovery_killed_in_every_stage_ends_as_if_left_alone(tmp_path: Path) -> None:
    """One call is under way at a time, so what was answered before a kill is in the cache: it is never asked again."""
    seen: Counter[str] = Counter()
    lost: list[str] = []

    def script(call: Call, times: int) -> Reply:
        if call.body["model"] == "warm-up":
            return Reply()
        if call.body["model"] == "disturbed":
            part = instant(call)
            seen[part] += 1
            # In the middle of each part, where it has one.
            if seen[part] == {"name": 4, "cluster": 1, "assign": 1, "test": 3}.get(part):
                lost.append(json.dumps(call.body))
                (tmp_path / "now").touch()
                return Reply(delay=5.0)
        return skilled(call, times)

    with Server(script) as server:
        driver = Path(__file__).with_name("killing_discovery.py")
        result = processes.run_script(driver, tmp_path, server.url, json.dumps(SETTINGS))
        assert result.returncode == 0, result.stderr[-3000:]
        asked = {
            name: Counter(json.dumps(call.body | {"model": ""}) for call in server.calls if call.body["model"] == name)
            for name in ("alone", "disturbed")
        }
    outcome = json.loads(result.stdout.strip().splitlines()[-1])
    assert outcome["kills"] == len(lost) == 4
    alone, disturbed = outcome["summaries"]
    different = {"seconds", "calls"}
    for summary in (alone, disturbed):
        assert summary["discovery"].pop("models")
    assert {k: v for k, v in disturbed.items() if k not in different} == {
        k: v for k, v in alone.items() if k not in different
    }
    assert set(asked["alone"].values()) == {1}
    again = Counter(json.dumps(json.loads(body) | {"model": ""}) for body in lost)
    assert asked["disturbed"] == asked["alone"] + again
    assert disturbed["calls"] == alone["calls"] + 4  # What was under way at a kill is paid for, and counted.
