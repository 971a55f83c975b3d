"""The baseline: go below the lowest fruit, and to the barn with a full cart."""


def act(observation: dict) -> str:
    fruit = [one for one in observation["objects"] if one[0] != "rock"]
    target = 0 if len(observation["load"]) >= 4 or not fruit else max(fruit, key=lambda one: one[1])[2]
    cart = observation["cart"]
    return "left" if target < cart else "right" if target > cart else "stay"
