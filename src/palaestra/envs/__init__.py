"""Gymnasium environments, one package per time-scale. Importing this registers them without loading them."""

from gymnasium.envs.registration import register, registry

_ENTRY_POINTS = {
    "palaestra/Lesson-v0": ("palaestra.envs.lesson.env:LessonEnv", None),
    "palaestra/RLHF-v0": ("palaestra.envs.token.rlhf:RLHFEnv", "palaestra.envs.token.rlhf:RLHFVectorEnv"),
    "palaestra/CoT-v0": ("palaestra.envs.token.cot:CoTEnv", "palaestra.envs.token.cot:CoTVectorEnv"),
    "palaestra/Task-v0": ("palaestra.envs.turn.tasks:TaskEnv", "palaestra.envs.turn.tasks:TaskVectorEnv"),
    "palaestra/Guess-v0": ("palaestra.envs.turn.games:GuessEnv", "palaestra.envs.turn.games:GuessVectorEnv"),
    "palaestra/Calculator-v0": (
        "palaestra.envs.turn.games:CalculatorEnv",
        "palaestra.envs.turn.games:CalculatorVectorEnv",
    ),
    "palaestra/Text-v0": ("palaestra.envs.turn.text:TextEnv", "palaestra.envs.turn.text:TextVectorEnv"),
    "palaestra/TextArena-v0": (
        "palaestra.integrations.textarena:TextArenaEnv",
        "palaestra.integrations.textarena:TextArenaVectorEnv",
    ),
    "palaestra/GEM-v0": ("palaestra.integrations.gem:GemEnv", "palaestra.integrations.gem:GemVectorEnv"),
    "palaestra/OpenEnv-v0": (
        "palaestra.integrations.openenv.env:OpenEnvEnv",
        "palaestra.integrations.openenv.env:OpenEnvVectorEnv",
    ),
    "palaestra/Verifiers-v0": (
        "palaestra.integrations.verifiers.env:VerifiersEnv",
        "palaestra.integrations.verifiers.env:VerifiersVectorEnv",
    ),
    "palaestra/Research-v0": (
        "palaestra.research.workspace.env:ResearchEnv",
        "palaestra.research.workspace.env:ResearchVectorEnv",
    ),
}
DESCRIPTIONS = {
    "palaestra/Lesson-v0": "lesson scale: an action is a set of training examples, the reward is the student's gain",
    "palaestra/RLHF-v0": "token scale: write a response, rewarded by a reward model; also as RLHFEnv-v0",
    "palaestra/CoT-v0": "token scale: reason and answer the problems of a task, rewarded by its scorer; also as CoTEnv-v0",
    "palaestra/Task-v0": "turn scale: answer the problems of a task, with several attempts at each",
    "palaestra/Guess-v0": "turn scale: guess a number; each reply says higher or lower",
    "palaestra/Calculator-v0": "turn scale: solve a problem with a calculator",
    "palaestra/Text-v0": "turn scale: a Gymnasium environment with text or discrete spaces, also as text:ID",
    "palaestra/TextArena-v0": "turn scale: a game of TextArena, also as textarena:ID",
    "palaestra/GEM-v0": "turn scale: an environment of GEM, also as gem:ID",
    "palaestra/OpenEnv-v0": "turn scale: a server or class of OpenEnv, also as openenv:URL or openenv:module:Class",
    "palaestra/Verifiers-v0": "turn scale: an environment of verifiers, also as verifiers:ID",
    "palaestra/Research-v0": "turn scale: work on a research task at a shell, scored against a baseline",
}
"""One line for each environment; `palaestra list environments` prints them."""
PREFIXES = {
    "text": "palaestra/Text-v0",
    "textarena": "palaestra/TextArena-v0",
    "gem": "palaestra/GEM-v0",
    "openenv": "palaestra/OpenEnv-v0",
    "verifiers": "palaestra/Verifiers-v0",
}
"""Prefixes of environment ids and their adapters: `text:FrozenLake-v1` is `palaestra/Text-v0` of FrozenLake-v1."""

ALIASES = {"RLHFEnv-v0": "palaestra/RLHF-v0", "CoTEnv-v0": "palaestra/CoT-v0"}
"""The ids of Gymformer, which stay valid."""

for _name, (_entry, _vector) in [*_ENTRY_POINTS.items(), *((a, _ENTRY_POINTS[e]) for a, e in ALIASES.items())]:
    if _name not in registry:
        register(id=_name, entry_point=_entry, vector_entry_point=_vector, disable_env_checker=True)
