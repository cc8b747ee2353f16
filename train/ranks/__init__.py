"""How ranks reach each other: one process, threads of one, or processes of torch.distributed."""
