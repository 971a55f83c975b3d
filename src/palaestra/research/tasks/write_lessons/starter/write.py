"""The baseline: two examples of every skill of the task, as the task writes them."""

import json

import numpy as np

from palaestra.tasks.base import make_task


def main() -> None:
    task = make_task("math-skills")
    rng = np.random.default_rng(0)
    with open("lessons.jsonl", "w", encoding="utf-8") as out:
        for skill in task.skills():
            for example in task.write_examples(skill, "", 2, rng):
                lesson = {"question": example.messages[-1].text, "response": example.response}
                out.write(json.dumps(lesson) + "\n")


if __name__ == "__main__":
    main()
