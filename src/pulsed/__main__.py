"""``python -m pulsed`` is the command ``pulsed``."""

from pulsed.cli import main

if __name__ == "__main__":
    main()
