"""Attacks: from a target and data to scores, higher = member."""
