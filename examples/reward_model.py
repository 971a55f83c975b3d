"""A reward model from comparisons, in a quarter of a minute: it learns which number was asked for.

The comparisons are made here by a rule that the model is not told, and nothing is downloaded. No prompt of
the held-out pairs was trained on. In your own data a row is `prompt`, `chosen` and `rejected`, or `query`,
`sample0`, `sample1`, ... and `best`.
"""

import json
import random
import tempfile
from pathlib import Path

from palaestra.learn.reward_model import load_reward_model
from palaestra.recipes.train.reward_model import train_reward

draw = random.Random(0)
with tempfile.TemporaryDirectory() as folder:
    data, out = Path(folder) / "comparisons.jsonl", Path(folder) / "reward_model"
    with open(data, "w") as file:
        for _ in range(320):
            limit = draw.randint(20, 89)
            less, more = draw.randint(10, limit - 1), draw.randint(limit + 1, 99)
            word, chosen, rejected = draw.choice([("more", more, less), ("less", less, more)])
            row = {"prompt": f"Say {word} than {limit}.", "chosen": f"Answer: {chosen}", "rejected": f"Answer: {rejected}"}  # fmt: skip
            file.write(json.dumps(row) + "\n")

    model = train_reward(
        model_name="nano", datasets_path=data, reward_model_path=out, batch_size=16, epochs=2, patience=0
    )
    for when in ("before", "after"):
        report = model.metrics[f"report_{when}"]
        print(
            f"{when}: {100 * report['accuracy']:.1f} % of {report['count']} held-out pairs "
            f"[{100 * report['low']:.1f}, {100 * report['high']:.1f}], "
            f"calibration error {report['calibration_error']:.3f}"
        )

    loaded = load_reward_model(out)  # Or transformers' own AutoModelForSequenceClassification.
    high, low = loaded.score_responses(["Say more than 50."] * 2, ["Answer: 83", "Answer: 21"])
    print(f"more than 50: 83 gets {high:.2f}, 21 gets {low:.2f}")
