"""Teachers, the checks of what they write, and the environment in which a writer learns."""

from palaestra.envs import register_env

register_env(
    "palaestra/Writer-v0",
    "palaestra.teachers.writer_env:WriterEnv",
    "lesson scale: a language model writes training data, rewarded by how much a student improves on problems it cannot solve",
)
