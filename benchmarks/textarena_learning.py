"""Does GRPO learn a game of another package? `nano` on TextArena's `GuessTheNumber-v0`, three seeds.

A number from 1 to 3, two guesses, "higher" or "lower" after each. The game pays 1 for the number, else by the distance
of the last wrong guess. The environment sets no turn limit of its own below the game's: an episode that is cut before
the game pays gets nothing. A supervised warm-up on random guesses teaches `nano` what a guess looks like. The same
held-out games are played before and after GRPO with the same random numbers, and scripted players play 200 games: random
guesses, the fixed guesses 1 and 2, and binary search. `found` and `refused` describe the games of the first and the last
iteration: the fraction in which the number was found, and the moves per game that the game refused. Ratio: the smallest lower end of a gain's 95 % interval over 0.1 of reward (above 0 it excludes 0).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from _common import arguments, finish

GAME = "GuessTheNumber-v0"
OPTIONS: dict[str, Any] = {
    "env_kwargs": {"min_number": 1, "max_number": 3, "max_turns": 1},
    "prompt": "Guess a number from 1 to 3.",
}
SETTINGS: dict[str, Any] = {
    "iterations": 40, "episodes": 256, "num_envs": 128, "max_tokens": 6, "learning_rate": 2e-4, "num_minibatches": 4,
    "kl_coef": 0.02, "evaluation": 256, "device": "cpu",
}  # fmt: skip


def main() -> None:
    from palaestra.core.statistics import mean_interval

    options = arguments(__doc__ or "", seeds="how many seeds", keep="folder for the runs, instead of a temporary one")
    for name in ("random", "1 and 2", "binary search"):
        interval = mean_interval([play_script(seed, name) for seed in range(200)])
        print(name, [round(value, 3) for value in (interval.value, interval.low, interval.high)], flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.keep or temporary)
        warm_up(folder / "warm")
        for seed in range(1 if options.quick else int(options.seeds or 3)):
            rows.append(train_seed(folder, seed, options))
            print(rows[-1], flush=True)
    finish("textarena_learning", min(row["gain_low"] for row in rows) / 0.1, threads=options.threads, rows=rows)


def warm_up(folder: Path) -> None:
    """Teach `nano` what a guess looks like, from random ones, and save it."""
    from palaestra.core.seeding import Seeds
    from palaestra.envs.turn.foreign import random_action_examples
    from palaestra.integrations.textarena import TextArenaEnv
    from palaestra.models import registry as models
    from palaestra.students.supervised import Supervision, fine_tune

    model = models.load("nano", device="cpu")
    env = TextArenaEnv(GAME, **OPTIONS, max_turns=3)  # Longer games do not fit into 256 tokens.
    examples = random_action_examples(env, [f"[{number}]" for number in range(1, 4)], 256, seed=0)
    fine_tune(model.weights, model.tokenizer, examples, Supervision(learning_rate=1e-3), Seeds(0))
    model.weights.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)


def train_seed(folder: Path, seed: int, options: Any) -> dict[str, Any]:
    from palaestra import train

    settings = {
        **SETTINGS,
        "threads": options.threads,
        **({"iterations": 4, "evaluation": 64} if options.quick else {}),
    }
    result = train(
        env=f"textarena:{GAME}",
        env_kwargs=OPTIONS,
        model=str(folder / "warm"),
        seed=seed,
        out=folder / f"seed-{seed}",
        keep_trajectories=settings["episodes"],
        **settings,
    )
    names = ("before", "after", "gain", "gain_low", "gain_high", "seconds")
    return {
        "seed": seed,
        **{name: round(result.summary[name], 3) for name in names},
        **describe_play(result.folder, settings["iterations"]),
    }


def describe_play(folder: Path, iterations: int) -> dict[str, list[float]]:
    """The fraction of games in which the number was found, and the refused moves per game: first and last iteration."""
    from palaestra.runs.run import Run

    with Run.open(folder, read_only=True) as run:
        games = [[t.infos[0]["response"] for t in run.store.trajectories(k)] for k in (1, iterations)]
    return {
        "found": [round(sum("Congratulations" in text for text in texts) / len(texts), 3) for texts in games],
        "refused": [round(sum(text.count("invalid move") for text in texts) / len(texts), 3) for texts in games],
    }


def play_script(seed: int, player: str) -> float:
    """Play a game with a scripted player; its reward."""
    import numpy as np

    from palaestra.integrations.textarena import TextArenaEnv

    env, generator = TextArenaEnv(GAME, **OPTIONS), np.random.default_rng(seed)
    env.reset(seed=seed)
    low, high, over, total, turn = 1, 3, False, 0.0, 0
    while not over:
        turn += 1
        guess = {"random": int(generator.integers(1, 4)), "1 and 2": min(turn, 2)}.get(player, (low + high) // 2)
        conversation, reward, terminated, truncated, _ = env.step(f"[{guess}]")
        hint = conversation.messages[-1].text
        low, high = (max(low, guess + 1), high) if "higher" in hint else (low, min(high, guess - 1))
        total, over = total + reward, terminated or truncated
    env.close()
    return total


if __name__ == "__main__":
    main()
