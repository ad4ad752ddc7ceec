"""The unary methods of the contract, over any store.

Each method is a function of its request and its caller; what it raises is turned into a status in
one place (``server.py``). A caller that is limited to topics or queues is checked item by item,
before anything is changed.
"""
