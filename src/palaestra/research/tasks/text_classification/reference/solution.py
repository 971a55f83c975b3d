"""Correct typing errors, then count ordered pairs of nearby words in a sentence.

"not ... refund" and "rather ... refund" are different pairs, so a linear model can learn which of the mentioned things is
requested.
"""

import re
from collections import Counter
from collections.abc import Iterable

from baseline import read, write_submission
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import SGDClassifier

NEAR = 12
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+|[0-9]+|[.,;:?!]", text.lower())


def mended(word: str, known: Counter[str]) -> str:
    """Replace a rare word by the most frequent word at an edit distance of 1."""
    if len(word) < 2 or known[word] >= 25:
        return word
    cuts = [(word[:k], word[k:]) for k in range(len(word) + 1)]
    near = [a + b[1:] for a, b in cuts if b] + [a + b[1] + b[0] + b[2:] for a, b in cuts if len(b) > 1]
    near += [a + letter + b[1:] for a, b in cuts if b for letter in LETTERS]
    near += [a + letter + b for a, b in cuts for letter in LETTERS]
    best = max(near, key=lambda other: known[other])
    return best if known[best] >= 25 else word


def pairs(text: list[str]) -> Iterable[str]:
    """Words and ordered pairs of words; all numbers become one token."""
    text = ["#" if word.isdigit() else word for word in text]
    for k, word in enumerate(text):
        yield word
        for other in range(k + 1, min(k + 1 + NEAR, len(text))):
            yield f"{word} {text[other]}" if other > k + 1 else f"{word}+{text[other]}"
            if text[other] == ".":
                break


def main() -> None:
    train = read("train")
    known = Counter(word for row in train for word in words(row["text"]))
    right: dict[str, str] = {}

    def features(rows: list[dict[str, str]]) -> object:
        texts = [words(row["text"]) for row in rows]
        for word in {word for text in texts for word in text} - set(right):
            right[word] = mended(word, known)
        found = [sorted(set(pairs([right[word] for word in text]))) for text in texts]
        return FeatureHasher(2**20, input_type="string", alternate_sign=False).transform(found)

    model = SGDClassifier(loss="log_loss", alpha=3e-5, max_iter=60, tol=None, average=True, random_state=0)
    model.fit(features(train), [row["wish"] for row in train])
    write_submission(lambda rows: model.predict(features(rows)))


if __name__ == "__main__":
    main()
