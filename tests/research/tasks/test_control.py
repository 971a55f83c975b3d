"""Mountain car, maze and fruit cart: policies are called step by step for many episodes at once."""

from __future__ import annotations

import json
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from research_judges import judge_submission, load_part

from palaestra.research.tasks.task import Grade, InvalidSubmission

SWING = "def act(observation):\n    return 1.0 if observation[1] > 0 else -1.0\n"
EAST = "def act(observation, memory):\n    return 'E', memory + 'E'\n"


@pytest.mark.parametrize("name", ["mountain_car", "grid_maze", "fruit_cart"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def act(*told):\n    return None\n", "act must return"),
        ("def act(*told):\n    return 'up'\n", "act must return"),
        ("def act(*told):\n    return float('nan')\n", "act must return"),
        ("def act(*told):\n    return [1.0, 2.0]\n", "act must return"),
        ("def act(*told):\n    return 10 ** 400\n", "act must return"),
        ("def act(*told):\n    return {'return': 100}\n", "act must return"),
        ("def act():\n    return 1.0\n", "TypeError"),
        ("def drive(*told):\n    return 1.0\n", "act"),
        ("raise SystemExit('over')\n", "over"),
        ("def act(*told):\n    import os\n    os.close(1); os._exit(0)\n", "ended before it answered"),
    ],
)
def test_a_policy_that_gives_no_action_is_told_so(name: str, text: str, expected: str) -> None:
    outcome = judge_submission(name, text)
    assert isinstance(outcome, InvalidSubmission), outcome
    assert expected in outcome.reason


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("('E', 'x' * 8001)", "at most 8000 characters"),
        ("('up', '')", "one of N, E, S, W"),
        ("('E', None)", "two texts"),
        ("('E', {'map': []})", "two texts"),
        ("'E'", "two texts"),
    ],
)
def test_invalid_maze_steps_are_rejected(answer: str, expected: str) -> None:
    outcome = judge_submission("grid_maze", f"def act(observation, memory):\n    return {answer}\n")
    assert isinstance(outcome, InvalidSubmission), outcome
    assert expected in outcome.reason


def test_a_force_beyond_one_is_no_stronger_and_costs_no_more() -> None:
    outcomes = [judge_submission("mountain_car", SWING.replace("1.0", strong)) for strong in ("1.0", "50.0")]
    assert all(isinstance(outcome, Grade) for outcome in outcomes)
    assert len({outcome.score for outcome in outcomes if isinstance(outcome, Grade)}) == 1


@pytest.mark.parametrize(("name", "text"), [("mountain_car", SWING), ("grid_maze", EAST)])
def test_what_a_policy_does_beside_acting_changes_nothing(name: str, text: str) -> None:
    tricks = (
        "import gymnasium, numpy\nnumpy.cos = lambda x: -9.0\nprint('return: 100')\nopen('score', 'w').write('1')\n"
    )
    honest, tricked = judge_submission(name, text), judge_submission(name, tricks + text)
    assert isinstance(honest, Grade), honest
    assert isinstance(tricked, Grade), tricked
    assert tricked.scores == honest.scores


def test_cars_drive_as_in_gymnasium_and_park_when_standing() -> None:
    make = load_part("mountain_car", "Cars", "starter/car.py")
    env: Any = gymnasium.make("MountainCarContinuous-v0").unwrapped
    env.state = np.array([-0.5, 0.0], dtype=np.float32)
    cars = make(np.array([-0.5]), np.array([0.0]))
    for force in np.sin(np.arange(60) / 5):
        state, *_ = env.step(np.array([force]))
        cars.step(np.array([force]))
        assert [cars.position[0], cars.velocity[0]] == pytest.approx(state.tolist(), abs=1e-4)
    passing, standing = make(np.array([0.45]), np.array([0.03])), make(np.array([0.45]), np.array([0.0]))
    for _ in range(10):
        passing.step(np.array([0.0]))
        standing.step(np.array([0.366]))
    assert (passing.driving.item(), standing.driving.item()) == (True, False)
    assert standing.costs[0] == pytest.approx(10 * (0.2 + 0.5 * 0.366**2))
    assert passing.costs[0] == pytest.approx(100 + 10 * 0.2)


def test_a_maze_can_always_be_walked_and_its_goal_is_not_near() -> None:
    maze, distances = load_part("grid_maze", "maze"), load_part("grid_maze", "distances")
    for seed in range(30):
        walk = maze(np.random.default_rng(seed))
        side = len(walk.free)
        assert not walk.free[[0, -1]].any()
        assert not walk.free[:, [0, -1]].any()
        assert 17 <= side <= 23
        assert distances(walk.free, walk.here)[walk.goal] >= side - 1


def test_walker_sees_its_surroundings_and_the_compass() -> None:
    walk_type = load_part("grid_maze", "Walk")
    free = np.zeros((5, 7), dtype=bool)
    free[1:4, 1:6] = True
    walk = walk_type(free, (1, 1), (3, 4), np.random.default_rng(0))
    assert walk.observation() == {
        "view": ["#####", "#####", "##...", "##...", "##..."],
        "goal": [1, 1],
        "moved": False,
        "step": 0,
    }
    while walk.here != (1, 4):
        walk.move("E")
    assert walk.observation()["view"] == ["#####", "#####", "....#", "....#", "..G.#"]
    assert walk.observation()["goal"] == [1, 0]
    before = walk.steps
    walk.move("N")
    assert (walk.here, walk.moved, walk.steps) == ((1, 4), False, before + 1)


def test_a_memory_comes_back_in_the_same_maze_and_in_no_other() -> None:
    """Every walker counts its own steps; the count that it is told must be the one that it kept."""
    text = (
        "def act(observation, memory):\n"
        "    count = int(memory or 0)\n"
        "    assert count == observation['step'], (count, observation['step'])\n"
        "    return 'NESW'[count % 4], str(count + 1)\n"
    )
    outcome = judge_submission("grid_maze", text)
    assert isinstance(outcome, Grade), outcome
    assert outcome.scores["reached"] < 0.1


def test_the_reference_keeps_its_memory_within_the_limit() -> None:
    act = load_part("grid_maze", "act", "reference/explorer.py")
    maze = load_part("grid_maze", "maze")
    walk = maze(np.random.default_rng(5))
    while not walk.there:
        action, walk.memory = act(json.loads(json.dumps(walk.observation())), walk.memory)
        assert len(walk.memory) <= sys.modules[maze.__module__].MAX_MEMORY
        walk.move(action)
        assert walk.steps < 300


def test_barn_empties_the_cart_and_a_rock_destroys_the_load() -> None:
    game = load_part("fruit_cart", "Game", "starter/game.py")(np.random.default_rng(0))
    game.cart = 2
    game.objects = [["apple", 9, 2], ["plum", 8, 2], ["apple", 9, 5]]
    game.step("stay")
    assert (sorted(game.load), game.points) == ([1, 3], 0)
    game.objects = []
    for _ in range(2):
        game.step("left")
    assert (game.cart, game.load, game.points) == (0, [], 4)
    game.load, game.cart, game.objects = [1, 1, 1, 1], 4, [["apple", 9, 4]]
    game.step("stay")
    assert len(game.load) == 4
    game.objects = [["rock", 9, 4]]
    game.step("stay")
    assert game.load == []
