"""Models of histories: list-valued features whose elements keep their embeddings and their order."""
