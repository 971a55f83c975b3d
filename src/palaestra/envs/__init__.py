"""Gymnasium environments, one package per time-scale. Importing this registers them without loading them."""

from gymnasium.envs.registration import register, registry

DESCRIPTIONS: dict[str, str] = {}
"""One line for each environment; `palaestra list environments` prints them."""
PREFIXES: dict[str, str] = {}
"""Prefixes of environment ids and their adapters: `text:FrozenLake-v1` is `palaestra/Text-v0` of FrozenLake-v1."""


def register_env(
    name: str, entry_point: str, description: str, *, vector: str | None = "", prefix: str = "", alias: str = ""
) -> None:
    """Register an environment with Gymnasium and list it.

    Arguments:
        entry_point: the import string of the class, for example `"palaestra.envs.token.cot:CoTEnv"`.
        vector: the vector environment: a class in the same module, or an import string; by default the name of the class
            with `VectorEnv`. `None` if there is no such class.
        prefix: the prefix of ids that this environment plays, for example of another library.
        alias: a second id.
    """
    if vector is not None:
        module, _, class_name = entry_point.partition(":")
        vector = vector if ":" in vector else f"{module}:{vector or class_name.removesuffix('Env') + 'VectorEnv'}"
    for env_id in filter(None, (name, alias)):
        if env_id not in registry:
            register(id=env_id, entry_point=entry_point, vector_entry_point=vector, disable_env_checker=True)
    DESCRIPTIONS[name] = description + (f"; also as {alias}" if alias else "")
    if prefix:
        PREFIXES[prefix] = name


for _name, _target, _description, _options in (
    ("Lesson", "lesson.env:LessonEnv", "lesson scale: an action is a set of training examples, the reward is the student's gain; in vectors the parts of a lesson",
     {"vector": f"{__name__}.lesson.flat:FlatLessonVectorEnv"}),
    ("RLHF", "token.rlhf:RLHFEnv", "token scale: write a response, rewarded by a reward model", {"alias": "RLHFEnv-v0"}),
    ("CoT", "token.cot:CoTEnv", "token scale: reason and answer the problems of a task, rewarded by its scorer", {"alias": "CoTEnv-v0"}),
    ("Prompts", "token.data:PromptsEnv", "token scale: answer the prompts of your own data, rewarded by your own functions", {}),
    ("Task", "turn.tasks:TaskEnv", "turn scale: answer the problems of a task, with several attempts at each", {}),
    ("Guess", "turn.games:GuessEnv", "turn scale: guess a number; each reply says higher or lower", {}),
    ("Calculator", "turn.games:CalculatorEnv", "turn scale: solve a problem with a calculator", {}),
    ("Text", "turn.text:TextEnv", "turn scale: a Gymnasium environment with text or discrete spaces, also as text:ID", {"prefix": "text"}),
):  # fmt: skip
    # The aliases are Gymformer's ids.
    register_env(f"palaestra/{_name}-v0", f"{__name__}.{_target}", _description, **_options)
