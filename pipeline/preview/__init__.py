"""Previews: the stages a run would execute, the resources it needs, and schemas inferred from a log."""
