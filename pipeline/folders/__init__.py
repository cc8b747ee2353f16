"""Sealed stage folders: manifest, checksums, locks, and how an interrupted run resumes."""
