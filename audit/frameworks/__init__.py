"""Trainings of other frameworks as audits see them: Opacus, and transformers' Trainer through it."""
