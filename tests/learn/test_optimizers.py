import copy

import pytest
import torch

from palaestra.core.errors import ModelError
from palaestra.learn.optimizers import Optimizer


def network() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def test_the_flat_optimizer_is_adamw_with_clipping() -> None:
    """Step by step the weights of torch's own optimizer, with two learning rates, decay, clipping and a schedule."""
    ours, theirs = network(), network()
    layers = [list(ours[0].parameters()), list(ours[2].parameters())]  # type: ignore[index]
    optimizer = Optimizer([{"params": layers[0], "lr": 1e-2}, {"params": layers[1], "lr": 3e-3}], 0.1)
    inner = torch.optim.AdamW(
        [{"params": theirs[0].parameters(), "lr": 1e-2}, {"params": theirs[2].parameters(), "lr": 3e-3}], weight_decay=0.1
    )  # type: ignore[index]  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    for step in range(20):
        fraction = 1 - step / 20
        optimizer.scale_learning_rates(fraction)
        inner.param_groups[0]["lr"], inner.param_groups[1]["lr"] = 1e-2 * fraction, 3e-3 * fraction
        x, y = torch.randn(8, 3, generator=generator), 5 * torch.randn(8, 2, generator=generator)
        for model in (ours, theirs):
            ((model(x) - y) ** 2).mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        assert abs(optimizer.clip_grad_norm(0.5) - float(norm)) < 1e-4
        optimizer.step()
        optimizer.zero_grad()
        inner.step()
        inner.zero_grad()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("small", [True, False])
def test_an_optimizer_goes_on_from_its_state(small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not small:
        monkeypatch.setattr("palaestra.learn.optimizers.MAX_FLAT_PARAMETERS", 0)

    def steps(model: torch.nn.Module, optimizer: Optimizer, seeds: range) -> None:
        for seed in seeds:
            x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
            model(x).square().mean().backward()
            optimizer.clip_grad_norm(1.0)
            optimizer.step()
            optimizer.zero_grad()

    def fresh(model: torch.nn.Module) -> Optimizer:
        return Optimizer([{"params": list(model.parameters()), "lr": 1e-2}])

    whole = network()
    steps(whole, fresh(whole), range(6))
    first = network()
    optimizer = fresh(first)
    steps(first, optimizer, range(3))
    second = copy.deepcopy(network())
    second.load_state_dict(first.state_dict())
    resumed = fresh(second)
    resumed.load_state({name: value.clone() for name, value in optimizer.state().items()})
    steps(second, resumed, range(3, 6))
    for a, b in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_gradient_that_is_not_finite_stops_before_the_weights_are_spoiled() -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    optimizer = Optimizer([{"params": list(model.parameters()), "lr": 1e-2}])
    (model(torch.ones(1, 3)) * float("nan")).sum().backward()
    with pytest.raises(ModelError, match="the gradient is nan; lower the learning rate"):
        optimizer.clip_grad_norm(1.0)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
