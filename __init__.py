"""hotset prepares click logs and trains recommendation models on what it prepared.

``hotset.pipeline`` turns raw logs into shards, ``hotset.train`` trains on them, ``hotset.stats``
holds the arithmetic both share, ``hotset.workflows`` the command line.
"""

__version__ = "0.1.0"
