"""Requests about lists of numbers and about texts."""

from __future__ import annotations

from palaestra.tasks.tools.requests.recipe import (
    LETTER,
    QUANTITY,
    WORD,
    Kinds,
    Recipe,
    among,
    decimal,
    several,
    whole,
    words,
)

PLACES = whole(2, 9)
NUMBERS = several(4, 7, 2, 99)
TEXT = words(4, 7)

STATISTICS: Kinds = {
    "single": (
        Recipe(
            "mean(numbers)", ("What is the mean of {numbers}?", "Give the average of {numbers}."), {"numbers": NUMBERS}
        ),
        Recipe(
            "median(numbers)",
            ("What is the median of {numbers}?", "Find the median of these numbers: {numbers}."),
            {"numbers": NUMBERS},
        ),
        Recipe(
            "largest(numbers)",
            ("Which is the largest of {numbers}?", "Find the largest of these numbers: {numbers}."),
            {"numbers": NUMBERS},
        ),
        Recipe(
            "smallest(numbers)",
            ("Which is the smallest of {numbers}?", "Find the smallest of these numbers: {numbers}."),
            {"numbers": NUMBERS},
        ),
        Recipe(
            "count_above(numbers, limit)",
            ("How many of {numbers} are above {limit}?", "Of the numbers {numbers}, how many are larger than {limit}?"),
            {"numbers": NUMBERS, "limit": whole(20, 80)},
        ),
        Recipe(
            "top(numbers, count)",
            ("Which are the {count} largest of {numbers}?", "Find the {count} largest of these numbers: {numbers}."),
            {"numbers": NUMBERS, "count": among((2, 3))},
        ),
        Recipe(
            "scale(numbers, factor)",
            ("Multiply each of {numbers} by {factor}.", "What are {numbers}, each multiplied by {factor}?"),
            {"numbers": NUMBERS, "factor": QUANTITY},
        ),
    ),
    "chain": (
        Recipe(
            "mean(top(numbers, count))",
            (
                "What is the mean of the {count} largest of {numbers}?",
                "Keep the {count} largest of {numbers} and take their mean.",
            ),
            {"numbers": NUMBERS, "count": among((2, 3))},
        ),
        Recipe(
            "count_above(numbers, mean(numbers))",
            (
                "How many of {numbers} are above their mean?",
                "Find the mean of {numbers}. How many of them are above it?",
            ),
            {"numbers": NUMBERS},
        ),
        Recipe(
            "smallest(top(numbers, count))",
            (
                "Keep the {count} largest of {numbers}. Which of these is the smallest?",
                "What is the smallest of the {count} largest of {numbers}?",
            ),
            {"numbers": NUMBERS, "count": among((2, 3))},
        ),
        Recipe(
            "round_to(median(scale(numbers, factor)), digits)",
            (
                "Multiply each of {numbers} by {factor}, take the median of that, and round it to {digits} digits behind the point.",
                "What is the median of {numbers}, each multiplied by {factor} first, when it is rounded to {digits} digits behind the point?",
            ),
            {"numbers": NUMBERS, "factor": decimal(1, 9, 0.25), "digits": among((2, 3))},
        ),
        Recipe(
            "count_above(scale(numbers, factor), limit)",
            (
                "Multiply each of {numbers} by {factor}. How many are then above {limit}?",
                "How many of {numbers} are above {limit} after each is multiplied by {factor}?",
            ),
            {"numbers": NUMBERS, "factor": whole(2, 9), "limit": whole(60, 400)},
        ),
    ),
    "join": (
        Recipe(
            "difference(largest(numbers), mean(numbers))",
            (
                "By how much is the largest of {numbers} above their mean?",
                "How much is the largest minus the mean of {numbers}?",
            ),
            {"numbers": NUMBERS},
        ),
        Recipe(
            "ratio(mean(numbers), median(numbers))",
            ("Divide the mean of {numbers} by their median.", "How many times the median of {numbers} is their mean?"),
            {"numbers": NUMBERS},
        ),
        Recipe(
            "total([largest(numbers), largest(more)])",
            (
                "What is the sum of the largest of {numbers} and the largest of {more}?",
                "Add the largest of {numbers} to the largest of {more}.",
            ),
            {"numbers": NUMBERS, "more": NUMBERS},
        ),
        Recipe(
            "difference(mean(top(numbers, count)), smallest(numbers))",
            (
                "How much is the mean of the {count} largest of {numbers} above the smallest of all?",
                "Take the mean of the {count} largest of {numbers}, minus the smallest of all of them.",
            ),
            {"numbers": NUMBERS, "count": among((2, 3))},
        ),
    ),
}

TEXTS: Kinds = {
    "single": (
        Recipe(
            "count_words(text)",
            ('How many words has the text "{text}"?', 'Count the words of "{text}".'),
            {"text": TEXT},
        ),
        Recipe(
            "count_letter(text, letter)",
            ('How often does the letter {letter} occur in "{text}"?', 'Count the letter {letter} in "{text}".'),
            {"text": TEXT, "letter": LETTER},
        ),
        Recipe(
            "longest_word(text)",
            ('Which is the longest word of "{text}"?', 'Find the longest word in "{text}".'),
            {"text": TEXT},
        ),
        Recipe(
            "nth_word(text, number)",
            ('What is word number {number} of "{text}"?', 'Which word stands at place {number} in "{text}"?'),
            {"text": TEXT, "number": whole(1, 4)},
        ),
        Recipe(
            "reverse_text(word)",
            ('Write "{word}" backwards.', 'What is "{word}" with its letters in reverse order?'),
            {"word": TEXT},
        ),
        Recipe(
            "shift_letters(word, places)",
            (
                'Move each letter of "{word}" {places} places on in the alphabet.',
                'What becomes of "{word}" when each letter moves {places} places on in the alphabet?',
            ),
            {"word": WORD, "places": PLACES},
        ),
        Recipe(
            "first_letters(text)",
            (
                'Put together the first letters of the words of "{text}".',
                'Which letters do the words of "{text}" start with, put together?',
            ),
            {"text": TEXT},
        ),
    ),
    "chain": (
        Recipe(
            "reverse_text(nth_word(text, number))",
            (
                'Take word number {number} of "{text}" and write it backwards.',
                'What is the word at place {number} of "{text}" with its letters in reverse order?',
            ),
            {"text": TEXT, "number": whole(1, 4)},
        ),
        Recipe(
            "capitals(first_letters(text))",
            (
                'Put together the first letters of the words of "{text}", then write that in capitals.',
                'Take the first letters of the words of "{text}" together, and then put them in capitals.',
            ),
            {"text": TEXT},
        ),
        Recipe(
            "shift_letters(longest_word(text), places)",
            (
                'Take the longest word of "{text}", then move each of its letters {places} places on in the alphabet.',
                'What becomes of the longest word of "{text}" when each of its letters moves {places} places on in the alphabet?',
            ),
            {"text": TEXT, "places": PLACES},
        ),
        Recipe(
            "count_letter(replace_word(f'{old} {text} {old}', old, new), letter)",
            (
                'First replace the word {old} by {new} in "{old} {text} {old}". How often does the letter {letter} then occur in it?',
                'In "{old} {text} {old}", put {new} in the place of {old}; then count the letter {letter} in the whole.',
            ),
            {"text": TEXT, "old": WORD, "new": WORD, "letter": LETTER},
        ),
        Recipe(
            "capitals(reverse_text(shift_letters(word, places)))",
            (
                'Move each letter of "{word}" {places} places on in the alphabet, then write it backwards, then in capitals.',
                'First move each letter of "{word}" {places} places on in the alphabet, then reverse the order of the letters, then put them in capitals.',
            ),
            {"word": WORD, "places": PLACES},
        ),
    ),
    "join": (
        Recipe(
            "total([count_letter(text, letter), count_letter(more, letter)])",
            (
                'How often does the letter {letter} occur in "{text}" and in "{more}"? Count in each, and add.',
                'Count the letter {letter} in "{text}", count it in "{more}", and add the two.',
            ),
            {"text": TEXT, "more": TEXT, "letter": LETTER},
        ),
        Recipe(
            "replace_word(text, longest_word(text), reverse_text(word))",
            (
                'Write "{word}" backwards. Then, in "{text}", put that in the place of its longest word.',
                'Replace the longest word of "{text}" by the word "{word}" written backwards.',
            ),
            {"text": TEXT, "word": WORD},
        ),
        Recipe(
            "ratio(count_letter(text, letter), count_words(text))",
            (
                'Divide how often the letter {letter} occurs in "{text}" by the number of its words.',
                'How often does the letter {letter} occur in "{text}", divided by the number of words there?',
            ),
            {"text": TEXT, "letter": LETTER},
        ),
    ),
}
