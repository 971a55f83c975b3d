import re
from itertools import islice

from palaestra.core.records import Message
from palaestra.core.seeding import Seeds
from palaestra.research.workspace.corpus import corpus
from palaestra.research.workspace.env import ResearchEnv
from palaestra.research.workspace.parsing import Action, make_parser

SESSIONS = list(islice(corpus(Seeds(0).generator()), 40))


def strip_state(text: str) -> str:
    return text.partition("\n\n(open file")[0]


def test_every_message_of_a_session_is_a_command() -> None:
    parse = make_parser("last_block")
    for session in SESSIONS:
        messages = [message for message in session.messages if message.role == "assistant"]
        actions = [parse(message) for message in (*messages, Message("assistant", session.response))]
        assert all(isinstance(action, Action) for action in actions)
        assert actions[-1].text == "submit"  # type: ignore[union-attr]


def test_sessions_have_the_messages_of_the_environment() -> None:
    """The same instructions, and the same answers to the commands that change files."""
    env = ResearchEnv("prisoners_dilemma", max_turns=200)
    opening, _ = env.reset(seed=0)
    systems = {re.sub(r"for \d+ seconds", "", m[0].text) for m in (opening.messages, *(s.messages for s in SESSIONS))}
    assert len(systems) == 1
    parse, compared = make_parser("last_block"), set()
    for session in SESSIONS[:6]:
        turns = session.messages[2:]
        path, shown = next(
            (window[1], window[2])
            for message in turns
            if (
                window := re.match(r"\[file /workspace/(\S+), \d+ lines?\]\n(.*)", strip_state(message.text), re.DOTALL)
            )
        )
        code = re.sub(r"^\d+\|", "", shown, flags=re.MULTILINE)
        env.step(f"```\ncat > {path} <<'EOF'\n{code}\nEOF\n```")
        for message, reply in zip(turns[::2], turns[1::2], strict=True):
            action = parse(message)
            assert isinstance(action, Action)
            name = action.text.split()[0]
            if name in ("open", "create", "edit"):
                observed = env.step(message.text)[0].messages[-1].text
                assert strip_state(observed) == strip_state(reply.text)
                compared.add(name)
            elif name == "undo":
                observed = env.step(message.text)[0].messages[-1].text
                assert strip_state(observed).partition("\n")[2] == strip_state(reply.text).partition("\n")[2]
    env.close()
    assert compared >= {"open", "edit"}
