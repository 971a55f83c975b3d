"""Replies of user environments: accepted forms, and one-line errors for the others."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.cli.main import main
from palaestra.core.errors import EnvError, RewardError
from palaestra.core.records import Failure, FailureCause, ImagePart, Message, TextPart
from palaestra.envs.turn import Reply, TurnEnv, TurnStopReason

HELLO = Message("user", "hello")
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


class Wrong(TurnEnv):
    """Gives what it is told to give."""

    def __init__(
        self, opened: Any = HELLO, answered: Any = None, end: Any = None, where: Any = (), **limits: Any
    ) -> None:
        super().__init__(**limits)
        self.opened, self.answered, self.end, self.where = opened, answered, end, where

    def opening(self, options: Any) -> Any:
        return self.opened

    def respond(self, message: Message) -> Any:
        return self.answered

    def truncate(self, reason: TurnStopReason) -> Any:
        return self.end

    def state(self) -> Any:
        return {} if self.where == () else self.where


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (HELLO, HELLO),
        ([HELLO], HELLO),
        ((text for text in [HELLO]), HELLO),
        ("hello", HELLO),
        (["hello"], HELLO),
        ({"role": "user", "content": "hello"}, HELLO),
        ([{"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], Message("system", "ab")),
        ([{"role": "user", "content": [IMAGE, {"type": "text", "text": "a"}]}], Message("user", (ImagePart("data:,"), TextPart("a")))),
        ([{"role": "tool", "content": "4", "tool_call_id": "c"}], Message("tool", "4", tool_call_id="c")),
        ([{"role": "assistant", "content": None}], Message("assistant", "")),
    ],
)  # fmt: skip
def test_messages_may_be_written_in_several_ways(given: Any, expected: Message) -> None:
    given = list(given) if not isinstance(given, (str, dict, Message)) else given
    env = Wrong(given, Reply(given, stop="solved"))
    assert env.reset(seed=0)[0].messages == (expected,)
    observation, _, terminated, _, info = env.step("a")
    assert observation.messages == (expected, Message("assistant", "a"), expected)
    assert terminated and info["stop_reason"] is TurnStopReason.SOLVED  # noqa: PT018
    assert Wrong(text for text in [HELLO]).reset(seed=0)[0].messages == (HELLO,)


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.array(1.0), np.int64(1)])
def test_a_reward_is_whatever_is_a_number(reward: Any) -> None:
    env = Wrong(answered=Reply(reward=reward))
    env.reset(seed=0)
    paid = env.step("a")[1]
    assert paid == 1.0 and type(paid) is float  # noqa: PT018


def test_what_failed_has_no_reward_whatever_stands_there() -> None:
    env = Wrong(answered=Reply(reward=math.nan, failure=Failure(FailureCause.SANDBOX, "gone")))
    env.reset(seed=0)
    assert env.step("a")[1] == 0.0


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        (None, "None: .*Reply"),
        ("no", "'no': .*Reply"),
        (Reply(None), "expected messages"),  # type: ignore[arg-type]
        (Reply((5,)), "Message, .*; got 5"),  # type: ignore[arg-type]
        (Reply((Message("user", None),)), "a Message, its dictionary"),  # type: ignore[arg-type]
        (Reply((Message("boss", "x"),)), "a Message, its dictionary"),  # type: ignore[arg-type]
        (Reply(({"content": "x"},)), "role .*; got None"),
        (Reply(({"role": "user"},)), "content; got NoneType"),
        (Reply(({"role": "user", "content": [5]},)), "message part"),
        (Reply(reward=None), "real number"),  # type: ignore[arg-type]
        (Reply(reward=[1.0, 2.0]), "real number"),  # type: ignore[arg-type]
        (Reply(reward=math.nan), "finite number .*reward"),
        (Reply(reward=-math.inf), "finite number .*reward"),
        (Reply(stop="zzz"), "'zzz' .*TurnStopReason"),
        (Reply(failure="broke"), "a Failure or None"),  # type: ignore[arg-type]
        (Reply(info=None), "not iterable"),  # type: ignore[arg-type]
    ],
)
def test_a_reply_that_is_none_is_refused_in_one_line(given: Any, cause: str) -> None:
    answers, cuts = Wrong(answered=given), Wrong(answered=Reply(), end=given, max_turns=1)
    for env, method in ((answers, "respond"), (cuts, "truncate")):
        env.reset(seed=0)
        with pytest.raises(EnvError, match=rf"^Wrong\.{method} returned .*{cause}") as caught:
            env.step("a")
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 300  # noqa: PT018
        assert env.over
    cuts.reset(seed=0)
    with pytest.raises(EnvError, match=r"^Wrong\.truncate returned"):
        cuts.stop(TurnStopReason.COST)


def test_openings_and_states_are_checked_as_well() -> None:
    for opened in (None, 5, [None], [{"role": "boss", "content": "x"}]):
        with pytest.raises(EnvError, match=r"^Wrong\.opening returned"):
            Wrong(opened).reset(seed=0)
    with pytest.raises(EnvError, match=r"^Wrong\.state returned None: .*not iterable \(test_replies.py, line \d+\)$"):
        Wrong(where=None).reset(seed=0)


def test_a_reward_that_is_not_finite_is_an_error_of_both_kinds() -> None:
    env = Wrong(answered=Reply(reward=math.nan))
    env.reset(seed=0)
    with pytest.raises(RewardError):
        env.step("a")


def test_training_on_a_wrong_environment_ends_with_that_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_wrong_turns.py").write_text(
        "import gymnasium\nfrom palaestra.envs.turn import TurnEnv\n"
        "class Wrong(TurnEnv):\n    def opening(self, options):\n        return 'hello'\n"
        "    def respond(self, message):\n        return None\n"
        "gymnasium.register('MyWrongTurns-v0', Wrong)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    options = ("--max-tokens", "2", "--evaluation", "2", "--out", "run")
    monkeypatch.setattr(sys, "argv", ["palaestra", "train", "--env", "my_wrong_turns:MyWrongTurns-v0", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    cause = "error: Wrong.respond returned None: expected a Reply (my_wrong_turns.py, line 6)"
    assert capsys.readouterr().err.strip().splitlines()[-1] == cause
