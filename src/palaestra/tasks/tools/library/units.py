"""Tools that convert units."""

from __future__ import annotations

from typing import Literal

from palaestra.tasks.tools.library.values import neat

Length = Literal["mm", "cm", "m", "km", "in", "ft", "yd", "mi"]
Mass = Literal["g", "kg", "t", "oz", "lb"]
Volume = Literal["ml", "l", "pt", "gal"]
Temperature = Literal["C", "F", "K"]

METRES: dict[str, float] = {
    "mm": 0.001, "cm": 0.01, "m": 1.0, "km": 1000.0, "in": 0.0254, "ft": 0.3048, "yd": 0.9144, "mi": 1609.344,
}  # fmt: skip
GRAMS: dict[str, float] = {"g": 1.0, "kg": 1000.0, "t": 1e6, "oz": 28.349523125, "lb": 453.59237}
LITRES: dict[str, float] = {"ml": 0.001, "l": 1.0, "pt": 0.473176473, "gal": 3.785411784}


def convert_length(value: float, source: Length, target: Length) -> float:
    """A length in another unit.

    Arguments:
        value: in the unit `source`
        source: the unit it is in
        target: the unit to give it in
    """
    return neat(value * METRES[source] / METRES[target])


def convert_mass(value: float, source: Mass, target: Mass) -> float:
    """A mass in another unit.

    Arguments:
        value: in the unit `source`
        source: the unit it is in
        target: the unit to give it in
    """
    return neat(value * GRAMS[source] / GRAMS[target])


def convert_volume(value: float, source: Volume, target: Volume) -> float:
    """A volume in another unit.

    Arguments:
        value: in the unit `source`
        source: the unit it is in
        target: the unit to give it in
    """
    return neat(value * LITRES[source] / LITRES[target])


def convert_temperature(value: float, source: Temperature, target: Temperature) -> float:
    """A temperature in another scale.

    Arguments:
        value: in the scale `source`
        source: the scale it is in
        target: the scale to give it in
    """
    kelvin = {"C": value + 273.15, "F": (value + 459.67) * 5 / 9, "K": value}[source]
    if kelvin < 0:
        raise ValueError(f"convert_temperature: nothing is colder than 0 K; got {value} {source}")
    return neat({"C": kelvin - 273.15, "F": kelvin * 9 / 5 - 459.67, "K": kelvin}[target])
