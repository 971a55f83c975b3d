"""Tools for an invented shop: its prices, its store and its deliveries."""

from __future__ import annotations

from typing import NamedTuple

from palaestra.tasks.tools.library.travel import distance


class ShopItem(NamedTuple):
    """Price of a piece in EUR, pieces in store, kilograms of a piece, town where it is made."""

    price: float
    stock: int
    mass: float
    town: str


ITEMS: dict[str, ShopItem] = {
    "lamp": ShopItem(34.5, 41, 2.4, "Dunholm"), "chair": ShopItem(59.9, 18, 6.2, "Halver"), "desk": ShopItem(189.0, 7, 31.5, "Halver"),
    "shelf": ShopItem(74.25, 23, 17.8, "Norrby"), "kettle": ShopItem(27.8, 66, 1.3, "Pellin"), "clock": ShopItem(19.95, 0, 0.6, "Eskary"),
    "mirror": ShopItem(48.6, 12, 4.9, "Vesper"), "carpet": ShopItem(112.4, 9, 12.7, "Quenby"), "vase": ShopItem(16.3, 87, 1.1, "Grenna"),
    "blanket": ShopItem(39.75, 34, 1.8, "Arvik"), "pillow": ShopItem(14.2, 120, 0.7, "Arvik"), "bench": ShopItem(132.0, 5, 22.3, "Norrby"),
    "stove": ShopItem(415.5, 3, 58.0, "Isembro"), "toaster": ShopItem(31.1, 0, 1.6, "Isembro"), "fan": ShopItem(44.85, 29, 3.2, "Kestrin"),
    "heater": ShopItem(86.7, 14, 7.5, "Kestrin"), "bicycle": ShopItem(529.0, 6, 14.1, "Ulfsted"), "helmet": ShopItem(41.4, 52, 0.4, "Ulfsted"),
    "tent": ShopItem(158.2, 11, 3.9, "Lunde"), "rucksack": ShopItem(92.6, 0, 1.9, "Lunde"), "compass": ShopItem(23.15, 73, 0.2, "Farlow"),
    "guitar": ShopItem(247.3, 4, 2.8, "Selwick"), "drum": ShopItem(121.9, 8, 9.4, "Selwick"), "flute": ShopItem(68.05, 16, 0.5, "Yarrow"),
}  # fmt: skip
DEPOT = "Isembro"


def order_cost(item: str, quantity: int) -> float:
    """What some pieces of an item cost together in EUR.

    Arguments:
        item: its name
        quantity: how many pieces, 1 or more
    """
    if quantity < 1:
        raise ValueError(f"order_cost: at least 1 piece is ordered; got {quantity}")
    return round(_item(item).price * quantity, 2)


def stock_of(item: str) -> int:
    """How many pieces of an item are in store.

    Arguments:
        item: its name
    """
    return _item(item).stock


def weight_of(item: str) -> float:
    """The mass of one piece of an item in kg.

    Arguments:
        item: its name
    """
    return _item(item).mass


def made_in(item: str) -> str:
    """The town where an item is made.

    Arguments:
        item: its name
    """
    return _item(item).town


def delivery_days(item: str, town: str) -> int:
    """The days that the delivery of an item to a town takes.

    Arguments:
        item: its name
        town: the name of the town
    """
    waiting = 0 if _item(item).stock else 6
    return 1 + waiting + round(distance(DEPOT, town) / 60 + _item(item).mass / 15)


def _item(name: str) -> ShopItem:
    if name not in ITEMS:
        raise ValueError(f"there is no item {name[:40]!r}; there are {', '.join(ITEMS)}")
    return ITEMS[name]
