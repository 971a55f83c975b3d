"""Tools for texts. A word is what stands between spaces."""

from __future__ import annotations


def count_words(text: str) -> int:
    """The number of words in a text.

    Arguments:
        text: words with spaces between them
    """
    return len(text.split())


def count_letter(text: str, letter: str) -> int:
    """How often a letter occurs in a text.

    Arguments:
        text: any
        letter: one, of which capitals count too
    """
    if len(letter) != 1:
        raise ValueError(f"count_letter: letter is one character; got {letter[:40]!r}")
    return text.lower().count(letter.lower())


def longest_word(text: str) -> str:
    """The longest word of a text, the first of them if there are several.

    Arguments:
        text: words with spaces between them
    """
    return max(_words(text), key=len)


def nth_word(text: str, number: int) -> str:
    """The word at a place of a text.

    Arguments:
        text: words with spaces between them
        number: the place; the first word is 1
    """
    words = _words(text)
    if not 1 <= number <= len(words):
        raise ValueError(f"nth_word: number lies between 1 and the {len(words)} words; got {number}")
    return words[number - 1]


def replace_word(text: str, old: str, new: str) -> str:
    """A text with every occurrence of a word replaced by another.

    Arguments:
        text: words with spaces between them
        old: the word to replace
        new: the word to put there
    """
    return " ".join(new if word == old else word for word in text.split())


def reverse_text(text: str) -> str:
    """A text with its letters in reverse order.

    Arguments:
        text: any
    """
    return text[::-1]


def capitals(text: str) -> str:
    """A text in capital letters.

    Arguments:
        text: any
    """
    return text.upper()


def first_letters(text: str) -> str:
    """The first letters of all words of a text, together.

    Arguments:
        text: words with spaces between them
    """
    return "".join(word[0] for word in text.split())


def shift_letters(text: str, places: int) -> str:
    """A text with each letter moved some places on in the alphabet, from z on to a.

    Arguments:
        text: any
        places: how many; below 0 for back
    """
    return "".join(_shift(sign, places) for sign in text)


def _words(text: str) -> list[str]:
    words = text.split()
    if not words:
        raise ValueError("a text with at least one word is needed; got none")
    return words


def _shift(sign: str, places: int) -> str:
    for first in ("a", "A"):
        if "a" <= sign.lower() <= "z" and (sign >= "a") == (first == "a"):
            return chr((ord(sign) - ord(first) + places) % 26 + ord(first))
    return sign
