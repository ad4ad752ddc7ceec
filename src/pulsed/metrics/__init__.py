"""What a process tells a monitoring system: metrics for Prometheus, and probes of its health.

``endpoint`` serves them over HTTP, ``probes`` decides what is healthy, ``counts`` subscribes to
events, ``exposition`` writes the text. Only the last needs the extra ``metrics``.
"""
