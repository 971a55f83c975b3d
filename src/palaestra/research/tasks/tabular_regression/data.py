"""Synthetic rents: a formula with noise, missing values and typing errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from palaestra.research.judge.tables import write_splits

ROWS = {"train": 4000, "validation": 1500, "test": 2500}
DISTRICTS = (
    "Aldermoor", "Brickfields", "Castle", "Docks", "Elm Park", "Ferry", "Gallows Hill", "Harrow", "Ironside", "Juniper",
    "Kingsway", "Lowlands",
)  # fmt: skip
HEATING = ("gas", "oil", "electric", "district", "heat pump")
STATES = ("poor", "worn", "good", "as new")
AGENCIES = ("Abel", "Bright", "Cobalt", "Dunes", "Everett", "owner")
FEET = 10.764
"""Square feet per square metre: one agency states areas in square feet."""
WEEKS = 4.35
"""Weeks per month: some rents of the training rows are weekly."""


def make(public: Path, hidden: Path, rng: np.random.Generator) -> None:
    count = sum(ROWS.values())
    table, rent = town(count, rng)
    ids = [f"f{number:05d}" for number in rng.permutation(90000)[:count] + 10000]

    def taught(rows: slice) -> list[str]:
        typed = np.where(rng.random(len(rent[rows])) < 0.02, rent[rows] / WEEKS, rent[rows])
        return [f"{value:.0f}" for value in typed]

    write_splits(public, hidden, ROWS, ids, table, "rent", [f"{value:.0f}" for value in rent], taught)


def town(count: int, rng: np.random.Generator) -> tuple[dict[str, list[object]], np.ndarray]:
    """Return advertised flats and their monthly rents."""
    # Location: each district is a cluster of points; the value of a place is a random landscape.
    centers = rng.uniform(-7, 7, (len(DISTRICTS), 2))
    district = rng.choice(len(DISTRICTS), count, p=rng.dirichlet([3.0] * len(DISTRICTS)))
    place = centers[district] + rng.normal(0, 1.5, (count, 2))
    hills = rng.uniform(-7, 7, (9, 2))
    heights = rng.normal(0, 0.3, 9)
    widths = rng.uniform(1.0, 3.0, 9)
    distances = ((place[:, None] - hills) ** 2).sum(2)
    landscape = (heights * np.exp(-0.5 * distances / widths**2)).sum(1)
    center = np.exp(-np.hypot(place[:, 0], place[:, 1]) / 4.0)
    # Properties.
    built = np.where(rng.random(count) < 0.3, rng.uniform(1880, 1935, count), rng.uniform(1946, 2024, count)).round()
    area = np.exp(rng.normal(4.2, 0.38, count)).clip(18, 260)
    rooms = (area / rng.normal(26, 4, count).clip(15, 40)).round().clip(1, 9)
    floors = rng.integers(1, 10, count)
    floor = (floors * rng.random(count)).astype(int)
    lift = rng.random(count) < np.where(floors > 4, 0.75, 0.15)
    garden = np.where((floor == 0) & (rng.random(count) < 0.4), np.exp(rng.normal(4.0, 0.8, count)), 0.0)
    state = (1.4 + 0.012 * (built - 1950) + rng.normal(0, 0.9, count)).round().clip(0, 3).astype(int)
    heating = rng.choice(len(HEATING), count, p=[0.4, 0.15, 0.15, 0.2, 0.1])
    heating = np.where((built > 2005) & (rng.random(count) < 0.5), 4, heating)
    energy = (210 - 1.1 * (built - 1940).clip(0) - 12 * state + rng.normal(0, 25, count)).clip(25, 320)
    month = rng.integers(1, 13, count)
    agency = rng.choice(len(AGENCIES), count, p=[0.25, 0.2, 0.15, 0.15, 0.12, 0.13])
    # The logarithm of the rent.
    age = (built - 1950) / 40
    era = np.where(built < 1936, 0.16 + 0.05 * state, 0.10 * age**2 - 0.06)
    taste = rng.normal(0, 0.10, len(DISTRICTS))
    newness = rng.normal(0, 0.12, len(DISTRICTS))
    costly = np.array([0.6, 1.0, 1.6, 0.1, 0.3])[heating]
    # Added in this order: another one would round differently and change the data.
    value = 3.05 + 0.80 * np.log(area) + 0.30 * center * (np.log(area) - 4.2) + 0.35 * center + landscape
    value = value + taste[district] + newness[district] * age + era
    value = value + 0.09 * (state - 1.5) * (1 + 0.8 * (built < 1936)) - 0.05 * np.abs(area / rooms - 26) / 8
    value = value + np.where(lift, 0.02, -0.045) * floor + 0.05 * np.log1p(garden) * (1 - 0.5 * center)
    value = value - 0.0011 * (energy - 110) * costly + 0.04 * np.sin(2 * np.pi * (month - 3) / 12)
    value = value - 0.05 * (agency == 5) * (state < 2)
    spread = 0.05 + 0.07 * (built < 1936) + 0.05 * (state == 0) + 0.04 * (agency == 5)
    rent = np.exp(value + spread * rng.normal(0, 1, count))

    def gaps(values: list[object], chance: np.ndarray | float) -> list[object]:
        gone = rng.random(count) < chance
        return [None if lost else shown for shown, lost in zip(values, gone, strict=True)]

    shown_area = np.where(agency == 2, area * FEET, area)
    table = {
        "district": gaps([DISTRICTS[k] for k in district], 0.06),
        "x": gaps([f"{value:.2f}" for value in place[:, 0]], 0.0),
        "y": gaps([f"{value:.2f}" for value in place[:, 1]], 0.0),
        "area": gaps([f"{value:.0f}" for value in shown_area], 0.0),
        "rooms": gaps([f"{value:.0f}" for value in rooms], 0.04),
        "built": gaps([f"{value:.0f}" for value in built], np.where(built < 1936, 0.15, 0.05)),
        "floor": gaps([f"{value}" for value in floor], 0.05),
        "floors": gaps([f"{value}" for value in floors], 0.10),
        "lift": gaps(["yes" if value else "no" for value in lift], 0.08),
        # Advertisements usually omit a missing garden.
        "garden": gaps([f"{value:.0f}" for value in garden], np.where(garden > 0, 0.0, 0.9)),
        # Bad values are more often left out.
        "state": gaps([STATES[k] for k in state], np.where(state == 0, 0.35, 0.08)),
        "heating": gaps([HEATING[k] for k in heating], 0.05),
        "energy": gaps([f"{value:.0f}" for value in energy], np.where(energy > 150, 0.45, 0.15)),
        "month": gaps([f"{value}" for value in month], 0.0),
        "agency": gaps([AGENCIES[k] for k in agency], 0.0),
    }
    return table, rent
