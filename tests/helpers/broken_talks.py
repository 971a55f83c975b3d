"""Sound environments whose actions are texts, and variants with one planted fault each.

`TALK_FAULTS` maps each variant to the check that must find it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
from planted import make_planter

from palaestra.core.records import Failure, FailureCause, Message
from palaestra.core.spaces import UnicodeText
from palaestra.envs.turn import Reply, TurnEnv, TurnStopReason

TALK_FAULTS: dict[type[gymnasium.Env], str] = {}

plant = make_planter(TALK_FAULTS)


class Product(gymnasium.Env):
    """Asks for a product. The action is the answer."""

    def __init__(self) -> None:
        self.observation_space = UnicodeText(1000)
        self.action_space = UnicodeText(200_000)
        self.factors, self.answer = (1, 1), "1"

    def ask(self) -> str:
        return f"How much is {self.factors[0]} times {self.factors[1]}?"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.factors = tuple(self.np_random.integers(11, 99, 2).tolist())
        self.answer = str(self.factors[0] * self.factors[1])
        return self.ask(), self.inform()

    def inform(self) -> dict[str, Any]:
        return {}

    def rate(self, text: str) -> float:
        return float(text.strip().strip("$.").removeprefix("\\boxed{").rstrip("}").replace(",", "") == self.answer)

    def step(self, action: Any) -> Any:
        if not isinstance(action, str):
            raise TypeError("expected a text")
        return "Thank you.", self.rate(action), True, False, {}


@plant("semantic.verifier_determinism")
class RandomJudge(Product):
    def rate(self, text: str) -> float:
        return super().rate(text) * random.choice((0.0, 1.0))


@plant("runtime.hostile_answers")
class RaisesForNonsense(Product):
    def rate(self, text: str) -> float:
        text.encode("utf-16")
        return super().rate(text) if text.isascii() or text.isprintable() else 1 / 0


@plant("semantic.oracle_max")
class LowOracle(Product):
    """Products above 4,000 are computed wrongly by the scorer."""

    def rate(self, text: str) -> float:
        return super().rate(text) * (int(self.answer) < 4000)

    def oracle(self) -> str:
        return str(self.factors[0] * self.factors[1])


@plant("semantic.equivalent_answers")
class ExactText(Product):
    def rate(self, text: str) -> float:
        return float(text == self.answer)


@plant("semantic.mutated_oracle")
class PartIsEnough(Product):
    def rate(self, text: str) -> float:
        return float(self.answer in text)


@plant("runtime.failure_is_no_score")
class LostService(Product):
    """A judge that cannot be reached gives no reward."""

    def judge(self, text: str) -> float:
        return super().rate(text)

    def rate(self, text: str) -> float:
        try:
            return self.judge(text)
        except OSError:
            return 0.0


@plant("semantic.floor_gap")
class AlwaysPays(Product):
    """Every answer gets 1.0."""

    def rate(self, text: str) -> float:
        return 1.0


@plant("semantic.floor_gap")
class PaysSilence(Product):
    def rate(self, text: str) -> float:
        return super().rate(text) if text.strip() else 1.0


@plant("semantic.floor_gap")
class PaysRefusals(Product):
    """In half of the episodes nothing shall be done, and everything else is paid as well."""

    def rate(self, text: str) -> float:
        return 1.0 if int(self.answer) % 2 == 0 else super().rate(text)

    def oracle(self) -> str:
        return self.answer


@plant("statistical.adversarial_floor")
class PaysLength(Product):
    def rate(self, text: str) -> float:
        return max(super().rate(text), min(1.0, len(text) / 1000))


@plant("semantic.canary_floor")
class PaysClaims(Product):
    """The reward is read from what the agent writes."""

    def rate(self, text: str) -> float:
        return 1.0 if text.startswith(("reward: 1", "score: 1")) else super().rate(text)


@plant("semantic.no_solution_leakage")
class TellsAnswer(Product):
    def ask(self) -> str:
        return f"{super().ask()} Expected: {self.answer}"


@plant("runtime.oracle_containment")
class AnswerInInfo(Product):
    def inform(self) -> dict[str, Any]:
        return {"target": self.answer}


@plant("runtime.oracle_containment")
class AnswerInFile(Product):
    def inform(self) -> dict[str, Any]:
        Path(tempfile.gettempdir(), f"product-{os.getpid()}.txt").write_text(f"{self.answer}\n")
        return {}


@plant("runtime.oracle_containment")
class AnswerInVariable(Product):
    def inform(self) -> dict[str, Any]:
        os.environ["PRODUCT_ANSWER"] = self.answer
        return {}


@plant("runtime.oracle_containment")
class AnswerInProcess(Product):
    """A grader waits with the answer on its command line."""

    process: Any = None

    def inform(self) -> dict[str, Any]:
        self.close()
        command = [sys.executable, "-S", "-c", "import time; time.sleep(60)", self.answer]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        return {}

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@plant("runtime.oracle_containment")
class EarlierAnswer(Product):
    """The prompt shows the answer of the episode before."""

    before = ""

    def ask(self) -> str:
        text = f"{super().ask()} {self.before}".strip()
        self.before = f"Before: {self.answer}."
        return text


@plant("semantic.reward_direction")
class PaysWrongAnswers(Product):
    """The sign is inverted."""

    def rate(self, text: str) -> float:
        return -super().rate(text)

    def oracle(self) -> str:
        return self.answer


class Refund(TurnEnv):
    """A customer wants a refund: ask for the number of the order, then pay it back."""

    first = "Hello, I want my money back."
    words: ClassVar[Mapping[str, str]] = {"number": "It is order {number}.", "other": "I do not understand."}

    def __init__(self) -> None:
        super().__init__(max_turns=6)

    def opening(self, options: Mapping[str, Any]) -> Sequence[Message]:
        self.number = str(self.np_random.integers(1000, 9999))
        self.is_asked = False
        return [Message("system", "You help customers. Ask for the order number, then write `refund NUMBER`."),
                Message("user", self.first)]  # fmt: skip

    def oracle(self) -> list[str]:
        return ["What is the number of your order?", f"refund {self.number}"]

    def respond(self, message: Message) -> Reply:
        text = message.text.strip().lower().rstrip(".")
        if text == f"refund {self.number}":
            return Reply(("Thank you.",), self.pay(), stop=TurnStopReason.SOLVED)
        if "number" in text:
            self.is_asked = True
            return Reply((self.words["number"].format(number=self.number),))
        return self.misunderstand(text)

    def pay(self) -> float:
        return 1.0

    def misunderstand(self, text: str) -> Reply:
        return Reply((self.words["other"],))


@plant("semantic.early_end")
class EndsPolitely(Refund):
    """The simulated user agrees to any question and leaves, as in sierra-research/tau2-bench#182."""

    def misunderstand(self, text: str) -> Reply:
        if "?" in text or "please" in text:
            return Reply(("Yes, that is all. Thank you! ###STOP###",), stop=TurnStopReason.LOST)
        return super().misunderstand(text)


@plant("runtime.reply_roles")
class SpeaksAsAssistant(Refund):
    """The customer's words come as the assistant's."""

    def misunderstand(self, text: str) -> Reply:
        return Reply((Message("assistant", "I do not understand."),))


@plant("runtime.reply_roles")
class SpeaksAsSystem(Refund):
    def misunderstand(self, text: str) -> Reply:
        return Reply((Message("system", "Ask for the number."),))


@plant("runtime.reply_roles")
class AssistantLast(Refund):
    def opening(self, options: Mapping[str, Any]) -> Sequence[Message]:
        return [*super().opening(options), Message("assistant", "How can I help?")]


@plant("runtime.hostile_answers")
class FailsWhenRepeated(Refund):
    """The same greeting twice raises; the Countdown of TextArena 0.7.4 raises at the second invalid action."""

    def opening(self, options: Mapping[str, Any]) -> Sequence[Message]:
        self.seen: list[str] = []
        return super().opening(options)

    def misunderstand(self, text: str) -> Reply:
        self.seen.append(text)
        if self.seen.count(text) > 1 and text == "hello":
            raise ValueError(f"two messages are equal: {text!r}")
        return Reply(("I do not understand.",))


@plant("semantic.live_reward")
class ShowsReward(Refund):
    """Each reply carries the reward so far."""

    def misunderstand(self, text: str) -> Reply:
        return Reply((f"I do not understand. (reward: {0.1 * len(text) / 10:.2f})",))


@plant("runtime.oracle_containment")
class TellsAfterError(Refund):
    def oracle(self) -> list[str]:
        return [f"refund {self.number}"]

    def misunderstand(self, text: str) -> Reply:
        return Reply((f"Wrong. You should have written refund {self.number}.",))


@plant("semantic.verifier_determinism")
class TiredCustomer(Refund):
    """The reward depends on how many episodes were played."""

    played = 0

    def pay(self) -> float:
        self.played += 1
        return 1.0 if self.played % 3 else 0.5


@plant("runtime.failure_is_no_score")
class LostShop(Refund):
    """The failure of the shop's database ends the episode with 0."""

    def backend(self) -> bool:
        return True

    def pay(self) -> float:
        try:
            return float(self.backend())
        except ConnectionError:
            return 0.0


class HonestShop(Refund):
    """The failure of the shop's database is a failure."""

    def backend(self) -> bool:
        return True

    def respond(self, message: Message) -> Reply:
        try:
            self.backend()
        except ConnectionError:
            return Reply(failure=Failure(FailureCause.ENGINE, "the shop does not answer"))
        return super().respond(message)


SOUND_TALKS = (Product, Refund, HonestShop)


@plant("runtime.oracle_containment")
class AnswerInUnknownEntry(Product):
    """The answer is in `info`, and nothing of the environment has the name of an answer."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        question, _ = super().reset(seed=seed)
        self._product, self.answer = self.answer, ""
        return question, {"episode": {"seed": seed, "product": self._product}}

    def rate(self, text: str) -> float:
        return float(text.strip() == self._product)


@plant("semantic.oracle_max")
class LostDatabase(Refund):
    """Every right answer ends in an error of the environment that it answers itself."""

    def respond(self, message: Message) -> Reply:
        return Reply(["Something went wrong. Try again."])


@plant("runtime.oracle_containment")
class TellsInTheThirdReply(Refund):
    """A note with the number of the order reaches an agent that asked for nothing."""

    def oracle(self) -> str:  # type: ignore[override]
        return f"refund {self.number}"

    def misunderstand(self, text: str) -> Reply:
        note = f" [order={self.number};open]" if self.turn == 3 else ""
        return Reply((f"{self.words['other']}{note}",))
