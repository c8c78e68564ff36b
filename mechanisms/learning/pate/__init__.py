"""Private aggregation of teacher ensembles."""
