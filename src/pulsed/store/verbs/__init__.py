"""Verbs: whole transitions of the state machine, as scripts of statements without I/O."""
