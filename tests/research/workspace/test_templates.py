"""User templates: their variables, and errors before the run starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from palaestra.core.errors import PromptError
from palaestra.core.prompts import SUFFIX, Prompts
from palaestra.core.records import Message
from palaestra.recipes.research.recipe import run_research
from palaestra.research.agents.history import make_history
from palaestra.research.tasks.task import load_task
from palaestra.research.workspace.env import PROMPTS, ResearchEnv
from palaestra.research.workspace.templates import OWN, SHARED, check_prompts

ALL = "{{ task.title }}|{{ task.limits.steps }}|{{ current_step }}|{{ remaining_steps }}|{{ open_file }}|{{ working_dir }}|"
DOCS = Path(__file__).parents[3] / "docs" / "extend_research.md"


def folder(path: Path, **texts: str) -> Path:
    path.mkdir()
    for name, text in texts.items():
        (path / f"{name}{SUFFIX}").write_text(text)
    return path


def test_page_documents_all_template_variables() -> None:
    assert set(OWN) == {path.name.removesuffix(SUFFIX) for path in PROMPTS.glob(f"*{SUFFIX}")}
    named = set(re.findall(r"`(\w+)`", DOCS.read_text().split("## Prompts")[1].split("## In a package")[0]))
    assert named >= {*OWN, *SHARED, "task", *(name for own in OWN.values() for name in own)}
    ours = Prompts(PROMPTS)
    for name, own in OWN.items():
        assert ours.variables(name) <= {"task", *SHARED, *own}, name


def test_templates_have_the_shared_variables(number: Path, tmp_path: Path) -> None:
    names = [name for name in OWN if name not in ("omitted", "closed_window", "summarize", "summary")]
    texts = {name: f"{name}|{ALL}{{{{ command_docs | length > 100 }}}}" for name in names}
    texts["observation"] += "\n{{ observation }}"
    env = ResearchEnv(
        number,
        prompts=folder(tmp_path / "prompts", **texts),
        parser="identity",
        strategy=True,
        demonstration="x",
        max_turns=20,
    )
    try:
        seen = [*env.reset(seed=0)[0].messages]
        actions = ["open answer.txt", "cd /tmp", "", "rm /workspace/answer.txt", "validate", "submit", "cd /workspace",
                   "echo break > answer.txt", "validate", "echo 5 > answer.txt", *["validate"] * 4, "submit"]  # fmt: skip
        for action in actions:
            seen.append(env.step(action)[0].messages[-1])
    finally:
        env.close()
    reply = "\n".join(message.text for message in seen)
    assert set(re.findall(r"^([a-z]\w+)\|", reply, re.MULTILINE)) == set(names)
    assert "system|A large number|8|0|20||/workspace|True" in reply
    assert "no_output|A large number|8|2|18|/workspace/answer.txt|/tmp|True" in reply
    assert "submitted|A large number|8|15|5|/workspace/answer.txt|/workspace|True" in reply


def test_the_templates_of_histories_have_them_too(number: Path, tmp_path: Path) -> None:
    texts = {name: f"{name}|{ALL}{{{{ task }}}}" for name in ("omitted", "summarize", "summary")}
    texts["omitted"] = f"{ALL}{{{{ observation }}}}"
    task = load_task(number)
    prompts = Prompts(PROMPTS, folder(tmp_path / "prompts", **texts))
    asked: list[str] = []

    class HistoryContext:
        def __init__(self) -> None:
            self.prompts = prompts.bind(task=task, **SHARED)

        def tokens(self, messages: Any) -> int:
            return 100 * len(messages)

        def write(self, messages: Any) -> str:
            asked.append(messages[0].text)
            return "summed up"

    output = [Message("user", "What is asked.")]
    output += [Message(role, f"{role} {k}") for k in range(3) for role in ("assistant", "user")]
    shown = make_history("last:1").shorten(output, HistoryContext())
    assert isinstance(shown, list)
    assert shown[2].text == "A large number|8|1|9|/workspace/train.py|/workspace|user 0"
    make_history("summary:200").shorten(output, HistoryContext())
    assert asked == ["summarize|A large number|8|1|9|/workspace/train.py|/workspace|What is asked."]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("system", "{% if", r"system\.md\.j2, line 1: "),
        (
            "observation",
            "{{ observaton }}",
            r"observation\.md\.j2: 'observaton' .*'observation'",
        ),
        ("validated", "{% if left == 0 %}{{ nope }}{% endif %}", "'nope' is undefined"),
        ("task", "{{ task.titel }}", "'titel'"),
        ("failed", "{{ reason + 1 }}", "TypeError"),
    ],
)
def test_invalid_template_raises_before_the_run(
    number: Path, tmp_path: Path, name: str, text: str, expected: str
) -> None:
    prompts = folder(tmp_path / "prompts", **{name: text})
    with pytest.raises(PromptError, match=expected) as raised:
        run_research(task=str(number), agent="baseline", prompts=str(prompts), out=tmp_path / "run")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_a_template_may_ask_whether_something_is_there(number: Path, tmp_path: Path) -> None:
    text = (
        "{% if colour is defined %}{{ colour }}{% endif %}{{ size | default(3) }}{% for k in [1] %}{{ k }}{% endfor %}"
    )
    prompts = Prompts(PROMPTS, folder(tmp_path / "prompts", system=text))
    check_prompts(prompts, load_task(number))
    assert prompts.render("system") == "31"


def test_templates_are_compiled_once_whatever_they_are_given() -> None:
    prompts = Prompts(PROMPTS)
    compiled = [prompts.bind(current_step=k)._environment.get_template(f"no_output{SUFFIX}") for k in range(2)]
    assert compiled[0] is compiled[1]
