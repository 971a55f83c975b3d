"""A language model learns to solve problems step by step: GRPO with a verifiable reward, on a CPU, without a download.

python examples/chain_of_thought.py --iterations 40     # a few minutes, with a clear gain
"""

import argparse

from palaestra import train

parser = argparse.ArgumentParser()
parser.add_argument("--iterations", type=int, default=3)
iterations = parser.parse_args().iterations

result = train(
    env="palaestra/CoT-v0",
    env_kwargs={"skills": ["percent", "groups", "geometry", "clock"]},
    algorithm="grpo",
    model="nano",
    iterations=iterations,
    episodes=128,
    evaluation=10,
    seed=0,
)
summary = result.summary
print(f"held-out accuracy {summary['before']} -> {summary['after']} % of {summary['problems']} problems")
print(f"gain {summary['gain']} points [{summary['gain_low']}, {summary['gain_high']}]; run: {result.folder}")
