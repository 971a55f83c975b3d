"""Requests about the towns of the invented country."""

from __future__ import annotations

from palaestra.tasks.tools.requests.recipe import TIMES, TOWN, Kinds, Recipe, among, positive, whole

TO_LENGTH = among(("mi", "m", "ft", "yd"))
SPEED = among((40, 50, 60, 70, 80, 90, 100, 110, 120))
WAY = whole(15, 600)
SEAT = among(("first", "second"))

TRAVEL: Kinds = {
    "single": (
        Recipe(
            "distance(town, other)",
            ("How many km is it from {town} to {other}?", "What is the distance between {town} and {other}?"),
            {"town": TOWN, "other": TOWN},
        ),
        Recipe(
            "local_time(time, town, other)",
            (
                "It is {time} in {town}. What time is it in {other}?",
                "When it is {time} in {town}, what is the local time in {other}?",
            ),
            {"time": TIMES, "town": TOWN, "other": TOWN},
        ),
        Recipe(
            "drive_minutes(way, speed)",
            (
                "How many minutes does a way of {way} km take at {speed} km/h?",
                "A bus drives {way} km at {speed} km/h. How many minutes does it need?",
            ),
            {"way": WAY, "speed": SPEED},
        ),
        Recipe(
            "ticket_price(way, seat)",
            (
                "What does a {seat} class ticket for {way} km cost?",
                "How much is a train ticket for {way} km in {seat} class?",
            ),
            {"way": WAY, "seat": SEAT},
        ),
        Recipe(
            "population(town)", ("How many people live in {town}?", "What is the population of {town}?"), {"town": TOWN}
        ),
        Recipe(
            "elevation(town)",
            ("How high above the sea is {town}?", "What is the elevation of {town} in m?"),
            {"town": TOWN},
        ),
    ),
    "chain": (
        Recipe(
            "drive_minutes(distance(town, other), speed)",
            (
                "How many minutes is the drive from {town} to {other} at {speed} km/h?",
                "A bus goes from {town} to {other} at {speed} km/h. How many minutes does it need?",
            ),
            {"town": TOWN, "other": TOWN, "speed": SPEED},
        ),
        Recipe(
            "ticket_price(distance(town, other), seat)",
            (
                "What does a {seat} class ticket from {town} to {other} cost?",
                "How much is the train from {town} to {other} in {seat} class?",
            ),
            {"town": TOWN, "other": TOWN, "seat": SEAT},
        ),
        Recipe(
            "convert_length(distance(town, other), 'km', unit)",
            (
                "What is the distance from {town} to {other} in {unit}?",
                "How many {unit} lie between {town} and {other}?",
            ),
            {"town": TOWN, "other": TOWN, "unit": TO_LENGTH},
        ),
        Recipe(
            "add_minutes(time, drive_minutes(distance(town, other), speed))",
            (
                "A car leaves {town} at {time} and drives to {other} at {speed} km/h. When does it arrive, by the clocks of {town}?",
                "By the clocks of {town}, when does a car reach {other} that leaves {town} at {time} and drives at {speed} km/h?",
            ),
            {"time": TIMES, "town": TOWN, "other": TOWN, "speed": SPEED},
        ),
        Recipe(
            "population(nearest_town(town))",
            (
                "How many people live in the town nearest to {town}?",
                "What is the population of the town nearest to {town}?",
            ),
            {"town": TOWN},
        ),
        Recipe(
            "local_time(time, town, nearest_town(other))",
            (
                "It is {time} in {town}. What time is it in the town nearest to {other}?",
                "When it is {time} in {town}, what is the local time in the town nearest to {other}?",
            ),
            {"time": TIMES, "town": TOWN, "other": TOWN},
        ),
    ),
    "join": (
        Recipe(
            "difference(population(town), population(other))",
            (
                "How many more people live in {town} than in {other}?",
                "By how many people is {town} larger than {other}?",
            ),
            {"town": TOWN, "other": TOWN},
            accept=positive,
        ),
        Recipe(
            "difference(elevation(town), elevation(other))",
            ("How much higher is {town} than {other}, in m?", "By how many m does {town} lie higher than {other}?"),
            {"town": TOWN, "other": TOWN},
            accept=positive,
        ),
        Recipe(
            "total([distance(town, stop), distance(stop, other)])",
            (
                "How many km is the way from {town} to {stop} and on to {other}?",
                "A truck goes from {town} to {stop} and then from {stop} to {other}. How many km is that in all?",
            ),
            {"town": TOWN, "stop": TOWN, "other": TOWN},
        ),
        Recipe(
            "difference(distance(start, town), distance(start, other))",
            (
                "How many km farther is it from {start} to {town} than from {start} to {other}?",
                "By how many km is the way from {start} to {town} longer than that from {start} to {other}?",
            ),
            {"start": TOWN, "town": TOWN, "other": TOWN},
            accept=positive,
        ),
        Recipe(
            "drive_minutes(total([distance(town, stop), distance(stop, other)]), speed)",
            (
                "Add up the way from {town} to {stop} and the way from {stop} to {other}. How many minutes does it all take at {speed} km/h?",
                "Take the km from {town} to {stop} and from {stop} to {other} together. How many minutes is the drive of them all at {speed} km/h?",
            ),
            {"town": TOWN, "stop": TOWN, "other": TOWN, "speed": SPEED},
        ),
        Recipe(
            "ratio(population(town), population(other))",
            (
                "How many times as many people live in {town} as in {other}?",
                "Divide the population of {town} by that of {other}.",
            ),
            {"town": TOWN, "other": TOWN},
            accept=lambda times: times > 1,
        ),
    ),
}
