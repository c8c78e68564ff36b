"""Every rule of RULES says what it finds and why, and is silent where nothing is wrong."""

import re
from pathlib import Path

import pytest

from dpaudit.audit.lint.findings import Rule
from dpaudit.audit.lint.linting import lint_paths
from dpaudit.audit.lint.rules import RULES

NOT_PRIVATE = """
loader = DataLoader(data, batch_size=64, shuffle=True)
delta = 1 / len(loader)
net = nn.Sequential(nn.BatchNorm2d(8))
torch.manual_seed(0)
"""
RIGHT = """
from opacus import PrivacyEngine
from torch.utils.data import DataLoader

loader = DataLoader(data, batch_size=64)
engine = PrivacyEngine(accountant="prv", secure_mode=True)
model, optimizer, loader = engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.1, max_grad_norm=1.0
)
for batch in loader:
    step(batch)
print(engine.get_epsilon(delta=1e-6))
"""
RIGHT_RECIPE = """
algorithm = "dp-sgd"
steps = 50
dataset = {name = "digits"}
architecture = {name = "linear"}
mechanism = {name = "gaussian", noise_multiplier = 2.0}
sampling = {kind = "poisson", prob = 0.2}
claim = {epsilon = 5.0, delta = 1e-5}
"""

over_rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


@over_rules
def test_it_says_what_why_and_what_to_do(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    assert all(text.rstrip().endswith(".") for text in (rule.reason, rule.fix))
    assert rule.summary
    assert not rule.summary.endswith(".")
    assert rule.source
    assert rule.in_script or rule.in_recipe


@over_rules
def test_it_is_silent_where_nothing_is_wrong(rule: Rule, tmp_path: Path) -> None:
    for name, text in (("plain.py", NOT_PRIVATE), ("private.py", RIGHT), ("recipe.toml", RIGHT_RECIPE)):
        (tmp_path / name).write_text(text)
    others = set(RULES) - {rule.name}
    result = lint_paths([tmp_path], ignore=others)
    assert result.files == 3
    assert result.findings == ()
