"""`python -m splitveil` is the command `splitveil`."""

from splitveil.cli.main import run

if __name__ == "__main__":
    run()
