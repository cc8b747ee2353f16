"""The work of a training step on a GPU, one function a verb: Triton kernels, and the same with torch."""
