"""The optimizer library: torch and the standard library only."""
