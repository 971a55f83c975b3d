"""Requests about the invented shop."""

from __future__ import annotations

from palaestra.tasks.tools.requests.recipe import ITEM, QUANTITY, TOWN, Kinds, Recipe, among, positive

TO_MASS = among(("g", "lb", "oz"))
DISCOUNT = among((5, 10, 15, 20, 25))

SHOP: Kinds = {
    "single": (
        Recipe(
            "order_cost(item, quantity)",
            (
                "What do {quantity} pieces of the {item} cost?",
                "What is the price of an order of {quantity} of the item {item}?",
            ),
            {"item": ITEM, "quantity": QUANTITY},
        ),
        Recipe(
            "delivery_days(item, town)",
            (
                "How many days does the delivery of the {item} to {town} take?",
                "A {item} is sent to {town}. How many days is it on its way?",
            ),
            {"item": ITEM, "town": TOWN},
        ),
        Recipe(
            "stock_of(item)",
            ("How many pieces of the {item} are in store?", "What is the stock of the {item}?"),
            {"item": ITEM},
        ),
        Recipe(
            "weight_of(item)",
            ("What is the mass of one {item} in kg?", "How many kg does one {item} weigh?"),
            {"item": ITEM},
        ),
        Recipe("made_in(item)", ("In which town is the {item} made?", "Where is the {item} made?"), {"item": ITEM}),
    ),
    "chain": (
        Recipe(
            "product(weight_of(item), quantity)",
            (
                "What is the mass of {quantity} pieces of the {item} together, in kg?",
                "How many kg do {quantity} pieces of the {item} weigh in all?",
            ),
            {"item": ITEM, "quantity": QUANTITY},
        ),
        Recipe(
            "take_percent(order_cost(item, quantity), percent)",
            (
                "What do {quantity} pieces of the {item} cost with {percent} % off?",
                "An order of {quantity} pieces of the {item} gets a discount of {percent} %. What does it cost then?",
            ),
            {"item": ITEM, "quantity": QUANTITY, "percent": DISCOUNT},
        ),
        Recipe(
            "convert_mass(weight_of(item), 'kg', unit)",
            ("What is the mass of one {item} in {unit}?", "How many {unit} does one {item} weigh?"),
            {"item": ITEM, "unit": TO_MASS},
        ),
        Recipe(
            "distance(made_in(item), town)",
            (
                "How many km is it from the town where the {item} is made to {town}?",
                "How far, in km, is {town} from where the {item} is made?",
            ),
            {"item": ITEM, "town": TOWN},
        ),
        Recipe(
            "convert_mass(product(weight_of(item), quantity), 'kg', unit)",
            (
                "Multiply the mass of one {item} by {quantity}, then convert the product to {unit}.",
                "Find how many kg {quantity} pieces of the {item} weigh; then convert that to {unit}.",
            ),
            {"item": ITEM, "quantity": QUANTITY, "unit": TO_MASS},
        ),
        Recipe(
            "population(made_in(item))",
            (
                "How many people live in the town where the {item} is made?",
                "What is the population of the town where they make the {item}?",
            ),
            {"item": ITEM},
        ),
    ),
    "join": (
        Recipe(
            "total([order_cost(item, quantity), order_cost(other, count)])",
            (
                "What do {quantity} pieces of the {item} and {count} of the {other} cost together?",
                "Somebody buys {quantity} pieces of the {item} and {count} pieces of the {other}. How much is that in all?",
            ),
            {"item": ITEM, "quantity": QUANTITY, "other": ITEM, "count": QUANTITY},
        ),
        Recipe(
            "difference(weight_of(item), weight_of(other))",
            (
                "How many kg heavier is one {item} than one {other}?",
                "By how many kg does one {item} weigh more than one {other}?",
            ),
            {"item": ITEM, "other": ITEM},
            accept=positive,
        ),
        Recipe(
            "difference(delivery_days(item, town), delivery_days(item, other))",
            (
                "How many days longer does the delivery of the {item} take to {town} than to {other}?",
                "By how many days is the delivery of the {item} to {town} longer than that to {other}?",
            ),
            {"item": ITEM, "town": TOWN, "other": TOWN},
            accept=positive,
        ),
        Recipe(
            "largest([delivery_days(item, town), delivery_days(other, town)])",
            (
                "The {item} and the {other} are sent to {town}. Of their two delivery times in days, which is the largest?",
                "Find the days of the delivery to {town} of the {item} and of the {other}. What is the largest of the two?",
            ),
            {"item": ITEM, "other": ITEM, "town": TOWN},
        ),
        Recipe(
            "take_percent(total([order_cost(item, quantity), order_cost(other, count)]), percent)",
            (
                "Add up the price of {quantity} pieces of the {item} and that of {count} of the {other}, then take {percent} % off the sum. What is left to pay?",
                "{quantity} pieces of the {item} and {count} pieces of the {other} go on one bill, and {percent} % are taken off the whole. How much is it then?",
            ),
            {"item": ITEM, "quantity": QUANTITY, "other": ITEM, "count": QUANTITY, "percent": DISCOUNT},
        ),
        Recipe(
            "distance(made_in(item), made_in(other))",
            (
                "How many km lie between the towns where the {item} and the {other} are made?",
                "How far, in km, is it from where the {item} is made to where the {other} is made?",
            ),
            {"item": ITEM, "other": ITEM},
            accept=positive,
        ),
    ),
}
