"""Skills: discovered with a language model, or the task's own; and how far the two agree."""

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
