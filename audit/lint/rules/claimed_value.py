"""A claimed epsilon against what its own numbers come to."""

import ast
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import argument, records
from dpaudit.audit.lint.names import Number
from dpaudit.audit.lint.recipe_files import RecipeFile
from dpaudit.audit.lint.script import Script
from dpaudit.audit.lint.stated import call_epsilon, given, judges_itself, stated_epsilons

if TYPE_CHECKING:
    from dpaudit.verify import Verdict

QUANTITIES = ("delta", "noise_multiplier", "steps", "sampling_prob", "epochs", "records", "batch_size")
LEAST_EPSILON = 0.01  # what is less keeps a denominator from 0


def _find(script: Script) -> Iterator[Hit]:
    stated: list[tuple[ast.expr, Mapping[str, Number | None]]] = []
    for call in script.all_calls:
        epsilon = call_epsilon(script, call)
        if epsilon is not None and argument(call, "noise_multiplier") is not None:
            stated.append((epsilon, {name: script.names.number(argument(call, name)) for name in QUANTITIES}))
    epsilons = {script.names.number(node): node for node in reversed([*stated_epsilons(script)])}
    epsilons.pop(None, None)
    if len(epsilons) == 1:
        named = {name: given(script, name) for name in QUANTITIES}
        stated += [(node, {**named, "records": named["records"] or records(script)}) for node in epsilons.values()]
    judged = set()
    for node, numbers in stated if stated and not judges_itself(script) else []:
        claim = _claim({**numbers, "epsilon": script.names.number(node)})
        if claim is not None and claim not in judged:
            judged.add(claim)
            yield from _hits(node, *claim)


def _claim(given: Mapping[str, Number | None]) -> tuple[Number, Number, Number, int, float] | None:
    """(epsilon, delta, noise multiplier, steps, rate), if the numbers tell them; never more releases than were made."""
    count, batch, epochs = given["records"], given["batch_size"], given["epochs"]
    rate, steps = given["sampling_prob"], given["steps"]
    if count and batch and count >= batch > 0:
        least = 1 / math.ceil(count / batch)  # Opacus samples at this rate, which is at most batch / count
        if steps is None and epochs and (rate is None or math.isclose(rate, batch / count, rel_tol=0.01)):
            steps, rate = epochs * (count // batch), least
        rate = least if rate is None else rate
    epsilon, delta, noise = given["epsilon"], given["delta"], given["noise_multiplier"]
    if epsilon is None or delta is None or noise is None or steps is None or rate is None:
        return None
    plausible = epsilon >= LEAST_EPSILON and 0 < delta < 1 and noise > 0 and steps >= 1 and 0 < rate <= 1
    return (epsilon, delta, noise, int(steps), rate) if plausible else None


def _hits(place: ast.AST, epsilon: Number, delta: Number, noise: Number, steps: int, rate: float) -> Iterator[Hit]:
    from dpaudit.mechanisms import Gaussian
    from dpaudit.verify import Claim, check

    claim = Claim.single(Gaussian(float(noise)), epsilon=epsilon, delta=delta, steps=steps, sampling_prob=rate)
    verdict = check(claim)
    if verdict.verdict == "refuted":
        yield Hit(
            place,
            f"{_contradiction(verdict)}: {steps:,} Poisson batches of rate {rate:.4g} with noise multiplier {noise:g}",
            refuted=True,
        )


def _find_in_recipe(file: RecipeFile) -> Iterator[Hit]:
    from dpaudit.verify import check

    claim = file.recipe.claim_object()
    try:
        verdict = check(claim)
    except (TypeError, ValueError):  # the mechanism's dimension is that of a model nobody built
        return
    if verdict.verdict == "refuted":
        yield Hit(file.line("claim", "epsilon"), _contradiction(verdict), refuted=True)


def _contradiction(verdict: "Verdict") -> str:
    from dpaudit.reports.wording import at_least, stated

    lower, claimed = verdict.epsilon_lower, verdict.epsilon_claimed
    least = at_least(lower, above=claimed)
    return f"epsilon is at least {least} at delta {verdict.delta_claimed:g}, not {stated(claimed, below=lower)}"


RULE = Rule(
    name="claimed-value",
    level="warning",
    summary="A claimed epsilon that its own numbers contradict",
    reason="A certified lower bound on the epsilon of these parameters lies above the one that is stated beside them.",
    source="dpaudit verify: the witness is a pair of neighbouring data sets",
    fix="State the epsilon of an accountant, or solve the noise for this one with dpaudit calibrate.",
    in_script=_find,
    in_recipe=_find_in_recipe,
)
