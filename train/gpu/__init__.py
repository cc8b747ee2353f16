"""Steps, row moves and kernels on a device, with twins in torch."""
