"""Four papers' own parameter searches, readings of their noise, and private votes. The core imports nothing of it."""
