"""Made from proto/pulse/v1/pulse.proto by ``python3 dev.py proto``; never edited."""
