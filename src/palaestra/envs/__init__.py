"""Gymnasium environments, one package per time-scale. Importing this registers them without loading them."""

from gymnasium.envs.registration import register, registry

_ENTRY_POINTS = {
    "palaestra/Lesson-v0": ("palaestra.envs.lesson.env:LessonEnv", None),
    "RLHFEnv-v0": ("palaestra.envs.token.rlhf:RLHFEnv", "palaestra.envs.token.rlhf:RLHFVectorEnv"),
    "CoTEnv-v0": ("palaestra.envs.token.cot:CoTEnv", "palaestra.envs.token.cot:CoTVectorEnv"),
    "palaestra/Task-v0": ("palaestra.envs.turn.tasks:TaskEnv", "palaestra.envs.turn.tasks:TaskVectorEnv"),
    "palaestra/Guess-v0": ("palaestra.envs.turn.games:GuessEnv", "palaestra.envs.turn.games:GuessVectorEnv"),
    "palaestra/Calculator-v0": (
        "palaestra.envs.turn.games:CalculatorEnv",
        "palaestra.envs.turn.games:CalculatorVectorEnv",
    ),
    "palaestra/Research-v0": (
        "palaestra.research.workspace.env:ResearchEnv",
        "palaestra.research.workspace.env:ResearchVectorEnv",
    ),
}
DESCRIPTIONS = {
    "palaestra/Lesson-v0": "lesson scale: an action is a set of training examples, the reward is the student's gain",
    "RLHFEnv-v0": "token scale: write a response, rewarded by a reward model",
    "CoTEnv-v0": "token scale: reason and answer the problems of a task, rewarded by its scorer",
    "palaestra/Task-v0": "turn scale: answer the problems of a task, with several attempts at each",
    "palaestra/Guess-v0": "turn scale: guess a number; each reply says higher or lower",
    "palaestra/Calculator-v0": "turn scale: solve a problem with a calculator",
    "palaestra/Research-v0": "turn scale: work on a research task at a shell, scored against a baseline",
}
"""One line for each environment; `palaestra list environments` prints them."""

for _name, (_entry, _vector) in _ENTRY_POINTS.items():
    if _name not in registry:
        register(id=_name, entry_point=_entry, vector_entry_point=_vector, disable_env_checker=True)
