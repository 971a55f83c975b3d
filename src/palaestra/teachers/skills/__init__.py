"""Skill discovery with a language model, skills files, and the agreement with the task's own skills."""

from palaestra.teachers.skills.agreement import Agreement, agreement
from palaestra.teachers.skills.discovery import STAGES, Discovery, Keep
from palaestra.teachers.skills.gold import map_own_skills
from palaestra.teachers.skills.overview import CategoryRow, Overview, overview
from palaestra.teachers.skills.records import Category, SkillMap
from palaestra.teachers.skills.task import Discovered, GenerativeDiscovered, original, relabel

__all__ = [
    "STAGES",
    "Agreement",
    "Category",
    "CategoryRow",
    "Discovered",
    "Discovery",
    "GenerativeDiscovered",
    "Keep",
    "Overview",
    "SkillMap",
    "agreement",
    "map_own_skills",
    "original",
    "overview",
    "relabel",
]
