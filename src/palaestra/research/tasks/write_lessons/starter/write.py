"""The baseline: two of the worked examples of every skill."""

import json

PER_SKILL = 2


def main() -> None:
    taken: dict[str, int] = {}
    with open("examples.jsonl", encoding="utf-8") as file, open("lessons.jsonl", "w", encoding="utf-8") as out:
        for line in file:
            example = json.loads(line)
            taken[example["skill"]] = taken.get(example["skill"], 0) + 1
            if taken[example["skill"]] <= PER_SKILL:
                lesson = {"question": example["question"], "response": example["response"]}
                out.write(json.dumps(lesson) + "\n")


if __name__ == "__main__":
    main()
