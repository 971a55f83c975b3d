"""What a language model writes for mathematics: a question, its working and its answer."""

from __future__ import annotations

from pydantic import BaseModel, Field

from palaestra.tasks.teaching import UnusableError


class MathDatum(BaseModel):
    """A problem with its solution."""

    question: str = Field(min_length=1, description="The problem, complete in itself; it has exactly one answer.")
    reasoning: str = Field(min_length=1, description="The working, step by step and short, without the final answer.")
    answer: str = Field(min_length=1, description="The final answer alone: a number or an expression, no sentence.")


SKILLS_BRIEF = (
    "Short exercises in arithmetic and everyday mathematics. A question is one or two sentences. The working is a few "
    "small calculations, each written out as an equation such as 12+7=19. The answer is a whole number, a fraction such "
    "as 3/4, a list such as 2, 5, 9, a time such as 2:15, or a word that the question names."
)
WORKED_BRIEF = (
    "Word problems and exercises in mathematics with one definite answer. The working explains each step in a sentence "
    "or an equation. The answer is a number or an expression in LaTeX, without a unit."
)


def plain(answer: str) -> str:
    """An answer without a box and white space around it."""
    text = answer.strip().removeprefix("\\boxed{").removesuffix("}").strip() if "\\boxed" in answer else answer.strip()
    if "\n" in text:
        raise UnusableError("the answer has several lines; give the final answer alone")
    return text
