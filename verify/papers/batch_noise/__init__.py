"""The papers' other readings: noise on every example of a batch, and division by the realised batch size."""

from dpaudit.verify.papers.batch_noise.bracket import batch_noise_bracket
from dpaudit.verify.papers.batch_noise.known_others import Reading

__all__ = ["Reading", "batch_noise_bracket"]
