"""The claim check of a recipe: the history's own, or, where noise goes into an objective, the bound derived from it."""

from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.verify.checking import check
from dpaudit.verify.perturbed_objective import check_perturbed_objective
from dpaudit.verify.results import Verdict


def check_recipe(recipe: Recipe) -> Verdict:
    """Check the claim of a recipe, its mechanisms' dimension filled in."""
    claim = recipe.claim_object()
    if recipe.algorithm != "approximate-minima":
        return check(claim)
    from dpaudit.mechanisms.learning.approximate_minima import jacobian_loss  # loads torch

    loss, regularization = recipe.loss or "logistic", float(recipe.regularization or 0.0)
    return check_perturbed_objective(claim, jacobian=jacobian_loss(loss, regularization))
