"""One training step: at once on the host, or queued on a device."""
