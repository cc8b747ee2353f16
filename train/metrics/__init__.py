"""The quality of predictions over any number of samples, in bounded memory."""
