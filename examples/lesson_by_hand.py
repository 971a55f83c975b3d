"""Run the lesson environment with `gymnasium.make`, `reset` and `step`."""

import gymnasium
import numpy as np

import palaestra

SKILLS = ("geometry", "percent", "addition")

env = gymnasium.make(
    "palaestra/Lesson-v0", skills=SKILLS, rounds=2, budget=60, validation=4, test=8, render_mode="ansi"
)
teacher = palaestra.make_teacher("skill_tree", env.unwrapped.task, SKILLS)
state, info = env.reset(seed=0)
print(f"before: {info['test'].accuracy:.0%} of {info['test'].count} test problems")
done = False
while not done:
    lesson = teacher.write(state, size=30, generator=np.random.default_rng(state.round))
    state, reward, terminated, truncated, info = env.step(lesson)
    print(f"reward {reward:+.3f}\n{env.render()}")
    done = terminated or truncated
print(f"after: {info['test'].accuracy:.0%} of {info['test'].count} test problems")
