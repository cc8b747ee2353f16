"""Measurements of this machine: constants, models made on the spot, and what follows from them."""
