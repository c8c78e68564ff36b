"""What the papers claim it costs, faults included."""
