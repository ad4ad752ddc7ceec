"""The files of a new project, which ``pulsed init`` writes."""
