"""Certified lower bounds from witnesses."""

from dpaudit.verify.lower.search import certified_lower as certified_lower
from dpaudit.verify.lower.search import replayed_lower as replayed_lower
