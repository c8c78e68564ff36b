"""Noise that Opacus's optimizer was seen to add: honest loops are left alone, too little is seen in one training."""

import math

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpaudit.audit.frameworks.added_noise import AddedNoise, noise_seen
from dpaudit.audit.frameworks.opacus_training import watched
from dpaudit.audit.inputs.user_code import remarks_silenced
from dpaudit.mechanisms import Gaussian
from dpaudit.verify import Claim, Phase, check

NOISE, CLIP = 1.3, 0.7


def train(epochs: int = 6, virtual: bool = False, reduction: str = "mean") -> None:
    torch.manual_seed(3)
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=(96, 20)).astype(np.float32), generator.integers(0, 3, 96)
    loader = DataLoader(TensorDataset(torch.tensor(x), torch.tensor(y)), batch_size=24)
    module = nn.Linear(20, 3)
    module, optimizer, loader = PrivacyEngine().make_private(
        module=module, optimizer=torch.optim.Adam(module.parameters(), lr=0.01), data_loader=loader,
        noise_multiplier=NOISE, max_grad_norm=CLIP, loss_reduction=reduction,
    )  # fmt: skip
    criterion = nn.CrossEntropyLoss(reduction=reduction)
    for _ in range(epochs):
        if virtual:
            with BatchMemoryManager(data_loader=loader, max_physical_batch_size=7, optimizer=optimizer) as batches:
                for inputs, labels in batches:
                    optimizer.zero_grad()
                    criterion(module(inputs), labels).backward()
                    optimizer.step()
            continue
        for inputs, labels in loader:
            optimizer.zero_grad()
            criterion(module(inputs), labels).backward()
            optimizer.step()


def claim() -> Claim:
    epsilon = check(Claim(1.0, 1e-5, [Phase(Gaussian(NOISE, CLIP), 24, 0.25)])).epsilon_upper
    return Claim(1.001 * epsilon, 1e-5, [Phase(Gaussian(NOISE, CLIP), 24, 0.25)])


@pytest.mark.parametrize(("virtual", "reduction"), [(False, "mean"), (True, "mean"), (False, "sum")])
def test_honest_loops_add_what_was_accounted(virtual: bool, reduction: str) -> None:
    with remarks_silenced(), watched() as made, noise_seen(made) as seen:
        train(virtual=virtual, reduction=reduction)
    assert seen.values == 24 * 63
    low, high = seen.interval()
    assert low < 1.0 < high
    assert high - low < 0.2
    assert seen.lacking(claim()) is None


def test_less_noise_is_seen_and_what_it_costs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DPOptimizer.add_noise

    def half(self: DPOptimizer) -> None:
        self.noise_multiplier *= 0.5
        honest(self)
        self.noise_multiplier /= 0.5

    monkeypatch.setattr(DPOptimizer, "add_noise", half)
    with remarks_silenced(), watched() as made, noise_seen(made) as seen:
        train()
    low, high = seen.interval()
    assert low < 0.5 < high < 0.56
    truth = check(Claim(1.0, 1e-5, [Phase(Gaussian(0.5 * NOISE, CLIP), 24, 0.25)])).epsilon_lower
    said = seen.lacking(claim())
    assert said is not None
    assert "the claim is refuted" in said
    assert 0.8 * truth < float(said.rsplit(" ", 1)[1].rstrip(".")) <= truth


def test_no_noise_and_nothing_seen() -> None:
    assert AddedNoise().interval() == (0.0, math.inf)
    assert AddedNoise().lacking(claim()) is None
    assert "the claim is refuted" in (AddedNoise(0.0, 100).lacking(claim()) or "")


def test_the_interval_misses_as_rarely_as_it_says() -> None:
    """Of so many trainings of few values none may be missed: the binomial limit at a millionth is 0 of 2,000."""
    values = np.random.default_rng(0).normal(size=(2000, 50))
    bounds = [AddedNoise(float(row @ row), 50).interval() for row in values]
    assert all(low <= 1.0 <= high for low, high in bounds)
    assert np.mean([high for _, high in bounds]) < 2.0
