"""Skill discovery with a language model, skills files, and the agreement with the task's own skills."""
