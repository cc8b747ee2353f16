"""Tables in the order of importance: what the stage `rank` is made of."""
