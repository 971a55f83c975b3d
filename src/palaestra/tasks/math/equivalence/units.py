"""Units and scale words after a number."""

from __future__ import annotations

_UNITS = {
    "cm": "cm|centimeter|centimetre", "mm": "mm|millimeter|millimetre", "km": "km|kilometer|kilometre", "m": "m|meter|metre",
    "inch": "in|inch|inche", "foot": "ft|foot|feet", "yard": "yd|yard", "mile": "mi|mile", "g": "g|gram|gramme", "kg": "kg|kilogram|kilo",
    "mg": "mg|milligram", "lb": "lb|pound", "oz": "oz|ounce", "second": "s|sec|second", "minute": "min|minute", "hour": "h|hr|hour",
    "day": "day", "week": "week", "month": "month", "year": "yr|year", "l": "l|liter|litre", "ml": "ml|milliliter|millilitre",
    "gallon": "gal|gallon", "mph": "mph", "dollar": "dollar|usd|buck", "cent": "cent|¢", "euro": "euro|eur|€", "gbp": "gbp|£",
    "degree": "degree|deg", "radian": "rad|radian",
}  # fmt: skip
_UNIT_OF = {word: unit for unit, words in _UNITS.items() for word in words.split("|")}
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}


def get_scale(tail: str) -> tuple[int, str]:
    """The factor of a word such as "million" at the start of `tail`, and the rest."""
    first, _, rest = tail.partition(" ")
    scale = _SCALES.get(first.lower(), 1)
    return (scale, rest.strip()) if scale != 1 else (1, tail)


def get_unit(words: str) -> str:
    """The unit that `words` name, if known; square and cubic units with their power."""
    words = words.lower().replace(" per ", "/")
    if words.count("/") == 1:
        parts = [get_unit(part) for part in words.split("/")]
        if parts[0] in ("dollar", "cent", "euro", "gbp"):
            return parts[0]  # $18 a day is $18.
        return "/".join(parts) if all(parts) else ""
    words, _, power = words.partition("^")
    power = power.strip("{}")
    kept = []
    for word in words.replace(".", " ").split():
        if word in ("square", "sq", "cubic", "cu"):
            power = "2" if word in ("square", "sq") else "3"
        else:
            kept.append(_UNIT_OF.get(word) or _UNIT_OF.get(word.removesuffix("s")) or "")
    if len(kept) != 1 or not kept[0]:
        return ""
    return f"{kept[0]}^{power}" if power and power != "1" else kept[0]
