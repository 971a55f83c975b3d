"""Teach what is half known, and more of it if nano learns it fast; rehearse what it would forget.

Accuracies are measured on eight problems, so they are smoothed: no skill counts as hopeless or mastered for sure. The numbers
below were chosen by lessons to eight students with other seeds than the judged ones.
"""

import math

SPEED = {
    "percent": 1.3,
    "average": 1.3,
    "geometry": 1.2,
    "groups": 1.1,
    "change": 1.1,
    "missing_number": 1.1,
    "fractions": 0.6,
    "clock": 0.5,
}
"""Skills that nano learns from a few lessons, and how fast."""
HOPELESS = {"sequences", "long_multiplication", "number_theory"}
"""Skills that it does not learn from so few examples."""
REHEARSED = {"multiplication": (0.8, 0.1)}
"""Skills that it soon forgets: the factor and the least weight; see `weigh`."""
SHARPNESS = 2.0


def plan_lessons(skills: list[str], tables: list[list[list[float]]]) -> list[list[float]]:
    return [to_actions([weigh(skill, row[0]) for skill, row in zip(skills, table, strict=True)]) for table in tables]


def weigh(skill: str, accuracy: float) -> float:
    """The weight of a skill in the lesson."""
    if skill in HOPELESS:
        return 0.01
    if skill in SPEED:
        chance = (8 * accuracy + 1) / 10
        return SPEED[skill] * chance * (1 - chance)
    chance = (8 * accuracy + 2) / 10
    factor, least = REHEARSED.get(skill, (0.4, 0.03))
    return factor * chance * (1 - chance) + least


def to_actions(weights: list[float]) -> list[float]:
    """Actions whose lesson has these parts, as far as the bounds allow it."""
    largest = max(weights)
    return [max(-1.0, 1.0 + math.log(weight / largest) / SHARPNESS) for weight in weights]
