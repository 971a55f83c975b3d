"""Requests about units and money."""

from __future__ import annotations

from palaestra.tasks.tools.requests.recipe import (
    AMOUNT,
    CURRENCY,
    DEGREES,
    LENGTHS,
    MASSES,
    PERCENT,
    QUANTITY,
    VOLUMES,
    Kinds,
    Recipe,
    decimal,
    positive,
    whole,
)

MEASURE = decimal(2, 400, 0.5)
HEAT = whole(5, 300)
INTEREST = decimal(1, 9, 0.5)
YEARS = whole(2, 25)

UNITS: Kinds = {
    "single": (
        Recipe(
            "convert_length(value, source, target)",
            ("How many {target} are {value} {source}?", "Convert {value} {source} to {target}."),
            {"value": MEASURE, "source": LENGTHS, "target": LENGTHS},
        ),
        Recipe(
            "convert_mass(value, source, target)",
            ("How many {target} are {value} {source}?", "Convert {value} {source} to {target}."),
            {"value": MEASURE, "source": MASSES, "target": MASSES},
        ),
        Recipe(
            "convert_volume(value, source, target)",
            ("How many {target} are {value} {source}?", "Convert {value} {source} to {target}."),
            {"value": MEASURE, "source": VOLUMES, "target": VOLUMES},
        ),
        Recipe(
            "convert_temperature(value, source, target)",
            (
                "Convert a temperature of {value} {source} to {target}.",
                "It is {value} {source}. What is that in {target}?",
            ),
            {"value": HEAT, "source": DEGREES, "target": DEGREES},
        ),
    ),
    "chain": (
        Recipe(
            "round_to(convert_length(value, source, target), digits)",
            (
                "Convert {value} {source} to {target} and round it to {digits} digits behind the point.",
                "How many {target} are {value} {source}, rounded to {digits} digits behind the point?",
            ),
            {"value": MEASURE, "source": LENGTHS, "target": LENGTHS, "digits": whole(2, 4)},
        ),
        Recipe(
            "round_to(convert_temperature(value, source, target))",
            (
                "Convert a temperature of {value} {source} to {target} and round it to a whole number.",
                "What is a temperature of {value} {source} in {target}, rounded to a whole number?",
            ),
            {"value": HEAT, "source": DEGREES, "target": DEGREES},
        ),
        Recipe(
            "convert_mass(product(value, count), source, target)",
            (
                "A sack holds {value} {source}. Multiply that by {count}, then convert the product to {target}.",
                "Find the mass of {count} boxes of {value} {source} each in {source}; then convert it to {target}.",
            ),
            {"value": MEASURE, "count": QUANTITY, "source": MASSES, "target": MASSES},
        ),
    ),
    "join": (
        Recipe(
            "total([convert_length(value, source, target), convert_length(more, other, target)])",
            (
                "Convert {value} {source} and {more} {other} each to {target}. What is their sum?",
                "A rope of {value} {source} and one of {more} {other} are measured in {target}. How long are they together?",
            ),
            {"value": MEASURE, "more": MEASURE, "source": LENGTHS, "other": LENGTHS, "target": LENGTHS},
        ),
        Recipe(
            "difference(convert_mass(value, source, target), convert_mass(more, other, target))",
            (
                "Convert {value} {source} and {more} {other} each to {target}. How much is the first minus the second?",
                "Give {value} {source} and {more} {other} each in {target}, and take the second from the first.",
            ),
            {"value": MEASURE, "more": MEASURE, "source": MASSES, "other": MASSES, "target": MASSES},
        ),
        Recipe(
            "round_to(total([convert_volume(value, source, target), convert_volume(more, other, target)]), digits)",
            (
                "Convert {value} {source} and {more} {other} each to {target}, add them up, and round the sum to {digits} digits behind the point.",
                "Give {value} {source} and {more} {other} each in {target}. What is their sum, rounded to {digits} digits behind the point?",
            ),
            {
                "value": MEASURE,
                "more": MEASURE,
                "source": VOLUMES,
                "other": VOLUMES,
                "target": VOLUMES,
                "digits": whole(2, 4),
            },
        ),
    ),
}

MONEY: Kinds = {
    "single": (
        Recipe(
            "convert_currency(amount, source, target)",
            ("How much is {amount} {source} in {target}?", "Change {amount} {source} into {target}."),
            {"amount": AMOUNT, "source": CURRENCY, "target": CURRENCY},
        ),
        Recipe(
            "add_percent(amount, percent)",
            (
                "What is a price of {amount} with {percent} % tax added?",
                "A bill is {amount}. How much is it with a tip of {percent} %?",
            ),
            {"amount": AMOUNT, "percent": PERCENT},
        ),
        Recipe(
            "take_percent(amount, percent)",
            (
                "What is a price of {amount} with {percent} % off?",
                "A coat costs {amount}. What does it cost after a discount of {percent} %?",
            ),
            {"amount": AMOUNT, "percent": PERCENT},
        ),
        Recipe(
            "split_evenly(amount, people)",
            (
                "A bill of {amount} is shared equally by {people} people. What does each pay?",
                "{people} people share costs of {amount} equally. How much is it for each?",
            ),
            {"amount": AMOUNT, "people": QUANTITY},
        ),
        Recipe(
            "savings(amount, percent, years)",
            (
                "What do {amount} grow to in {years} years at {percent} % compound interest?",
                "{amount} are saved for {years} years at {percent} % compound interest. How much is it then?",
            ),
            {"amount": AMOUNT, "percent": INTEREST, "years": YEARS},
        ),
    ),
    "chain": (
        Recipe(
            "split_evenly(add_percent(amount, percent), people)",
            (
                "Add a tip of {percent} % to a bill of {amount}, then share it equally among {people} people. What does each pay?",
                "A bill of {amount} is raised by a tip of {percent} %, and {people} people share the whole equally. How much is it for each?",
            ),
            {"amount": AMOUNT, "percent": PERCENT, "people": QUANTITY},
        ),
        Recipe(
            "convert_currency(take_percent(amount, percent), source, target)",
            (
                "Take {percent} % off {amount} {source}, then change it into {target}. How much is it?",
                "A ring for {amount} {source} is sold at {percent} % off. Change the lower price into {target}.",
            ),
            {"amount": AMOUNT, "percent": PERCENT, "source": CURRENCY, "target": CURRENCY},
        ),
        Recipe(
            "add_percent(take_percent(amount, percent), tax)",
            (
                "First take {percent} % off {amount}, then add {tax} % tax. What is the price?",
                "A price of {amount} is lowered by {percent} %, and {tax} % tax is added to what is left. What is to be paid?",
            ),
            {"amount": AMOUNT, "percent": PERCENT, "tax": PERCENT},
        ),
        Recipe(
            "savings(convert_currency(amount, source, target), percent, years)",
            (
                "Change {amount} {source} into {target}, then save it for {years} years at {percent} % compound interest. What does it grow to?",
                "{amount} {source} are changed into {target} and then saved for {years} years at {percent} % compound interest. How much is it in the end?",
            ),
            {"amount": AMOUNT, "source": CURRENCY, "target": CURRENCY, "percent": INTEREST, "years": YEARS},
        ),
        Recipe(
            "split_evenly(convert_currency(add_percent(amount, percent), source, target), people)",
            (
                "Add {percent} % tax to {amount} {source}, change that into {target}, then share it equally among {people} people. What does each pay?",
                "A bill of {amount} {source} gets a tip of {percent} %, is then changed into {target}, and is at last shared equally by {people} people. How much is it for each?",
            ),
            {"amount": AMOUNT, "percent": PERCENT, "source": CURRENCY, "target": CURRENCY, "people": QUANTITY},
        ),
    ),
    "join": (
        Recipe(
            "total([add_percent(amount, percent), add_percent(more, tax)])",
            (
                "One bill of {amount} gets {percent} % added, another of {more} gets {tax} % added. What is the sum of the two?",
                "Raise {amount} by {percent} % and {more} by {tax} %. What do they make together?",
            ),
            {"amount": AMOUNT, "percent": PERCENT, "more": AMOUNT, "tax": PERCENT},
        ),
        Recipe(
            "split_evenly(total([convert_currency(amount, source, target), convert_currency(more, other, target)]), people)",
            (
                "Change {amount} {source} and {more} {other} each into {target}, add them up, and share the sum equally among {people} people. What does each get?",
                "{people} people put {amount} {source} and {more} {other}, each changed into {target}, in one pot and share it equally. How much is it for each?",
            ),
            {
                "amount": AMOUNT,
                "more": AMOUNT,
                "source": CURRENCY,
                "other": CURRENCY,
                "target": CURRENCY,
                "people": QUANTITY,
            },
        ),
        Recipe(
            "difference(savings(amount, percent, years), savings(more, interest, years))",
            (
                "Two savings run for {years} years with compound interest: {amount} at {percent} % and {more} at {interest} %. How much more does the first grow to than the second?",
                "After {years} years of compound interest, how much more are {amount} at {percent} % than {more} at {interest} %?",
            ),
            {"amount": AMOUNT, "percent": INTEREST, "more": AMOUNT, "interest": INTEREST, "years": YEARS},
            accept=positive,
        ),
    ),
}
