"""Jobs over gRPC: a server in front of any store, and a store that talks to such a server.

gRPC itself is imported only when a ``pulse://`` URL or ``pulsed server`` asks for it.
"""

import os

# Otherwise gRPC's core writes to stderr for every lost server, which the client handles anyway.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
