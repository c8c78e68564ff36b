"""Trials: many models trained in workers, their scores kept."""
