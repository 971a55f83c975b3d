import json
from itertools import islice

from palaestra.core.records import Completion
from palaestra.core.seeding import Seeds
from palaestra.tasks.tools import corpus
from palaestra.tasks.tools.task import ToolsSkills

EXAMPLES = list(islice(corpus.corpus(Seeds(0).generator()), 300))


def test_calls_in_several_turns_have_the_results_of_the_tools() -> None:
    sessions = [example for example in EXAMPLES if any(message.tool_calls for message in example.messages)]
    assert len(sessions) > 20
    for session in sessions:
        assert [message.role for message in session.messages[:2]] == ["system", "user"]
        for call, result in zip(session.messages[2::2], session.messages[3::2], strict=True):
            (entry,) = call.tool_calls
            assert f'"name": "{entry.name}"' in session.messages[0].text
            assert isinstance(json.loads(entry.arguments), dict)
            assert result.role == "tool"
        last = json.loads(session.messages[-1].text)
        assert session.response == f"Answer: {last if isinstance(last, str) else json.dumps(last)}"


def test_answers_in_one_turn_are_right() -> None:
    """The answers of the default form score 1 on the problem that they pose."""
    task, right = ToolsSkills(), 0
    for example in EXAMPLES:
        if len(example.messages) == 1 and example.response.startswith("1. ") and "```python" in example.response:
            problem = task.to_problem(example)
            assert problem is not None
            assert task.score(problem, Completion(example.response)).value == 1.0  # type: ignore[union-attr]
            right += 1
    task.close()
    assert right > 20


def test_rare_skills_are_rare() -> None:
    drawn = [example.skill for example in EXAMPLES]
    assert set(drawn) - set(corpus.TRACE) == set(corpus.IN_FULL)
    assert sum(skill in corpus.TRACE for skill in drawn) <= 2


def test_requests_in_one_turn_need_one_and_several_calls() -> None:
    drawn = {(example.skill, example.subskill) for example in EXAMPLES if example.subskill}
    assert drawn >= {(skill, subskill) for skill in corpus.IN_FULL for subskill in ("single", "chain", "join")}
