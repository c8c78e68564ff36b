"""Sealed canaries: one-run audits of trainings that we never see."""
