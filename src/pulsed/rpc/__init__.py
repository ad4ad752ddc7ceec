"""Jobs over gRPC: a server in front of any store, and a store that talks to such a server.

Nothing here is imported unless a ``pulse://`` URL or ``pulsed server`` asks for it.
"""
