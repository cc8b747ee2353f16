"""Training: model, tiers, placements and loop; reads sealed shards, never raw logs."""

import os

# Torch's OpenMP threads spin while they wait for each other. On a core that another process also wants, this
# costs two thirds of the speed (7 instead of 20 thousand samples/s with one busy process on two cores); on
# quiet cores sleeping costs nothing measurable. The OpenMP runtime reads the setting when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
