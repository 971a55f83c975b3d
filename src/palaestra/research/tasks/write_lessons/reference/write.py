"""Write the maximum number of distinct worked examples of the evaluated skills.

Every skill has several subskills, which are learned separately. Each gets its share; those with longer reasoning, which are
hardest for nano, get a little more.
"""

import json

import numpy as np

from palaestra.tasks.base import make_task

MOST = 160
SHARES = {
    "missing_number": 20, "sequences": 26, "groups": 14, "change": 20, "fractions": 20, "geometry": 24, "percent": 18,
    "clock": 18,
}  # fmt: skip


def main() -> None:
    assert sum(SHARES.values()) == MOST
    task = make_task("math-skills")
    rng = np.random.default_rng(0)
    with open("lessons.jsonl", "w", encoding="utf-8") as out:
        for skill, share in SHARES.items():
            found: dict[str, str] = {}
            while len(found) < share:
                for example in task.write_examples(skill, "", share, rng):
                    if len(found) < share:
                        found[example.messages[-1].text] = example.response
            for question, response in found.items():
                out.write(json.dumps({"question": question, "response": response}) + "\n")


if __name__ == "__main__":
    main()
