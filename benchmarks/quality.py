"""How long do duplicates and overlap take on 10,000 examples against 10,000 problems?

Examples and problems are drawn from the procedural families and, with `--data FOLDER`, taken from GSM8K; one example in
ten is a copy of another and one in fifty of a problem, in capitals or, where it is long, with a word changed; how many of
these were found is printed. Beside it the duplicates by datasketch (MinHash and LSH as its documentation has it, without
an exact comparison), if it is installed, and by plain Python sets, all pairs, on a part. Ratio: examples a second for
duplicates, ours over datasketch's, or over plain Python's on that part where there is no datasketch.
"""

from __future__ import annotations

import re
import time
from importlib.util import find_spec

import numpy as np
from _common import arguments, finish, median, seconds

from palaestra.core.records import Example, Lesson, Message, Problem, Split
from palaestra.tasks.base import EVERY, make_task
from palaestra.tasks.texts import words
from palaestra.teachers.quality.base import Context, inspect
from palaestra.teachers.quality.texts import NGRAM, Duplicates, Overlap, cut_grams, jaccard

WANTED_SECONDS = 20
THRESHOLD = 0.85
LONG = 70
"""Words of a question of which one changed leaves it a near duplicate."""


def main() -> None:
    options = arguments(__doc__ or "", threads=1, data="the folder of GSM8K")
    size = 2000 if options.quick else 10_000
    examples, problems, copies, leaks = material(size, options.data)
    context = Context(make_task("math-skills"), {Split.TEST: problems})
    lesson = Lesson(tuple(examples))
    checks = (Overlap(), Duplicates(THRESHOLD))
    runs, busy = [], time.process_time()
    for _ in range(1 if options.quick else 3):
        start = time.perf_counter()
        inspection = inspect(lesson, checks, context)
        runs.append(time.perf_counter() - start)
    took, busy = median(runs), (time.process_time() - busy) / len(runs)
    leaked = {d.position for d in inspection.dropped if d.check == "overlap"}
    gone = {d.position for d in inspection.dropped}  # The copy of an example that is a problem too counts as a leak.
    print(
        f"{size:,} examples against {len(problems):,} problems: {took:.1f} s, {busy:.1f} s of one core (wanted {WANTED_SECONDS}), {inspection}"
    )
    print(
        f"planted: {len(leaks & leaked)} of {len(leaks)} leaks and {len(copies & gone)} of {len(copies)} copies found"
    )
    part = [words(example.messages[-1].text) for example in examples]
    rates = {"naive_part": min(size, 1000)}
    ours = seconds(lambda: inspect(lesson, checks[1:], Context(context.task)))
    naive = seconds(lambda: brute_force(part[: rates["naive_part"]]))
    small = Lesson(tuple(examples[: rates["naive_part"]]))
    ours_small = seconds(lambda: inspect(small, checks[1:], Context(context.task)))
    print(
        f"duplicates alone: ours {size / ours:,.0f}/s; of {len(small.examples):,}: {naive / ours_small:.1f} times plain Python"
    )
    ratio, sketch = naive / ours_small, None
    if find_spec("datasketch"):
        sketch = seconds(lambda: datasketch(part))
        ratio = sketch / ours
        print(f"datasketch {size / sketch:,.0f}/s")
    finish(
        "quality",
        ratio,
        seconds=took,
        cpu_seconds=round(busy, 2),
        wanted_seconds=WANTED_SECONDS,
        examples=size,
        problems=len(problems),
        examples_a_second=round(size / took),
        leaks=len(leaks),
        leaks_found=len(leaks & leaked),
        copies=len(copies),
        copies_found=len(copies & gone),
        duplicates_seconds=round(ours, 2),
        naive_examples=len(small.examples),
        naive_ratio=round(naive / ours_small, 2),
        datasketch_seconds=sketch and round(sketch, 2),
    )


def material(size: int, data: str) -> tuple[list[Example], list[Problem], set[int], set[int]]:
    """Examples, problems, and the places of the planted copies of examples and of problems."""
    rng = np.random.default_rng(0)
    pool: list[Example] = []
    held: list[Problem] = []
    if data:
        task = make_task("gsm8k", path=data)
        pool += [Example(p.messages, p.metadata["worked"]) for p in task.problems(Split.TRAIN, EVERY, 0)]
        held += task.problems(Split.TEST, EVERY, 0) + task.problems(Split.VALIDATION, EVERY, 0)
    for name in ("math-skills", "code-skills"):
        drawn = make_task(name)
        for skill in drawn.skills():
            pool += drawn.write_examples(skill, "", size // 18, rng)  # type: ignore[attr-defined]
    # Problems enough are only drawn without asking that they differ; the train split serves as well as any here.
    fresh = make_task("math-skills")
    share = -(-(size - len(held)) // len(fresh.skills()))
    more = [e for s in fresh.skills() for e in fresh.write_examples(s, "", share, rng)] if share > 0 else []  # type: ignore[attr-defined]
    held = (held + [Problem(f"drawn/{k}", e.messages, "") for k, e in enumerate(more)])[:size]
    order = rng.permutation(len(pool))
    examples = [pool[int(k)] for k in order[:size]]
    while len(examples) < size:
        examples.append(pool[int(rng.integers(len(pool)))])
    long = [k for k, p in enumerate(held) if len(words(p.messages[-1].text)) >= 30]
    places = rng.permutation(size // 2) + size // 2
    copies, leaks = set(places[: size // 10].tolist()), set(places[-(size // 50) :].tolist() if long else [])
    for place in copies:
        examples[place] = reword(examples[int(rng.integers(size // 2))], rng)
    for place in leaks:
        problem = held[long[int(rng.integers(len(long)))]]
        examples[place] = reword(Example(problem.messages, "Answer: 1"), rng)
    return examples, held, copies, leaks


def reword(example: Example, rng: np.random.Generator) -> Example:
    """The same question in capitals, or with one of its words changed where that is little of it."""
    text = example.messages[-1].text
    matches = list(re.finditer(r"\b[a-z]{4,}\b", text))
    if len(words(text)) < LONG or not matches:
        return Example((Message("user", text.upper()),), example.response)
    match = matches[int(rng.integers(len(matches)))]
    return Example((Message("user", f"{text[: match.start()]}rather{text[match.end() :]}"),), example.response)


def brute_force(texts: list[list[str]]) -> int:
    """Every pair."""
    sets = [cut_grams(text) for text in texts]
    return sum(any(jaccard(sets[k], other) >= THRESHOLD for other in sets[:k]) for k in range(len(sets)))


def datasketch(texts: list[list[str]]) -> int:
    from datasketch import MinHash, MinHashLSH

    index, repeated = MinHashLSH(threshold=THRESHOLD, num_perm=128), 0
    for place, text in enumerate(texts):
        sketch = MinHash(num_perm=128)
        sketch.update_batch([" ".join(text[k : k + NGRAM]).encode() for k in range(max(1, len(text) - NGRAM + 1))])
        repeated += bool(index.query(sketch))
        index.insert(place, sketch)
    return repeated


if __name__ == "__main__":
    main()
