"""Expected traffic and step times from access rates alone."""
