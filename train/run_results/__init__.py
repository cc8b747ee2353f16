"""The results of a training run: its log while it trains, its summary when it ends."""
