"""Requests that go through several domains: deadlines, trips, orders."""

from __future__ import annotations

from palaestra.tasks.tools.requests.recipe import (
    DATES,
    DAYS_OF_WEEK,
    ITEM,
    PERCENT,
    PERSON,
    QUANTITY,
    TIMES,
    TOWN,
    Kinds,
    Recipe,
    among,
    positive,
    whole,
)

TO_LENGTH = among(("mi", "m", "ft", "yd"))
SPEED = among((40, 50, 60, 70, 80, 90, 100, 110, 120))
SEAT = among(("first", "second"))
ABROAD = among(("USD", "GBP", "CHF", "JPY", "NOK"))
SHARERS = whole(2, 9)

DEADLINES: Kinds = {
    "chain": (
        Recipe(
            "add_days(date, delivery_days(item, town))",
            (
                "A {item} is sent to {town} on {date}. On which date does it arrive?",
                "On which date is the {item} in {town} if it is sent on {date}?",
            ),
            {"date": DATES, "item": ITEM, "town": TOWN},
        ),
        Recipe(
            "weekday(add_days(date, delivery_days(item, town)))",
            (
                "A {item} is sent to {town} on {date}. On which day of the week does it arrive?",
                "What weekday is it when a {item} reaches {town} that was sent on {date}?",
            ),
            {"date": DATES, "item": ITEM, "town": TOWN},
        ),
        Recipe(
            "add_days(date, delivery_days(item, town_of(person)))",
            (
                "A {item} is sent on {date} to the town where {person} lives. On which date does it arrive?",
                "Somebody sends a {item} to {person}'s town on {date}. Which date is it when it gets there?",
            ),
            {"date": DATES, "item": ITEM, "person": PERSON},
        ),
        Recipe(
            "next_weekday(add_days(date, delivery_days(item, town)), day)",
            (
                "A {item} is sent to {town} on {date}. On which date is the first {day} after it arrives?",
                "Which date is the first {day} after a {item}, sent on {date}, has come to {town}?",
            ),
            {"date": DATES, "item": ITEM, "town": TOWN, "day": DAYS_OF_WEEK},
        ),
        Recipe(
            "age_on(person, add_days(date, delivery_days(item, town_of(person))))",
            (
                "A {item} is sent on {date} to the town where {person} lives. How old is {person} on the day when it arrives?",
                "How old is {person} on the day when a {item} gets to {person}'s town that was sent on {date}?",
            ),
            {"date": DATES, "item": ITEM, "person": PERSON},
        ),
        Recipe(
            "shift_start(person, weekday(add_days(date, delivery_days(item, town))))",
            (
                "A {item} is sent to {town} on {date}. When does {person} start to work on the day when it arrives?",
                "On {date} a {item} leaves for {town}. At what time does {person}'s shift start on the day of its arrival?",
            ),
            {"date": DATES, "item": ITEM, "town": TOWN, "person": PERSON},
        ),
    ),
    "join": (
        Recipe(
            "days_between(add_days(date, delivery_days(item, town)), month_end(date))",
            (
                "A {item} is sent to {town} on {date}. How many days is it from its arrival to the last day of the month of {date}?",
                "A {item} leaves for {town} on {date}. Counted from the day when it arrives, how many days is it to the end of the month of {date}?",
            ),
            {"date": DATES, "item": ITEM, "town": TOWN},
            accept=positive,
        ),
        Recipe(
            "days_between(add_days(date, delivery_days(item, town)), add_months(date, months))",
            (
                "A {item} is sent to {town} on {date}. It must be paid {months} months after {date}. How many days is it from its arrival to the payment?",
                "A {item} leaves for {town} on {date}, with a guarantee up to the day {months} months after {date}. How many days is it from its arrival to that day?",
            ),
            {"date": DATES, "item": ITEM, "town": TOWN, "months": whole(2, 12)},
        ),
        Recipe(
            "add_days(date, largest([delivery_days(item, town), delivery_days(other, town)]))",
            (
                "On {date} a {item} and a {other} are sent to {town}. Take the largest of their two delivery times: on which date are both there?",
                "A {item} and a {other} leave for {town} on {date}. Add the largest of their delivery times to that date: which date is it?",
            ),
            {"date": DATES, "item": ITEM, "other": ITEM, "town": TOWN},
        ),
    ),
}

TRIPS: Kinds = {
    "chain": (
        Recipe(
            "drive_minutes(distance(town_of(person), town), speed)",
            (
                "{person} drives home from {town} at {speed} km/h. How many minutes does it take?",
                "How many minutes does {person} need from home to {town} at {speed} km/h?",
            ),
            {"person": PERSON, "town": TOWN, "speed": SPEED},
        ),
        Recipe(
            "convert_currency(ticket_price(distance(town, other), seat), 'EUR', currency)",
            (
                "What does a {seat} class ticket from {town} to {other} cost in {currency}?",
                "How much is the train from {town} to {other} in {seat} class, in {currency}?",
            ),
            {"town": TOWN, "other": TOWN, "seat": SEAT, "currency": ABROAD},
        ),
        Recipe(
            "add_minutes(time, drive_minutes(distance(town_of(person), town), speed))",
            (
                "{person} leaves home at {time} and drives to {town} at {speed} km/h. When does {person} arrive, by the clock at home?",
                "At {time} {person} sets out from home to {town} at {speed} km/h. What time is it at home on arrival?",
            ),
            {"person": PERSON, "time": TIMES, "town": TOWN, "speed": SPEED},
        ),
        Recipe(
            "local_time(add_minutes(time, drive_minutes(distance(town, other), speed)), town, other)",
            (
                "A car leaves {town} at {time} by the clocks there and drives to {other} at {speed} km/h. Find the time of arrival by the clocks of {town}, then the local time of {other} for it.",
                "A bus goes from {town} at {time} local time to {other} at {speed} km/h. First find when it arrives by the clocks of {town}; then give that moment in the local time of {other}.",
            ),
            {"time": TIMES, "town": TOWN, "other": TOWN, "speed": SPEED},
        ),
        Recipe(
            "split_evenly(convert_currency(ticket_price(distance(town, other)), 'EUR', currency), people)",
            (
                "Find the price of a ticket of the usual class from {town} to {other}, change it into {currency}, then share it equally among {people} people. What does each pay?",
                "Change the usual price of a train ticket from {town} to {other} into {currency}; then split it equally between {people} people. How much is it for each?",
            ),
            {"town": TOWN, "other": TOWN, "currency": ABROAD, "people": SHARERS},
        ),
    ),
    "join": (
        Recipe(
            "ticket_price(distance(town_of(person), town_of(other)), seat)",
            (
                "What does a {seat} class ticket cost from where {person} lives to where {other} lives?",
                "{person} takes the train from home to {other}'s home, in {seat} class. How much is the ticket?",
            ),
            {"person": PERSON, "other": PERSON, "seat": SEAT},
        ),
        Recipe(
            "convert_length(distance(town_of(person), town_of(other)), 'km', unit)",
            (
                "How far apart do {person} and {other} live, in {unit}?",
                "How many {unit} is it from {person}'s home to {other}'s home?",
            ),
            {"person": PERSON, "other": PERSON, "unit": TO_LENGTH},
        ),
        Recipe(
            "ticket_price(total([distance(town, stop), distance(stop, other)]), seat)",
            (
                "What does one {seat} class ticket cost for the way from {town} to {stop} and the way from {stop} to {other} added up?",
                "Add up the km from {town} to {stop} and from {stop} to {other}. How much is a single {seat} class ticket for all of them?",
            ),
            {"town": TOWN, "stop": TOWN, "other": TOWN, "seat": SEAT},
        ),
    ),
}

ORDERS: Kinds = {
    "chain": (
        Recipe(
            "convert_currency(order_cost(item, quantity), 'EUR', currency)",
            (
                "What do {quantity} pieces of the {item} cost in {currency}?",
                "How much is an order of {quantity} pieces of the {item}, in {currency}?",
            ),
            {"item": ITEM, "quantity": QUANTITY, "currency": ABROAD},
        ),
        Recipe(
            "split_evenly(add_percent(order_cost(item, quantity), percent), people)",
            (
                "Add {percent} % tax to the price of {quantity} pieces of the {item}, then share it equally among {people} people. What does each pay?",
                "The price of {quantity} pieces of the {item} is raised by {percent} % tax, and {people} people share the whole equally. How much is it for each?",
            ),
            {"item": ITEM, "quantity": QUANTITY, "percent": PERCENT, "people": SHARERS},
        ),
        Recipe(
            "convert_currency(take_percent(order_cost(item, quantity), percent), 'EUR', currency)",
            (
                "Take {percent} % off the price of {quantity} pieces of the {item}, then change it into {currency}.",
                "An order of {quantity} pieces of the {item} gets a discount of {percent} %; what is left is changed into {currency}. How much is it?",
            ),
            {"item": ITEM, "quantity": QUANTITY, "percent": PERCENT, "currency": ABROAD},
        ),
        Recipe(
            "split_evenly(convert_currency(take_percent(order_cost(item, quantity), percent), 'EUR', currency), people)",
            (
                "Take {percent} % off the price of {quantity} pieces of the {item}, change that into {currency}, then share it equally among {people} people. What does each pay?",
                "An order of {quantity} pieces of the {item} gets a discount of {percent} %, is then changed into {currency}, and is at last shared equally by {people} people. How much is it for each?",
            ),
            {"item": ITEM, "quantity": QUANTITY, "percent": PERCENT, "currency": ABROAD, "people": SHARERS},
        ),
    ),
    "join": (
        Recipe(
            "add_percent(total([order_cost(item, quantity), order_cost(other, count)]), percent)",
            (
                "Add up the price of {quantity} pieces of the {item} and that of {count} of the {other}, then add {percent} % tax to the sum. What is to be paid?",
                "{quantity} pieces of the {item} and {count} pieces of the {other} go on one bill, to which {percent} % tax is added. How much is it then?",
            ),
            {"item": ITEM, "quantity": QUANTITY, "other": ITEM, "count": QUANTITY, "percent": PERCENT},
        ),
        Recipe(
            "convert_currency(total([order_cost(item, quantity), order_cost(other, count)]), 'EUR', currency)",
            (
                "Add up the price of {quantity} pieces of the {item} and that of {count} of the {other}, then change the sum into {currency}.",
                "{quantity} pieces of the {item} and {count} pieces of the {other} go on one bill, which is changed into {currency}. How much is it?",
            ),
            {"item": ITEM, "quantity": QUANTITY, "other": ITEM, "count": QUANTITY, "currency": ABROAD},
        ),
        Recipe(
            "difference(order_cost(item, quantity), take_percent(order_cost(other, count), percent))",
            (
                "{quantity} pieces of the {item} cost the full price, {count} of the {other} are sold with {percent} % off. How much more does the first order cost than the second?",
                "How much more are {quantity} pieces of the {item} than {count} pieces of the {other} after a discount of {percent} % on the latter?",
            ),
            {"item": ITEM, "quantity": QUANTITY, "other": ITEM, "count": QUANTITY, "percent": PERCENT},
            accept=positive,
        ),
        Recipe(
            "total([order_cost(item, quantity), ticket_price(distance(town, other), seat)])",
            (
                "What do {quantity} pieces of the {item} and a {seat} class ticket from {town} to {other} cost together?",
                "Somebody pays for {quantity} pieces of the {item} and for the train from {town} to {other} in {seat} class. How much is that in all?",
            ),
            {"item": ITEM, "quantity": QUANTITY, "town": TOWN, "other": TOWN, "seat": SEAT},
        ),
        Recipe(
            "ratio(order_cost(item, quantity), order_cost(other, count))",
            (
                "How many times as much as {count} pieces of the {other} do {quantity} of the {item} cost?",
                "Divide the price of {quantity} pieces of the {item} by that of {count} pieces of the {other}.",
            ),
            {"item": ITEM, "quantity": QUANTITY, "other": ITEM, "count": QUANTITY},
            accept=lambda times: times > 1,
        ),
    ),
}
