"""The tests: unit (no process of ours), contract (the database as others see it), integration (real pools)."""
