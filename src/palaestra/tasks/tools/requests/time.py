"""Requests about dates and times."""

from __future__ import annotations

from palaestra.tasks.tools.requests.recipe import DATES, DAYS_OF_WEEK, QUANTITY, TIMES, Kinds, Recipe, positive, whole

MANY_DAYS = whole(8, 250)
MONTHS = whole(2, 30)
MINUTES = whole(15, 700)

CALENDAR: Kinds = {
    "single": (
        Recipe(
            "add_days(date, days)",
            (
                "Which date is {days} days after {date}?",
                "What date comes {days} days after {date}?",
                "Count {days} days on from {date}. Which date is it?",
            ),
            {"date": DATES, "days": MANY_DAYS},
        ),
        Recipe(
            "add_months(date, months)",
            (
                "Which date is {months} months after {date}?",
                "Go {months} months on from {date}. Which date is it?",
            ),
            {"date": DATES, "months": MONTHS},
        ),
        Recipe(
            "days_between(start, end)",
            ("How many days is it from {start} to {end}?", "How many days lie between {start} and {end}?"),
            {"start": DATES, "end": DATES},
            rising=(("start", "end"),),
        ),
        Recipe(
            "next_weekday(date, day)",
            ("Which date is the first {day} after {date}?", "On what date is the next {day} after {date}?"),
            {"date": DATES, "day": DAYS_OF_WEEK},
        ),
        Recipe(
            "weekday(date)", ("Which day of the week is {date}?", "What weekday does {date} fall on?"), {"date": DATES}
        ),
        Recipe(
            "month_end(date)",
            ("What is the last date of the month of {date}?", "On which date does the month of {date} end?"),
            {"date": DATES},
        ),
    ),
    "chain": (
        Recipe(
            "weekday(add_days(date, days))",
            ("Which day of the week is {days} days after {date}?", "What weekday will it be {days} days after {date}?"),
            {"date": DATES, "days": MANY_DAYS},
        ),
        Recipe(
            "days_between(date, month_end(date))",
            (
                "How many days is it from {date} to the last day of its month?",
                "How many days after {date} does that month end?",
            ),
            {"date": DATES},
        ),
        Recipe(
            "next_weekday(add_months(date, months), day)",
            (
                "Go {months} months on from {date}. Which date is the first {day} after that?",
                "Which date is the first {day} after the day {months} months after {date}?",
            ),
            {"date": DATES, "months": MONTHS, "day": DAYS_OF_WEEK},
        ),
        Recipe(
            "weekday(month_end(add_months(date, months)))",
            (
                "Go {months} months on from {date}. Which weekday is the last day of that month?",
                "Which day of the week is the last day of the month that lies {months} months after {date}?",
            ),
            {"date": DATES, "months": MONTHS},
        ),
        Recipe(
            "add_days(next_weekday(date, day), days)",
            (
                "Take the first {day} after {date}. Which date is {days} days after it?",
                "Which date is {days} days after the first {day} after {date}?",
            ),
            {"date": DATES, "day": DAYS_OF_WEEK, "days": MANY_DAYS},
        ),
    ),
    "join": (
        Recipe(
            "days_between(add_days(date, days), add_months(date, months))",
            (
                "One bill is due {days} days after {date}, another {months} months after {date}. How many days is it from the first to the second?",
                "How many days is it from the day {days} days after {date} to the day {months} months after {date}?",
            ),
            {"date": DATES, "days": whole(8, 50), "months": MONTHS},
        ),
        Recipe(
            "difference(days_between(start, end), days_between(one, two))",
            (
                "By how many days is the time from {start} to {end} longer than that from {one} to {two}?",
                "How many days is it from {start} to {end}, minus the days from {one} to {two}?",
            ),
            {"start": DATES, "end": DATES, "one": DATES, "two": DATES},
            (("start", "end"), ("one", "two")),
            positive,
        ),
        Recipe(
            "days_between(month_end(date), next_weekday(add_months(date, months), day))",
            (
                "How many days is it from the last day of the month of {date} to the first {day} after the day {months} months after {date}?",
                "Find the end of the month of {date}, and the first {day} after the day {months} months after {date}. How many days lie between them?",
            ),
            {"date": DATES, "months": MONTHS, "day": DAYS_OF_WEEK},
        ),
    ),
}

CLOCK: Kinds = {
    "single": (
        Recipe(
            "add_minutes(time, minutes)",
            (
                "What time is it {minutes} minutes after {time}?",
                "A film starts at {time} and takes {minutes} minutes. When does it end?",
            ),
            {"time": TIMES, "minutes": MINUTES},
        ),
        Recipe(
            "minutes_between(start, end)",
            (
                "How many minutes is it from {start} to {end}?",
                "A shop is open from {start} to {end}. How many minutes is that?",
            ),
            {"start": TIMES, "end": TIMES},
        ),
    ),
    "chain": (
        Recipe(
            "product(minutes_between(start, end), days)",
            (
                "A shop is open from {start} to {end} on each of {days} days. How many minutes is it open in all?",
                "Karl rows from {start} to {end} on {days} days. How many minutes does he row altogether?",
            ),
            {"start": TIMES, "end": TIMES, "days": QUANTITY},
        ),
        Recipe(
            "minutes_between(add_minutes(time, minutes), end)",
            (
                "How many minutes is it from {minutes} minutes after {time} to {end}?",
                "A class starts at {time} and takes {minutes} minutes. How many minutes are then left until {end}?",
            ),
            {"time": TIMES, "minutes": MINUTES, "end": TIMES},
        ),
        Recipe(
            "add_minutes(time, minutes_between(start, end))",
            (
                "A visit takes as long as from {start} to {end}. It starts at {time}. When does it end?",
                "What time is it when, after {time}, as many minutes have passed as from {start} to {end}?",
            ),
            {"time": TIMES, "start": TIMES, "end": TIMES},
        ),
    ),
    "join": (
        Recipe(
            "total([minutes_between(start, noon), minutes_between(one, two)])",
            (
                "Olga works from {start} to {noon} and again from {one} to {two}. How many minutes is that in all?",
                "A pool is open from {start} to {noon} and from {one} to {two}. How many minutes is it open altogether?",
            ),
            {"start": TIMES, "noon": TIMES, "one": TIMES, "two": TIMES},
        ),
        Recipe(
            "difference(minutes_between(start, end), minutes_between(one, two))",
            (
                "By how many minutes is the time from {start} to {end} longer than that from {one} to {two}?",
                "How many minutes more are there from {start} to {end} than from {one} to {two}?",
            ),
            {"start": TIMES, "end": TIMES, "one": TIMES, "two": TIMES},
            accept=positive,
        ),
        Recipe(
            "minutes_between(add_minutes(start, first), add_minutes(one, second))",
            (
                "One bus leaves at {start} and drives {first} minutes, another leaves at {one} and drives {second} minutes. How many minutes is it from the first one's arrival to the second one's?",
                "How many minutes is it from {first} minutes after {start} to {second} minutes after {one}?",
            ),
            {"start": TIMES, "first": MINUTES, "one": TIMES, "second": MINUTES},
        ),
    ),
}
