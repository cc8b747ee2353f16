"""Rows of hotset in training loops of one's own."""
