"""The papers' other readings: noise on every example of a batch, and division by the realised batch size."""

from dpaudit.verify.batch_readings.bracket import batch_reading_bracket
from dpaudit.verify.batch_readings.revealed import Reading

__all__ = ["Reading", "batch_reading_bracket"]
