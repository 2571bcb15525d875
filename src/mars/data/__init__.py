"""Text to token shards, and the resumable order in which training reads them; no models here."""
