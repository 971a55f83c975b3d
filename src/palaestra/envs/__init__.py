"""Environments, one package per time-scale. Importing this module registers them and loads none."""

from gymnasium.envs.registration import register, registry

_HOMES = {
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

for _name, (_entry, _vector) in _HOMES.items():
    if _name not in registry:
        register(id=_name, entry_point=_entry, vector_entry_point=_vector, disable_env_checker=True)
