"""Engines: how a step runs. Every engine does the same arithmetic on the same buckets."""
