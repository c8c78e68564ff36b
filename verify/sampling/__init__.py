"""Privacy losses drawn from the mechanism's own sampler and density, plain or tilted, and intervals for their means."""
