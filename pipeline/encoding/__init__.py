"""Categories looked up in tables of ids: what the stage `encode` is made of."""
