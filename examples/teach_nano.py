"""Run a whole episode at the lesson scale: about a minute on two cores."""

import argparse

from palaestra import teach

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--lesson-size", type=int, default=160)
parser.add_argument("--test", type=int, default=25, help="test problems per skill")
parser.add_argument("--out", default="")
options = parser.parse_args()

result = teach(
    student="nano",
    teacher="skill_tree",
    rounds=options.rounds,
    lesson_size=options.lesson_size,
    test=options.test,
    seed=0,
    out=options.out,
)
summary = result.summary
print(f"test accuracy {summary['before']} -> {summary['after']} %")
print(f"gain {summary['gain']} points [{summary['gain_low']}, {summary['gain_high']}]; run: {result.folder}")
