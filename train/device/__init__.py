"""The interface of a device: a few verbs, on a GPU and on a simulated device."""
