"""Searches for parameters: the least noise that meets a target by any accountant."""
