"""Environments, one package a time-scale. Importing this registers them and loads none."""

from gymnasium.envs.registration import register, registry

if "palaestra/Lesson-v0" not in registry:
    register(id="palaestra/Lesson-v0", entry_point="palaestra.envs.lesson.env:LessonEnv", disable_env_checker=True)
