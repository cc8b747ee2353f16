"""Reading raw logs: Criteo's text, CSV and Parquet to typed columns."""
