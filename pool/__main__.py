"""``python -m pool``: the command line, or a worker, which must not import the command line."""

import sys


def main() -> int:
    """Run a worker for a supervisor, or else the command a person typed."""
    if len(sys.argv) == 3 and sys.argv[1] == "worker":
        from pool.boot import main as worker

        return worker(sys.argv[2])
    from pool.cli import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
