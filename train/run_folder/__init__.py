"""The folder of a training run: its files, written and read, checked and compared."""
