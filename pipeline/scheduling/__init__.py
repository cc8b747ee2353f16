"""Step plans of whole epochs: what the stage `schedule` is made of."""
