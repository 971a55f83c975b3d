"""English plurals: is one word the plural of the other?

The plural is built from the singular, because the way back is ambiguous: `lens` is no plural of `len`. Unknown words are
not looked up; a word that ends in -s and is a singular itself must be listed in `SINGULARS`.
"""

from __future__ import annotations

from collections.abc import Mapping

_IRREGULAR: Mapping[str, tuple[str, ...]] = {
    "person": ("people", "persons"), "child": ("children",), "man": ("men",), "woman": ("women",), "foot": ("feet",),
    "tooth": ("teeth",), "goose": ("geese",), "mouse": ("mice", "mouses"), "louse": ("lice",), "ox": ("oxen",),
    "die": ("dice",), "penny": ("pennies", "pence"), "quiz": ("quizzes",), "gas": ("gases", "gasses"),
    "bus": ("buses", "busses"), "thief": ("thieves",), "elf": ("elves",), "self": ("selves",), "life": ("lives",),
    "half": ("halves",), "sheaf": ("sheaves",), "scarf": ("scarves", "scarfs"), "hoof": ("hooves", "hoofs"),
    "dwarf": ("dwarves", "dwarfs"), "wharf": ("wharves", "wharfs"), "axis": ("axes",),
    "vertex": ("vertices", "vertexes"), "index": ("indices", "indexes"),
    "matrix": ("matrices", "matrixes"), "appendix": ("appendices", "appendixes"), "phenomenon": ("phenomena",),
    "criterion": ("criteria",), "datum": ("data",),
    "formula": ("formulas", "formulae"), "antenna": ("antennas", "antennae"),
    "larva": ("larvae", "larvas"),
    "alga": ("algae",), "vertebra": ("vertebrae",), "helix": ("helices", "helixes"), "codex": ("codices",),
    "czech": ("czechs",), "eunuch": ("eunuchs",), "stomach": ("stomachs",), "monarch": ("monarchs",),
    "patriarch": ("patriarchs",), "epoch": ("epochs",),
    "sheep": ("sheep",), "deer": ("deer",), "fish": ("fish", "fishes"),
    "passerby": ("passersby",), "human": ("humans",), "german": ("germans",), "roman": ("romans",), "talisman": ("talismans",),
    "ottoman": ("ottomans",), "shaman": ("shamans",), "caiman": ("caimans",), "norman": ("normans",),
    "zucchini": ("zucchinis", "zucchini"), "moose": ("moose",), "bison": ("bison",), "aircraft": ("aircraft",),
    "ski": (), "knife": ("knives",), "wife": ("wives",), "leaf": ("leaves",), "loaf": ("loaves",), "wolf": ("wolves",),
    "calf": ("calves",), "shelf": ("shelves",),
}  # fmt: skip
"""Nouns whose plural no rule gives; "skis" counts as a thing of its own, as in GQA's list of objects."""
_ENDINGS: Mapping[str, str] = {
    "knife": "knives", "wife": "wives", "leaf": "leaves", "loaf": "loaves", "wolf": "wolves", "shelf": "shelves",
    "woman": "women", "man": "men", "child": "children", "person": "people", "foot": "feet", "tooth": "teeth", "mouse": "mice",
}  # fmt: skip
"""The last part of a compound: bookshelf and bookshelves, snowman and snowmen."""
DIFFERENT = frozenset({
    "glasses", "shorts", "pants", "jeans", "news", "goods", "arms", "scales", "greens", "sands", "waters", "woods",
    "clothes", "stairs", "irons", "means", "bangs", "briefs", "customs", "papers", "spectacles", "trunks", "slacks",
    "tights", "overalls", "contents", "remains", "thanks", "quarters", "headquarters", "spirits",
})  # fmt: skip
"""Words that are another thing than their singular, or have none: glass and glasses, short and shorts."""
SINGULARS = frozenset({
    "lens", "gas", "texas", "kansas", "arkansas", "dallas", "vegas", "christmas", "atlas", "canvas", "bias", "alias",
    "pancreas", "pajamas", "pyjamas", "thomas", "nicholas", "douglas", "lucas", "judas", "pegasus", "honduras", "bahamas",
    "james", "charles", "jones", "williams", "athens", "brussels", "naples", "wales", "netherlands", "philippines", "chaos",
    "cosmos", "laos", "rhinoceros", "asbestos", "ethos", "carlos", "barbados", "mathematics", "physics", "athletics",
    "gymnastics", "economics", "politics", "aerobics", "ceramics", "graphics", "mechanics", "statistics", "series", "species",
    "diabetes", "rabies", "measles", "mumps", "molasses", "mars", "hermes", "hercules", "achilles", "corps", "billiards",
    "chess", "always", "perhaps", "sometimes", "besides", "towards", "afterwards", "yes",
    "has", "was", "does", "goes", "this", "his", "hers", "its", "ours", "theirs", "as", "is", "us", "plus", "minus", "los",
    "las", "des", "les", "yours", "pus", "paris", "tennis", "biceps", "triceps", "forceps", "summons",
    "innings", "gallows", "barracks", "crossroads", "bellows", "kudos", "pathos",
})  # fmt: skip
"""Words that end in -s and are no plural of what stands before it."""
_IN_U_OR_I = frozenset({
    "menus", "emus", "gurus", "tutus", "gnus", "caribous", "bayous", "haikus", "kudus", "zebus", "sudokus", "tofus",
    "taxis", "bikinis", "kiwis", "safaris", "alibis", "rabbis", "salamis", "yetis", "khakis", "wasabis", "jacuzzis",
    "graffitis", "israelis", "iraqis", "pakistanis", "broccolis", "spaghettis", "jedis", "wapitis", "maxis", "minis", "chilis",
    "tsunamis", "origamis", "okapis", "macaronis", "pepperonis", "martinis", "paninis", "sushis", "tortellinis",
})  # fmt: skip
"""Plurals in -us and -is; every other such word is taken for a singular (bus, virus, tennis, iris)."""
_VOWELS = "aeiou"


def is_plural(word: str, singular: str) -> bool:
    """Whether `word` is a plural of `singular` and means the same thing. Both are in lower case.

    >>> is_plural("tomatoes", "tomato"), is_plural("wolves", "wolf"), is_plural("lens", "len"), is_plural("glasses", "glass")
    (True, True, False, False)
    """
    if word in DIFFERENT or word in SINGULARS or len(singular) < 2 or not singular.isalpha():
        return False
    if singular in _IRREGULAR:
        return word in _IRREGULAR[singular]
    for ending, plural in _ENDINGS.items():
        if singular.endswith(ending) and len(singular) > len(ending) + 1:
            return word == singular[: -len(ending)] + plural
    return word in _regular(singular)


def _regular(singular: str) -> tuple[str, ...]:
    last, before = singular[-1], singular[-2]
    long = len(singular) > 4
    if last == "s":
        # A plural has no plural: only a word that is known, or looks like a singular, takes -es.
        if singular.endswith("ics") or not (singular in SINGULARS or singular.endswith(("ss", "us", "is"))):
            return ()
        classical = {"us": singular[:-2] + "i", "is": singular[:-2] + "es"}.get(singular[-2:], "") if long else ""
        return singular + "es", classical
    if last in "xz" or singular.endswith(("ch", "sh")):
        return (singular + "es",)
    if last == "y" and (before not in _VOWELS or singular.endswith("quy")):
        return (singular[:-1] + "ies",)
    if last == "o" and before not in _VOWELS:
        return singular + "s", singular + "es"
    if singular.endswith("eau"):
        return singular + "s", singular + "x"
    plural = singular + "s"
    if last in "ui" and plural not in _IN_U_OR_I:
        return ()
    return (plural, singular[:-2] + "a") if long and singular.endswith("um") else (plural,)
