"""The process around a worker: stop signals, the event loop, the supervisor."""
