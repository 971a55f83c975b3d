import copy

import pytest
import torch

from palaestra.core.errors import ModelError
from palaestra.rl.optimizers import MixedAdamW, MuonAdamW, Optimizer, orthogonalize


def make_network() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def test_the_flat_optimizer_is_adamw_with_clipping() -> None:
    """Step by step the weights of torch's own optimizer, with two learning rates, decay, clipping and a schedule."""
    ours, theirs = make_network(), make_network()
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


@pytest.mark.parametrize(("small", "then_small"), [(True, True), (False, False), (False, True)])
def test_an_optimizer_goes_on_from_its_state(small: bool, then_small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last case: several processes had sharded the parameters, and a single one goes on."""

    def set_size(small: bool) -> None:
        monkeypatch.setattr("palaestra.rl.optimizers.MAX_FLAT_PARAMETERS", 1000 if small else 0)

    set_size(small)

    def run_steps(model: torch.nn.Module, optimizer: Optimizer, seeds: range) -> None:
        for seed in seeds:
            x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
            model(x).square().mean().backward()
            optimizer.clip_grad_norm(1.0)
            optimizer.step()
            optimizer.zero_grad()

    def make_optimizer(model: torch.nn.Module) -> Optimizer:
        return Optimizer([{"params": list(model.parameters()), "lr": 1e-2}])

    whole = make_network()
    run_steps(whole, make_optimizer(whole), range(6))
    first = make_network()
    optimizer = make_optimizer(first)
    run_steps(first, optimizer, range(3))
    second = copy.deepcopy(make_network())
    second.load_state_dict(first.state_dict())
    set_size(then_small)
    resumed = make_optimizer(second)
    resumed.load_state({name: value.clone() for name, value in optimizer.state().items()})
    run_steps(second, resumed, range(3, 6))
    for a, b in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b) if small == then_small else torch.allclose(a, b, atol=1e-6)


def test_non_finite_gradient_raises_before_the_step() -> None:
    model = make_network()
    before = copy.deepcopy(model.state_dict())
    optimizer = Optimizer([{"params": list(model.parameters()), "lr": 1e-2}])
    (model(torch.ones(1, 3)) * float("nan")).sum().backward()
    with pytest.raises(ModelError, match="gradient is nan"):
        optimizer.clip_grad_norm(1.0)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_half_weights_follow_a_float32_training() -> None:
    """Steps far below the distance of two bfloat16 numbers add up; against AdamW on float32 weights."""
    start = torch.linspace(0.5, 1.5, 64)
    exact, half = start.clone().requires_grad_(), start.bfloat16().requires_grad_()
    exact.data.copy_(half.detach().float())
    reference, optimizer = torch.optim.AdamW([exact], lr=1e-4, weight_decay=0.0), MixedAdamW([half], lr=1e-4)
    for step in range(50):
        slope = torch.sin(torch.arange(64.0) + 0.1 * step).bfloat16()
        for weights in (exact, half):
            for part in (0.25, 0.75):  # two microbatches
                (weights * (part * slope).to(weights.dtype)).sum().backward()
        reference.step()
        reference.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
    assert half.grad is None
    assert half.dtype == torch.bfloat16
    assert not torch.equal(half.detach(), start.bfloat16())
    torch.testing.assert_close(optimizer.param_groups[0]["params"][0].detach(), exact.detach(), atol=2e-5, rtol=0)
    assert torch.equal(half.detach(), optimizer.param_groups[0]["params"][0].detach().bfloat16())


def test_the_float32_copies_survive_a_checkpoint() -> None:
    def train(weights: torch.Tensor, optimizer: Optimizer, steps: range) -> None:
        for step in steps:
            (weights * torch.cos(torch.arange(8.0) + step).bfloat16()).sum().backward()
            optimizer.clip_grad_norm(0.1)
            optimizer.step()
            optimizer.zero_grad()

    whole = torch.ones(8, dtype=torch.bfloat16).requires_grad_()
    train(whole, Optimizer([{"params": [whole], "lr": 1e-3}]), range(6))
    first = torch.ones(8, dtype=torch.bfloat16).requires_grad_()
    optimizer = Optimizer([{"params": [first], "lr": 1e-3}])
    train(first, optimizer, range(3))
    state = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    second = first.detach().clone().requires_grad_()
    resumed = Optimizer([{"params": [second], "lr": 1e-3}])
    resumed.load_state(state)
    train(second, resumed, range(3, 6))
    assert torch.equal(whole, second)


def test_half_weights_are_trained_by_the_last_optimizer() -> None:
    half = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    first = MixedAdamW([half], lr=0.1)
    half.sum().backward()
    first.step()
    second = MixedAdamW([half], lr=0.1)
    start = half.detach().clone()
    half.sum().backward()
    second.step()
    assert torch.all(half < start)
    second.close()
    half.sum().backward()
    assert half.grad is not None, "after close, gradients stay with the parameter"


@pytest.mark.parametrize("shape", [(48, 32), (32, 48), (80, 20)])
def test_orthogonalising_brings_all_singular_values_near_one(shape: tuple[int, int]) -> None:
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalize(matrices))
    assert float(values.min()) > 0.4
    assert float(values.max()) < 1.3


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_steps_are_those_of_torchs_own_muon_within_its_bfloat16() -> None:
    generator = torch.Generator().manual_seed(1)
    ours = torch.nn.Parameter(torch.randn(24, 16, generator=generator))
    theirs = torch.nn.Parameter(ours.detach().clone())
    first = MuonAdamW([("matrix", ours), ("bias", torch.nn.Parameter(torch.zeros(2)))], lr=0.02, weight_decay=0.1)
    second = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    start = ours.detach().clone()
    for _ in range(5):
        gradient = torch.randn(24, 16, generator=generator)
        ours.grad, theirs.grad = gradient, gradient.clone()
        first.step()
        second.step()
    moved = float((ours.detach() - start).norm())
    assert float((ours.detach() - theirs.detach()).norm()) < 0.01 * moved
