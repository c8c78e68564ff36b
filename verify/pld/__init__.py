"""Discretised privacy losses: output cells, dominating pairs, convolutions and moments, with error bounds."""
