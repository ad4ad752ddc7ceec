"""Which pulsed this is. The package takes its version from here, too."""

__version__ = "0.1.0"
