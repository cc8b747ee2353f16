"""Model, tiers, placements, executor and loop. Reads shards through their manifest, never raw logs."""
