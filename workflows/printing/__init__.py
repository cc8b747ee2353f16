"""The output of commands for people: tables and sentences."""
