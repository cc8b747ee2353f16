"""Training: model, tiers, placements, executor and loop. Reads shards through their manifest, never raw
logs."""

import os

# Torch's OpenMP threads spin while they wait for each other. On a core that another process wants too this
# costs two thirds of the speed (7 against 20 thousand samples/s beside one busy process, two cores); on
# quiet cores sleeping costs nothing that could be measured. The OpenMP runtime reads it when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
