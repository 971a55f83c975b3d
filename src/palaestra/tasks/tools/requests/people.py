"""Requests about the people of the invented firm."""

from __future__ import annotations

from palaestra.tasks.tools.requests.recipe import DATES, DAYS_OF_WEEK, PERSON, TIMES, TOWN, Kinds, Recipe, positive

PEOPLE: Kinds = {
    "single": (
        Recipe(
            "age_on(person, date)",
            ("How old is {person} on {date}?", "What is {person}'s age on {date}?"),
            {"person": PERSON, "date": DATES},
        ),
        Recipe(
            "shift_start(person, day)",
            ("When does {person} start to work on a {day}?", "At what time does {person}'s shift start on {day}?"),
            {"person": PERSON, "day": DAYS_OF_WEEK},
        ),
        Recipe(
            "town_of(person)", ("In which town does {person} live?", "Where does {person} live?"), {"person": PERSON}
        ),
        Recipe(
            "manager_of(person)", ("Who is {person}'s manager?", "Whom does {person} report to?"), {"person": PERSON}
        ),
        Recipe(
            "birthday_of(person)", ("When was {person} born?", "What is {person}'s date of birth?"), {"person": PERSON}
        ),
    ),
    "chain": (
        Recipe(
            "shift_start(person, weekday(date))",
            ("When does {person} start to work on {date}?", "At what time does {person}'s shift start on {date}?"),
            {"person": PERSON, "date": DATES},
        ),
        Recipe(
            "age_on(manager_of(person), date)",
            ("How old is {person}'s manager on {date}?", "What is the age of {person}'s manager on {date}?"),
            {"person": PERSON, "date": DATES},
        ),
        Recipe(
            "distance(town_of(person), town)",
            (
                "How many km is it from the town where {person} lives to {town}?",
                "How far from {town} does {person} live, in km?",
            ),
            {"person": PERSON, "town": TOWN},
        ),
        Recipe(
            "local_time(time, town, town_of(person))",
            (
                "It is {time} in {town}. What time is it where {person} lives?",
                "When it is {time} in {town}, what is the local time in the town where {person} lives?",
            ),
            {"time": TIMES, "town": TOWN, "person": PERSON},
        ),
        Recipe(
            "days_between(birthday_of(person), date)",
            (
                "How many days after {person}'s birth is {date}?",
                "How many days is it from the day {person} was born to {date}?",
            ),
            {"person": PERSON, "date": DATES},
        ),
        Recipe(
            "shift_start(manager_of(person), day)",
            (
                "When does {person}'s manager start to work on a {day}?",
                "At what time does the shift of {person}'s manager start on a {day}?",
            ),
            {"person": PERSON, "day": DAYS_OF_WEEK},
        ),
        Recipe(
            "distance(town_of(manager_of(person)), town)",
            (
                "How many km from {town} does {person}'s manager live?",
                "How far is it, in km, from {town} to the town where {person}'s manager lives?",
            ),
            {"person": PERSON, "town": TOWN},
        ),
        Recipe(
            "weekday(birthday_of(manager_of(person)))",
            (
                "On which day of the week was {person}'s manager born?",
                "What weekday was it when {person}'s manager was born?",
            ),
            {"person": PERSON},
        ),
    ),
    "join": (
        Recipe(
            "distance(town_of(person), town_of(other))",
            (
                "How many km apart do {person} and {other} live?",
                "What is the distance in km from {person}'s town to {other}'s town?",
            ),
            {"person": PERSON, "other": PERSON},
        ),
        Recipe(
            "days_between(birthday_of(person), birthday_of(other))",
            (
                "How many days is it from {person}'s birth to {other}'s?",
                "How many days older than {other} is {person}?",
            ),
            {"person": PERSON, "other": PERSON},
            accept=positive,
        ),
        Recipe(
            "minutes_between(shift_start(person, day), shift_start(other, day))",
            (
                "How many minutes after {person} does {other} start to work on a {day}?",
                "On a {day}, how many minutes is it from the start of {person}'s shift to the start of {other}'s?",
            ),
            {"person": PERSON, "other": PERSON, "day": DAYS_OF_WEEK},
        ),
        Recipe(
            "mean([age_on(person, date), age_on(other, date)])",
            (
                "What is the mean age of {person} and {other} on {date}?",
                "On {date}, what is the average of the ages of {person} and {other}?",
            ),
            {"person": PERSON, "other": PERSON, "date": DATES},
            without=("median",),
        ),
        Recipe(
            "distance(town_of(person), town_of(manager_of(other)))",
            (
                "How many km is it from where {person} lives to where {other}'s manager lives?",
                "How far, in km, is {person}'s town from the town of {other}'s manager?",
            ),
            {"person": PERSON, "other": PERSON},
        ),
        Recipe(
            "local_time(shift_start(person, day), town_of(person), town_of(other))",
            (
                "{person} starts to work on {day} at the usual time, by the clocks of the town where {person} lives. What time is it then where {other} lives?",
                "{person}'s shift on a {day} starts by the local time of {person}'s town. What is the local time in {other}'s town at that moment?",
            ),
            {"person": PERSON, "other": PERSON, "day": DAYS_OF_WEEK},
        ),
        Recipe(
            "difference(age_on(manager_of(person), date), age_on(person, date))",
            (
                "How many years older than {person} is {person}'s manager on {date}, by their ages?",
                "Take the age of {person}'s manager on {date}, minus the age of {person} on that day.",
            ),
            {"person": PERSON, "date": DATES},
            accept=positive,
        ),
    ),
}
