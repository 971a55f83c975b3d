"""A teacher that has learned: a policy, trained in the flat view of `palaestra/Lesson-v0`, divides each lesson."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from palaestra.core.errors import LessonError
from palaestra.core.records import Report
from palaestra.envs.lesson.flat import FEATURES, compute_features, compute_weights, divide_lesson
from palaestra.envs.lesson.state import StudentState
from palaestra.rl.loop import WEIGHTS, find_newest_checkpoint
from palaestra.rl.policies.sets import PlanNetwork, SetNetwork
from palaestra.tasks.base import Task
from palaestra.teachers.base import Order, PlanningTeacher, Writer
from palaestra.teachers.simple import NoState

_PREFIX = "actor."
TRAINED = (0.8919, 0.2279, 0.1501, -0.2536, 0.6448, 0.0364, -0.6038, 0.1557, -0.0885)
"""The weights of the plan that is used without a policy. They were trained by the cross-entropy method in mathematics with
512 students `nano` side by side, 80 examples a lesson and 7 iterations; `docs/results.md` has its comparison with other plans."""


class Learned(PlanningTeacher):
    """Divides a lesson among the skills as its policy has learned to.

    It sees for each skill the accuracy, its change, and the fraction of the data so far. Without results (the state is hidden)
    it teaches all skills equally. The policy does not depend on the task: it reads any number of skills.

    Arguments:
        policy: the folder of a run of `palaestra train --env palaestra/Lesson-v0`; empty: the plan with the weights `TRAINED`.
    """

    reads_references = False

    def __init__(
        self, task: Task, skills: tuple[str, ...] = (), *, writer: Writer | None = None, policy: str = ""
    ) -> None:
        super().__init__(task, skills, writer=writer)
        self.network = load_actor(policy)

    def plan(self, state: StudentState, size: int, generator: np.random.Generator) -> list[Order]:
        reports = [state.before, *(round_.report for round_ in state.history)]
        if state.report.accuracy is None or reports[0].accuracy is None:
            return NoState(self.task, tuple(self.skills), writer=self.writer).plan(state, size, generator)
        first_S, now_S = self._read(reports[0]), self._read(state.report)
        last_S = self._read(reports[-2]) if len(reports) > 1 else now_S
        taught_S = np.array([sum(sum(r.allocation.get(s, {}).values()) for r in state.history) for s in self.skills])
        left = state.budget / max(1, state.budget + state.examples)
        features_SF = compute_features(now_S, last_S, first_S, taught_S, left)
        with torch.no_grad():
            action_S = self.network(torch.from_numpy(features_SF).flatten()[None])[0].numpy()
        counts_S = divide_lesson(compute_weights(action_S), size)
        orders = []
        for skill, count, value, accuracy in zip(self.skills, counts_S.tolist(), action_S, now_S, strict=True):
            parts = [str(part) for part in generator.permutation(list(self.skills[skill]) or [""])]
            counts = divide_lesson(np.full(len(parts), 1 / len(parts)), count).tolist()
            reason = f"policy {value:+.2f} at accuracy {accuracy:.0%}"
            orders += [Order(skill, part, n, "learned", reason) for part, n in zip(parts, counts, strict=True)]
        return orders

    def _read(self, report: Report) -> np.ndarray:
        """The accuracy of each skill; 0 if none of its problems was scored."""
        accuracy = {part.name: part.accuracy for part in report.slices}
        return np.array([accuracy.get(skill) or 0.0 for skill in self.skills])


def load_actor(policy: str | Path) -> SetNetwork | PlanNetwork:
    """Load the actor of a policy that divides lessons; without a policy the plan with the weights `TRAINED`.

    Raises:
        LessonError: the folder has no such policy.
    """
    expected = "expected the folder of a run of: palaestra train --env palaestra/Lesson-v0"
    if not policy:
        return PlanNetwork(TRAINED)
    folder = Path(policy)
    checkpoint = find_newest_checkpoint(folder / "checkpoints") if (folder / "checkpoints").is_dir() else folder
    file = (checkpoint or folder) / WEIGHTS
    if not file.is_file():
        raise LessonError(f"teacher 'learned': {folder} contains no policy; {expected}")
    weights = {
        name.removeprefix(_PREFIX): tensor for name, tensor in load_file(file).items() if name.startswith(_PREFIX)
    }
    layers = [name for name in weights if name.endswith(".weight")]
    network: SetNetwork | PlanNetwork = PlanNetwork()
    try:
        if layers:
            network = SetNetwork(len(FEATURES), weights["rows.0.weight"].shape[0], len(layers) - 1, 0.01, pooled=False)
        network.load_state_dict(weights)
    except (KeyError, RuntimeError):
        raise LessonError(f"teacher 'learned': the policy in {folder} does not divide lessons; {expected}") from None
    return network
