"""What was measured: one record, the sinks that keep it, and what a person sees of it."""
