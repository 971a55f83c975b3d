"""A reward model that prefers praise, from scratch on one core: accuracy on pairs of unseen sentences.

The data is Pang and Lee's sentence polarity, 5,331 sentences of each kind. Sentences are parted first
and paired after, so no held-out sentence was trained on. The backbone is a GPT-2 of one layer with a
vocabulary learned from the training sentences. The bar is 75 %; a naive Bayes of words on the same
sentences and the same pairs says how far words alone go.

Other benchmarks import `read_sentences`, `part`, `make_pairs` and `train_sentiment_reward`.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from _common import arguments, finish

from palaestra.core.seeding import Seeds
from palaestra.rewards.data import ResponseComparison, RewardReport, report_on_scores
from palaestra.rewards.model import RewardModel, RewardTraining, train_reward_model
from palaestra.rl.optimizers import fork_torch_rng

BAR = 0.75
HOW = (
    "this benchmark needs Pang and Lee's sentence polarity (CC BY 4.0), for example from nltk_data "
    "(packages/corpora/sentence_polarity.zip), as JSON lines with the fields label (1 praise, 0 blame) and text: "
    "--data sentence_polarity.jsonl.gz"
)
VOCABULARY, CONTEXT, WIDTH = 4096, 128, 64


class Sentences(NamedTuple):
    """Sentences that praise, and sentences that blame."""

    positive: list[str]
    negative: list[str]


def read_sentences(path: str | Path) -> Sentences:
    """The sentences of a file of JSON lines with `label` and `text`."""
    with gzip.open(path, "rt", encoding="utf-8") if str(path).endswith(".gz") else open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.strip()]
    return Sentences(*([row["text"] for row in rows if row["label"] == label] for label in (1, 0)))


def part(sentences: Sentences, shares: Sequence[float], seeds: Seeds) -> list[Sentences]:
    """Disjoint parts with these shares of each kind, in a random order."""
    parts: list[list[list[str]]] = [[] for _ in shares]
    for name, kind in zip(Sentences._fields, sentences, strict=True):
        shuffled = [kind[index] for index in seeds.derive(name).generator().permutation(len(kind))]
        ends = [round(sum(shares[: k + 1]) * len(kind)) for k in range(len(shares))]
        for taken, start, end in zip(parts, [0, *ends], ends, strict=False):
            taken.append(shuffled[start:end])
    return [Sentences(*taken) for taken in parts]


def make_pairs(sentences: Sentences, seeds: Seeds, repeats: int = 1) -> list[ResponseComparison]:
    """Pairs of praise (chosen) and blame (rejected); each sentence in `repeats` of them."""
    generator, pairs = seeds.generator(), []
    for _ in range(repeats):
        orders = [generator.permutation(len(kind)) for kind in sentences]
        # The longer of the two kinds leaves some out.
        for good, bad in zip(*orders, strict=False):
            pairs.append(ResponseComparison("", (sentences.positive[good], sentences.negative[bad]), 0))
    return pairs


def build_backbone(texts: Sequence[str], seeds: Seeds, width: int = WIDTH, layers: int = 1) -> RewardModel:
    """An untrained GPT-2 with a head of one label, and a byte-level BPE tokenizer of `texts`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2ForSequenceClassification, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|pad|>", "<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<|pad|>", eos_token="<|end|>", model_max_length=CONTEXT
    )
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=CONTEXT,
        n_embd=width,
        n_layer=layers,
        n_head=4,
        num_labels=1,
        embd_pdrop=0.3,
        resid_pdrop=0.2,
        attn_pdrop=0.0,  # Dropout inside attention would take torch's slow path on a CPU.
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with fork_torch_rng(seeds.derive("backbone")):
        return RewardModel(GPT2ForSequenceClassification(config), tokenizer)


def train_sentiment_reward(sentences: Sentences, seed: int = 0, epochs: int = 4, device: str = "cpu") -> RewardModel:
    """A reward model of praise. A twentieth of the sentences is kept for early stopping."""
    seeds = Seeds(seed).derive("sentiment")
    validation, train = part(sentences, (0.05, 0.95), seeds.derive("validation"))
    model = build_backbone([*train.positive, *train.negative], seeds)
    model.weights.to(device)
    training = RewardTraining(epochs, batch_size=32, learning_rate=1e-3, weight_decay=0.1, patience=1)
    pairs, checks = make_pairs(train, seeds.derive("pairs")), make_pairs(validation, seeds.derive("checks"), repeats=4)
    train_reward_model(model, pairs, checks, training, seeds)
    return model


def naive_bayes(sentences: Sentences, pairs: Sequence[ResponseComparison]) -> RewardReport:
    """How far the words alone go: the sum of their log-odds, with one added to every count."""
    counts = [Counter(word for text in kind for word in text.split()) for kind in sentences]
    words = set(counts[0]) | set(counts[1])
    totals = [sum(count.values()) + len(words) for count in counts]
    odds = {w: math.log((counts[0][w] + 1) / totals[0]) - math.log((counts[1][w] + 1) / totals[1]) for w in words}
    scores = [[sum(odds.get(word, 0.0) for word in text.split()) for text in pair.responses] for pair in pairs]
    return report_on_scores(scores, [pair.best for pair in pairs])


def main() -> None:
    options = arguments(__doc__ or "", data="the sentences: JSON lines (.gz) with label and text")
    if not options.data:
        print(HOW)
        if options.quick:
            print(json.dumps({"benchmark": "reward_sentiment", "skipped": "no --data"}))
        sys.exit(0 if options.quick else 2)
    sentences = read_sentences(options.data)
    rows = []
    for seed in (0,) if options.quick else (0, 1, 2):
        seeds = Seeds(seed)
        held_out, train = part(sentences, (0.2, 0.8), seeds.derive("held-out"))
        pairs = make_pairs(held_out, seeds.derive("held-out pairs"))
        start = time.perf_counter()
        model = train_sentiment_reward(train, seed, epochs=2 if options.quick else 4)
        seconds = time.perf_counter() - start
        report, words = model.evaluate(pairs), naive_bayes(train, pairs)
        rows.append(
            {
                "seed": seed,
                "accuracy": round(report.accuracy, 4),
                "low": round(report.low, 4),
                "high": round(report.high, 4),
                "pairs": report.count,
                "calibration_error": round(report.calibration_error, 4),
                "ranking_loss": round(report.ranking_loss, 4),
                "naive_bayes": round(words.accuracy, 4),
                "seconds": round(seconds, 1),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    worst = min(row["accuracy"] for row in rows)
    mean = sum(row["accuracy"] for row in rows) / len(rows)
    finish("reward_sentiment", mean / BAR, bar=BAR, mean_accuracy=round(mean, 4), worst_accuracy=worst, seeds=rows)


if __name__ == "__main__":
    main()
