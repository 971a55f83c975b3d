"""Our supervised loop against TRL's SFTTrainer: the same model, examples, batch size and epochs.

Needs the peers: `pip install 'palaestra[bench]'`, or `make bench`. Both train all weights of `nano`
in float32 with AdamW; the loss is on the response only. Loading is not counted; tokenising is, on our side only.
"""

from __future__ import annotations

import tempfile
from typing import Any

from _common import arguments, finish, median, seconds

from palaestra.core.records import Example
from palaestra.core.seeding import Seeds
from palaestra.models import registry as models
from palaestra.students.supervised import Supervision, fine_tune
from palaestra.tasks.math.task import MathSkills

EPOCHS, BATCH, RATE = 3, 8, 6e-4


def main() -> None:
    options = arguments(__doc__ or "")
    task = MathSkills()
    count = 8 if options.quick else 16
    examples = [e for s in task.skills() for e in task.write_examples(s, "", count, Seeds(0).derive(s).generator())]
    pairs = [
        {
            "prompt": [{"role": "user", "content": e.messages[0].text}],
            "completion": [{"role": "assistant", "content": e.response}],
        }
        for e in examples
    ]
    repetitions = 2 if options.quick else 5
    ours, theirs = [], []
    for repetition in range(repetitions):
        ours.append(train_ours(examples, repetition))
        theirs.append(train_theirs(pairs, repetition))
        print(f"repetition {repetition}: ours {ours[-1]:.2f} s, TRL {theirs[-1]:.2f} s", flush=True)
    finish(
        "supervised_vs_trl",
        median(theirs) / median(ours),
        examples=len(examples),
        epochs=EPOCHS,
        batch_size=BATCH,
        ours_seconds=median(ours),
        trl_seconds=median(theirs),
        repetitions=repetitions,
    )


def train_ours(examples: list[Example], seed: int) -> float:
    model = models.load("nano", device="cpu")
    supervision = Supervision("full", EPOCHS, BATCH, RATE)
    return seconds(lambda: fine_tune(model.weights, model.tokenizer, examples, supervision, Seeds(seed)))


def train_theirs(pairs: list[dict[str, Any]], seed: int) -> float:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model = models.load("nano", device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(
            folder,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH,
            learning_rate=RATE,
            seed=seed,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
            gradient_checkpointing=False,
            completion_only_loss=True,
            max_length=256,
            dataloader_pin_memory=False,
        )
        data = Dataset.from_list(pairs)
        trainer = SFTTrainer(model.weights, config, train_dataset=data, processing_class=model.tokenizer)
        return seconds(trainer.train)


if __name__ == "__main__":
    main()
