"""The server of `pulsed server`."""
