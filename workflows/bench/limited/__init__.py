"""Training under a limit of memory: ``hotset bench larger-than-memory``."""
