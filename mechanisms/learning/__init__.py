"""How a model is trained with a mechanism; returns a ledger of what happened."""
