"""Training: what is built from a config, and the loop that runs it."""
