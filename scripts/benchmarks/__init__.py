"""Benchmarks of jobpool through its public API and command line: one file a family of figures, each against a target."""
