"""DP-SGD by Opacus on handwritten digits (they ship with scikit-learn); its model becomes an audit bundle, model.pt.

Run it, then `dpaudit run model.pt`. `train` is the whole training, from a data set and a seed to a model; the same
function is audited by `dpaudit run model.pt --trainer opacus_digits.py:train`.
"""

import sys
from pathlib import Path

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpaudit.audit import bundle_from_opacus

RECORDS, EPOCHS, BATCH, NOISE, CLIP, DELTA = 200, 4, 100, 0.95, 5.0, 1e-5


class Net(nn.Module):
    """Two hidden layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 32), nn.Linear(32, 16), nn.Linear(16, 2)

    def forward(self, x):
        """Logits."""
        return self.last(torch.relu(self.second(torch.relu(self.first(x.flatten(1))))))


def digits():
    """Some of the digits 0 and 1, pixels in [0, 1]."""
    x, y = load_digits(n_class=2, return_X_y=True)
    return TensorDataset(torch.tensor(x[:RECORDS] / 16, dtype=torch.float32), torch.tensor(y[:RECORDS]))


def train_private(dataset, seed, noise_multiplier=NOISE, poisson_sampling=True):
    """An ordinary training by Opacus."""
    torch.manual_seed(0)  # the first weights are public
    module = Net()
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.003)
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
    engine = PrivacyEngine(accountant="prv")
    module, optimizer, loader = engine.make_private(
        module=module,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=noise_multiplier,
        max_grad_norm=CLIP,
        poisson_sampling=poisson_sampling,
    )
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
    return module, optimizer, engine, loader


def train(dataset, seed, noise_factor=1.0):
    """What an audit calls: the positive control asks for less noise."""
    return train_private(dataset, seed, NOISE * noise_factor)[0]


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "model.pt")
    parts = train_private(digits(), seed=1)
    print(bundle_from_opacus(path, *parts, delta=DELTA))
