"""`dpaudit selfcheck`: how often statistical bounds are wrong where the truth is known."""

from typing import Annotated

import typer

from dpaudit.audit.commands.console import GAVE_UP, Seed, progress_bars, seed_or_drawn


def selfcheck(
    trials: Annotated[int, typer.Option(min=100, max=10_000_000, help="Simulated audits per bound.")] = 1000,
    seed: Seed = None,
) -> None:
    """Measure the error rates of statistical bounds on mechanisms with known truth."""
    import numpy as np

    from dpaudit.verify.selfcheck import cases, measure_error_rates

    rng = np.random.default_rng(seed_or_drawn(seed))
    with progress_bars() as stage:
        rows = measure_error_rates(rng, trials=trials, progress=stage("Simulating audits", trials * len(cases())))
    for row in rows:
        typer.echo(
            f"{'ok  ' if row.passed else 'FAIL'} {row.bound}; {row.mechanism}: {row.false_alarms} false alarms in "
            f"{row.trials} at level {1 - row.confidence:.2g}, {row.allowed} allowed"
        )
    if not all(row.passed for row in rows):
        raise typer.Exit(GAVE_UP)
