"""Synthetic pumps: readings from simple physics, site-specific sensors, and faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from palaestra.research.judge.tables import write_splits

ROWS = {"train": 4000, "validation": 2000, "test": 3000}
FAULTS = {"none": 0.56, "bearing": 0.12, "cavitation": 0.10, "blockage": 0.09, "leak": 0.08, "imbalance": 0.05}
MAKERS = ("Argo", "Boreas", "Calder", "Delphin")
SITES = ("s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8")
HOT = 4
"""The site whose thermometers measure in Fahrenheit."""
OVERLOOKED = 0.06
"""The fraction of faults in the training rows that are labelled `none`."""


def make(public: Path, hidden: Path, rng: np.random.Generator) -> None:
    count = sum(ROWS.values())
    table, faults = pumps(count, rng)
    ids = [f"p{number:05d}" for number in rng.permutation(90000)[:count] + 10000]

    def taught(rows: slice) -> list[str]:
        return ["none" if rng.random() < OVERLOOKED else fault for fault in faults[rows]]

    write_splits(public, hidden, ROWS, ids, table, "fault", faults, taught)


def pumps(count: int, rng: np.random.Generator) -> tuple[dict[str, list[object]], list[str]]:
    """Return the sensor readings and the fault of each pump."""
    names = list(FAULTS)
    fault = rng.choice(len(names), count, p=list(FAULTS.values()))
    is_ = {name: fault == k for k, name in enumerate(names)}
    severity = rng.beta(2.0, 1.3, count)
    maker, site = rng.integers(len(MAKERS), size=count), rng.integers(len(SITES), size=count)
    speed = rng.uniform(700, 3000, count)
    opening = rng.beta(2, 1.5, count).clip(0.05)
    hours = rng.gamma(2.0, 4000, count)
    fluid = rng.normal(35, 14, count).clip(5, 85)

    def noise(size: float) -> np.ndarray:
        return np.exp(rng.normal(0, size, count))

    def effect(**by_fault: float) -> np.ndarray:
        """A factor: 1 without a fault, and 1 plus the fault's effect at full severity."""
        return 1 + sum((by * severity * is_[name] for name, by in by_fault.items()), np.zeros(count))

    capacity, height = rng.uniform(0.6, 1.6, len(MAKERS)), rng.uniform(0.6, 1.6, len(MAKERS))
    pull = rng.uniform(0.3, 0.7, len(MAKERS))
    shown_flow, shown_pressure = np.exp(rng.normal(0, 0.2, len(SITES))), np.exp(rng.normal(0, 0.15, len(SITES)))
    shake = np.exp(rng.normal(0, 0.35, (len(MAKERS), 3)))
    turns = speed / 3000
    flow = 100 * capacity[maker] * turns * (1 - (1 - opening) ** 2 * 0.8)
    flow *= effect(blockage=-0.33, leak=-0.24, cavitation=-0.12) * noise(0.03)
    # Cavitation occurs if the inlet pressure is low for the temperature of the fluid.
    vapor = 0.02 * np.exp(fluid / 25)
    inlet = np.where(
        is_["cavitation"], vapor + 0.05 + 0.25 * (1 - severity), vapor + rng.gamma(3.0, 0.35, count) + 0.12
    )
    inlet = (inlet - 0.05 * turns * opening) * noise(0.06)
    outlet = inlet + 8 * height[maker] * turns**2 * (1 - pull[maker] * opening**2) * effect(
        blockage=0.15, leak=-0.26, cavitation=-0.10
    ) * noise(0.03)
    once = 0.9 * turns**2 * effect(imbalance=2.6, bearing=0.4) * noise(0.25) * shake[maker, 0]
    wide = 0.5 * turns * effect(cavitation=1.7, imbalance=0.3, blockage=0.2) * noise(0.25) * shake[maker, 1]
    worn = 1 + hours / 30000
    high = 0.25 * turns**0.5 * worn * effect(bearing=2.4, cavitation=0.8) * noise(0.28) * shake[maker, 2]
    unrest = 0.02 * effect(cavitation=1.8, leak=0.5) * noise(0.35)
    power = 0.02 * flow * (outlet - inlet) / 0.6 + 0.8 * turns**2 * effect(bearing=0.35)
    power *= noise(0.05)
    casing = fluid + 9 * turns * effect(bearing=1.6, cavitation=0.3) * noise(0.2)
    flow, outlet = flow * shown_flow[site], outlet * shown_pressure[site]

    def degrees(values: np.ndarray) -> np.ndarray:
        return np.where(site == HOT, values * 1.8 + 32, values)

    def column(values: np.ndarray, digits: int, gaps: np.ndarray | float = 0.0) -> list[object]:
        gone = rng.random(count) < gaps
        return [None if lost else f"{value:.{digits}f}" for value, lost in zip(values, gone, strict=True)]

    table: dict[str, list[object]] = {
        "maker": [MAKERS[k] for k in maker],
        "site": [SITES[k] for k in site],
        "hours": column(hours, 0, 0.05),
        "speed": column(speed, 0),
        "opening": column(opening, 3, 0.04),
        "flow": column(flow, 2, 0.08),
        "unrest": column(unrest, 4, 0.08),
        "inlet": column(inlet, 3, 0.06),
        "outlet": column(outlet, 3, 0.04),
        "power": column(power, 3, 0.10),
        "fluid": column(degrees(fluid), 1, 0.05),
        "casing": column(degrees(casing), 1, 0.05),
        # Old pumps more often lack vibration sensors.
        "vibration_once": column(once, 4, np.where(hours > 12000, 0.25, 0.05)),
        "vibration_wide": column(wide, 4, np.where(hours > 12000, 0.25, 0.05)),
        "vibration_high": column(high, 4, np.where(hours > 12000, 0.25, 0.05)),
    }
    return table, [names[k] for k in fault]
