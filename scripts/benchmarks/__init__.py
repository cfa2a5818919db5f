"""Benchmarks of jobpool through its API and command line: one file a family of figures, each against its target."""
