"""The rules: a file each, and its line here."""

from dpaudit.audit.lint.findings import Rule
from dpaudit.audit.lint.rules import (
    adaptive_clipping,
    batch_clipping,
    batch_norm,
    buffered_shuffle,
    claimed_value,
    clt_accountant,
    delta_from_loader,
    delta_too_large,
    fixed_noise_seed,
    fixed_shuffle_seed,
    loader_sample_rate,
    microbatches,
    noise_generator,
    noiseless_step,
    old_rdp_conversion,
    passes_over_another_n,
    realised_divisor,
    search_not_accounted,
    shuffled_as_poisson,
    sigma_as_multiplier,
)

RULES: dict[str, Rule] = {
    module.RULE.name: module.RULE
    for module in (
        shuffled_as_poisson,
        buffered_shuffle,
        fixed_shuffle_seed,
        fixed_noise_seed,
        noise_generator,
        delta_from_loader,
        delta_too_large,
        passes_over_another_n,
        realised_divisor,
        loader_sample_rate,
        sigma_as_multiplier,
        claimed_value,
        clt_accountant,
        old_rdp_conversion,
        adaptive_clipping,
        search_not_accounted,
        batch_norm,
        batch_clipping,
        noiseless_step,
        microbatches,
    )
}
