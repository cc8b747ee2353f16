"""Codecs of the rows that cross between ranks: float32 in, fewer bytes out, with a promise for the error."""
