"""Kernels for counting, ranking, budgets, planning and metrics.

Arrays in, arrays out: nothing here opens a file or imports torch.
"""
