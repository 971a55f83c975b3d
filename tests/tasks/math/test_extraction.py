"""Extracting the final answer from free text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timing import measure

from palaestra.tasks.math.equivalence.compare import compare_numbers
from palaestra.tasks.math.extraction import Evidence, extract_worked

B, U, H, P, F, N, W = (
    Evidence.BOXED, Evidence.UNCLOSED_BOX, Evidence.HASHES, Evidence.PHRASE, Evidence.FORMULA, Evidence.NUMBER, Evidence.WHOLE,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "answer", "evidence"),
    [
        # boxes
        (r"So it is \boxed{5}.", "5", B),
        (r"So $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}", B),
        (
            r"\boxed{\left\{\frac{a}{b}, \sqrt{\frac{1}{2}}\right\}}",
            r"\left\{\frac{a}{b}, \sqrt{\frac{1}{2}}\right\}",
            B,
        ),
        (r"First \boxed{5}, no: \boxed{7}", "7", B),
        (r"\boxed {5}", "5", B),
        (r"\boxed  5 and so", "5", B),
        (r"\fbox{3}", "3", B),
        (r"\framebox{3}", "3", B),
        (r"\boxed{\boxed{5}}", r"\boxed{5}", B),
        (r"\boxed{x = \boxed{5}}", r"x = \boxed{5}", B),
        (r"\boxed{3} and then \boxed{}", "3", B),
        (r"\boxed{\frac{1}{2}", r"\frac{1}{2}", U),
        ("\\boxed{12\nand more", "12", U),
        (r"\boxed{5} The answer is 7.", "5", B),
        (r"\boxed{5} #### 7", "5", B),
        (r"\boxed{\text{no answer}} The answer is 4.", "4", P),
        (r"\boxed{5 \text{ apples}}", r"5 \text{ apples}", B),
        # hashes
        ("9 * 2 = 18\n#### 18", "18", H),
        ("#### 1,200\n", "1,200", H),
        ("#### -3.5", "-3.5", H),
        ("#### $18\nthanks", "$18", H),
        ("#### 5\n#### 7", "7", H),
        ("#### Step 1\nIt is so.\nThe answer is 5", "5", P),
        # phrases
        ("The answer is 18.", "18", P),
        ("The answer is: 18", "18", P),
        ("The final answer is **42**.", "42", P),
        ("**Final Answer:** 42", "42", P),
        ("**Answer**: 42", "42", P),
        ("Final answer:\n\n42", "42", P),
        ("FINAL ANSWER: 42", "42", P),
        ("Therefore, the answer is therefore 42!", "42", P),
        ("Answer = 3/4", "3/4", P),
        ("The answer is $18 a day.", "$18 a day", P),
        ("The answer is 1,200.", "1,200", P),
        ("The answer is 3.5. That was easy.", "3.5", P),
        ("The answer is (1, 2).", "(1, 2)", P),
        ("The answer is $x = 5$.", "x = 5", P),
        (r"The answer is \(\frac{3}{4}\).", r"\frac{3}{4}", P),
        ("So the answer is\n\\[\n\\frac{1}{2}\n\\]", r"\frac{1}{2}", P),
        ("The answer is that Janet makes $18 every day.", "$18", P),
        ("The answer to the question is 9.", "9", P),
        ("The answer (in metres) is 9.", "9", P),
        ("The answer is 5. No, wait: the answer is 7.", "7", P),
        ("The answer is B", "B", P),
        ("The answer is (C).", "(C)", P),
        ("the answer is correct", "correct", P),
        ("The answer is $5$ or $7$.", "$5$ or $7$", P),
        ("The result is 12", "12", P),
        ("The answer is 7. The answer is not 5.", "7", P),
        # a formula that only names a variable is not what a sentence states
        ("Final Answer: The largest $n$ is 34.", "34", P),
        ("Final Answer: The volume of $ABCDEFGH$ is 120. I hope it is correct.", "120", P),
        ("Final Answer: The maximum number of points in the domain of $f(x)$ is 19.", "19", P),
        ("Final Answer: There are 34 apples left for $x$.", "34", P),
        ("Final Answer: $x$ is 34.", "34", P),
        ("The answer is $n$ = 34.", "34", P),
        (r"Final Answer: $x_1$ is $\frac12$.", r"\frac12", P),
        ("Final Answer: The point $P$ is (3, 4).", "(3, 4)", P),
        ("Final Answer: Ann has $n$ = 7 eggs.", "7", P),
        ("Final Answer: The value of $x$ is $-5$.", "-5", P),
        ("Final Answer: The variable is $x$.", "x", P),
        ("Final Answer: The sides are 3, 4 and 5.", "3, 4 and 5", P),
        ("The answer is that the roots are $1$ and $-2$.", "$1$ and $-2$", P),
        ("Final Answer: Bob has 5 apples and Tim has 7.", "7", P),
        # several boxes are one list if commas, "and" or "or" join them
        (r"\boxed{1} and \boxed{2} and \boxed{3}", "1, 2, 3", B),
        (r"$\boxed{1}\boxed{2}$", "1, 2", B),
        (r"$\boxed{1}$, $\boxed{2}$", "1, 2", B),
        (r"$\boxed{(2,2)} \quad \text{and} \quad \boxed{(6,2)}$", "(2,2), (6,2)", B),
        (r"\boxed{3} or \boxed{-3}", "3 or -3", B),
        (r"\boxed{1} papers and \boxed{2} bins", "1, 2", B),
        (r"$x=\boxed{1}$ and $y=\boxed{2}$", "1, 2", B),
        (r"\boxed{(3,3)} \text{ for part (a) and } \boxed{(1,1)}", "(3,3), (1,1)", B),
        (r"\boxed{1} no no no no no \boxed{2}", "2", B),
        (r"\boxed{1}, no wait, \boxed{2}", "2", B),
        (r"\boxed{1} and so \boxed{2}", "2", B),
        (r"\boxed{4}. So the total is \boxed{8}.", "8", B),
        (r"\boxed{4} and then we double it to get \boxed{8}", "8", B),
        (r"\boxed{\frac12} = \boxed{0.5}", "0.5", B),
        ("\\boxed{5}\n\n\\boxed{5}", "5", B),
        (r"\boxed{5} and \boxed{5}", "5", B),
        # percent behind a box or a formula
        (r"$\boxed{28}$ pct", r"28\%", B),
        (r"\boxed{28}\%", r"28\%", B),
        ("The answer is $28$ percent.", r"28\%", P),
        ("28 pct of it", "28 pct", N),
        # a final answer after the last box
        (r"\boxed{255} in interest. Final Answer: The final answer is $10,455$.", "10,455", P),
        (r"Final answer: 7. It is \boxed{5}.", "5", B),
        (r"\boxed{5} The final answer is above.", "5", B),
        # formulas
        (r"We conclude $x=\frac{3}{4}$, as was to be shown.", r"x=\frac{3}{4}", F),
        (r"So it equals \(2\sqrt{3}\).", r"2\sqrt{3}", F),
        # the whole text
        ("18", "18", W),
        ("x = 5", "x = 5", W),
        (r"\frac{1}{2}", r"\frac{1}{2}", W),
        # the last number
        ("so she makes $18 every day", "$18", N),
        ("There are 3 of 12 left", "12", N),
        ("It is -3.", "-3", N),
        ("We get 16-3 of them", "3", N),
        ("About 1,234,567 people.", "1,234,567", N),
        ("We get 10% of it", "10%", N),
        ("It costs 3/4 of that", "3/4", N),
        ("The formula $x$ gives 5 in the end", "5", N),
        # thinking aloud
        ("<think>The answer is 5, or \\boxed{6}.</think> It is 7 then.", "7", N),
    ],
)
def test_answer_and_evidence(text: str, answer: str, evidence: Evidence) -> None:
    extracted = extract_worked(text)
    assert extracted is not None
    assert (extracted.text.rstrip("."), extracted.evidence) == (answer, evidence)


@pytest.mark.parametrize(
    "text",
    [
        "The answer is not 34.",
        "",
        "   ",
        "I do not know.",
        r"\boxed{}",
        "The answer is:",
        "####",
        "no digits here",
        "The answer is no answer.",
        "The answer is not clear.",
        "$$",
        "...",
    ],
)
def test_no_answer_is_none(text: str) -> None:
    assert extract_worked(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "answer is " * 20_000, "\\boxed{" * 20_000, "$" * 50_000, "1," * 50_000, "#### a\n" * 20_000, "{" * 50_000 + "\\boxed{" + "}" * 5,
        "answer (" * 20_000, "\\boxed{" + "{" * 50_000, "9" * 100_000, "\\(" * 20_000, "$$ " * 20_000, "answer is" + " " * 50_000,
        "- " * 50_000, "<think>" * 20_000, "\\boxed{" * 10_000 + "}" * 10_000, "\\" * 50_000, "1.2." * 30_000, "." * 100_000 + "x", "111," * 30_000, "the answer is " + "." * 100_000 + "5", "*" * 100_000, "'\"" * 50_000, "\n" * 50_000,
        "\\" * 300_000, "\\boxed" * 200_000, "\\boxed{" + "\\" * 300_000 + "}", "\\boxed{1} and " * 10_000, "\\boxed{1} final answer is 1. " * 10_000, "final answer " * 20_000, ("\\boxed{1}" + " a" * 39) * 2_000,
    ],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_the_search_is_linear_in_hostile_texts(text: str) -> None:
    assert measure(lambda: extract_worked(text)) < 1.0


numbers = st.integers(-(10**9), 10**9)
prose = st.text(
    alphabet=st.characters(exclude_categories=("Nd", "Nl", "No", "Cs"), exclude_characters="\\$#{}<>/-"), max_size=40
).filter(lambda text: not any(word in text.lower() for word in ("answer", "result", "solution", "box")))


@given(numbers, prose, prose)
def test_a_boxed_number_in_any_prose(number: int, before: str, after: str) -> None:
    extracted = extract_worked(f"{before} 7 \\boxed{{{number:,}}} {after} 8")
    assert extracted is not None
    assert extracted.evidence is Evidence.BOXED
    assert compare_numbers(extracted.text, str(number)).equal  # type: ignore[union-attr]


@given(
    numbers,
    prose,
    st.sampled_from(
        ["The answer is {}.", "Final answer: {}", "**Answer:** {}", "#### {}", "the final answer is **{}**"]
    ),
)
def test_a_marked_number_after_any_prose(number: int, before: str, mark: str) -> None:
    extracted = extract_worked(f"{before} 7\n{mark.format(number)}")
    assert extracted is not None
    assert compare_numbers(extracted.text, str(number)).equal  # type: ignore[union-attr]


@given(st.text(max_size=300))
def test_no_text_makes_it_raise(text: str) -> None:
    extracted = extract_worked(text)
    assert extracted is None or extracted.text.strip()
