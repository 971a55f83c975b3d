"""A scripted model for runs with skill discovery on `math-skills`: it names, clusters, assigns, and writes sums.

Its answer depends on the call only, so that a resumed run gets the same answers as an uninterrupted one.
"""

from __future__ import annotations

import json
import re
import zlib

from chat_server import Call, Reply

SHY = "What is 38 + 32?"
"""A validation problem of seed 0 that it never names: it is assigned by asking."""
HOME = {"sum": "numbers", "adding": "numbers", "perimeter": "shapes", "area": "shapes", "side": "shapes"}


def stage_of(call: Call) -> str:
    """What a call is about: name, cluster, sort, assign or write."""
    first = json.dumps(call.body["messages"])
    starts = {"Name the one": "name", "Sort them into": "cluster", "further skills": "sort", "Which of these": "assign"}
    return next((stage for start, stage in starts.items() if start in first), "write")


def question_of(call: Call) -> str:
    """The problem that a call is about."""
    return str(re.search(r"<problem>\n(.*?)\n</problem>", call.body["messages"][0]["content"], re.DOTALL)[1])  # type: ignore[index]


def skilled(call: Call, times: int) -> Reply:
    return {"name": name, "cluster": cluster, "assign": assign, "write": write}[stage_of(call)](call)


def name(call: Call) -> Reply:
    question = question_of(call)
    if question == SHY:
        return Reply("I would rather not.")
    return Reply(json.dumps({"skill": f"{_kind(question)} of {'a field' if 'field' in question else 'numbers'}"}))


def cluster(call: Call) -> Reply:
    asked = call.body["messages"][0]["content"]
    wanted = int((re.search(r"exactly (\d+) categories", asked) or ["", "2"])[1])
    names = re.findall(r"^- (\w+ of .*)$", asked.split("The skills:")[1], re.MULTILINE)
    groups: dict[str, list[str]] = {}
    for skill in names:
        # Three are the two with the last of them divided.
        home = HOME[skill.split()[0]]
        groups.setdefault("sides" if wanted == 3 and skill.startswith("side") else home, []).append(skill)
    categories = [{"name": home, "description": f"all {home}", "skills": several} for home, several in groups.items()]
    return Reply(json.dumps({"categories": categories}))


def assign(call: Call) -> Reply:
    offered = re.findall(r"^- (\w+): all", call.body["messages"][0]["content"], re.MULTILINE)
    kind = _kind(question_of(call))
    return Reply(json.dumps({"category": "sides" if kind == "side" and "sides" in offered else HOME[kind]}))


def write(call: Call) -> Reply:
    """As many sums as are wanted."""
    wanted = int((re.search(r"rite (\d+) new", call.asked) or ["", "1"])[1])
    start = 100 + zlib.crc32(call.asked.encode()) % 50 + int(call.body.get("seed", 0)) % 400
    data = []
    for k in range(wanted):
        left, right = start + k, k + 3
        worked = f"{left}+{right}={left + right}"
        data.append({"question": f"What is {left}+{right}?", "reasoning": worked, "answer": str(left + right)})
    return Reply(json.dumps({"hypothesis": "It does not carry.", "data": data}))


def _kind(question: str) -> str:
    if "long" in question or "wide" in question:
        return next((kind for kind in ("perimeter", "area") if f"its {kind}" in question), "side")
    return "sum" if "sum" in question else "adding"
