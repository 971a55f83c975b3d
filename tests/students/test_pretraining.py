import pytest
import torch

from palaestra.students.pretraining import Muon, orthogonalize


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
    first = Muon([ours], lr=0.02, weight_decay=0.1)
    second = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    start = ours.detach().clone()
    for _ in range(5):
        gradient = torch.randn(24, 16, generator=generator)
        ours.grad, theirs.grad = gradient, gradient.clone()
        first.step()
        second.step()
    moved = float((ours.detach() - start).norm())
    assert float((ours.detach() - theirs.detach()).norm()) < 0.01 * moved
