"""Jobs over gRPC: a server in front of any store, and a store that talks to such a server.

gRPC itself is imported only when a ``pulse://`` URL or ``pulsed server`` asks for it.
"""

import os

# Otherwise its core writes a line to stderr whenever a server goes away, which is no news to us.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
