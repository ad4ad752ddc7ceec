"""What a caller passes as ``using(conn=…)``, and the driver's connection behind it.

Stores know connections of drivers only. A library wraps those in objects of its own: a session, an
alias. A *source* knows the objects of one library (``sources.py``). That of SQLAlchemy is built in;
an integration adds its own with ``add_source``.
"""
