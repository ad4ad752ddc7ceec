"""Django's own tests of task backends, run against pulsed's: ``python3 dev.py django``.

They come from Django's source distribution, at run time, and are not changed: `stand_ins.py` has
pulsed's backend in the places of the two backends that they are about.
"""
