"""The store behind `pulse://`: every verb is a call to a server."""
