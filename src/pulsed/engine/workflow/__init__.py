"""What a handler does through its context: steps, waits, fan-outs."""
