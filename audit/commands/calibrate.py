"""`dpaudit calibrate`: a privacy budget in, the least noise that meets it out."""

from typing import Annotated

import typer

from dpaudit.audit.commands.console import written_apart


def calibrate(
    mechanism: Annotated[str, typer.Option(help="Its name; see dpaudit mechanisms.", metavar="NAME")],
    epsilon: Annotated[float, typer.Option(help="Privacy budget to meet, at least 0.")],
    delta: Annotated[float, typer.Option(help="In [0, 1).")],
    parameters: Annotated[
        list[str] | None, typer.Option("--set", help="Noise parameter that is fixed; repeatable.", metavar="NAME=VALUE")
    ] = None,
    free: Annotated[str | None, typer.Option(help="Parameter to find; the missing one.", metavar="NAME")] = None,
    clip: Annotated[float | None, typer.Option(help="Bound on a record's contribution; default 1.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="The p of its l_p norm, or inf; default 2.")] = None,
    dimension: Annotated[int | None, typer.Option(help="Coordinates of the noise.")] = None,
    steps: Annotated[int, typer.Option(help="Releases.")] = 1,
    sampling_prob: Annotated[float, typer.Option(help="Poisson rate; 1 is no sampling.")] = 1.0,
    adjacency: Annotated[str, typer.Option(help="add-remove, replace-one or zero-out.", metavar="NAME")] = "add-remove",
    json: Annotated[str | None, typer.Option(help="Write JSON here as well; - prints it alone.")] = None,
) -> None:
    """Find the least noise whose proven bound meets (epsilon, delta)."""
    written_apart(json)
    from dpaudit.audit.calibrate_run import run_calibrate

    given = {"name": mechanism, "clip": clip, "clip_norm": clip_norm, "dimension": dimension}
    # what is not is the mechanism's own default, and --set may give it
    table = {key: value for key, value in given.items() if value is not None}
    run_calibrate(
        table, parameters or [], json_file=json, show=typer.echo, epsilon=epsilon, delta=delta, steps=steps,
        sampling_prob=sampling_prob, adjacency=adjacency, free=free,
    )  # fmt: skip
