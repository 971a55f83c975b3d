"""Plan over all objects in sight: the best path of the cart, by dynamic programming over its column and its load.

A caught fruit counts by the chance that it reaches the barn; a rock costs the whole load. What lies beyond the plan is valued by the room in the cart and
the distance to the barn.
"""

COLUMNS, ROWS, STEPS, CAPACITY = 12, 10, 200, 4
KINDS = {"apple": (1, 1), "plum": (2, 3), "rock": (1, 0)}
HORIZON = 24
WALK = 0.02
"""The cost of a step away from the barn with a load, in fractions of a fruit's mean value."""
MEAN = 1.6
"""The value of the load by fruit, when it is not known."""
FRUIT = 1.1
"""What a free place in the cart is worth at the end of the plan, in the middle of the fruit."""


def act(observation: dict) -> str:
    left = STEPS - observation["step"]
    arrivals: dict[tuple[int, int], list[str]] = {}
    for kind, row, column in observation["objects"]:
        time = -(-(ROWS - row) // KINDS[kind][0])
        arrivals.setdefault((time, column), []).append(kind)
    horizon = min(HORIZON, left)
    mean = sum(observation["load"]) / len(observation["load"]) if observation["load"] else MEAN
    # values[column][load]: the points that are still to come.
    values = [
        [end_value(column, load, left - horizon, mean) for load in range(CAPACITY + 1)] for column in range(COLUMNS)
    ]
    best = {}
    for time in range(horizon, 0, -1):
        now = []
        for column in range(COLUMNS):
            here = arrivals.get((time, column), ())
            now.append([arrive(column, load, here, values[column], mean) for load in range(CAPACITY + 1)])
        # now[column][load]: the value of having moved to the column at this time.
        values = [
            [max(now[place][load] for place in near(column)) for load in range(CAPACITY + 1)]
            for column in range(COLUMNS)
        ]
        best = now
    cart, load = observation["cart"], min(len(observation["load"]), CAPACITY)
    place = max(near(cart), key=lambda one: best[one][load])
    return "left" if place < cart else "right" if place > cart else "stay"


def near(column: int) -> range:
    return range(max(column - 1, 0), min(column + 2, COLUMNS))


def arrive(column: int, load: int, kinds: tuple | list, later: list[float], mean: float) -> float:
    gain = 0.0
    if column == 0:
        gain, load = load * mean, 0
    for kind in kinds:
        if kind == "rock":
            load = 0
        elif load < CAPACITY:
            load += 1
            gain += KINDS[kind][1] - mean  # The rest is paid in the barn.
    return gain + later[load] - WALK * load


def end_value(column: int, load: int, left: int, mean: float) -> float:
    if column > left:
        return 0.0  # The barn is out of reach.
    return load * mean * (1 - 0.02 * column) + FRUIT * (CAPACITY - load) * min(1.0, left / 20) * (
        0.5 + 0.5 * min(column, 5) / 5
    )
