"""A whole episode at the lesson scale in a few lines: about a minute on two cores."""

import argparse

from palaestra import teach

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--lesson-size", type=int, default=160)
parser.add_argument("--out", default="")
options = parser.parse_args()

result = teach(student="nano", teacher="skill_tree", rounds=3, lesson_size=options.lesson_size, seed=0, out=options.out)
summary = result.summary
print(f"test accuracy {summary['test_before']} -> {summary['test_after']} %")
print(f"gain {summary['gain']} points [{summary['gain_low']}, {summary['gain_high']}]; run: {result.folder}")
