"""``python -m mars``, for multi-process launchers and for where the command is not on the path."""

from mars.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
