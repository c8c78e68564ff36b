"""An accountant that is a limit, not a bound."""

from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.names import keyword, last_name
from dpaudit.audit.lint.script import Script

FUNCTIONS = ("compute_mu_poisson", "compute_mu_uniform", "compute_eps_poisson", "compute_eps_uniform")


def _find(script: Script) -> Iterator[Hit]:
    for call in script.calls(*FUNCTIONS, "GaussianAccountant"):
        yield Hit(
            call, f"{last_name(call.func)} is the central limit of many steps, and can lie below the true epsilon"
        )
    for call in script.calls("PrivacyEngine", "create_accountant"):
        kind = keyword(call, "accountant", "mechanism")
        if script.names.value(kind) in ("gdp", "glw"):
            yield Hit(call, f"accountant={script.names.value(kind)!r} is an approximation without an error bound")


RULE = Rule(
    name="clt-accountant",
    level="warning",
    summary="The central limit theorem as an accountant",
    reason="It is exact for infinitely many steps, and has no error bound for the steps that were made: it understates "
    "epsilon.",
    source="Gopi, Lee and Wutschitz (2021), Numerical Composition of Differential Privacy, "
    "https://arxiv.org/abs/2106.02848",
    fix='Account by privacy-loss distributions (accountant="prv", dp_accounting.pld) or Rényi moments.',
    in_script=_find,
)
