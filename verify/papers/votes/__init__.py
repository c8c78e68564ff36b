"""Noisy argmaxes over teachers' votes: the history of queries, and bounds on what one changed vote can do to it."""
