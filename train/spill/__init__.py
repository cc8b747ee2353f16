"""Cold rows on disk, written for the batches that use them next."""
