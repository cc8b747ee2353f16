"""The command line, recipes, benchmarks and reports."""
