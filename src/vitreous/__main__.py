"""``python -m vitreous``, and the command ``vitreous``."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C is one line also while that is still being imported."""
    try:
        from vitreous.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("vitreous: stopped\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
