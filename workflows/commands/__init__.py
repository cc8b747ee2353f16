"""The commands of `hotset`: parse, call, print."""
